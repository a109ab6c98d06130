"""Activation functions, also those of Keras 3 alone, and the layers that apply them."""

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf
import tf_keras as keras

from sat_tf.core.asymmetric import POSITIVE, SIGNED_UNIT, UNIT, UNKNOWN, Reach
from sat_tf.graph import shared_layers
from sat_tf.graph.layers.kind import (
    SAME,
    Function,
    Keras3,
    Kinds,
    LayerKind,
    NativeFunction,
    Role,
    axes_of,
    refuse_batch_axis,
)
from sat_tf.graph.operation_layers import Clip, InverseRoot

L = keras.layers

_register = keras.utils.register_keras_serializable(package="sat_tf")


# Keras 2 has a `hard_sigmoid` too, of another slope: clip(0.2 x + 0.5, 0, 1).
@_register
def relu6_sigmoid(x: tf.Tensor) -> tf.Tensor:
    """Keras 3's `hard_sigmoid`: relu6(x + 3) / 6."""
    return tf.nn.relu6(x + tf.constant(3.0, x.dtype)) / tf.constant(6.0, x.dtype)


@_register
def hard_silu(x: tf.Tensor) -> tf.Tensor:
    """Keras 3's `hard_silu`, also called hard-swish: x · relu6(x + 3) / 6."""
    return x * relu6_sigmoid(x)


@_register
def log_sigmoid(x: tf.Tensor) -> tf.Tensor:
    """log(1 / (1 + exp(-x)))."""
    return tf.math.log_sigmoid(x)


# TensorFlow's own function has another name than tf_keras looks for when it loads a model.
@_register
def log_softmax(x: tf.Tensor) -> tf.Tensor:
    """The logarithm of the softmax over the last axis."""
    return tf.nn.log_softmax(x)


@_register
def hard_tanh(x: tf.Tensor) -> tf.Tensor:
    """clip(x, -1, 1)."""
    return tf.clip_by_value(x, -1.0, 1.0)


@_register
def celu(x: tf.Tensor) -> tf.Tensor:
    """max(x, 0) + exp(min(x, 0)) - 1."""
    return tf.maximum(x, 0.0) + tf.math.expm1(tf.minimum(x, 0.0))


@_register
def tanh_shrink(x: tf.Tensor) -> tf.Tensor:
    """X - tanh(x)."""
    return x - tf.math.tanh(x)


@_register
def squareplus(x: tf.Tensor) -> tf.Tensor:
    """(x + sqrt(x² + 4)) / 2."""
    return (x + tf.sqrt(tf.square(x) + tf.constant(4.0, x.dtype))) / 2


@_register
def soft_shrink(x: tf.Tensor) -> tf.Tensor:
    """X moved towards 0 by 1/2, and 0 within."""
    negative_part = tf.where(x < -0.5, x + 0.5, tf.zeros_like(x))
    return tf.where(x > 0.5, x - 0.5, negative_part)


@_register
def hard_shrink(x: tf.Tensor) -> tf.Tensor:
    """X where |x| > 1/2, else 0."""
    return tf.where(tf.abs(x) > 0.5, x, tf.zeros_like(x))


absolute = _register(shared_layers.absolute)
gelu_by_tanh = _register(shared_layers.gelu_by_tanh)


class ActivationFunction(NamedTuple):
    """An activation function."""

    reach: Reach | None  # The range of its values; None if not a function between quantizers.
    keras3: tuple[str, ...] = ()  # Its names in Keras 3.
    # The function, where tf_keras has none of its name.
    function: Callable[[tf.Tensor], tf.Tensor] | None = None
    is_broken_line: bool = False  # See `Function`.
    native: NativeFunction | None = None  # See `Function`.


