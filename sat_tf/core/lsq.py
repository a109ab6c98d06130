"""LSQ: scales that are learnt, of weights and activations, and of LSQ+ the offset with them.

Esser et al., "Learned Step Size Quantization", ICLR 2020, and Bhalgat et al., "LSQ+", CVPRW 2020.
What the papers call a step is a scale here, s. Theirs is the gradient of s times

    g = 1 / sqrt(N · highest),

with the N weights or features that share s and their highest code, so that s moves about as fast,
for its size, as what it quantizes.

The variables of this package are not the scales themselves, but numbers that mean the same at all
bits, so that bits can change: the magnitude m = s · sqrt(highest) of weights, which starts at
2 mean|v| whatever the bits are, and the clipping level α = s · highest of activations. Their
gradients are scaled so that under SGD, with or without momentum, s is in every step what it is in
the papers: a variable c · s gets g c² times its own gradient.
"""

from typing import Any

import tensorflow as tf

from sat_tf.core import grid as grids
from sat_tf.core.custom_gradient import straight_through, with_gradient
from sat_tf.core.ranges import SMALLEST_SIZE, axes_within
from sat_tf.core.surrogate_gradients import passed_back
from sat_tf.core.surrogate_table import STRAIGHT_THROUGH, strength_of
from sat_tf.core.weight_levels import lsq_code_ends, lsq_ends_by_bits

# -- weights -----------------------------------------------------------------------------------


def weight_magnitude(kernel: tf.Tensor, *, range_axes: tuple[int, ...] = ()) -> tf.Tensor:
    """Where magnitudes start, 2 mean|v|: the scale is the paper's 2 mean|v| / sqrt(highest).

    Args:
        kernel: latent weights, float32.
        range_axes: axes that keep a magnitude of their own; () is one for the layer.

    Returns:
        float32; of the kernel's rank with length 1 along the other axes, or a scalar.

    >>> weight_magnitude(tf.constant([[1.0, -2.0], [3.0, 0.0]]), range_axes=(1,)).numpy()
    array([[4., 2.]], dtype=float32)
    """
    axes = axes_within(kernel.shape.rank, range_axes)
    return 2.0 * tf.reduce_mean(tf.abs(kernel), axes, keepdims=bool(range_axes))


def best_magnitude(
    kernel: tf.Tensor, num_bits: int, *, range_axes: tuple[int, ...] = ()
) -> tf.Tensor:
    """The magnitude with the smallest mean square error, of 100 up to what clips no weight.

    Args:
        kernel: latent weights, float32.
        num_bits: 2 to 8.
        range_axes: as in `weight_magnitude`; the shape of what is returned is the same.

    >>> kernel = tf.constant([3.0, 1.0, -2.0, 0.0])
    >>> scale = weight_scale(best_magnitude(kernel, 3), 3)
    >>> round(float(scale), 6)
    1.0
    """
    _, highest = lsq_code_ends(num_bits)
    axes, has_ranges = axes_within(kernel.shape.rank, range_axes), bool(range_axes)
    largest = tf.reduce_max(tf.abs(kernel), axes, keepdims=has_ranges) / highest**0.5
    best, smallest = largest, tf.fill(tf.shape(largest), float("inf"))
    for percent in range(100, 0, -1):
        magnitude = largest * (percent / 100.0)
        off = quantize_weights(kernel, tf.maximum(magnitude, SMALLEST_SIZE), num_bits) - kernel
        error = tf.reduce_mean(tf.square(off), axes, keepdims=has_ranges)
        best = tf.where(error < smallest, magnitude, best)
        smallest = tf.minimum(error, smallest)
    return best


def weight_scale(magnitude: tf.Tensor, num_bits: grids.Bits) -> tf.Tensor:
    """The real value of one code, s = m / sqrt(highest)."""
    magnitude = tf.convert_to_tensor(magnitude, tf.float32)
    # XLA turns a division by a constant into a product with its reciprocal, which rounds twice.
    return magnitude / (tf.sqrt(_weight_ends(num_bits)[1]) + 0.0 * magnitude)


