"""Models for images of any size, made for one: files have fixed sizes."""

import operator
from typing import Any

import tf_keras as keras

from sat_tf.qat.flatten import copied_weights
from sat_tf.qat.network import Network, Node


def with_image_size(model: keras.Model, image_size: tuple[int, int]) -> keras.Model:
    """A copy of a model of images of any size, for images of one.

    Args:
        model: a model with inputs (None, None, channels), quantized by sat-tf or not; it is not
            changed.
        image_size: rows and columns, of every input that leaves them open.

    Returns:
        A model with the same weights, to be exported, deployed and verified like any other.

    Raises:
        ValueError: a size that is none, or that does not fit the model.
    """
    rows, columns = _checked(image_size)
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
                config["batch_input_shape"] = (None, *_sized(node, rows, columns, is_open))
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


def _checked(image_size: Any) -> tuple[int, int]:
    try:
        rows, columns = (operator.index(size) for size in image_size)
    except (TypeError, ValueError):
        rows = columns = 0
    if rows < 1 or columns < 1:
        raise ValueError(
            f"image_size={image_size!r}: expected rows and columns, two integers of at least 1, "
            "such as (224, 224)."
        )
    return rows, columns


def _sized(node: Node, rows: int, columns: int, is_open: bool) -> tuple[int | None, ...]:
    shape = node.shape
    fits = len(shape) == 3 and all(
        own in (None, size) for own, size in zip(shape, (rows, columns), strict=False)
    )
    if fits:
        return rows, columns, shape[2]
    if is_open and None not in shape:
        return shape  # an input of another kind beside those that leave it open
    raise ValueError(
        f"{node.name}: received image_size=({rows}, {columns}) for an input of shape {shape}, "
        "expected (rows, columns, channels) with sizes that are open or the same."
    )
