"""LQ-Nets: weights whose levels are sums and differences of a basis that is learnt.

Zhang et al., "LQ-Nets", ECCV 2018. A range of weights has a basis v of b numbers, and the levels
v · e, e in {-1, 1}^b. The basis has no gradient: every training step fits it to the weights by
least squares (`next_basis`), which are then in other levels, and so on.

In a file the levels are integers times a scale, and so they are here, always: the forward pass and
the file have the basis that `snapped_basis` gives, of which every level is an int8 code.
"""

import math

import tensorflow as tf

from sat_tf.core.custom_gradient import straight_through
from sat_tf.core.grid import round_half_up
from sat_tf.core.grid_table import LARGEST_INT8, check_bits
from sat_tf.core.kmeans import sums_by_id
from sat_tf.core.ranges import SMALLEST_SIZE, range_shape
from sat_tf.core.weight_levels import LQ_RIDGE, lq_patterns

# Of the first basis: reaches that are tried, in parts of the largest weight, and fits after that.
_FIRST_REACHES = tuple(percent / 100.0 for percent in range(100, 0, -10))
_FIRST_FITS = 8


def snapped_basis(basis: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
    """The basis as integers: v = s · n / 2, so that all levels are integers times s.

    With t = sum|v| / (254 - b/2): n = round(v / t), of which the sum of magnitudes is at most 254;
    where that sum is odd the largest of them gets smaller by 1, which makes every level
    (n · e) / 2 an integer from -127 to 127. s / 2 = v · n / n · n, the best for these n.

    Args:
        basis: one v a row, float32; one that is not finite counts as zeros.

    Returns:
        n, float32 and shaped like the basis, and s, positive: one number in each row.

    >>> integers, scale = snapped_basis(tf.constant([[0.5, 1.0]]))
    >>> integers.numpy().tolist(), scale.numpy().round(4)
    ([[84.0, 168.0]], array([[0.0119]], dtype=float32))
    """
    size = tf.abs(basis)
    reach = tf.reduce_sum(size, -1, keepdims=True)
    # Of what is not finite too: codes are sorted, which NaN would make nonsense of.
    is_zero = ~(tf.math.is_finite(reach) & (reach >= SMALLEST_SIZE))
    largest_sum = 2.0 * LARGEST_INT8
    unit = tf.where(is_zero, 1.0, reach) / (largest_sum - basis.shape[-1] / 2.0)
    count = round_half_up(size / unit)
    odd = tf.math.floormod(tf.reduce_sum(count, -1, keepdims=True), 2.0)
    count -= odd * tf.one_hot(tf.argmax(count, -1), basis.shape[-1])
    count = tf.where(is_zero, 0.0, count)
    integers = tf.where(is_zero, 0.0, tf.sign(basis) * count)
    fit = tf.math.divide_no_nan(
        tf.reduce_sum(size * count, -1, keepdims=True),
        tf.reduce_sum(tf.square(count), -1, keepdims=True),
    )
    return integers, tf.where(is_zero, 2.0 / largest_sum, 2.0 * fit)


def levels(basis: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
    """The codes of a basis in ascending order.

    Args:
        basis: one v a row, float32.

    Returns:
        The codes, float32, a row of 2^b for each row; the rows of `weight_levels.lq_patterns` that
        make them, int32; and the scales of `snapped_basis`.

    >>> codes, order, _ = levels(tf.constant([[1.0, 0.5]]))
    >>> codes.numpy().tolist(), order.numpy().tolist()
    ([[-126.0, -42.0, 42.0, 126.0]], [[0, 2, 1, 3]])
    """
    integers, scale = snapped_basis(basis)
    made = tf.matmul(integers, tf.constant(lq_patterns(basis.shape[-1])), transpose_b=True) / 2.0
    order = tf.argsort(made, axis=-1, stable=True)
    return tf.gather(made, order, batch_dims=1), order, scale


def quantize_weights(
    kernel: tf.Tensor, basis: tf.Tensor, *, range_axes: tuple[int, ...] = ()
) -> tf.Tensor:
    """Moves latent weights to the nearest level of their range.

    Forward: q = s · (n · e) / 2 with the integers n and the scale s of `snapped_basis`, and e that
    makes it the nearest to w; halfway between two levels it is the upper one.
    Backward: dq/dw = 1, and the basis has no gradient.

    Computed in float32, returned in the type of `kernel`. A NaN weight stays NaN.

    Args:
        kernel: latent weights w; float32, float16 or bfloat16.
        basis: float32, one row of b numbers for each range, in the order of its axes; 1 to 8 bits.
        range_axes: axes that keep a basis of their own; () is one for the layer.

    Raises:
        ValueError: bits out of range.

    >>> quantize_weights(tf.constant([-3.0, 0.0, 0.4, 1.1]), tf.constant([[0.5, 1.0]])).numpy()
    array([-1.5,  0.5,  0.5,  1.5], dtype=float32)
    """
    given = tf.convert_to_tensor(kernel)
    latent = tf.cast(given, tf.float32)
    rows = _rows(latent, range_axes)
    codes, _, scale = levels(basis)
    made = tf.gather(codes * scale, _nearest(rows, codes, scale), batch_dims=1)
    made = _unrows(made, latent.shape, range_axes)
    made = straight_through(tf.where(tf.math.is_nan(latent), latent, made), latent)
    return tf.cast(made, given.dtype)


def weight_codes(
    kernel: tf.Tensor, basis: tf.Tensor, *, range_axes: tuple[int, ...] = ()
) -> tuple[tf.Tensor, tf.Tensor]:
    """The codes of `quantize_weights`, int32, and the float64 scales of the ranges.

    Raises:
        ValueError: as there.
        tf.errors.InvalidArgumentError: a weight is NaN, for which there is no code.
    """
    latent = tf.cast(kernel, tf.float32)
    codes, _, scale = levels(basis)
    made = tf.gather(codes, _nearest(_rows(latent, range_axes), codes, scale), batch_dims=1)
    made = tf.where(tf.math.is_nan(latent), latent, _unrows(made, latent.shape, range_axes))
    made = tf.cast(tf.debugging.check_numerics(made, "lq_nets: NaN has no integer code"), tf.int32)
    return made, tf.cast(tf.reshape(scale, range_shape(latent.shape, range_axes)), tf.float64)


def weight_units(
    kernel: tf.Tensor, basis: tf.Tensor, *, range_axes: tuple[int, ...] = ()
) -> tf.Tensor:
    """The levels 0..2^b - 1, float32, by the first one of those that are equal."""
    rows = _rows(tf.cast(kernel, tf.float32), range_axes)
    codes, _, scale = levels(basis)
    made = tf.gather(codes, _nearest(rows, codes, scale), batch_dims=1)
    units = tf.cast(tf.searchsorted(codes, made, side="left"), tf.float32)
    return _unrows(units, kernel.shape, range_axes)


def level_values(
    units: tf.Tensor, basis: tf.Tensor, *, range_axes: tuple[int, ...] = ()
) -> tf.Tensor:
    """The values of the levels that `weight_units` counts."""
    codes, _, scale = levels(basis)
    rows = tf.cast(_rows(units, range_axes), tf.int32)
    made = tf.gather(codes * scale, rows, batch_dims=1)
    return _unrows(made, units.shape, range_axes)


def next_basis(
    kernel: tf.Tensor,
    basis: tf.Tensor,
    *,
    range_axes: tuple[int, ...] = (),
    momentum: float = 0.9,
) -> tf.Tensor:
    """The basis of the next step: the paper's quantization error minimization, QEM.

    With B the e of the nearest levels, one a column: v* = (B B^T)^-1 B w, and
    v <- m v + (1 - m) v*.
    What B does not tell stays as it is, by a small ridge: v* minimizes
    mean (w - v* · e)² + 1e-4 |v* - v|². NaN and infinite weights have no part in it, and what
    float32 does not hold leaves v as it is.

    Args:
        kernel: latent weights w, float32.
        basis: v, see `quantize_weights`.
        range_axes: see there.
        momentum: m, of 0 to 1.

    >>> kernel = tf.constant([-3.0, -1.0, 1.0, 3.0])
    >>> next_basis(kernel, tf.constant([[0.8, 1.7]]), momentum=0.0).numpy().round(3).tolist()
    [[1.0, 2.0]]
    """
    rows = _rows(kernel, range_axes)
    codes, order, scale = levels(basis)
    finite, (ranges, number), size = tf.math.is_finite(rows), codes.shape, basis.shape[-1]
    first = tf.constant([[number * row] for row in range(ranges)])
    ids = _nearest(rows, codes, scale) + first
    values = tf.where(finite, rows, 0.0), finite
    of_ids = [tf.reshape(sums_by_id(each, ids, ranges * number), codes.shape) for each in values]
    # By patterns again, whose products are the same for all ranges.
    back = tf.argsort(order)
    sums, counts = (tf.gather(each, back, batch_dims=1) for each in of_ids)
    total = tf.maximum(tf.reduce_sum(counts, -1, keepdims=True), 1.0)
    sums, counts = sums / total, counts / total
    signs = tf.cast(tf.constant(lq_patterns(size)), tf.float64)
    products = tf.reshape(signs[:, :, None] * signs[:, None, :], [number, -1])
    gram = tf.reshape(tf.matmul(counts, products), [ranges, size, size])
    old = tf.cast(basis, tf.float64)
    right = tf.matmul(sums, signs) + LQ_RIDGE * old
    factor = tf.linalg.cholesky(gram + LQ_RIDGE * tf.eye(size, dtype=tf.float64))
    best = tf.squeeze(tf.linalg.cholesky_solve(factor, tf.expand_dims(right, -1)), -1)
    found = tf.cast(momentum * old + (1.0 - momentum) * best, tf.float32)
    return tf.where(tf.math.is_finite(found), found, basis)


def first_basis(kernel: tf.Tensor, num_bits: int, *, range_axes: tuple[int, ...] = ()) -> tf.Tensor:
    """A basis that fits a kernel: 2^(k-1) times what makes the smallest error, and QEM from there.

    A range of zeros has one of zeros, which keeps them.

    Args:
        kernel: latent weights, float32.
        num_bits: 1 to 8.
        range_axes: see `quantize_weights`.

    >>> first_basis(tf.constant([-3.0, -1.0, 1.0, 3.0]), 2).numpy().round(2).tolist()
    [[1.0, 2.0]]
    """
    check_bits(num_bits)
    kernel = tf.where(tf.math.is_finite(kernel), kernel, 0.0)
    rows = _rows(kernel, range_axes)
    intervals = 2.0**num_bits - 1.0
    powers = tf.constant([2.0**place / intervals for place in range(num_bits)])
    largest = tf.reduce_max(tf.abs(rows), -1, keepdims=True)
    best, smallest = largest, tf.fill(tf.shape(largest), float("inf"))
    for part in _FIRST_REACHES:
        reach = largest * part
        position = tf.clip_by_value(tf.math.divide_no_nan(rows, reach), -1.0, 1.0)
        units = round_half_up((position + 1.0) * (intervals / 2.0))
        off = rows - reach * (units * (2.0 / intervals) - 1.0)
        error = tf.reduce_mean(tf.square(off), -1, keepdims=True)
        best = tf.where(error < smallest, reach, best)
        smallest = tf.minimum(error, smallest)
    basis = best * powers
    for _ in range(_FIRST_FITS):
        basis = next_basis(kernel, basis, range_axes=range_axes, momentum=0.0)
    return basis


def _nearest(rows: tf.Tensor, codes: tf.Tensor, scale: tf.Tensor) -> tf.Tensor:
    """The places of the nearest levels, int32."""
    middle = (codes[:, 1:] + codes[:, :-1]) * (0.5 * scale)
    return tf.searchsorted(middle, rows, side="right")


def _kept_first(rank: int, range_axes: tuple[int, ...]) -> list[int]:
    keep = sorted({axis % rank for axis in range_axes})
    return keep + [axis for axis in range(rank) if axis not in keep]


def _rows(kernel: tf.Tensor, range_axes: tuple[int, ...]) -> tf.Tensor:
    """The weights of each range in a row."""
    rank = kernel.shape.rank
    keep = {axis % rank for axis in range_axes}
    ranges = math.prod(kernel.shape[axis] for axis in keep)
    return tf.reshape(tf.transpose(kernel, _kept_first(rank, range_axes)), [ranges, -1])


def _unrows(rows: tf.Tensor, shape: tf.TensorShape, range_axes: tuple[int, ...]) -> tf.Tensor:
    order = _kept_first(shape.rank, range_axes)
    made = tf.reshape(rows, [shape[axis] for axis in order])
    return tf.transpose(made, [order.index(axis) for axis in range(len(order))])
