"""DoReFa weights: clamp by tanh over its maximum, round to a grid, and rescale.

These are Eq. 5 to 10 and S23.
"""

from collections.abc import Callable
from typing import Any

from sat_tf.core import grid as grids
from sat_tf.core.gradients import STRAIGHT_THROUGH, Surrogate, passed_back
from sat_tf.core.grid import SMALLEST_SIZE, axes_within, find_grid, grid_units
from sat_tf.core.tensor_ops import Namespace, Tensor, in_float32, mean_of_finite, namespace
from sat_tf.messages import did_you_mean


def clamp_weights(
    kernel: Tensor, detach_max: bool = False, *, range_axes: tuple[int, ...] = ()
) -> Tensor:
    """Clamps latent weights to [-1, 1] (Eq. 5 and 6).

    Forward: Ŵ = t / m with t = tanh(W), m = max |t|.
    Backward, g the upstream gradient: dW = (1 - t²) (g / m - [|t| = m] sign(t) Σ(g Ŵ) / (m ties)),
    the second term (the gradient through the maximum, shared by its ties) left out with
    `detach_max`, the convention of some other implementations.

    Computed in float32, returned in the type of `kernel`. An all-zero kernel has m = 0; it is
    treated as m = 1, like any m below 2^-63, so it stays zero and keeps a gradient. Infinite
    weights become -1 or 1. A NaN weight stays NaN and is left out of the maximum, so it does not
    reach its neighbours. `range_axes` keep a maximum of their own; () is one for the whole layer
    (the paper), the output-channel axes give one per channel.
    """
    return _made_of_tanh(kernel, range_axes, _clamped, _of_clamp, detach_max=detach_max)


def quantize_weights(
    kernel: Tensor,
    num_bits: grids.Bits,
    grid: str = "auto",
    detach_max: bool = False,
    *,
    range_axes: tuple[int, ...] = (),
    surrogate: Surrogate = STRAIGHT_THROUGH,
) -> Tensor:
    """Clamps and quantizes latent weights (Eq. 9).

    Forward: Q = 2 n / d - 1 with n = min(round_half_up(d (Ŵ + 1) / 2), top); on the DoReFa grid
    d = top = a = 2^b - 1, which is the paper's Q = 2 q_k((Ŵ + 1) / 2) - 1; a centered grid rounds
    down, and has Q = 2 (n + 1/2) / d - 1. Backward: the rounding
    passes the gradient on unchanged (straight-through), or as another surrogate has it; the clamp
    has its own (`clamp_weights`).

    Computed in float32, returned in the type of `kernel`. Zero, infinite and NaN weights: as in
    `clamp_weights`; an all-zero kernel lands on zero, or next above it on the DoReFa grid, which
    has no zero.
    """
    grids.levels(num_bits, grid)
    return _made_of_tanh(
        kernel,
        range_axes,
        _quantized,
        _of_quantized,
        num_bits=num_bits,
        grid=grid,
        detach_max=detach_max,
        surrogate=surrogate,
    )


def weight_codes(
    kernel: Tensor, num_bits: int, grid: str = "auto", *, range_axes: tuple[int, ...] = ()
) -> Tensor:
    """Integer codes of the quantized weights: Q = code * scale; NaN is an error."""
    n = namespace(kernel)
    row = find_grid(grid, num_bits)
    units = weight_units(kernel, num_bits, grid, range_axes=range_axes)
    units = n.check_numerics(units, "weight_codes: NaN has no integer code")
    units = n.cast(units, "int32")
    return row.codes_per_unit * units - row.code_offset(num_bits)


def weight_units(
    kernel: Tensor, num_bits: int, grid: str = "auto", *, range_axes: tuple[int, ...] = ()
) -> Tensor:
    """The integers n = 0..top of the quantized weights, float32: Q = 2 n / d - 1; NaN stays NaN."""
    n = namespace(kernel)
    values, maximum = _squashed(n, in_float32(n, kernel), range_axes)
    return grid_units(values, maximum, num_bits, grid)


