"""Ranges that are not symmetric around zero; `sat_tf.core.asymmetric` tells the story."""

from typing import Any

from keras import ops

from sat_tf.core.clipping_gradients import find_clipping_gradient
from sat_tf.core.ranges import SMALLEST_RANGE, scale_and_zero, scale_and_zero_point
from sat_tf.core.surrogate_table import STRAIGHT_THROUGH, strength_of
from sat_tf.keras3.core import grid as grids
from sat_tf.keras3.core.custom_gradient import Backward, with_gradient
from sat_tf.keras3.core.precision import in_float32, in_widest
from sat_tf.keras3.core.surrogate_gradients import of_range


def quantize_offset(
    x: Any,
    clipping_level: Any,
    num_bits: int,
    gradient: str = "calibrated",
    *,
    lowest: float = 0.0,
    share: float = 0.0,
    surrogate: str = STRAIGHT_THROUGH,
    strength: float | None = None,
) -> Any:
    """Clips and quantizes a tensor whose negative part is small.

    As `sat_tf.core.asymmetric.quantize_offset`: with a = 2^b - 1 levels, the scale
    s = ((1 + ρ) α + ℓ) / a and z = round((ℓ + ρ α) / s),

    Forward:   q = s · clip(round(x / s), -z, a - z).
    Backward:  dq/dx = 1 where -z s < x < (a - z) s, else 0;
               dq/dα = (1 + ρ) / a · dq/ds, with dq/ds = q/s where x is clipped, and between
               q/s - x/s ("calibrated") or 0 ("pact").

    Args:
        x: any shape and floating type, which is that of what is returned.
        clipping_level: α > 0, a scalar tensor or variable.
        num_bits: 1 to 8.
        gradient: a row of `clipping_gradients`.
        lowest: -ℓ, the smallest value of a function that has one; at most 0.
        share: ρ, by which share of α the range goes lower than that; at least 0.
        surrogate: a row of `surrogate_table`.
        strength: see there.

    Raises:
        ValueError: bits out of range, or an unknown gradient or surrogate.
    """
    levels = grids.levels(num_bits)
    reference = find_clipping_gradient(gradient)
    strength_of(surrogate, strength)

    def make(x: Any, alpha: Any) -> tuple[Any, Backward]:
        # XLA turns a division by a constant into a product with its reciprocal.
        divisor = levels + 0.0 * alpha
        scale, below = scale_and_zero(alpha, divisor, lowest, share, ops.floor)
        above = levels - below
        units = x / scale
        codes = grids.clip(grids.round_half_up(units), -below, above)

        def backward(upstream: Any) -> tuple[Any, Any]:
            dx, total = of_range(
                upstream,
                codes,
                reference(units, codes),
                (units > -below) & (units < above),
                lambda: units - codes,
                levels,
                surrogate,
                strength,
            )
            return dx, total * (1.0 + share) / levels

        return codes * scale, backward

    x = ops.convert_to_tensor(x)
    made = with_gradient(make, [ops.cast(x, "float32"), in_float32(clipping_level)])
    return ops.cast(made, x.dtype)


def quantize_observed(x: Any, lowest: Any, highest: Any) -> Any:
    """Rounds a tensor as LiteRT's QUANTIZE does: `sat_tf.core.asymmetric.quantize_observed`.

    Forward:   q = s · (clip(round(x / s) + z, -128, 127) - z); x where the range is none.
    Backward:  dq/dx = 1 where x is in the range, else 0.

    On a backend without float64 the scale can be off by its last bit.

    Args:
        x: any shape and floating type, which is that of what is returned.
        lowest: smallest value of the range, float32 scalar; above 0 it counts as 0.
        highest: largest value, likewise below 0.
    """

    def make(x: Any, lowest: Any, highest: Any) -> tuple[Any, Backward]:
        low = in_widest(ops.minimum(lowest, 0.0))
        high = in_widest(ops.maximum(highest, 0.0))
        some = high - low >= SMALLEST_RANGE
        ends = ops.where(some, low, -1.0), ops.where(some, high, 1.0)
        scale, zero_point = scale_and_zero_point(*ends, ops.round)
        scale = ops.cast(scale, "float32")
        zero = ops.cast(ops.clip(zero_point, -128.0, 127.0), "float32")
        units = x * (1.0 / scale)
        codes = grids.clip(ops.round(units) + zero, -128.0, 127.0) - zero

        def backward(upstream: Any) -> list[Any]:
            inside = (units + zero >= -128.0) & (units + zero <= 127.0)
            return [ops.where(inside | ~some, upstream, 0.0)]

        return ops.where(some, codes * scale, x), backward

    x = ops.convert_to_tensor(x)
    ends = [in_float32(lowest), in_float32(highest)]
    return ops.cast(with_gradient(make, [ops.cast(x, "float32")], ends), x.dtype)