_HARD_SWISH = NativeFunction("HARD_SWISH")
_LOGISTIC = NativeFunction("LOGISTIC", ends=Reach(0.0, highest=255.0 / 256.0))
_SOFTMAX = NativeFunction("SOFTMAX", ends=Reach(0.0, highest=255.0 / 256.0))
_PRELU = NativeFunction("PRELU", weights=shared_layers.INT8_WEIGHTS["PReLU"])
_TANH = NativeFunction("TANH", ends=Reach(-1.0, highest=127.0 / 128.0))
SWISH_OF_16_BITS = NativeFunction("LOGISTIC", is_gate=True)
SWISHES = ("silu", "swish")


def _leaky_relu(slope: float) -> NativeFunction | None:
    return NativeFunction("LEAKY_RELU", {"alpha": slope}) if 0.0 < slope <= 1.0 else None


# The rectifiers, each with its ceiling.
RECTIFIERS: dict[str, float | None] = {"relu": None, "relu6": 6.0}

# The functions by their names in tf_keras. Smallest values are rounded down to 1e-4.
ACTIVATIONS: dict[str, ActivationFunction] = {
    "absolute": ActivationFunction(
        POSITIVE, function=absolute, is_broken_line=True, native=NativeFunction("ABS")
    ),
    "celu": ActivationFunction(Reach(-1.0), ("celu",), celu),
    "elu": ActivationFunction(Reach(-1.0), ("elu",), native=NativeFunction("ELU")),
    "exponential": ActivationFunction(POSITIVE, ("exponential",)),
    "gelu": ActivationFunction(
        Reach(-0.1701), ("gelu",), native=NativeFunction("GELU", {"approximate": False})
    ),
    "gelu_by_tanh": ActivationFunction(
        Reach(-0.1701), function=gelu_by_tanh, native=NativeFunction("GELU", {"approximate": True})
    ),
    "hard_shrink": ActivationFunction(UNKNOWN, ("hard_shrink",), hard_shrink),
    "hard_sigmoid": ActivationFunction(UNIT),  # Keras 3's has another slope
    "hard_silu": ActivationFunction(
        Reach(-0.375), ("hard_silu", "hard_swish"), hard_silu, native=_HARD_SWISH
    ),
    "hard_swish": ActivationFunction(Reach(-0.375), native=_HARD_SWISH),
    "hard_tanh": ActivationFunction(SIGNED_UNIT, ("hard_tanh",), hard_tanh),
    "leaky_relu": ActivationFunction(
        Reach(0.0, share=0.2), ("leaky_relu",), tf.nn.leaky_relu, native=_leaky_relu(0.2)
    ),
    "linear": ActivationFunction(None, ("linear",)),
    "log_sigmoid": ActivationFunction(UNKNOWN, ("log_sigmoid",), log_sigmoid),
    "log_softmax": ActivationFunction(None, ("log_softmax",), log_softmax),
    "mish": ActivationFunction(Reach(-0.3089), ("mish",)),
    "relu": ActivationFunction(None, ("relu",)),
    "relu6": ActivationFunction(None, ("relu6",), tf.nn.relu6),
    "relu6_sigmoid": ActivationFunction(UNIT, ("hard_sigmoid",), relu6_sigmoid),
    "selu": ActivationFunction(Reach(-1.7582), ("selu",)),
    "sigmoid": ActivationFunction(UNIT, ("sigmoid",), native=_LOGISTIC),
    "silu": ActivationFunction(Reach(-0.2785)),  # the name of TensorFlow's function
    "soft_shrink": ActivationFunction(UNKNOWN, ("soft_shrink",), soft_shrink),
    "softmax": ActivationFunction(None, ("softmax",), native=_SOFTMAX),
    "softplus": ActivationFunction(POSITIVE, ("softplus",)),
    "softsign": ActivationFunction(SIGNED_UNIT, ("softsign",)),
    "squareplus": ActivationFunction(POSITIVE, ("squareplus",), squareplus),
    "swish": ActivationFunction(Reach(-0.2785), ("silu", "swish")),
    "tanh": ActivationFunction(SIGNED_UNIT, ("tanh",), native=_TANH),
    "tanh_shrink": ActivationFunction(UNKNOWN, ("tanh_shrink",), tanh_shrink),
}
REACHES = {name: row.reach for name, row in ACTIVATIONS.items() if row.reach is not None}
# The functions of tf_keras, or their names there, by the names of the same functions in Keras 3.
OF_KERAS3: dict[str, Callable[[tf.Tensor], tf.Tensor] | str] = {
    name: row.function or tf_name for tf_name, row in ACTIVATIONS.items() for name in row.keras3
}