def held_weights(
    kernel: Tensor,
    units: Tensor,
    held: Tensor,
    num_bits: int,
    grid: str = "auto",
    *,
    range_axes: tuple[int, ...] = (),
) -> Tensor:
    """Latent weights of which some stay at given codes, whatever the others do.

    A held weight becomes W = atanh(m (2 u - 1)), where m = max |tanh| over the weights of its range
    that are not held, and u is the middle of the part of the unit interval that rounds to its n. It
    is therefore never the largest of its range, its clamped value is 2 u - 1 wherever m moves, and
    so it is quantized to n, far from any tie. The other weights stay what they are.

    Where a range has no weight above zero that is not held, its held weights stay as they are too.
    """
    n = namespace(kernel)
    kernel, held = n.tensor(kernel), n.tensor(held)
    row = find_grid(grid, num_bits)
    divisor, top = float(row.divisor(num_bits)), float(row.top(num_bits))
    units = n.cast(units, "float32")
    below = 0.5 if row.rounding == "half up" else 0.0
    lowest = n.maximum(units - below, 0.0)
    highest = n.where(units < top, units + (1.0 - below), divisor)
    middle = (lowest + highest) / divisor - 1.0
    values, maximum = _squashed(n, n.where(held, 0.0, kernel), range_axes)
    axes = tuple(axes_within(len(kernel.shape), range_axes))
    there_is_one = n.any(values != 0.0, axis=axes, keepdims=True)
    return n.where(held & there_is_one, n.arctanh(maximum * middle), kernel)


def largest_weights(kernel: Tensor, *, range_axes: tuple[int, ...] = ()) -> Tensor:
    """A boolean for each latent weight: whether its magnitude is the largest of its range."""
    n = namespace(kernel)
    values, maximum = _squashed(n, n.tensor(kernel), range_axes)
    return n.abs(values) >= maximum


def _made_of_tanh(
    kernel: Tensor,
    range_axes: tuple[int, ...],
    forward: Callable[..., Any],
    backward: Callable[..., Any],
    **settings: Any,
) -> Tensor:
    """A function of tanh(W) in float32, with a gradient of its own, in the type of `kernel`."""
    n = namespace(kernel)
    tensor = n.tensor(kernel)
    axes = _range(tensor, range_axes)
    values = n.through_tanh(forward, backward, in_float32(n, tensor), axes=axes, **settings)
    return n.cast(values, tensor.dtype)


def _range(kernel: Tensor, range_axes: tuple[int, ...]) -> tuple[int, ...] | None:
    """The axes along which each range extends; None where there is one range."""
    axes = tuple(axes_within(len(kernel.shape), range_axes))
    return None if len(axes) == len(kernel.shape) else axes


def _maximum(n: Namespace, values: Tensor, axes: tuple[int, ...] | None) -> tuple[Tensor, Any]:
    """M = max |t| of each range, 1 where all are (nearly) 0; and whether there may be a NaN."""
    largest, holds_nan = n.largest_magnitude(values, axes)
    return n.where(largest >= SMALLEST_SIZE, largest, 1.0), holds_nan


def _squashed(n: Namespace, latent: Tensor, range_axes: tuple[int, ...]) -> tuple[Tensor, Tensor]:
    """T = tanh(W), and m."""
    values = n.tanh(latent)
    return values, _maximum(n, values, _range(latent, range_axes))[0]


def _clamped(
    n: Namespace, values: Tensor, *, axes: tuple[int, ...] | None, **settings: Any
) -> tuple[Tensor, tuple[Any, ...]]:
    maximum, holds_nan = _maximum(n, values, axes)
    return values / maximum, (maximum, holds_nan)


def _of_clamp(
    n: Namespace,
    upstream: Tensor,
    value: Tensor,
    values: Tensor,
    maximum: Tensor,
    holds_nan: Any,
    *,
    axes: tuple[int, ...] | None,
    detach_max: bool,
) -> tuple[Tensor]:
    """The gradient of t / m with respect to t."""
    slopes = upstream / maximum
    if not detach_max:
        numbers = n.without_nan(values, holds_nan)
        # t where |t| = m, else 0: the gradient through the maximum is shared by its ties.
        at_maximum = n.largest_alone(numbers, maximum)
        total = n.inner_product(slopes, numbers, axes)
        squares = n.inner_product(at_maximum, at_maximum, axes)  # m² a tie
        slopes -= at_maximum * n.divide_no_nan(total, squares)
    return (slopes,)


def _quantized(
    n: Namespace,
    values: Tensor,
    *,
    num_bits: grids.Bits,
    grid: str,
    axes: tuple[int, ...] | None,
    surrogate: Surrogate,
    **settings: Any,
) -> tuple[Tensor, tuple[Any, ...]]:
    maximum, holds_nan = _maximum(n, values, axes)
    # Subtracting first is exact, so that opposite codes are opposite numbers.
    centred = grid_units(values, maximum, num_bits, grid) - grids.middle(num_bits, grid)
    quantized = centred * (1.0 / (grids.divisor(num_bits, grid) / 2.0))
    residuals = (
        (maximum, holds_nan) if surrogate == STRAIGHT_THROUGH else (maximum, holds_nan, centred)
    )
    return quantized, residuals


