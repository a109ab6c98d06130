"""LQ-Nets: weights whose levels come of a basis that is learnt; see `sat_tf.core.lq_nets`."""

import math
from typing import Any

from keras import ops

from sat_tf.core.grid_table import LARGEST_INT8
from sat_tf.core.ranges import SMALLEST_SIZE, axes_within
from sat_tf.core.weight_levels import LQ_RIDGE, lq_patterns
from sat_tf.keras3.core.custom_gradient import straight_through
from sat_tf.keras3.core.grid import round_half_up
from sat_tf.keras3.core.kmeans import sums_by_id
from sat_tf.keras3.core.precision import in_float32, in_widest


def snapped_basis(basis: Any) -> tuple[Any, Any]:
    """The basis as integers n, and s: v = s · n / 2; as `sat_tf.core.lq_nets.snapped_basis`.

    Args:
        basis: one v a row, float32; one that is not finite counts as zeros.

    Returns:
        n, float32 and shaped like the basis, and s, positive: one number in each row.
    """
    size = ops.abs(basis)
    reach = ops.sum(size, axis=-1, keepdims=True)
    # Of what is not finite too: codes are sorted, which NaN would make nonsense of.
    is_zero = ~(ops.isfinite(reach) & (reach >= SMALLEST_SIZE))
    largest_sum = 2.0 * LARGEST_INT8
    reach = ops.where(is_zero, 1.0, reach)
    # XLA turns a division by a constant into a product with its reciprocal.
    unit = reach / (largest_sum - basis.shape[-1] / 2.0 + 0.0 * reach)
    count = round_half_up(size / unit)
    odd = ops.mod(ops.sum(count, axis=-1, keepdims=True), 2.0)
    largest = ops.one_hot(ops.argmax(count, axis=-1), basis.shape[-1], dtype="float32")
    count = ops.where(is_zero, 0.0, count - odd * largest)
    integers = ops.where(is_zero, 0.0, ops.sign(basis) * count)
    fit = ops.divide_no_nan(
        ops.sum(size * count, axis=-1, keepdims=True),
        ops.sum(ops.square(count), axis=-1, keepdims=True),
    )
    return integers, ops.where(is_zero, 2.0 / largest_sum, 2.0 * fit)


def levels(basis: Any) -> tuple[Any, Any, Any]:
    """The codes of a basis in ascending order.

    Args:
        basis: one v a row, float32.

    Returns:
        The codes, float32, a row of 2^b for each row; the rows of `weight_levels.lq_patterns` that
        make them; and the scales of `snapped_basis`.

    Raises:
        ValueError: bits out of range.
    """
    patterns = ops.convert_to_tensor(lq_patterns(basis.shape[-1]), "float32")
    integers, scale = snapped_basis(basis)
    made = ops.matmul(integers, ops.transpose(patterns)) / 2.0
    order = ops.argsort(made, axis=-1)
    return ops.take_along_axis(made, order, axis=-1), order, scale


def quantize_weights(kernel: Any, basis: Any, *, range_axes: tuple[int, ...] = ()) -> Any:
    """Moves latent weights to the nearest level, as `sat_tf.core.lq_nets.quantize_weights`.

    Forward: q = s · (n · e) / 2 with the integers n and the scale s of `snapped_basis`, and e that
    makes it the nearest to w; halfway between two levels it is the upper one.
    Backward: dq/dw = 1, and the basis has no gradient.

    Args:
        kernel: latent weights w, float32.
        basis: float32, one row of b numbers for each range, in the order of its axes; 1 to 8 bits.
        range_axes: axes that keep a basis of their own; () is one for the layer.

    Raises:
        ValueError: bits out of range.
    """
    latent, basis = in_float32(kernel), ops.stop_gradient(in_float32(basis))
    given = ops.stop_gradient(latent)
    codes, _, scale = levels(basis)
    nearest = _nearest(_rows(given, range_axes), codes, scale)
    made = ops.take_along_axis(codes * scale, nearest, axis=-1)
    made = _unrows(made, latent.shape, range_axes)
    return straight_through(ops.where(ops.isnan(given), given, made), latent)