def keras3_name(activation: Any) -> str | None:
    """The name in Keras 3 of an activation function of tf_keras; None where Keras 3 has none."""
    for name, row in OF_KERAS3.items():
        if activation is (keras.activations.get(row) if isinstance(row, str) else row):
            return name
    return None


_NAMES = ("linear", "softmax", *RECTIFIERS, *sorted(REACHES))


def activation_name(layer: keras.layers.Layer) -> str:
    """Name of the layer's activation function; "linear" where it has none."""
    activation = getattr(layer, "activation", None)
    if activation is None:
        return "linear"
    name = str(getattr(activation, "__name__", type(activation).__name__))
    return f"{name} of your own" if name in _NAMES and not is_of_keras(activation) else name


def is_of_keras(activation: Any) -> bool:
    """Whether an activation is the one that a row names, not a user's function `relu`."""
    package = str(getattr(activation, "__module__", "")).split(".")[0]
    is_named = getattr(activation, "__name__", "") in _NAMES
    return is_named and package in ("tensorflow", "tf_keras", "sat_tf")


def refuse_activation(layer: keras.layers.Layer) -> str | None:
    """Says what is wrong with the activation function of a layer; None if it is known."""
    name = activation_name(layer)
    if name in _NAMES:
        return None
    return (
        f"received activation={name!r}, expected one of {', '.join(_NAMES)}; use one of these, or "
        "unsupported='float'"
    )


def _activation_role(layer: Any) -> Role:
    name = activation_name(layer)
    if name in RECTIFIERS:
        return Role.RECTIFIER
    if name in REACHES:
        return Role.FUNCTION
    if name == "softmax":
        return Role.SOFTMAX
    return Role.IDENTITY if name == "linear" else Role.OPAQUE


def _activation_reach(layer: Any) -> Reach:
    name = activation_name(layer)
    return UNIT if name == "softmax" else REACHES.get(name, UNKNOWN)


def _activation_native(layer: Any) -> NativeFunction | None:
    row = ACTIVATIONS.get(activation_name(layer))
    return None if row is None else row.native


def _rectifier_role(layer: Any) -> Role:
    plain = float(layer.negative_slope) == 0.0 and float(layer.threshold) == 0.0
    return Role.RECTIFIER if plain else Role.FUNCTION


def ends_of_rectifier(layer: keras.layers.Layer) -> tuple[float, float | None] | None:
    """0 and the ceiling of a ReLU or an Activation that is a rectifier; None for other layers."""
    if isinstance(layer, keras.layers.Activation):
        name = activation_name(layer)
        return (0.0, RECTIFIERS[name]) if name in RECTIFIERS else None
    if type(layer) is not keras.layers.ReLU or _rectifier_role(layer) is not Role.RECTIFIER:
        return None
    return 0.0, None if layer.max_value is None else float(layer.max_value)


def _rectifier_reach(layer: Any) -> Reach:
    if float(layer.negative_slope) != 0.0 and float(layer.threshold) != 0.0:
        return UNKNOWN  # below the threshold it is slope · (x - threshold)
    return _leaky(float(layer.negative_slope))


def _sloped_rectifier(layer: Any) -> NativeFunction | None:
    if layer.max_value is not None or float(layer.threshold) != 0.0:
        return None
    return _leaky_relu(float(layer.negative_slope))


