"""Weights on a grid whose size is the mean magnitude of each channel: those of N2UQ.

Liu et al., "Nonuniform-to-Uniform Quantization", CVPR 2022, section 3.3 and their released code.
"""

import tensorflow as tf

from sat_tf.core import grid as grids
from sat_tf.core.custom_gradient import with_gradient
from sat_tf.core.dorefa import grid_units
from sat_tf.core.ranges import SMALLEST_SIZE, axes_within
from sat_tf.core.surrogate_gradients import passed_back
from sat_tf.core.surrogate_table import STRAIGHT_THROUGH, strength_of


def weight_size(
    kernel: tf.Tensor, num_bits: grids.Bits, *, range_axes: tuple[int, ...] = ()
) -> tf.Tensor:
    """The size c = (2^b - 1) / 2^(b-1) · mean|w| of each range of weights; carries no gradient.

    Of uniformly distributed weights it is nearly the largest, 2 mean|w|; at 1 bit it is mean|w|,
    which makes the quantized weights those of XNOR-Net (Rastegari et al. 2016). A range of zeros
    has the size of its layer, and where all are zeros 1. NaN and infinite weights are left out.

    Args:
        kernel: latent weights, float32.
        num_bits: 1 to 8; see `grid.Bits`.
        range_axes: axes that keep a size of their own; () is one for the layer.

    Returns:
        float32, of the kernel's rank with length 1 along the other axes.

    >>> weight_size(tf.constant([[0.5, -2.0], [1.5, 0.0]]), 2, range_axes=(1,)).numpy()
    array([[1.5, 1.5]], dtype=float32)
    """
    intervals = tf.cast(grids.levels(num_bits), tf.float32)
    factor = 2.0 * intervals / (intervals + 1.0)
    rank = kernel.shape.rank
    own = axes_within(rank, range_axes)
    of_range, of_layer = (_mean_magnitude(kernel, axes) for axes in (own, list(range(rank))))
    of_layer = tf.where(of_layer >= SMALLEST_SIZE, of_layer, 1.0)
    size = tf.where(of_range >= SMALLEST_SIZE, of_range, of_layer)
    return tf.stop_gradient(size * factor)


def quantize_weights(
    kernel: tf.Tensor,
    num_bits: grids.Bits,
    grid: str = "auto",
    *,
    range_axes: tuple[int, ...] = (),
    over_size: bool = True,
    surrogate: str = STRAIGHT_THROUGH,
    strength: float | None = None,
) -> tf.Tensor:
    """Clips and quantizes latent weights (N2UQ).

    Forward, with c of `weight_size` and Q of a grid (DoReFa's: Q = 2 round(a (x + 1) / 2) / a - 1):
               q = c · Q(clip(w / c, -1, 1)).
    Backward:  dq/dw = 1 / c, also where it is clipped, as the authors' code has it: the gradient is
               that of w / c; or 1 without `over_size`.

    Computed in float32, returned in the type of `kernel`. A NaN weight stays NaN.

    Args:
        kernel: latent weights w; float32, float16 or bfloat16.
        num_bits: 1 to 8; see `grid.Bits`.
        grid: a name of `grid_table.GRIDS` or of `AUTOMATIC`.
        range_axes: see `weight_size`.
        over_size: divide the gradient by c.
        surrogate: a row of `surrogate_table`.
        strength: see there.

    Raises:
        ValueError: bits out of range, unknown grid or surrogate, or a grid without a step at these
            bits.

    >>> quantize_weights(tf.constant([[-3.0, -0.5, 0.5, 0.0]]), 2).numpy().tolist()
    [[-1.5, -0.5, 0.5, 0.5]]
    """
    strength_of(surrogate, strength)
    given = tf.convert_to_tensor(kernel)
    latent = tf.cast(given, tf.float32)
    size = weight_size(latent, num_bits, range_axes=range_axes)
    half = tf.cast(grids.divisor(num_bits, grid), tf.float32) / 2.0
    centred = grid_units(latent, size, num_bits, grid) - grids.middle(num_bits, grid)
    made = with_gradient(
        _backward,
        centred * (1.0 / half) * size,
        [latent],
        kept=[size, centred, half],
        over_size=over_size,
        surrogate=surrogate,
        strength=strength,
    )
    return tf.cast(made, given.dtype)


