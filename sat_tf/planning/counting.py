"""How many multiply-adds a layer takes."""

import math
from collections.abc import Callable

import tf_keras as keras

from sat_tf.planning.image_size import Shape
from sat_tf.qat.network import Node

FLOAT_BITS = 32


def multiply_adds(node: Node, input_shapes: list[Shape]) -> int | None:
    """Products of weights and inputs for one image; None where they are not known.

    One multiply-add a weight and place where it is used. What has no weights, and what has one for
    each channel, such as a normalization, counts nothing.

    Args:
        node: the layer.
        input_shapes: of the tensors it reads, without the batch.
    """
    layer = node.layer
    for classes, count in _COUNTS:
        if isinstance(layer, classes):
            counted = count(layer, input_shapes[0], node.shape) if input_shapes else None
            return None if counted is None else int(counted)
    if isinstance(layer, _ONE_A_CHANNEL) or all(len(w.shape) <= 1 for w in layer.weights):
        return 0
    return None


def bit_operations(
    products: int | None, weight_bits: int | None, reading_bits: int | None
) -> int | None:
    """BOPs: multiply-adds times the bits of both factors; None for float values counts as 32.

    >>> bit_operations(100, 4, 8), bit_operations(100, None, None), bit_operations(None, 4, 4)
    (3200, 102400, None)
    """
    if products is None:
        return None
    return products * (weight_bits or FLOAT_BITS) * (reading_bits or FLOAT_BITS)


def _places(shape: Shape, axes: slice) -> int | None:
    sizes = shape[axes]
    return None if None in sizes else math.prod(size for size in sizes if size is not None)


def _size(layer: keras.layers.Layer, name: str) -> int:
    return math.prod(getattr(layer, name).shape)


def _per_output(kernel: str) -> Callable[[keras.layers.Layer, Shape, Shape], int | None]:
    """The whole kernel at each place of the output."""

    def count(layer: keras.layers.Layer, read: Shape, made: Shape) -> int | None:
        del read
        channels_first = getattr(layer, "data_format", None) == "channels_first"
        places = _places(made, slice(1, None) if channels_first else slice(None, -1))
        return None if places is None else places * _size(layer, kernel)

    return count


def _per_input(layer: keras.layers.Layer, read: Shape, made: Shape) -> int | None:
    """The whole kernel at each place of the input: transposed convolutions."""
    del made
    first = layer.data_format == "channels_first"
    places = _places(read, slice(1, None) if first else slice(None, -1))
    return None if places is None else places * _size(layer, "kernel")


def _separable(layer: keras.layers.Layer, read: Shape, made: Shape) -> int | None:
    """A depthwise convolution, and a pointwise one at the same places."""
    both = [_per_output(name)(layer, read, made) for name in _SEPARABLE_KERNELS]
    return None if None in both else sum(count for count in both if count is not None)


_SEPARABLE_KERNELS = ("depthwise_kernel", "pointwise_kernel")

# The first row that holds; subclasses before what they derive from.
_COUNTS: tuple[tuple[tuple[type, ...], Callable[..., int | None]], ...] = (
    ((keras.layers.DepthwiseConv2D, keras.layers.DepthwiseConv1D), _per_output("depthwise_kernel")),
    ((keras.layers.SeparableConv2D, keras.layers.SeparableConv1D), _separable),
    (
        (
            keras.layers.Conv1DTranspose,
            keras.layers.Conv2DTranspose,
            keras.layers.Conv3DTranspose,
        ),
        _per_input,
    ),
    (
        (keras.layers.Conv1D, keras.layers.Conv2D, keras.layers.Conv3D, keras.layers.Dense),
        _per_output("kernel"),
    ),
)
_ONE_A_CHANNEL = (
    keras.layers.BatchNormalization,
    keras.layers.LayerNormalization,
    keras.layers.GroupNormalization,
    keras.layers.PReLU,
)
