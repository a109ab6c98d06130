"""The registry of layer kinds: what sat-tf knows of each class of Keras layers, and how to ask."""

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import tensorflow as tf
import tf_keras as keras

from sat_tf.core.asymmetric import Reach
from sat_tf.exact.kernels import wide
from sat_tf.graph import operation_layers
from sat_tf.graph.layers import (
    activations,
    kind,
    linear,
    movements,
    normalization,
    recurrent,
    unquantized,
)
from sat_tf.graph.operation_layers import OfSeveralTensors, TensorFlowOperation
from sat_tf.graph.operations import fix_of

activation_name = activations.activation_name

KINDS: kind.Kinds = {
    keras.layers.InputLayer: kind.LayerKind(kind.Role.INPUT, short_name="Input"),
    **linear.KINDS,
    **normalization.KINDS,
    **activations.KINDS,
    **movements.KINDS,
    **recurrent.KINDS,
    **unquantized.KINDS,
}

# The row of layers of which nothing is known.
_UNKNOWN = kind.LayerKind(quantized=False)


def find_support(layer: keras.layers.Layer) -> kind.LayerKind:
    """The row of a layer's own class, if sat-tf quantizes it; otherwise an empty one."""
    row = KINDS.get(type(layer), _UNKNOWN)
    return row if row.quantized else _UNKNOWN


def find_kind(layer: keras.layers.Layer) -> kind.LayerKind:
    """The row of a layer's class or its nearest base, for facts that subclasses share."""
    return next((KINDS[base] for base in type(layer).__mro__ if base in KINDS), _UNKNOWN)


def role_of(layer: keras.layers.Layer) -> kind.Role:
    """The role of this layer; OPAQUE where sat-tf does not quantize it."""
    role = find_support(layer).role
    return role if isinstance(role, kind.Role) else role(layer)


def reads_ids(layer: keras.layers.Layer) -> bool:
    """Whether a layer, or one inside it, takes its input for ids, as Embedding does."""
    # `submodules` fails on an LSTM whose dropout has been called.
    return any(find_kind(module).reads_ids for module in layer._flatten_layers())


def table_of(layer: keras.layers.Layer) -> str:
    """Name of the attribute with the table whose rows the layer gives by ids; "" for others."""
    return find_support(layer).table


def is_identity(layer: keras.layers.Layer, arguments: Mapping[str, Any]) -> bool:
    """Whether a layer called with these arguments passes its input through in inference."""
    return role_of(layer) is kind.Role.IDENTITY and not arguments.get("training")


def identity_layer(**options: Any) -> keras.layers.Layer:
    """A layer that passes its input through, to hold a quantizer."""
    return keras.layers.Activation("linear", **options)


# -- linear layers ---------------------------------------------------------------------------------


def kernels_of(layer: keras.layers.Layer) -> tuple[kind.Kernel, ...]:
    """The kernels that a layer multiplies by; none of a subclass, which may use them in any way."""
    return KINDS.get(type(layer), _UNKNOWN).kernels


def quantized_kernel(layer: keras.layers.Layer) -> kind.Kernel | None:
    """The kernel of a linear layer that sat-tf quantizes; None for other layers."""
    kernels = find_support(layer).kernels
    return kernels[0] if kernels else None


def kernel_name(layer: keras.layers.Layer) -> str:
    """Name of the attribute that holds the layer's kernel; "" where it has none."""
    return kernel.attribute if (kernel := quantized_kernel(layer)) else ""


def kernel_of(layer: keras.layers.Layer) -> tf.Variable:
    """The kernel of a linear layer that sat-tf quantizes; in a quantized model, the latent one."""
    return getattr(layer, kernel_name(layer))


def fan_out(layer: keras.layers.Layer) -> int:
    """n̂ of a built linear layer: how many outputs one input reaches, strides left out; else 0.

    kernel_h · kernel_w · out_channels (Conv2D, Conv2DTranspose), units (Dense), kernel_h · kernel_w
    · depth_multiplier (DepthwiseConv2D); without kernel_w in one dimension. An input
    of a grouped convolution reaches the output channels of its own group.
    """
    kernel = quantized_kernel(layer)
    if kernel is None:
        return 0
    return kernel.fan_out(getattr(layer, kernel.attribute).shape, getattr(layer, "groups", 1))


def along_channels(
    layer: keras.layers.Layer, values: np.ndarray, kernel_shape: Sequence[int]
) -> np.ndarray:
    """Returns one value for each output channel, from values that fit a linear layer's kernel."""
    axes = find_support(layer).channel_axes
    channels = [kernel_shape[axis] for axis in axes]
    values = np.reshape(values, [values.shape[axis] for axis in axes])
    return np.broadcast_to(values, channels).reshape(-1)


# -- activations and normalizations ----------------------------------------------------------------


def rectifies(layer: keras.layers.Layer) -> bool:
    """Whether the layer ends in a rectifier: it is one, or has one as its activation."""
    if hasattr(layer, "activation"):
        return activation_name(layer) in activations.RECTIFIERS
    return role_of(layer) is kind.Role.RECTIFIER


def rectifier_ceiling(layer: keras.layers.Layer) -> float | None:
    """The value above which the layer's rectifier clips, or None."""
    if hasattr(layer, "activation"):
        return activations.RECTIFIERS.get(activation_name(layer))
    ceiling = getattr(layer, "max_value", None) if find_support(layer).quantized else None
    return None if ceiling is None else float(ceiling)


def is_softmax(layer: keras.layers.Layer) -> bool:
    """Whether the layer is a softmax or ends in one."""
    return role_of(layer) is kind.Role.SOFTMAX or activation_name(layer) == "softmax"