def quantize_weights(
    kernel: tf.Tensor,
    magnitude: tf.Tensor,
    num_bits: grids.Bits,
    *,
    surrogate: str = STRAIGHT_THROUGH,
    strength: float | None = None,
) -> tf.Tensor:
    """Quantizes latent weights with a scale that is learnt (Esser et al. 2020, Eq. 1 to 5).

    Forward, with s = m / sqrt(highest):  q = s · clip(round(v / s), lowest, highest).
    Backward:  dq/dv = 1 where lowest < v/s < highest, else 0;
               dq/ds = the code where clipped, else round(v/s) - v/s (Eq. 3);
               dq/dm = dq/ds / sqrt(N), which is g c² times its own gradient, c = sqrt(highest).

    With another surrogate dq/dv is its factor, times v/s in dq/ds. Computed in float32, returned in
    the type of `kernel`. A NaN weight stays NaN and has no part in dm; infinite ones are clipped.

    Args:
        kernel: latent weights v; float32, float16 or bfloat16.
        magnitude: m > 0: a scalar, or of the kernel's rank with length 1 along the axes that share
            a scale; N is how many weights do.
        num_bits: 2 to 8; see `grid.Bits`.
        surrogate: a row of `surrogate_table`.
        strength: see there.

    Raises:
        ValueError: bits out of range, or an unknown surrogate.

    >>> kernel = tf.constant([-9.0, -0.4, 0.6, 9.0])
    >>> quantize_weights(kernel, 1.0, 2).numpy().tolist()
    [-2.0, 0.0, 1.0, 1.0]
    """
    strength_of(surrogate, strength)
    given = tf.convert_to_tensor(kernel)
    latent = tf.cast(given, tf.float32)
    magnitude = tf.convert_to_tensor(magnitude, tf.float32)
    lowest, highest = _weight_ends(num_bits)
    scale = weight_scale(magnitude, num_bits)
    made = with_gradient(
        _of_weights,
        _clipped_codes(latent / scale, lowest, highest) * scale,
        [latent, magnitude],
        kept=[scale, lowest, highest],
        surrogate=surrogate,
        strength=strength,
    )
    return tf.cast(made, given.dtype)


def weight_codes(kernel: tf.Tensor, magnitude: tf.Tensor, num_bits: int) -> tf.Tensor:
    """The codes of `quantize_weights`, int32.

    Raises:
        ValueError: bits out of range.
        tf.errors.InvalidArgumentError: a weight is NaN, for which there is no code.
    """
    ends = _weight_ends(num_bits)
    codes = _clipped_codes(tf.cast(kernel, tf.float32) / weight_scale(magnitude, num_bits), *ends)
    return tf.cast(tf.debugging.check_numerics(codes, "lsq: NaN has no integer code"), tf.int32)


def _weight_ends(num_bits: grids.Bits) -> tuple[tf.Tensor, tf.Tensor]:
    """`weight_levels.lsq_code_ends` as float32 scalars."""
    if not tf.is_tensor(num_bits):
        lowest, highest = lsq_code_ends(num_bits)
        return tf.constant(float(lowest)), tf.constant(float(highest))
    ends = tf.gather(tf.constant(lsq_ends_by_bits(), tf.float32), num_bits)
    return ends[0], ends[1]


def _of_weights(
    upstream: tf.Tensor,
    value: tf.Tensor,
    latent: tf.Tensor,
    magnitude: tf.Tensor,
    scale: tf.Tensor,
    lowest: tf.Tensor,
    highest: tf.Tensor,
    *,
    surrogate: str,
    strength: float | None,
) -> tuple[tf.Tensor, tf.Tensor]:
    del value
    by_latent, slopes = _slopes(upstream, latent / scale, lowest, highest, surrogate, strength)
    shared = None  # all axes
    if magnitude.shape.rank:
        shared = [axis for axis, size in enumerate(magnitude.shape) if size == 1]
    by_scale = tf.reduce_sum(slopes, shared, keepdims=shared is not None)
    count = tf.size(latent) / tf.size(magnitude)
    return by_latent, by_scale * tf.math.rsqrt(tf.cast(count, tf.float32))


def _slopes(
    upstream: tf.Tensor,
    units: tf.Tensor,
    lowest: tf.Tensor,
    highest: tf.Tensor,
    surrogate: str,
    strength: float | None,
) -> tuple[tf.Tensor, tf.Tensor]:
    """The gradient of what is quantized, and that of the scale, element by element (Eq. 3)."""
    codes = _clipped_codes(units, lowest, highest)
    inside = (units > lowest) & (units < highest)
    passed = passed_back(upstream, units - codes, highest - lowest, surrogate, strength)
    between = tf.where(inside, codes - units, codes)
    slopes = upstream * tf.where(tf.math.is_nan(units), 0.0, between)
    if surrogate != STRAIGHT_THROUGH:
        slopes += tf.where(inside, (upstream - passed) * units, 0.0)
    return tf.where(inside, passed, 0.0), slopes


def _clipped_codes(units: tf.Tensor, lowest: tf.Tensor, highest: tf.Tensor) -> tf.Tensor:
    """Rounded and clipped, where NaN, which would be clipped to an end, stays NaN."""
    codes = tf.clip_by_value(grids.round_half_up(units), lowest, highest)
    return tf.where(tf.math.is_nan(units), units, codes)


# -- activations -------------------------------------------------------------------------------


def level_factor(x: tf.Tensor, highest: Any, *, counts_batch: bool = False) -> tf.Tensor:
    """The factor g · highest² on the gradient of a clipping level α = s · highest.

    N in g is the number of features of one sample. With `counts_batch` it is that of the batch of
    all replicas, as in many implementations, whose rate then depends on the batch size.

    Args:
        x: the tensor that is quantized, (n, ...).
        highest: its highest code, a number or a float32 scalar.
        counts_batch: count all samples.

    >>> round(float(level_factor(tf.zeros([9, 2, 2]), 1.0)), 3)
    0.5
    """
    highest = tf.cast(highest, tf.float32)
    return gradient_factor(x, highest, counts_batch=counts_batch) * tf.square(highest)


