"""Activations with a small negative part: a range around zero that is not symmetric."""

from collections.abc import Callable
from typing import Any

import tensorflow as tf

from sat_tf.core import grid as grids
from sat_tf.core.own_gradient import with_gradient
from sat_tf.core.pact import GRADIENTS
from sat_tf.messages import did_you_mean


def quantize_offset(
    x: tf.Tensor,
    clipping_level: tf.Tensor,
    num_bits: grids.Bits,
    gradient: str = "calibrated",
    *,
    lowest: float = 0.0,
    share: float = 0.0,
) -> tf.Tensor:
    """Clips and quantizes a tensor whose negative part is small: swish, GELU, a leaky rectifier.

    The range goes from -(ℓ + ρ α) to α, with ℓ = -lowest and the share ρ. With a = 2^b - 1 levels,
    the step s = ((1 + ρ) α + ℓ) / a and z = round((ℓ + ρ α) / s) codes below zero, which makes 0
    one of the values,

    Forward:   q = s · clip(round(x / s), -z, a - z).
    Backward:  dq/dx = 1 where -z s < x < (a - z) s, else 0;
               dq/dα = (1 + ρ) / a · dq/ds, with dq/ds = q/s where x is clipped, and between
               q/s - x/s ("calibrated") or 0 ("pact").

    The gradient of the step is that of LSQ (Esser et al. 2020, Eq. 3), which for ℓ = ρ = 0 is
    Eq. 13 of CG-PACT; the range that is not symmetric is that of LSQ+ (Bhalgat et al. 2020),
    whose offset here follows from the function that made x instead of being learnt: z is an
    integer, so that zero, padding and integer kernels stay exact, and carries no gradient.

    Computed in float32, returned in the type of `x`. NaN stays NaN in its own element, and has no
    part in either gradient.

    Args:
        x: any shape; float32, float16 or bfloat16.
        clipping_level: α > 0, a scalar tensor or variable.
        num_bits: bits b of the codes n = -z..a - z; 1 to 8; see `grid.Bits`.
        gradient: "calibrated" or "pact".
        lowest: the smallest value of a function that has one; at most 0.
        share: by which share of α the range goes lower than that; at least 0.

    Raises:
        ValueError: bits out of range, or an unknown gradient.

    >>> x = tf.constant([-9.0, -0.4, 0.6, 9.0])
    >>> quantize_offset(x, 6.0, 3, lowest=-1.0).numpy().tolist()
    [-1.0, 0.0, 1.0, 6.0]
    """
    levels = grids.levels(num_bits)
    if gradient not in GRADIENTS:
        hint = did_you_mean(str(gradient), GRADIENTS)
        raise ValueError(f"gradient={gradient!r} is not a clipping-level gradient. {hint}")

    given = tf.convert_to_tensor(x)
    x = tf.cast(given, tf.float32)
    alpha = tf.cast(tf.convert_to_tensor(clipping_level), tf.float32)
    step, below = step_and_zero(alpha, levels, lowest, share)
    above = levels - below
    units = x / step
    codes = tf.clip_by_value(grids.round_half_up(units), -below, above)
    # NaN would be clipped to an end of the range.
    codes = tf.where(tf.math.is_nan(x), x, codes)
    made = with_gradient(
        _backward,
        codes * step,
        [x, alpha],
        kept=[codes, units, below, above, tf.convert_to_tensor(levels, tf.float32)],
        gradient=gradient,
        share=share,
    )
    return tf.cast(made, given.dtype)


def _backward(
    upstream: tf.Tensor,
    value: tf.Tensor,
    x: tf.Tensor,
    alpha: tf.Tensor,
    codes: tf.Tensor,
    units: tf.Tensor,
    below: tf.Tensor,
    above: tf.Tensor,
    levels: tf.Tensor,
    *,
    gradient: str,
    share: float,
) -> tuple[tf.Tensor, tf.Tensor]:
    del value, alpha
    inside = (units > -below) & (units < above)
    between = codes - units if gradient == "calibrated" else tf.zeros_like(codes)
    slope = tf.where(inside, between, codes)
    slope = tf.where(tf.math.is_nan(x), 0.0, slope)
    to_step = tf.reduce_sum(upstream * slope)
    return tf.where(inside, upstream, 0.0), to_step * (1.0 + share) / levels


def step_and_zero(
    clipping_level: Any,
    levels: Any,
    lowest: float,
    share: float,
    floor: Callable[[Any], Any] = tf.floor,
) -> tuple[Any, Any]:
    """The step s and the number z of codes below zero of `quantize_offset`.

    Args:
        clipping_level: α, a float32 scalar tensor or a number.
        levels: a, the number of steps.
        lowest: see `quantize_offset`.
        share: see `quantize_offset`.
        floor: that of NumPy for numbers that are no tensors.
    """
    step = ((1.0 + share) * clipping_level - lowest) / levels
    return step, floor((share * clipping_level - lowest) / step + 0.5)