def _of_quantized(
    n: Namespace,
    upstream: Tensor,
    value: Tensor,
    values: Tensor,
    maximum: Tensor,
    holds_nan: Any,
    *centred: Tensor,
    num_bits: grids.Bits,
    grid: str,
    axes: tuple[int, ...] | None,
    detach_max: bool,
    surrogate: Surrogate,
) -> tuple[Tensor]:
    if surrogate != STRAIGHT_THROUGH:
        half = grids.divisor(num_bits, grid) / 2.0
        error = values / maximum * half - centred[0]
        upstream = passed_back(upstream, error, 2.0 * half, surrogate)
    return _of_clamp(
        n, upstream, value, values, maximum, holds_nan, axes=axes, detach_max=detach_max
    )


RESCALINGS = ("constant", "stddev", "none")
# It takes the place of the sum of the squares of weights that are all 0.
SMALLEST_SQUARE = 2.0**-126


def rescale_factor(
    weights: Tensor,
    fan_out: int,
    method: str = "constant",
    latent: Tensor | None = None,
    *,
    range_axes: tuple[int, ...] = (),
) -> Tensor:
    """SAT's constant c, which brings quantized weights back to a trainable size: Q* = c Q.

    c = 1 / sqrt(n̂ mean(Q²)) ("constant", Eq. 7 and 10), sqrt(mean(W²) / mean(Q²)) ("stddev",
    Eq. S23) or 1 ("none"), with the n̂ outputs that one input reaches; means over the whole layer,
    not centred. It is positive and finite whatever the weights are: the means leave NaN and
    infinite weights out, and where a mean is 0, c is 1. It is float32, and carries no gradient.

    Where channels have maxima of their own (see `clamp_weights`), "stddev" has means of
    their own as well: the clamp takes the size of each channel away, and this is what gives it
    back. Then c keeps the axes, with length 1 along the others; otherwise it is a scalar.
    """
    if method not in RESCALINGS:
        raise ValueError(
            f"method={method!r} is no rescaling. {did_you_mean(str(method), RESCALINGS)}"
        )
    if method != "none" and fan_out < 1:
        raise ValueError(f"fan_out={fan_out!r}: expected the layer's number of output neurons.")
    if method == "stddev" and latent is None:
        raise ValueError(
            "method='stddev' compares with the latent weights: pass latent=..., "
            "or use method='constant'."
        )
    n = namespace(weights)
    if method == "none":
        return n.constant(1.0)
    # The gradient is stopped before anything is computed, so that nothing is kept for it.
    weights = n.stop_gradient(n.tensor(weights))
    if method == "constant":
        factor = n.rsqrt(float(fan_out) * _mean_square(n, weights))
    else:
        latent = _mean_square(n, n.stop_gradient(n.tensor(latent)), range_axes)
        factor = n.sqrt(latent / _mean_square(n, weights, range_axes))
    return n.where(n.isfinite(factor) & (factor > 0.0), factor, 1.0)


def without_size(weights: Tensor) -> Tensor:
    """Weights whose size is removed anyway, with a gradient that has no component along them.

    Forward: Q. Backward: dQ = g - Q Σ(g Q) / Σ Q², so that rescaled by c, Q* = c Q, they have the
    gradient that includes that of c = 1 / sqrt(n̂ mean(Q²)).

    The constant of Eq. 10 carries none, which is right for weights whose size the clamp holds. With
    a scale that is learnt, or that follows the latent weights, Q* would stay as large as ever while
    the gradient pushes the scale on and on, to zero or to infinity. The sums leave out weights that
    are not finite.
    """
    n = namespace(weights)
    return n.with_gradient(lambda n, weights: (weights, ()), _across, [n.tensor(weights)])


def _across(n: Namespace, upstream: Tensor, value: Tensor, weights: Tensor) -> tuple[Tensor]:
    counted = n.where(n.isfinite(weights), weights, 0.0)
    squares = n.maximum(n.sum(n.square(counted)), SMALLEST_SQUARE)
    return (upstream - counted * (n.sum(upstream * counted) / squares),)


def _mean_square(n: Namespace, values: Tensor, keep: tuple[int, ...] = ()) -> Tensor:
    squares = n.square(n.cast(values, "float32"))
    return mean_of_finite(n, squares, axes_within(len(squares.shape), keep), bool(keep))
