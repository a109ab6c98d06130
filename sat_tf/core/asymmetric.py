"""Ranges that are not symmetric around zero: of functions such as swish, or observed in data."""

import dataclasses
from typing import Any

from sat_tf.core import grid as grids
from sat_tf.core.gradients import STRAIGHT_THROUGH, Surrogate, find_clipping_gradient, passed_back
from sat_tf.core.grid import SMALLEST_RANGE, ends_of_skew, scale_and_zero, scale_and_zero_point
from sat_tf.core.pact import round_to_level
from sat_tf.core.tensor_ops import Namespace, Tensor, computed_in_float32, in_float32, namespace


def quantize_offset(
    x: Tensor,
    clipping_level: Tensor,
    num_bits: grids.Bits,
    gradient: str = "calibrated",
    *,
    lowest: float = 0.0,
    share: float = 0.0,
    surrogate: Surrogate = STRAIGHT_THROUGH,
) -> Tensor:
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

    Computed in float32, returned in the type of `x`. NaN stays NaN in its own element, and adds
    nothing to either gradient. The clipping level is a scalar above 0, and other arguments are
    those of `pact.quantize_activation`.
    """
    find_clipping_gradient(gradient)
    return computed_in_float32(
        _forward,
        _backward,
        [x, clipping_level],
        levels=grids.levels(num_bits),
        gradient=gradient,
        lowest=lowest,
        share=share,
        surrogate=surrogate,
    )


def _forward(
    n: Namespace,
    x: Tensor,
    alpha: Tensor,
    *,
    levels: Any,
    lowest: float,
    share: float,
    **settings: Any,
) -> tuple[Tensor, tuple[Tensor, ...]]:
    divisor = n.exact_divisor(levels, alpha)
    scale, below = scale_and_zero(alpha, divisor, lowest, share, n.floor)
    codes, units = _codes_and_units(n, x, scale, below, levels)
    return codes * scale, (codes, units, below)


def _codes_and_units(
    n: Namespace, x: Tensor, scale: Tensor, below: Tensor, levels: Any
) -> tuple[Tensor, Tensor]:
    """The codes -z..a - z of a tensor, and the values that were rounded to them."""
    units = x / scale
    return n.clip(grids.round_half_up(units), -below, levels - below), units


def _backward(
    n: Namespace,
    upstream: Tensor,
    value: Tensor,
    x: Tensor,
    alpha: Tensor,
    codes: Tensor,
    units: Tensor,
    below: Tensor,
    *,
    levels: Any,
    gradient: str,
    lowest: float,
    share: float,
    surrogate: Surrogate,
) -> tuple[Tensor, Tensor]:
    passed = upstream
    if surrogate != STRAIGHT_THROUGH:
        passed = passed_back(upstream, units - codes, levels, surrogate)
    in_range = (units > -below) & (units < levels - below)
    r = find_clipping_gradient(gradient)(units, codes)
    dx, total = n.range_gradients(upstream, passed, codes, r, in_range)
    return dx, total * (1.0 + share) / levels


def quantize_skewed(
    x: Tensor,
    clipping_level: Tensor,
    skew: Tensor,
    num_bits: grids.Bits,
    gradient: str = "calibrated",
    *,
    surrogate: Surrogate = STRAIGHT_THROUGH,
) -> Tensor:
    """Clips and quantizes a tensor that can be negative to a range that need not be symmetric.

    The ends l and h of the range are those of `grid.ends_of_skew`: the larger one is the clipping
    level α, of whichever sign, and the skew κ says how much smaller the other one is. With κ = 0
    the value is that of `pact.quantize_stream`, on the narrow grid; otherwise there are a = 2^b - 1
    intervals, the scale s = (h - l) / a, and z = round(-l / s) codes below zero, so that 0 is one
    of the values and the ends are l' = -z s and h' = (a - z) s:

    Forward:   q = s · clip(round(x / s), -z, a - z).
    Backward:  dq/dx = 1 where l' < x < h', else 0;
               dq/dh = 1 where x >= h', 0 where x <= l', and between (q - x) / (h - l);
               dq/dl = 0 where x >= h', 1 where x <= l', and between (x - q) / (h - l):
               Eq. 13 of CG-PACT at each of two ends ("calibrated"), or 0 between ("pact");
               dq/dα at a constant κ, where z stays: q/α - x/α between l' and h', else q/α;
               dq/dκ = α dq/dl where κ > 0, α dq/dh where κ < 0, and 0 where κ = 0, so that a
               range that is symmetric stays so.

    z is an integer, so that padding and integer kernels stay exact. Types, infinities and NaN: as
    in `pact.quantize_activation`. A skew below -1 counts as -1, and above 1 as 1; there are 2 bits
    or more.
    """
    grids.levels(num_bits, "narrow")
    find_clipping_gradient(gradient)
    return computed_in_float32(
        _skewed,
        _of_skewed,
        [x, clipping_level, skew],
        num_bits=num_bits,
        gradient=gradient,
        surrogate=surrogate,
    )


def _skewed(
    n: Namespace, x: Tensor, alpha: Tensor, skew: Tensor, *, num_bits: grids.Bits, **settings: Any
) -> tuple[Tensor, tuple[Tensor, ...]]:
    """The value of `quantize_skewed`, and the ends of its range, which the gradient needs."""
    levels = grids.levels(num_bits)
    low, high = ends_of_skew(alpha, n.maximum(n.minimum(skew, 1.0), -1.0), n.where)
    scale, below = scale_and_zero(high, n.exact_divisor(levels, alpha), low, 0.0, n.floor)
    is_symmetric = skew == 0.0

    value = n.cond(
        is_symmetric,
        lambda: round_to_level(n, x, alpha, num_bits=num_bits, grid="narrow")[0],
        lambda: _codes_and_units(n, x, scale, below, levels)[0] * scale,
    )
    lower_end = n.where(is_symmetric, low, -below * scale)
    return value, (lower_end, n.where(is_symmetric, high, (levels - below) * scale))


def _of_skewed(
    n: Namespace,
    upstream: Tensor,
    value: Tensor,
    x: Tensor,
    alpha: Tensor,
    skew: Tensor,
    low: Tensor,
    high: Tensor,
    *,
    num_bits: grids.Bits,
    gradient: str,
    surrogate: Surrogate,
) -> tuple[Tensor, Tensor, Tensor]:
    """The gradients dx, dα and dκ from three sums over the tensor.

    With t = Σ g q - Σ dx r, as in `pact`, and the sums T and B of g over the values clipped at the
    top and at the bottom, the values between the ends add t - h' T - l' B.
    """
    passed, is_straight = upstream, surrogate == STRAIGHT_THROUGH
    if not is_straight:
        narrow, whole = (in_float32(n, grids.levels(num_bits, of)) for of in ("narrow", "dorefa"))
        intervals = n.where(skew == 0.0, narrow, whole)
        error = (x - value) * (intervals / (high - low))
        passed = passed_back(upstream, error, intervals, surrogate)
    reference = find_clipping_gradient(gradient)
    dx, total = n.clipped_gradients(upstream, passed, x, value, low, high, reference)

    def of_other_end() -> Tensor:
        # The tensor itself need not be kept: dx is 0 where it is clipped.
        clipped = upstream - dx if is_straight else n.where((x > low) & (x < high), 0.0, upstream)
        middle = 0.5 * (low + high)
        at_top = n.sum(n.where(value > middle, clipped, 0.0))
        at_bottom = n.sum(n.where(value <= middle, clipped, 0.0))
        between = (total - high * at_top - low * at_bottom) / (high - low)
        return alpha * n.where(skew > 0.0, at_bottom - between, at_top + between)

    dskew = n.cond(skew == 0.0, lambda: n.tensor(0.0), of_other_end)
    return dx, total / alpha, dskew


def quantize_observed(x: Tensor, lowest: Tensor, highest: Tensor, num_bits: int = 8) -> Tensor:
    """Rounds a tensor by the arithmetic of LiteRT's QUANTIZE in XNNPACK: x · (1 / s), ties to even.

    Forward:   q = s · (clip(round(x / s) + z, -128, 127) - z); x without a range.
               With 16 bits the ends are -32768 and 32767, z is 0, and s is `grid.wide_scale`.
    Backward:  dq/dx = 1 where x is in the range, else 0.

    Computed in float32, except the scale, which is rounded to it from float64; returned in the
    type of `x`. NaN stays NaN. A lowest value above 0 counts as 0, and so does a highest one below
    0.
    """
    n = namespace(x)
    lowest, highest = in_float32(n, lowest), in_float32(n, highest)
    settings = {"lowest": lowest, "highest": highest, "num_bits": num_bits}
    return computed_in_float32(_observed, _of_observed, [x], **settings)


def _observed(
    n: Namespace, x: Tensor, *, lowest: Tensor, highest: Tensor, num_bits: int
) -> tuple[Tensor, tuple[Tensor]]:
    low, high = n.in_widest(n.minimum(lowest, 0.0)), n.in_widest(n.maximum(highest, 0.0))
    has_range = high - low >= SMALLEST_RANGE
    ends = n.where(has_range, low, -1.0), n.where(has_range, high, 1.0)
    bottom, top = -(2.0 ** (num_bits - 1)), 2.0 ** (num_bits - 1) - 1.0
    if num_bits == grids.WIDE_BITS:
        scale, zero = n.cast(grids.wide_scale(*ends, n.maximum), "float32"), 0.0
    else:
        scale, zero_point = scale_and_zero_point(*ends, n.round)
        scale = n.cast(scale, "float32")
        zero = n.cast(n.maximum(n.minimum(zero_point, top), bottom), "float32")
    units = x * (1.0 / scale)
    codes = n.clip(n.round(units) + zero, bottom, top) - zero
    in_range = (units + zero >= bottom) & (units + zero <= top)
    return n.where(has_range, codes * scale, x), (in_range | ~has_range,)


def _of_observed(
    n: Namespace, upstream: Tensor, value: Tensor, x: Tensor, passes: Tensor, **ends: Tensor
) -> tuple[Tensor]:
    return (n.where(passes, upstream, 0.0),)


@dataclasses.dataclass(frozen=True)
class Reach:
    """The values that a function can give."""

    lowest: float | None = None  # The smallest value, at most 0; None where it is unknown.
    # The share of the largest value by which the smallest one lies below `lowest`.
    share: float = 0.0
    highest: float | None = None  # The largest value; None where the function has none.

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