def gradient_factor(x: tf.Tensor, highest: Any, *, counts_batch: bool = False) -> tf.Tensor:
    """The paper's g = 1 / sqrt(N · highest) of a scale; arguments as in `level_factor`."""
    x = tf.convert_to_tensor(x)
    samples = tf.cast(tf.shape(x)[0], tf.float32)
    features = x.shape[1:].num_elements()
    if features is None:  # of images of any size
        features = tf.cast(tf.reduce_prod(tf.shape(x, tf.int64)[1:]), tf.float32)
    features = tf.maximum(tf.cast(features, tf.float32), 1.0)
    if counts_batch:
        replicas = tf.distribute.get_strategy().num_replicas_in_sync
        features *= tf.maximum(samples, 1.0) * float(replicas)
    return tf.math.rsqrt(features * tf.cast(highest, tf.float32))


def times(variable: tf.Tensor, factor: tf.Tensor) -> tf.Tensor:
    """A variable, exactly, of which the gradient is multiplied by a factor."""
    value = tf.convert_to_tensor(variable)
    return straight_through(tf.identity(value), value * tf.stop_gradient(factor))


def quantize_with_offset(
    x: tf.Tensor,
    scale: tf.Tensor,
    offset: tf.Tensor,
    num_bits: grids.Bits,
    *,
    surrogate: str = STRAIGHT_THROUGH,
    strength: float | None = None,
) -> tf.Tensor:
    """Clips and quantizes a tensor with a scale and an offset that are learnt: LSQ+.

    Forward, with a = 2^b - 1 and z = clip(round(-β / s), 0, a) codes below zero:
               q = s · clip(round(x / s), -z, a - z).
    Backward, as in Bhalgat et al. 2020, Eq. 5 to 7, where z is -β / s:
               dq/dx = 1 where -z < x/s < a - z, else 0;
               dq/ds = round(x/s) - x/s between the ends, 0 below, a above;
               dq/dβ = 0 between the ends, 1 beyond them.

    The paper's offset is any number. That it is one of the grid's here makes 0 one of the values,
    so that padding has a code and integer kernels are exact; its gradient is straight-through.
    Types and NaN as in `quantize_weights`; the gradients are not scaled by g.

    Args:
        x: any shape; float32, float16 or bfloat16.
        scale: s > 0, float32 scalar.
        offset: β, the lower end of the range, float32 scalar; above 0 it counts as 0.
        num_bits: bits b of the codes n = -z..a - z; 1 to 8; see `grid.Bits`.
        surrogate: a row of `surrogate_table`.
        strength: see there.

    Raises:
        ValueError: bits out of range, or an unknown surrogate.

    >>> x = tf.constant([-9.0, -0.4, 0.6, 9.0])
    >>> quantize_with_offset(x, 1.0, -1.2, 3).numpy().tolist()
    [-1.0, 0.0, 1.0, 6.0]
    """
    strength_of(surrogate, strength)
    given = tf.convert_to_tensor(x)
    x = tf.cast(given, tf.float32)
    scale, offset = (tf.convert_to_tensor(each, tf.float32) for each in (scale, offset))
    levels = tf.cast(grids.levels(num_bits), tf.float32)
    below = codes_below_zero(scale, offset, num_bits)
    codes = _clipped_codes(x / scale, -below, levels - below)
    made = with_gradient(
        _with_offset,
        codes * scale,
        [x, scale, offset],
        kept=[below, levels],
        surrogate=surrogate,
        strength=strength,
    )
    return tf.cast(made, given.dtype)


def codes_below_zero(scale: tf.Tensor, offset: tf.Tensor, num_bits: grids.Bits) -> tf.Tensor:
    """The codes below zero of `quantize_with_offset`, z = clip(round(-β / s), 0, 2^b - 1)."""
    levels = tf.cast(grids.levels(num_bits), tf.float32)
    return tf.clip_by_value(grids.round_half_up(-offset / scale), 0.0, levels)


def _with_offset(
    upstream: tf.Tensor,
    value: tf.Tensor,
    x: tf.Tensor,
    scale: tf.Tensor,
    offset: tf.Tensor,
    below: tf.Tensor,
    levels: tf.Tensor,
    *,
    surrogate: str,
    strength: float | None,
) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
    del value, offset
    units = x / scale
    by_x, slopes = _slopes(upstream, units, -below, levels - below, surrogate, strength)
    outside = (units <= -below) | (units >= levels - below)
    clipped = tf.where(outside, upstream, 0.0)
    # Where it is clipped q is (code + z) s + β.
    by_scale = tf.reduce_sum(slopes) + below * tf.reduce_sum(clipped)
    return by_x, by_scale, tf.reduce_sum(clipped)
