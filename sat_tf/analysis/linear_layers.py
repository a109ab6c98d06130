"""The table of linear layers that are measured: their kernels, and how many neurons they join."""

import dataclasses
import math
from collections.abc import Callable, Sequence
from typing import Any

import tf_keras as keras

from sat_tf.qat.wrapper import QuantizedLayer

_Count = Callable[[Sequence[int], int], int]


@dataclasses.dataclass(frozen=True)
class LinearKernel:
    """One multiplication by a kernel; a separable convolution does two.

    Attributes:
        attribute: name of the attribute that holds it.
        suffix: what tells it from the other kernels of its layer; "" where it is the only one.
        fan_in: n from the kernel's shape and the number of groups: inputs of one output.
        fan_out: n̂ from the same: outputs of one input, strides left out as in the paper.
    """

    attribute: str
    suffix: str
    fan_in: _Count
    fan_out: _Count

    def name(self, layer_name: str) -> str:
        """What to call it."""
        return f"{layer_name}/{self.suffix}" if self.suffix else layer_name


def linear_kernels(layer: keras.layers.Layer) -> tuple[LinearKernel, ...]:
    """The multiplications of a layer, in order; none where it is not known to be linear.

    Subclasses are not known: what they do with their kernel is their own affair.

    >>> [kernel.attribute for kernel in linear_kernels(keras.layers.SeparableConv2D(4, 3))]
    ['depthwise_kernel', 'pointwise_kernel']
    """
    return _KERNELS.get(type(layer), ())


def holds_matrices(layer: keras.layers.Layer) -> bool:
    """Whether any weight has more than one axis, so that the layer may be linear in its own way."""
    return any(len(weight.shape) > 1 for weight in layer.weights)


def unwrapped(layer: keras.layers.Layer) -> keras.layers.Layer:
    """The layer that computes: inside its quantizing or distributing wrappers."""
    wrappers = (QuantizedLayer, keras.layers.Wrapper)
    while isinstance(layer, wrappers) and not isinstance(layer, keras.layers.Bidirectional):
        layer = layer.layer
    return layer


def activation_name(layer: keras.layers.Layer) -> str:
    """Name of the layer's activation function, also where TFMOT's own wrapper stands for it."""
    activation = getattr(layer, "activation", None)
    inner = getattr(activation, "activation", activation)
    # TFMOT has an activation that does nothing, in front of BatchNormalization.
    if inner is None or type(inner).__name__ == "NoOpActivation":
        return "linear"
    return getattr(inner, "__name__", type(inner).__name__)


def groups(layer: keras.layers.Layer) -> int:
    """In how many groups a convolution's channels fall."""
    return int(getattr(layer, "groups", 1) or 1)


def _convolution(shape: Sequence[int], groups: int) -> int:
    del groups  # the kernel holds the inputs of one group
    return math.prod(shape[:-1])


def _convolution_out(shape: Sequence[int], groups: int) -> int:
    return math.prod(shape[:-2]) * shape[-1] // groups


def _depthwise(shape: Sequence[int], groups: int) -> int:
    del groups
    return math.prod(shape[:-2])


def _depthwise_out(shape: Sequence[int], groups: int) -> int:
    del groups
    return math.prod(shape[:-2]) * shape[-1]


def _transposed(shape: Sequence[int], groups: int) -> int:
    del groups  # the kernel is (rows, columns, out, in)
    return math.prod(shape[:-2]) * shape[-1]


def _transposed_out(shape: Sequence[int], groups: int) -> int:
    del groups
    return math.prod(shape[:-1])


_KERNEL = (LinearKernel("kernel", "", _convolution, _convolution_out),)
_DEPTHWISE = (LinearKernel("depthwise_kernel", "", _depthwise, _depthwise_out),)
_SEPARABLE = (
    LinearKernel("depthwise_kernel", "depthwise", _depthwise, _depthwise_out),
    LinearKernel("pointwise_kernel", "pointwise", _convolution, _convolution_out),
)
_TRANSPOSED = (LinearKernel("kernel", "", _transposed, _transposed_out),)

_KERNELS: dict[type, tuple[LinearKernel, ...]] = {
    keras.layers.Dense: _KERNEL,
    keras.layers.Conv1D: _KERNEL,
    keras.layers.Conv2D: _KERNEL,
    keras.layers.Conv3D: _KERNEL,
    keras.layers.DepthwiseConv1D: _DEPTHWISE,
    keras.layers.DepthwiseConv2D: _DEPTHWISE,
    keras.layers.SeparableConv1D: _SEPARABLE,
    keras.layers.SeparableConv2D: _SEPARABLE,
    keras.layers.Conv1DTranspose: _TRANSPOSED,
    keras.layers.Conv2DTranspose: _TRANSPOSED,
    keras.layers.Conv3DTranspose: _TRANSPOSED,
}


def kernel_of(layer: keras.layers.Layer, kernel: LinearKernel) -> Any:
    """What the layer has in the place of the kernel: a variable, or what stands in for it."""
    return getattr(layer, kernel.attribute)
