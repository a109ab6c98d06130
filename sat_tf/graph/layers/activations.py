"""Rectifiers, softmax and the other activation functions: their rows and ranges."""

from typing import Any

import numpy as np
import tf_keras as keras

from sat_tf.core.asymmetric import POSITIVE, SIGNED_UNIT, UNIT, UNKNOWN, Reach
from sat_tf.graph.layers.kind import SAME, Function, Keras3, Kinds, LayerKind, Role
from sat_tf.graph.operation_layers import Clip

# Functions by name. Smallest values are rounded down to 1e-4.
REACHES: dict[str, Reach] = {
    "sigmoid": UNIT,
    "hard_sigmoid": UNIT,
    "relu6_sigmoid": UNIT,
    "tanh": SIGNED_UNIT,
    "hard_tanh": SIGNED_UNIT,
    "softsign": SIGNED_UNIT,
    "softplus": POSITIVE,
    "absolute": POSITIVE,
    "exponential": POSITIVE,
    "squareplus": POSITIVE,
    "elu": Reach(-1.0),
    "celu": Reach(-1.0),
    "selu": Reach(-1.7582),
    "swish": Reach(-0.2785),
    "silu": Reach(-0.2785),
    "hard_swish": Reach(-0.375),
    "hard_silu": Reach(-0.375),
    "gelu": Reach(-0.1701),
    "gelu_by_tanh": Reach(-0.1701),
    "mish": Reach(-0.3089),
    "leaky_relu": Reach(0.0, share=0.2),
    "log_sigmoid": UNKNOWN,
    "hard_shrink": UNKNOWN,
    "soft_shrink": UNKNOWN,
    "tanh_shrink": UNKNOWN,
}

# The ceiling of each.
RECTIFIERS: dict[str, float | None] = {"relu": None, "relu6": 6.0}


_NAMES = ("linear", "softmax", *RECTIFIERS, *sorted(REACHES))


def activation_name(layer: keras.layers.Layer) -> str:
    """Name of the layer's activation function; "linear" where it has none."""
    activation = getattr(layer, "activation", None)
    if activation is None:
        return "linear"
    name = str(getattr(activation, "__name__", type(activation).__name__))
    return f"{name} of your own" if name in _NAMES and not is_of_keras(activation) else name


def is_of_keras(activation: Any) -> bool:
    """Whether an activation is the function that a row of these tables means by its name.

    A layer is none, nor is a function of the user's that is called `relu`.

    >>> is_of_keras(keras.activations.relu), is_of_keras(lambda x: x)
    (True, False)
    """
    package = str(getattr(activation, "__module__", "")).split(".")[0]
    is_named = getattr(activation, "__name__", "") in _NAMES
    return is_named and package in ("tensorflow", "tf_keras", "sat_tf")


def refuse_activation(layer: keras.layers.Layer) -> str | None:
    """What is wrong with the activation function of a layer."""
    name = activation_name(layer)
    if name in _NAMES:
        return None
    return (
        f"received activation={name!r}, expected one of {', '.join(_NAMES)}; use one of these, or "
        "unsupported='float'"
    )


def _always(layer: Any) -> bool:
    del layer
    return True


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


def _rectifier_role(layer: Any) -> Role:
    plain = float(layer.negative_slope) == 0.0 and float(layer.threshold) == 0.0
    return Role.RECTIFIER if plain else Role.FUNCTION


def _rectifier_reach(layer: Any) -> Reach:
    if float(layer.negative_slope) != 0.0 and float(layer.threshold) != 0.0:
        return UNKNOWN  # below the threshold it is slope · (x - threshold)
    return _leaky(float(layer.negative_slope))


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


def _refuse_softmax(layer: Any) -> str | None:
    axes = [layer.axis] if isinstance(layer.axis, int) else list(layer.axis)
    if 0 in axes:
        return f"received axis={layer.axis!r}, the batch, expected another one; use axis=-1"
    return None


def _refuse_softmax_at(layer: Any, rank: int) -> str | None:
    if layer.axis not in (-1, rank):
        return f"received axis={layer.axis!r}, expected the last one; use axis=-1"
    return None


KINDS: Kinds = {
    keras.layers.ReLU: LayerKind(
        _rectifier_role,
        function=Function(_rectifier_reach, on_each_value=_always),
        keras3=SAME,
    ),
    keras.layers.Activation: LayerKind(
        _activation_role,
        refuse_activation,
        function=Function(
            _activation_reach, on_each_value=lambda layer: activation_name(layer) in REACHES
        ),
        detail=lambda layer: getattr(layer.activation, "__name__", ""),
        alike_at_all_sizes=True,
        keras3=SAME,
    ),
    keras.layers.Softmax: LayerKind(
        Role.SOFTMAX,
        _refuse_softmax,
        refuse_at=_refuse_softmax_at,
        function=Function(lambda layer: UNIT),
        alike_at_all_sizes=True,
        keras3=SAME,
    ),
    keras.layers.LeakyReLU: LayerKind(
        Role.FUNCTION,
        function=Function(lambda layer: _leaky(float(layer.alpha)), on_each_value=_always),
        keras3=Keras3(renamed={"alpha": "negative_slope"}),
    ),
    keras.layers.PReLU: LayerKind(
        Role.FUNCTION,
        weights_by_channel=True,
        function=Function(spread=_sloped),
        alike_at_all_sizes=True,
        keras3=SAME,
    ),
    keras.layers.ELU: LayerKind(
        Role.FUNCTION,
        function=Function(lambda layer: Reach(-abs(float(layer.alpha))), on_each_value=_always),
        keras3=SAME,
    ),
    Clip: LayerKind(
        Role.FUNCTION,
        function=Function(
            _clip_reach,
            on_each_value=_always,
            keeps_sign=lambda layer: layer.high is None or layer.high >= 0.0,
            is_broken_line=True,
        ),
    ),
}