def next_basis(
    kernel: Any, basis: Any, *, range_axes: tuple[int, ...] = (), momentum: float = 0.9
) -> Any:
    """The basis of the next step, as `sat_tf.core.lq_nets.next_basis`.

    With B the e of the nearest levels, one a column: v* minimizes
    mean (w - v* · e)² + 1e-4 |v* - v|², and v <- m v + (1 - m) v*.

    Args:
        kernel: latent weights w, float32.
        basis: v, see `quantize_weights`.
        range_axes: see there.
        momentum: m, of 0 to 1.
    """
    rows = _rows(kernel, range_axes)
    codes, order, scale = levels(basis)
    finite, (ranges, number), size = ops.isfinite(rows), codes.shape, basis.shape[-1]
    first = ops.reshape(ops.arange(ranges, dtype="int32") * number, [ranges, 1])
    ids = _nearest(rows, codes, scale) + first
    values = ops.where(finite, rows, 0.0), finite
    of_ids = [ops.reshape(sums_by_id(each, ids, ranges * number), codes.shape) for each in values]
    # By patterns again, whose products are the same for all ranges.
    back = ops.argsort(order, axis=-1)
    sums, counts = (ops.take_along_axis(each, back, axis=-1) for each in of_ids)
    total = ops.maximum(ops.sum(counts, axis=-1, keepdims=True), 1.0)
    sums, counts = sums / total, counts / total
    signs = in_widest(ops.convert_to_tensor(lq_patterns(size), "float32"))
    products = ops.reshape(signs[:, :, None] * signs[:, None, :], [number, -1])
    gram = ops.reshape(ops.matmul(counts, products), [ranges, size, size])
    old = in_widest(basis)
    right = ops.matmul(sums, signs) + LQ_RIDGE * old
    factor = ops.cholesky(gram + LQ_RIDGE * in_widest(ops.eye(size, dtype="float32")))
    best = ops.solve_triangular(factor, right[..., None], lower=True)
    best = ops.solve_triangular(ops.transpose(factor, (0, 2, 1)), best, lower=False)[..., 0]
    found = ops.cast(momentum * old + (1.0 - momentum) * best, "float32")
    return ops.where(ops.isfinite(found), found, basis)


def _nearest(rows: Any, codes: Any, scale: Any) -> Any:
    """The places of the nearest levels, int32: how many middles between levels are no larger.

    By bisection, because Keras searches in one sorted sequence at a time.
    """
    middle = (codes[:, 1:] + codes[:, :-1]) * (0.5 * scale)
    place = ops.zeros_like(rows, dtype="int32")
    step = codes.shape[-1] // 2
    while step:
        tried = ops.take_along_axis(middle, place + (step - 1), axis=-1)
        place = place + step * ops.cast(rows >= tried, "int32")
        step //= 2
    return place


def _kept_first(rank: int, range_axes: tuple[int, ...]) -> list[int]:
    within = axes_within(rank, range_axes)
    return [axis for axis in range(rank) if axis not in within] + within


def _rows(kernel: Any, range_axes: tuple[int, ...]) -> Any:
    """The weights of each range in a row."""
    rank = len(kernel.shape)
    within = axes_within(rank, range_axes)
    ranges = math.prod(kernel.shape[axis] for axis in range(rank) if axis not in within)
    return ops.reshape(ops.transpose(kernel, _kept_first(rank, range_axes)), [ranges, -1])


def _unrows(rows: Any, shape: Any, range_axes: tuple[int, ...]) -> Any:
    order = _kept_first(len(shape), range_axes)
    made = ops.reshape(rows, [shape[axis] for axis in order])
    return ops.transpose(made, [order.index(axis) for axis in range(len(order))])
