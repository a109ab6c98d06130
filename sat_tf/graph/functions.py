"""The table of functions that are computed as they are, between what is quantized: their ranges."""

import tf_keras as keras

from sat_tf.core.asymmetric import POSITIVE, SIGNED_UNIT, UNIT, UNKNOWN, Reach
from sat_tf.graph.operation_layers import Clip, absolute

# By the name of the function. Smallest values to the next 1e-4 below.
_REACHES: dict[str, Reach] = {
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


def function_names() -> list[str]:
    """Names of the functions in the table."""
    return sorted(_REACHES)


def is_known(name: str) -> bool:
    """Whether the table has a function of this name."""
    return name in _REACHES


def reach(layer: keras.layers.Layer) -> Reach:
    """Which values a layer that computes a function gives."""
    if isinstance(layer, keras.layers.Softmax):
        return UNIT
    if isinstance(layer, Clip):
        return _between(layer.low, layer.high)
    if isinstance(layer, keras.layers.ELU):
        return Reach(-abs(float(layer.alpha)))
    if isinstance(layer, keras.layers.LeakyReLU):
        return _leaky(float(layer.alpha))
    if isinstance(layer, keras.layers.ReLU):
        if float(layer.negative_slope) != 0.0 and float(layer.threshold) != 0.0:
            return UNKNOWN  # below the threshold it is slope · (x - threshold)
        return _leaky(float(layer.negative_slope))
    if isinstance(layer, keras.layers.Activation):
        name = getattr(layer.activation, "__name__", "")
        return UNIT if name == "softmax" else _REACHES.get(name, UNKNOWN)
    return UNKNOWN


def works_on_each_value(layer: keras.layers.Layer) -> bool:
    """Whether each value the layer gives follows from one value alone, and the same everywhere."""
    if isinstance(layer, keras.layers.Activation):
        return is_known(getattr(layer.activation, "__name__", ""))
    each = Clip | keras.layers.ELU | keras.layers.LeakyReLU | keras.layers.ReLU
    return isinstance(layer, each)


def _between(low: float | None, high: float | None) -> Reach:
    if high == 1.0 and low is not None and low >= -1.0:
        return UNIT if low >= 0.0 else SIGNED_UNIT
    return UNKNOWN if low is None else Reach(min(low, 0.0))


def is_a_broken_line(layer: keras.layers.Layer) -> bool:
    """Whether it is made of straight pieces: no smooth function that an output would lose by."""
    return isinstance(layer, Clip) or getattr(layer, "activation", None) is absolute


def keeps_sign(layer: keras.layers.Layer) -> bool:
    """Whether it gives no negative value for one that is not negative."""
    return isinstance(layer, Clip) and (layer.high is None or layer.high >= 0.0)


def _leaky(slope: float) -> Reach:
    # With a slope below 0 nothing is negative: the negative part turns up.
    return Reach(0.0, share=max(slope, 0.0)) if slope <= 1.0 else UNKNOWN


def keeps_range(layer: keras.layers.Layer) -> bool:
    """Whether all that the layer gives lies between values of its input, as a resized image."""
    if isinstance(layer, keras.layers.Resizing | keras.layers.UpSampling2D):
        return layer.interpolation in ("nearest", "bilinear", "area")
    return False
