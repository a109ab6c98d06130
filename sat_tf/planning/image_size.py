"""The shapes of a network for one size of its images."""

import dataclasses
from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from sat_tf.arguments import is_integer
from sat_tf.qat.network import Network, Node

Shape = tuple[int | None, ...]

# What Keras and TensorFlow say of layers that are larger than their images.
_NOTHING_LEFT = ("dimensions in the output is <= 0", "must be >= 0")


def with_image_size(network: Network, image_size: int | Sequence[int] | None) -> Network:
    """The network with the shapes that its tensors have for images of this size.

    Args:
        network: of any model.
        image_size: rows and columns, or one number for both, or (steps,) for sequences; None leaves
            the shapes as they are.

    Raises:
        ValueError: it is no size, the model has another one, or nothing would be left of it.
    """
    if image_size is None:
        return network
    size = _checked(image_size)
    shapes: dict[str, Shape] = {name: network[name].shape for name in network.inputs}
    sized = {name: (*size, shape[-1]) for name, shape in shapes.items() if _fits(shape, size)}
    if not sized or any(None in shapes[name] for name in shapes.keys() - sized.keys()):
        listed = ", ".join(str(shape) for shape in shapes.values())
        raise ValueError(
            f"image_size={image_size!r}: received a size for a model of inputs {listed}, expected "
            "one of images or sequences with open sizes; leave it out."
        )
    shapes |= sized
    nodes = []
    for node in network:
        if node.name not in shapes:
            shapes[node.name] = _output_shape(node, [shapes[name] for name in node.inputs])
            if any(found is not None and found < 1 for found in shapes[node.name]):
                raise ValueError(
                    f"image_size={image_size!r}: received images that are too small for "
                    f"{node.name}, which would leave nothing of them; give a larger size."
                )
        nodes.append(dataclasses.replace(node, shape=shapes[node.name]))
    return network.rearranged(nodes, {})


def _fits(shape: Shape, size: tuple[int, ...]) -> bool:
    return len(shape) == len(size) + 1 and all(
        own is None or own == asked for own, asked in zip(shape, size, strict=False)
    )


def input_shape(node: Node, shapes: Sequence[Shape]) -> Any:
    """What Keras calls the shape of a layer's input: with the batch, in a list where it has one."""
    whole = [tf.TensorShape((None, *shape)) for shape in shapes]
    return whole if node.takes_list or len(whole) != 1 else whole[0]


def _checked(image_size: Any) -> tuple[int, ...]:
    sizes = (image_size, image_size) if is_integer(image_size, lowest=1) else image_size
    known = isinstance(sizes, tuple | list) and len(sizes) in (1, 2)
    if known and all(is_integer(size, lowest=1) for size in sizes):
        return tuple(map(int, sizes))
    raise ValueError(
        f"image_size={image_size!r}: expected a positive integer, or rows and columns; write 224 "
        "or (224, 224), or (steps,) for sequences."
    )


def _output_shape(node: Node, shapes: list[Shape]) -> Shape:
    """The shape of a layer's output; sizes are None where it does not say."""
    if any(None in shape for shape in shapes):
        return node.shape
    try:
        found = node.layer.compute_output_shape(input_shape(node, shapes))
        return tuple(tf.TensorShape(found).as_list()[1:])
    except Exception as error:  # A layer of the user's own raises whatever it does.
        if isinstance(error, ValueError) and any(text in str(error) for text in _NOTHING_LEFT):
            return (0,) * len(node.shape)
        return node.shape
