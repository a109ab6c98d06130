"""DoReFa weights: clamp by tanh over its maximum, then round to a grid (Eq. 5 to 9)."""

import tensorflow as tf

from sat_tf.core import backward_pass
from sat_tf.core import grid as grids
from sat_tf.core.custom_gradient import compiles_with_xla, with_gradient
from sat_tf.core.grid_table import find_grid
from sat_tf.core.ranges import SMALLEST_SIZE
from sat_tf.core.surrogate_gradients import passed_back
from sat_tf.core.surrogate_table import STRAIGHT_THROUGH, strength_of


def clamp_weights(
    kernel: tf.Tensor, detach_max: bool = False, *, range_axes: tuple[int, ...] = ()
) -> tf.Tensor:
    """Clamps latent weights to [-1, 1] (Eq. 5 and 6).

    Forward: Ŵ = t / m with t = tanh(W), m = max |t|.
    Backward, g the upstream gradient: dW = (1 - t²) (g / m - [|t| = m] sign(t) Σ(g Ŵ) / (m ties)),
    the second term (the gradient through the maximum, shared by its ties) left out with
    `detach_max`, the convention of some other implementations.

    Computed in float32, returned in the type of `kernel`. An all-zero kernel has m = 0; it is
    treated as m = 1, like any m below 2^-63, so it stays zero and keeps a gradient. Infinite
    weights become -1 or 1. A NaN weight stays NaN and is left out of the maximum, so it does not
    reach its neighbours.

    Args:
        kernel: latent weights, any shape; float32, float16 or bfloat16.
        detach_max: treat the maximum as a constant in the gradient.
        range_axes: axes that keep a maximum of their own; () is one maximum for the whole layer
            (the paper), the output-channel axes give one per channel.

    Returns:
        Clamped weights in [-1, 1], shaped and typed like `kernel`.

    >>> print(clamp_weights(tf.constant([0.0, 0.5, -1.0])).numpy())
    [ 0.         0.6067761 -1.       ]
    """
    kernel = tf.convert_to_tensor(kernel)
    squash = _Squash(tf.cast(kernel, tf.float32), range_axes)
    clamped = squash.values / squash.maximum
    return tf.cast(squash.with_gradient(clamped, detach_max), kernel.dtype)


def quantize_weights(
    kernel: tf.Tensor,
    num_bits: grids.Bits,
    grid: str = "auto",
    detach_max: bool = False,
    *,
    range_axes: tuple[int, ...] = (),
    surrogate: str = STRAIGHT_THROUGH,
    strength: float | None = None,
) -> tf.Tensor:
    """Clamps and quantizes latent weights (Eq. 9).

    Forward: Q = 2 n / d - 1 with n = min(round_half_up(d (Ŵ + 1) / 2), top); on the DoReFa grid
    d = top = a = 2^b - 1, which is the paper's Q = 2 q_k((Ŵ + 1) / 2) - 1; a centered grid rounds
    down, and has Q = 2 (n + 1/2) / d - 1. Backward: the rounding
    passes the gradient on unchanged (straight-through), or as another surrogate has it; the clamp
    has its own (`clamp_weights`).

    Computed in float32, returned in the type of `kernel`. Zero, infinite and NaN weights: as in
    `clamp_weights`; an all-zero kernel lands on zero, or next above it on the DoReFa grid, which
    has no zero.

    Args:
        kernel: latent weights, any shape; float32, float16 or bfloat16.
        num_bits: 1 to 8; see `grid.Bits`.
        grid: a name of `grid_table.GRIDS` or of `AUTOMATIC`.
        detach_max: see `clamp_weights`.
        range_axes: see `clamp_weights`.
        surrogate: a row of `surrogate_table`.
        strength: see there.

    Returns:
        Quantized weights in [-1, 1], shaped and typed like `kernel`.

    Raises:
        ValueError: bits out of range, unknown grid or surrogate, or a grid without a step at these
            bits.

    >>> print(quantize_weights(tf.constant([-2.0, -0.1, 0.1, 2.0]), 2).numpy())
    [-1.         -0.33333334  0.33333334  1.        ]
    """
    strength_of(surrogate, strength)
    half = grids.divisor(num_bits, grid) / 2.0
    middle = grids.middle(num_bits, grid)
    kernel = tf.convert_to_tensor(kernel)
    squash = _Squash(tf.cast(kernel, tf.float32), range_axes)
    # Subtracting first is exact, so that opposite codes are opposite numbers.
    units = grid_units(squash.values, squash.maximum, num_bits, grid)
    quantized = (units - middle) * (1.0 / half)
    if surrogate == STRAIGHT_THROUGH:
        return tf.cast(squash.with_gradient(quantized, detach_max), kernel.dtype)
    clamped = squash.with_gradient(squash.values / squash.maximum, detach_max)
    rounded = with_gradient(
        _through_rounding,
        quantized,
        [clamped],
        kept=[units - middle, tf.convert_to_tensor(half, tf.float32)],
        surrogate=surrogate,
        strength=strength,
    )
    return tf.cast(rounded, kernel.dtype)


