"""Ranges that are not symmetric around zero: of functions such as swish, or observed in data."""

import dataclasses
from collections.abc import Callable

import tensorflow as tf

from sat_tf.core import grid as grids
from sat_tf.core.clipping_gradients import find_clipping_gradient
from sat_tf.core.custom_gradient import with_gradient
from sat_tf.core.ranges import SMALLEST_RANGE, scale_and_zero, scale_and_zero_point
from sat_tf.core.surrogate_gradients import passed_back
from sat_tf.core.surrogate_table import STRAIGHT_THROUGH, strength_of


def quantize_offset(
    x: tf.Tensor,
    clipping_level: tf.Tensor,
    num_bits: grids.Bits,
    gradient: str = "calibrated",
    *,
    lowest: float = 0.0,
    share: float = 0.0,
    surrogate: str = STRAIGHT_THROUGH,
    strength: float | None = None,
) -> tf.Tensor:
    """Clips and quantizes a tensor whose negative part is small: swish, GELU, a leaky rectifier.

    The range goes from -(ℓ + ρ α) to α, with ℓ = -lowest and the share ρ. With a = 2^b - 1 levels,
    the scale s = ((1 + ρ) α + ℓ) / a and z = round((ℓ + ρ α) / s) codes below zero, which makes 0
    one of the values,

    Forward:   q = s · clip(round(x / s), -z, a - z).
    Backward:  dq/dx = 1 where -z s < x < (a - z) s, else 0;
               dq/dα = (1 + ρ) / a · dq/ds, with dq/ds = q/s where x is clipped, and between
               q/s - x/s ("calibrated") or 0 ("pact").

    The gradient of the scale is that of LSQ (Esser et al. 2020, Eq. 3), which for ℓ = ρ = 0 is
    Eq. 13 of CG-PACT; the range that is not symmetric is that of LSQ+ (Bhalgat et al. 2020),
    whose offset here follows from the function that made x instead of being learnt: z is an
    integer, so that zero, padding and integer kernels stay exact, and carries no gradient.

    Computed in float32, returned in the type of `x`. NaN stays NaN in its own element, and has no
    part in either gradient.

    Args:
        x: any shape; float32, float16 or bfloat16.
        clipping_level: α > 0, a scalar tensor or variable.
        num_bits: bits b of the codes n = -z..a - z; 1 to 8; see `grid.Bits`.
        gradient: a row of `clipping_gradients`.
        lowest: the smallest value of a function that has one; at most 0.
        share: by which share of α the range goes lower than that; at least 0.
        surrogate: as in `pact.quantize_activation`.
        strength: see there.

    Raises:
        ValueError: bits out of range, or an unknown gradient or surrogate.

    >>> x = tf.constant([-9.0, -0.4, 0.6, 9.0])
    >>> quantize_offset(x, 6.0, 3, lowest=-1.0).numpy().tolist()
    [-1.0, 0.0, 1.0, 6.0]
    """
    levels = grids.levels(num_bits)
    find_clipping_gradient(gradient)
    strength_of(surrogate, strength)

    given = tf.convert_to_tensor(x)
    x = tf.cast(given, tf.float32)
    alpha = tf.cast(tf.convert_to_tensor(clipping_level), tf.float32)
    scale, below = scale_and_zero(alpha, levels, lowest, share, tf.floor)
    above = levels - below
    units = x / scale
    codes = tf.clip_by_value(grids.round_half_up(units), -below, above)
    # NaN would be clipped to an end of the range.
    codes = tf.where(tf.math.is_nan(x), x, codes)
    made = with_gradient(
        _backward,
        codes * scale,
        [x, alpha],
        kept=[codes, units, below, above, tf.convert_to_tensor(levels, tf.float32)],
        gradient=gradient,
        share=share,
        surrogate=surrogate,
        strength=strength,
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
    surrogate: str,
    strength: float | None,
) -> tuple[tf.Tensor, tf.Tensor]:
    del value, alpha
    inside = (units > -below) & (units < above)
    passed = passed_back(upstream, units - codes, levels, surrogate, strength)
    r = find_clipping_gradient(gradient)(units, codes)
    slope = tf.where(inside, codes - r, codes)
    slope = upstream * tf.where(tf.math.is_nan(x), 0.0, slope)
    # The original PACT has no gradient between the ends, whatever rounding passes back.
    if surrogate != STRAIGHT_THROUGH and r is not codes:
        slope += tf.where(inside, (upstream - passed) * r, 0.0)
    to_scale = tf.reduce_sum(slope)
    return tf.where(inside, passed, 0.0), to_scale * (1.0 + share) / levels


def quantize_observed(x: tf.Tensor, lowest: tf.Tensor, highest: tf.Tensor) -> tf.Tensor:
    """Rounds a tensor as LiteRT's QUANTIZE does with XNNPACK: x · (1 / s), ties to even.

    Forward:   q = s · (clip(round(x / s) + z, -128, 127) - z); x where the range is none.
    Backward:  dq/dx = 1 where x is in the range, else 0.

    Computed in float32, but for the scale, which is rounded to it from float64; returned in the
    type of `x`. NaN stays NaN.

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
    ends = tf.where(some, low, -1.0), tf.where(some, high, 1.0)
    scale, zero_point = scale_and_zero_point(*ends, tf.round)
    scale = tf.cast(scale, tf.float32)
    zero = tf.cast(tf.clip_by_value(zero_point, -128.0, 127.0), tf.float32)

    @tf.custom_gradient
    def quantize(x: tf.Tensor) -> tuple[tf.Tensor, Callable[[tf.Tensor], tf.Tensor]]:
        units = x * (1.0 / scale)
        codes = tf.clip_by_value(tf.round(units) + zero, -128.0, 127.0) - zero
        codes = tf.where(tf.math.is_nan(x), x, codes)
        inside = (units + zero >= -128.0) & (units + zero <= 127.0)

        def backward(upstream: tf.Tensor) -> tf.Tensor:
            return tf.where(inside | ~some, upstream, 0.0)

        return tf.where(some, codes * scale, x), backward

    x = tf.convert_to_tensor(x)
    return tf.cast(quantize(tf.cast(x, tf.float32)), x.dtype)


@dataclasses.dataclass(frozen=True)
class Reach:
    """Which values a function gives.

    Attributes:
        lowest: the smallest one, at most 0; None where nothing is known of it.
        share: what `lowest` leaves out: the smallest one is lower by this share of the largest.
        highest: the largest one, where the function has one; else None.
    """

    lowest: float | None = None
    share: float = 0.0
    highest: float | None = None

    @property
    def is_negative(self) -> bool:
        """Whether some values can be below 0."""
        return self.lowest != 0.0 or self.share > 0.0

    @property
    def has_lowest_alone(self) -> bool:
        """Whether a smallest value is known, and no largest one."""
        return self.lowest is not None and self.highest is None


UNIT = Reach(0.0, highest=1.0)
SIGNED_UNIT = Reach(-1.0, highest=1.0)
POSITIVE = Reach(0.0)
UNKNOWN = Reach()