def weight_codes(
    kernel: tf.Tensor, num_bits: grids.Bits, grid: str = "auto", *, range_axes: tuple[int, ...] = ()
) -> tuple[tf.Tensor, tf.Tensor]:
    """The codes of `quantize_weights`, int32, and the float64 scales of the ranges.

    Raises:
        ValueError: as there.
        tf.errors.InvalidArgumentError: a weight is NaN, for which there is no code.
    """
    latent = tf.cast(kernel, tf.float32)
    size = weight_size(latent, num_bits, range_axes=range_axes)
    units = grid_units(latent, size, num_bits, grid)
    units = tf.debugging.check_numerics(units, "l1: NaN has no integer code")
    per_unit = grids.codes_per_unit(num_bits, grid)
    codes = (units - grids.middle(num_bits, grid)) * per_unit  # halves and their doubles are exact
    span = tf.cast(grids.divisor(num_bits, grid) * per_unit, tf.float64)
    return tf.cast(codes, tf.int32), tf.cast(size, tf.float64) * (2.0 / span)


def squared_errors(
    kernel: tf.Tensor,
    lowest: int,
    highest: int,
    grid: str = "auto",
    *,
    channel_axes: tuple[int, ...],
) -> tf.Tensor:
    """Σ (q - w)² of each channel at each number of bits, with q of `quantize_weights`.

    NaN and infinite weights have no part in it.

    Args:
        kernel: latent weights w, float32.
        lowest: the fewest bits, at least 1.
        highest: the most bits, at most 8.
        grid: a name of `grid_table.GRIDS` or of `AUTOMATIC`.
        channel_axes: the kernel's axes of output channels.

    Returns:
        float64, (channels, highest - lowest + 1); channels in the order of the kernel's memory.

    Raises:
        ValueError: bits out of range, unknown grid, or a grid without a step at the lowest bits.

    >>> kernel = tf.constant([[1.0, 2.0], [1.0, -6.0]])
    >>> squared_errors(kernel, 1, 2, channel_axes=(1,)).numpy().tolist()
    [[0.0, 0.5], [8.0, 0.0]]
    """
    latent = tf.cast(kernel, tf.float32)
    inner = axes_within(latent.shape.rank, channel_axes)
    finite = tf.math.is_finite(latent)
    columns = []
    for bits in range(lowest, highest + 1):
        made = quantize_weights(latent, bits, grid, range_axes=channel_axes)
        error = tf.cast(tf.where(finite, made - latent, 0.0), tf.float64)
        columns.append(tf.reshape(tf.reduce_sum(tf.square(error), inner), [-1]))
    return tf.stack(columns, axis=1)


def _backward(
    upstream: tf.Tensor,
    value: tf.Tensor,
    latent: tf.Tensor,
    size: tf.Tensor,
    centred: tf.Tensor,
    half: tf.Tensor,
    *,
    over_size: bool,
    surrogate: str,
    strength: float | None,
) -> tuple[tf.Tensor]:
    del value
    if surrogate != STRAIGHT_THROUGH:
        position = tf.clip_by_value(latent / size, -1.0, 1.0) * half
        upstream = passed_back(upstream, position - centred, 2.0 * half, surrogate, strength)
    return (upstream / size if over_size else upstream,)


def _mean_magnitude(kernel: tf.Tensor, axes: list[int]) -> tf.Tensor:
    finite = tf.math.is_finite(kernel)
    total = tf.reduce_sum(tf.where(finite, tf.abs(kernel), 0.0), axes, keepdims=True)
    count = tf.reduce_sum(tf.cast(finite, tf.float32), axes, keepdims=True)
    return total / tf.maximum(count, 1.0)
