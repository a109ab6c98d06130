"""Values on 256 codes for an observed range: how the file takes an input that is no image."""

from collections.abc import Callable
from typing import Any

import tensorflow as tf

# Ranges below this are none: nothing was observed but zeros.
SMALLEST_RANGE = 1e-24


def step_and_zero_point(
    lowest: Any, highest: Any, rint: Callable[[Any], Any] = tf.round
) -> tuple[Any, Any]:
    """The step of 256 codes for a range that holds zero, and the stored code of real 0.

        s = (highest - lowest) / 255,  z = clip(round(-128 - lowest / s), -128, 127)

    Args:
        lowest: at most 0, in float64.
        highest: at least 0, in float64, and `SMALLEST_RANGE` above `lowest`.
        rint: rounds to the nearest integer, ties to even; that of NumPy for its numbers.

    >>> step, zero_point = step_and_zero_point(tf.constant(-1.0, tf.float64), 254.0)
    >>> float(step), float(zero_point)
    (1.0, -127.0)
    """
    step = (highest - lowest) / 255.0
    zero_point = rint(-128.0 - lowest / step)
    return step, zero_point


def quantize_observed(x: tf.Tensor, lowest: tf.Tensor, highest: tf.Tensor) -> tf.Tensor:
    """Rounds a tensor as LiteRT's QUANTIZE does with XNNPACK: x · (1 / s), ties to even.

    Forward:   q = s · (clip(round(x / s) + z, -128, 127) - z); x where the range is none.
    Backward:  dq/dx = 1 where x is in the range, else 0.

    Computed in float32, but for the step, which is rounded to it from float64; returned in the type
    of `x`. NaN stays NaN.

    Args:
        x: any shape; float32, float16 or bfloat16.
        lowest: smallest value of the range, float32 scalar; above 0 it counts as 0.
        highest: largest value, likewise below 0.

    >>> x = tf.constant([-9.0, 0.4, 0.5, 1.5, 300.0])
    >>> quantize_observed(x, tf.constant(-1.0), tf.constant(254.0)).numpy().tolist()
    [-1.0, 0.0, 0.0, 2.0, 254.0]
    """
    low = tf.cast(tf.minimum(lowest, 0.0), tf.float64)
    high = tf.cast(tf.maximum(highest, 0.0), tf.float64)
    some = high - low >= SMALLEST_RANGE
    step, zero_point = step_and_zero_point(tf.where(some, low, -1.0), tf.where(some, high, 1.0))
    step = tf.cast(step, tf.float32)
    zero = tf.cast(tf.clip_by_value(zero_point, -128.0, 127.0), tf.float32)

    @tf.custom_gradient
    def quantize(x: tf.Tensor) -> tuple[tf.Tensor, Callable[[tf.Tensor], tf.Tensor]]:
        units = x * (1.0 / step)
        codes = tf.clip_by_value(tf.round(units) + zero, -128.0, 127.0) - zero
        codes = tf.where(tf.math.is_nan(x), x, codes)
        inside = (units + zero >= -128.0) & (units + zero <= 127.0)

        def backward(upstream: tf.Tensor) -> tf.Tensor:
            return tf.where(inside | ~some, upstream, 0.0)

        return tf.where(some, codes * step, x), backward

    x = tf.convert_to_tensor(x)
    return tf.cast(quantize(tf.cast(x, tf.float32)), x.dtype)