def weight_codes(
    kernel: tf.Tensor,
    num_bits: int,
    grid: str = "auto",
    *,
    range_axes: tuple[int, ...] = (),
) -> tf.Tensor:
    """Integer codes of the quantized weights: Q = code * scale.

    Codes are 2n - a (odd numbers) on the DoReFa grid, n - a/2 on the narrow one; the scale is
    `grid_table.GRIDS[name].scale(num_bits)`.

    Args:
        kernel: latent weights, any shape.
        num_bits: 1 to 8.
        grid: a name of `grid_table.GRIDS` or of `AUTOMATIC`.
        range_axes: see `clamp_weights`.

    Returns:
        int32 codes, shaped like `kernel`.

    Raises:
        ValueError: as in `quantize_weights`.
        tf.errors.InvalidArgumentError: a weight is NaN, for which there is no code.

    >>> weight_codes(tf.constant([-2.0, -0.1, 0.1, 2.0]), 2).numpy().tolist()
    [-3, -1, 1, 3]
    """
    row = find_grid(grid, num_bits)
    units = weight_units(kernel, num_bits, grid, range_axes=range_axes)
    units = tf.debugging.check_numerics(units, "weight_codes: NaN has no integer code")
    units = tf.cast(units, tf.int32)
    return row.codes_per_unit * units - row.code_offset(num_bits)


def weight_units(
    kernel: tf.Tensor,
    num_bits: int,
    grid: str = "auto",
    *,
    range_axes: tuple[int, ...] = (),
) -> tf.Tensor:
    """The integers n = 0..top of the quantized weights: Q = 2 n / d - 1.

    Args:
        kernel: latent weights, any shape.
        num_bits: 1 to 8.
        grid: a name of `grid_table.GRIDS` or of `AUTOMATIC`.
        range_axes: see `clamp_weights`.

    Returns:
        float32, shaped like `kernel`; NaN where a weight is.

    Raises:
        ValueError: as in `quantize_weights`.

    >>> weight_units(tf.constant([-2.0, -0.1, 0.1, 2.0]), 2).numpy().tolist()
    [0.0, 1.0, 2.0, 3.0]
    """
    squash = _Squash(tf.cast(kernel, tf.float32), range_axes)
    return grid_units(squash.values, squash.maximum, num_bits, grid)


def held_weights(
    kernel: tf.Tensor,
    units: tf.Tensor,
    held: tf.Tensor,
    num_bits: int,
    grid: str = "auto",
    *,
    range_axes: tuple[int, ...] = (),
) -> tf.Tensor:
    """Latent weights of which some stay at given codes, whatever the others do.

    A held weight becomes W = atanh(m (2 u - 1)), where m = max |tanh| over the weights of its range
    that are not held, and u is the middle of the part of the unit interval that rounds to its n. It
    is therefore never the largest of its range, its clamped value is 2 u - 1 wherever m moves, and
    so it is quantized to n, far from any tie. The other weights stay what they are.

    Where a range has no weight above zero that is not held, its held weights stay as they are too.

    Args:
        kernel: latent weights, float32, any shape.
        units: n = 0..top for each of them, any number type; see `weight_units`.
        held: which of them to hold, boolean.
        num_bits: 1 to 8.
        grid: a name of `grid_table.GRIDS` or of `AUTOMATIC`.
        range_axes: see `clamp_weights`.

    Returns:
        Latent weights, shaped like `kernel`.

    >>> kernel = tf.constant([1.0, 0.1, -0.5])
    >>> held = held_weights(kernel, tf.constant([3, 3, 0]), tf.constant([False, True, False]), 2)
    >>> weight_units(held, 2).numpy().tolist()
    [3.0, 3.0, 1.0]
    """
    row = find_grid(grid, num_bits)
    divisor, top = float(row.divisor(num_bits)), float(row.top(num_bits))
    units = tf.cast(units, tf.float32)
    below = 0.5 if row.rounding == "half up" else 0.0
    lowest = tf.maximum(units - below, 0.0)
    highest = tf.where(units < top, units + (1.0 - below), divisor)
    middle = (lowest + highest) / divisor - 1.0
    free = _Squash(tf.where(held, 0.0, kernel), range_axes)
    there_is_one = tf.reduce_any(free.values != 0.0, free.reduced, keepdims=True)
    return tf.where(held & there_is_one, tf.atanh(free.maximum * middle), kernel)


def largest_weights(kernel: tf.Tensor, *, range_axes: tuple[int, ...] = ()) -> tf.Tensor:
    """Which latent weights are the largest of their range in magnitude, a boolean for each.

    >>> largest_weights(tf.constant([0.5, -2.0, 1.0])).numpy().tolist()
    [False, True, False]
    """
    squash = _Squash(kernel, range_axes)
    return tf.abs(squash.values) >= squash.maximum


