"""Models for images or sequences of any size, made for one: files have fixed sizes."""

import operator
from collections.abc import Sequence
from typing import Any

import tf_keras as keras

from sat_tf.qat.flatten import copied_weights
from sat_tf.qat.network import Network, Node


def with_image_size(model: keras.Model, image_size: Sequence[int]) -> keras.Model:
    """A copy of a model of images of any size, for images of one.

    Args:
        model: a model with inputs (None, None, channels), or of sequences (None, channels),
            quantized by sat-tf or not; it is not changed.
        image_size: rows and columns, of every input that leaves them open; (steps,) for sequences.

    Returns:
        A model with the same weights, to be exported, deployed and verified like any other.

    Raises:
        ValueError: a size that is none, or that does not fit the model.
    """
    sizes = _checked(image_size)
    network = Network(model)
    network.refuse_problems()
    is_open = any(None in network[name].shape for name in network.inputs)
    layers: dict[int, keras.layers.Layer] = {}
    made: dict[str, Any] = {}
    for node in network:
        layer = node.layer
        if id(layer) not in layers:
            config = layer.get_config()
            if isinstance(layer, keras.layers.InputLayer):
                config["batch_input_shape"] = (None, *_sized(node, sizes, is_open))
            layers[id(layer)] = type(layer).from_config(config)
        copy = layers[id(layer)]
        if node.name in network.inputs:
            made[node.name] = copy.output
        else:
            try:
                made[node.name] = node.call(copy, [made[name] for name in node.inputs])
            except ValueError as error:
                raise ValueError(
                    f"image_size={image_size!r}: received a size that does not fit {node.name} "
                    f"({str(error).strip().splitlines()[-1].strip()}), expected a larger one, or "
                    "the one that the model was made for."
                ) from error
            copied_weights(layer, copy)
    return network.assemble(made)


def is_sized(model: keras.Model) -> bool:
    """Whether the sizes of all images are fixed."""
    return all(None not in tuple(tensor.shape[1:]) for tensor in model.inputs)


def _checked(image_size: Any) -> tuple[int, ...]:
    try:
        sizes = tuple(operator.index(size) for size in image_size)
    except (TypeError, ValueError):
        sizes = ()
    if len(sizes) not in (1, 2) or min(sizes) < 1:
        raise ValueError(
            f"image_size={image_size!r}: expected rows and columns, two integers of at least 1, "
            "such as (224, 224), or (steps,) for sequences."
        )
    return sizes


def _sized(node: Node, sizes: tuple[int, ...], is_open: bool) -> tuple[int | None, ...]:
    shape = node.shape
    fits = len(shape) == len(sizes) + 1 and all(
        own in (None, size) for own, size in zip(shape, sizes, strict=False)
    )
    if fits:
        return *sizes, shape[-1]
    if is_open and None not in shape:
        return shape  # an input of another kind beside those that leave it open
    expected = "steps" if len(shape) == 2 else "rows, columns"
    raise ValueError(
        f"{node.name}: received image_size={sizes} for an input of shape {shape}, "
        f"expected ({expected}, channels) with sizes that are open or the same."
    )