def is_activation(layer: keras.layers.Layer) -> bool:
    """Whether the layer does nothing but apply its activation function."""
    return find_support(layer).function is not None and hasattr(layer, "activation")


def is_batch_normalization(layer: keras.layers.Layer) -> bool:
    """Whether the layer is a BatchNormalization, or of a class that derives from it."""
    return find_kind(layer).role is kind.Role.NORM


def own_moments(layer: keras.layers.Layer) -> kind.Moments | None:
    """Mean and variance by channel of a normalization or of rows; None for other layers."""
    moments = find_kind(layer).moments
    if moments is None or not layer.built:
        return None
    mean, variance = np.broadcast_arrays(*moments(layer))
    return mean, variance


# -- functions between quantizers -----------------------------------------------------------------


def function_of(layer: keras.layers.Layer) -> kind.Function:
    """The function that a layer computes between quantizers; one without facts for others."""
    return find_kind(layer).function or kind.Function()


# The values of x · sigmoid(x), however a model writes it.
SWISH = activations.REACHES["swish"]


def reach_of(layer: keras.layers.Layer) -> Reach:
    """The range of the values of a layer that computes a function."""
    return function_of(layer).reach(layer)


def works_on_each_value(layer: keras.layers.Layer) -> bool:
    """Whether the layer is elementwise: the same function of each value by itself."""
    return function_of(layer).on_each_value(layer)


def is_a_broken_line(layer: keras.layers.Layer) -> bool:
    """Whether the layer is piecewise linear: not a smooth function that rounding would coarsen."""
    activation = activations.ACTIVATIONS.get(activation_name(layer))
    return function_of(layer).is_broken_line or bool(activation and activation.is_broken_line)


def keeps_sign(layer: keras.layers.Layer) -> bool:
    """Whether the layer's output is nonnegative where its input is."""
    return function_of(layer).keeps_sign(layer)


def keeps_range(layer: keras.layers.Layer) -> bool:
    """Whether the layer's outputs lie within the range of its inputs, as in a resized image."""
    return function_of(layer).keeps_range(layer)


def native_of(layer: keras.layers.Layer, *, is_npu: bool = True) -> kind.NativeFunction | None:
    """The operator for a layer's function on codes, or None.

    NPUs have many. Of the others, CPUs compute a softmax alone without a table of codes.
    """
    return function_of(layer).native(layer) if is_npu or is_softmax(layer) else None


def wide_native_of(layer: keras.layers.Layer) -> kind.NativeFunction | None:
    """The operator for a layer's function on codes of 16 bits, or None."""
    if isinstance(layer, keras.layers.Activation) and activation_name(layer) in activations.SWISHES:
        return activations.SWISH_OF_16_BITS
    native = native_of(layer)
    if native is None or native.operator not in wide.OPERATORS:
        return None
    ends = native.ends and dataclasses.replace(native.ends, highest=1.0 - float(wide.SCALE))
    return dataclasses.replace(native, ends=ends)


# -- several tensors, several places ---------------------------------------------------------------


def combination_of(layer: keras.layers.Layer) -> kind.Combination | None:
    """How a layer combines several tensors; None where it reads one, or is not quantized."""
    return find_support(layer).combination


def averages_windows(layer: keras.layers.Layer) -> bool:
    """Whether a layer takes means of windows, not of all places or of channels."""
    pooling = find_support(layer).pooling
    return pooling is not None and pooling.mean and not pooling.whole


def reshapes(layer: keras.layers.Layer) -> bool:
    """Whether a layer changes the shape of its values and keeps their order."""
    return find_support(layer).reshapes


# -- for people ------------------------------------------------------------------------------------


def class_name(layer: keras.layers.Layer) -> str:
    """Name of the class of a layer, as the user knows it."""
    return type(_inner(layer)).__name__


def short_name(name: str) -> str:
    """The name of a class of layers, shorter where it is long and well known."""
    short = {
        layer_class.__name__: row.short_name for layer_class, row in KINDS.items() if row.short_name
    }
    return short.get(name, name)


def unsupported_problem(layer: keras.layers.Layer) -> str | None:
    """Why this layer cannot be quantized, and what to do; None where it can."""
    support = find_support(layer)
    if support.quantized:
        return support.refuse(layer)
    if isinstance(layer, TensorFlowOperation):
        function = layer.function
        return f"received tf.{function}, which sat-tf does not quantize{fix_of(function)}"
    inner = _inner(layer)
    row = KINDS.get(type(inner), _UNKNOWN)
    if problem := row.refuse(inner):
        return problem
    fix = inner.fix if isinstance(inner, unquantized.LeftFloat) else row.fix
    fix = f"; {fix}" if fix else ""
    return f"received {class_name(layer)}, which sat-tf does not quantize{fix}"


def problem_at(layer: keras.layers.Layer, rank: int) -> str | None:
    """Why the layer cannot be lowered where it stands, and what to do; None where it can."""
    return find_support(layer).refuse_at(layer, rank)


def class_of_keras3(name: str) -> type[keras.layers.Layer] | None:
    """The class of tf_keras for one of Keras 3's own, by its name there; None without one."""
    layer_class: Any = getattr(keras.layers, name, None) or getattr(operation_layers, name, None)
    return layer_class if KINDS.get(layer_class, _UNKNOWN).keras3 is not None else None


def _inner(layer: keras.layers.Layer) -> keras.layers.Layer:
    return layer.layer if isinstance(layer, OfSeveralTensors) else layer