class _Squash:
    """tanh(W) and its largest magnitude m, which counts as 1 where all weights are (nearly) 0.

    Sums and maxima over the layer leave NaN out; elementwise operations keep it.
    """

    def __init__(self, latent: tf.Tensor, range_axes: tuple[int, ...]) -> None:
        rank = latent.shape.rank
        self.reduced = tuple(sorted(set(range(rank)) - {axis % rank for axis in range_axes}))
        self._one_range = len(self.reduced) == rank
        self._latent = latent
        self.values = tf.tanh(latent)
        self._may_be_nan, largest = self._largest()
        self.maximum = tf.where(largest >= SMALLEST_SIZE, largest, 1.0)

    def _largest(self) -> tuple[tf.Tensor, tf.Tensor]:
        """Whether there may be a NaN, and the largest magnitude of the others."""

        def largest_of(values: tf.Tensor) -> tf.Tensor:
            # Without |t| in memory.
            highest = tf.reduce_max(values, axis=self.reduced, keepdims=not self._one_range)
            lowest = tf.reduce_min(values, axis=self.reduced, keepdims=not self._one_range)
            return tf.maximum(highest, -lowest)

        if compiles_with_xla():  # its maximum of NaN may be a number
            return tf.constant(True), largest_of(_without_nan(self.values))
        largest = largest_of(self.values)
        is_nan = tf.math.is_nan(largest)
        there_is_nan = is_nan if self._one_range else tf.reduce_any(is_nan)
        return there_is_nan, tf.cond(
            there_is_nan, lambda: largest_of(_without_nan(self.values)), lambda: largest
        )

    def with_gradient(self, value: tf.Tensor, detach_max: bool) -> tf.Tensor:
        """`value`, with the gradient of tanh(W) / m with respect to W."""
        return with_gradient(
            _backward,
            value,
            [self._latent],
            kept=[self.maximum, self._may_be_nan],
            detach_max=detach_max,
            reduced=None if self._one_range else self.reduced,
        )


def _through_rounding(
    upstream: tf.Tensor,
    value: tf.Tensor,
    clamped: tf.Tensor,
    centred: tf.Tensor,
    half: tf.Tensor,
    *,
    surrogate: str,
    strength: float | None,
) -> tuple[tf.Tensor]:
    del value
    error = clamped * half - centred
    return (passed_back(upstream, error, 2.0 * half, surrogate, strength),)


def _backward(
    upstream: tf.Tensor,
    value: tf.Tensor,
    latent: tf.Tensor,
    maximum: tf.Tensor,
    may_be_nan: tf.Tensor,
    *,
    detach_max: bool,
    reduced: tuple[int, ...] | None,
) -> tuple[tf.Tensor]:
    """Gradient of tanh(W) / m; `reduced` are the axes of each range, None where there is one."""
    del value
    # tanh(W) again: kept since the forward pass, it would take as much memory as the weights.
    with tf.control_dependencies([upstream]):
        values = tf.tanh(latent)
    through_tanh = upstream / maximum
    if not detach_max:
        numbers = tf.cond(may_be_nan, lambda: _without_nan(values), lambda: values)
        # t where |t| = m, else 0: the gradient through the maximum is shared by its ties.
        if reduced is None:
            edge = maximum * backward_pass.JUST_BELOW_ONE
            at_maximum = numbers - backward_pass.keep_inside(numbers, numbers, -edge, edge)
        else:
            at_maximum = tf.where(tf.abs(numbers) == maximum, numbers, 0.0)
        total = _sum(through_tanh, numbers, reduced)
        squares = _sum(at_maximum, at_maximum, reduced)  # m² a tie
        through_tanh -= at_maximum * tf.math.divide_no_nan(total, squares)
    return (tf.raw_ops.TanhGrad(y=values, dy=through_tanh),)


def _sum(a: tf.Tensor, b: tf.Tensor, reduced: tuple[int, ...] | None) -> tf.Tensor:
    """Σ a b over each range."""
    if reduced is None:
        return backward_pass.dot(a, b)
    return tf.reduce_sum(a * b, reduced, keepdims=True)


def _without_nan(values: tf.Tensor) -> tf.Tensor:
    """The values, with 0 in the place of NaN."""
    return tf.where(tf.math.is_nan(values), 0.0, values)


def grid_units(values: tf.Tensor, maximum: tf.Tensor, num_bits: grids.Bits, grid: str) -> tf.Tensor:
    """Integers n = 0..top of a grid on [-maximum, maximum], as float32.

    Args:
        values: any shape, float32; those beyond the maximum are clipped.
        maximum: positive, float32; of a shape that broadcasts to that of the values.
        num_bits: see `quantize_weights`.
        grid: see there.
    """
    half, top = grids.divisor(num_bits, grid) / 2.0, grids.levels(num_bits, grid)
    rounding = grids.rounding(num_bits, grid)
    position = values * (half / maximum) + half
    fixed = not tf.is_tensor(num_bits)
    if fixed and rounding is grids.round_half_up and num_bits >= 2 and not compiles_with_xla():
        # On a range as long as it has intervals, the FakeQuant kernel's scale is exactly 1: it
        # clips and rounds to integers in one pass over memory.
        return tf.quantization.fake_quant_with_min_max_vars(
            position, 0.0, float(top), num_bits, narrow_range=top == 2**num_bits - 2
        )
    return tf.clip_by_value(rounding(position), 0.0, float(top) if fixed else top)