def _leaky(slope: float) -> Reach:
    # A slope below 0 turns the negative part positive.
    return Reach(0.0, share=max(slope, 0.0)) if slope <= 1.0 else UNKNOWN


def _clip_reach(layer: Any) -> Reach:
    low, high = layer.low, layer.high
    if high == 1.0 and low is not None and low >= -1.0:
        return UNIT if low >= 0.0 else SIGNED_UNIT
    return UNKNOWN if low is None else Reach(min(low, 0.0))


def _sloped(layer: Any, values: np.ndarray) -> np.ndarray:
    slope = np.asarray(layer.alpha, np.float64).reshape(-1, layer.alpha.shape[-1])
    by_channel = np.mean(slope, axis=0) if slope.shape[1] == len(values) else [np.mean(slope)]
    return np.where(values < 0.0, np.reshape(by_channel, (-1, 1)) * values, values)


def _refuse_softmax_at(layer: Any, rank: int) -> str | None:
    axes = axes_of(layer)
    if axes not in ([-1], [rank]):
        axis = axes if len(axes) > 1 else axes[0]
        return f"received axis={axis}, expected the last one; use axis=-1"
    return None


def _cut_roots(roots: Any) -> Any:
    """Ends inverse roots at that of 1/255 of the largest value: they would take all codes."""
    return tf.minimum(roots, math.sqrt(255.0) * tf.reduce_min(roots))


KINDS: Kinds = {
    L.ReLU: LayerKind(
        _rectifier_role,
        function=Function(
            _rectifier_reach, on_each_value=lambda layer: True, native=_sloped_rectifier
        ),
        keras3=SAME,
    ),
    L.Activation: LayerKind(
        _activation_role,
        refuse_activation,
        function=Function(
            _activation_reach,
            on_each_value=lambda layer: activation_name(layer) in REACHES,
            native=_activation_native,
        ),
        detail=lambda layer: getattr(layer.activation, "__name__", ""),
        alike_at_all_sizes=True,
        keras3=SAME,
    ),
    L.Softmax: LayerKind(
        Role.SOFTMAX,
        refuse_batch_axis,
        refuse_at=_refuse_softmax_at,
        function=Function(lambda layer: UNIT, native=lambda layer: _SOFTMAX),
        alike_at_all_sizes=True,
        keras3=SAME,
    ),
    L.LeakyReLU: LayerKind(
        Role.FUNCTION,
        function=Function(
            lambda layer: _leaky(float(layer.alpha)),
            on_each_value=lambda layer: True,
            native=lambda layer: _leaky_relu(float(layer.alpha)),
        ),
        keras3=Keras3(renamed={"alpha": "negative_slope"}),
    ),
    L.PReLU: LayerKind(
        Role.FUNCTION,
        weights_by_channel=True,
        function=Function(spread=_sloped, native=lambda layer: _PRELU),
        alike_at_all_sizes=True,
        keras3=SAME,
    ),
    L.ELU: LayerKind(
        Role.FUNCTION,
        function=Function(
            lambda layer: Reach(-abs(float(layer.alpha))),
            on_each_value=lambda layer: True,
            native=lambda layer: NativeFunction("ELU") if float(layer.alpha) == 1.0 else None,
        ),
        keras3=SAME,
    ),
    InverseRoot: LayerKind(
        Role.FUNCTION,
        function=Function(
            lambda layer: POSITIVE,
            on_each_value=lambda layer: True,
            spread=lambda layer, values: np.asarray(_cut_roots(layer(values)), np.float64),
            cut=_cut_roots,
            native=lambda layer: NativeFunction("RSQRT"),
        ),
        keras3=SAME,
    ),
    Clip: LayerKind(
        Role.FUNCTION,
        function=Function(
            _clip_reach,
            on_each_value=lambda layer: True,
            keeps_sign=lambda layer: layer.high is None or layer.high >= 0.0,
            is_broken_line=True,
        ),
    ),
}
