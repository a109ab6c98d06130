"""Shared values: the weights of a layer have 2^b values; see `sat_tf.core.kmeans`."""

from typing import Any

from keras import ops

from sat_tf.core.grid_table import LARGEST_INT8, check_bits
from sat_tf.core.ranges import SMALLEST_SIZE
from sat_tf.keras3.core.custom_gradient import Backward, with_gradient
from sat_tf.keras3.core.grid import round_half_up
from sat_tf.keras3.core.precision import in_float32, in_widest


def quantize_weights(
    kernel: Any, ids: Any, num_bits: int, *, keep_zeros: bool = False, each: bool = False
) -> Any:
    """Gives all weights of a cluster one value, as `sat_tf.core.kmeans.quantize_weights`.

    Forward, with C_k the mean of the latent weights of cluster k and s = max|C| / 127:
               q_i = s · round(C_k / s), k the cluster of weight i.
    Backward:  dL/dw_i = mean of dL/dq over the cluster; or, with `each`, dL/dq_i.

    Args:
        kernel: latent weights w, float32.
        ids: k of each weight, integers shaped like the kernel, 0 to 2^b - 1.
        num_bits: 1 to 8.
        keep_zeros: the value of cluster 0 is 0, and its weights have no gradient.
        each: every weight has the gradient of its own, for clusters that change.

    Raises:
        ValueError: bits out of range.
    """
    check_bits(num_bits)

    def make(latent: Any, ids: Any) -> tuple[Any, Backward]:
        means, _ = _means(latent, ids, num_bits, keep_zeros)
        largest = ops.max(ops.abs(means))
        # Where all are smaller, the scale is that of a largest value of 1: all codes are 0.
        size = ops.where(largest >= SMALLEST_SIZE, largest, 1.0)
        # XLA turns a division by a constant into a product with its reciprocal.
        scale = size / (float(LARGEST_INT8) + 0.0 * size)
        made = ops.take(round_half_up(means / scale) * scale, ids, axis=0)

        def backward(upstream: Any) -> list[Any]:
            if not each:
                counts = sums_by_id(ops.ones_like(upstream), ids, 2**num_bits)
                mean = sums_by_id(upstream, ids, 2**num_bits) / ops.maximum(counts, 1.0)
                upstream = ops.take(ops.cast(mean, "float32"), ids, axis=0)
            return [ops.where(ids == 0, 0.0, upstream) if keep_zeros else upstream]

        return ops.where(ops.isnan(latent), latent, made), backward

    return with_gradient(make, [in_float32(kernel)], [ops.cast(ids, "int32")])


def nearest_ids(kernel: Any, ids: Any, num_bits: int, *, keep_zeros: bool = False) -> Any:
    """The clusters whose means are nearest, int32; as `sat_tf.core.kmeans.nearest_ids`.

    Weights that are not finite stay where they are, and with `keep_zeros` those of cluster 0.
    """
    latent, ids = in_float32(kernel), ops.cast(ids, "int32")
    means, counts = _means(latent, ids, num_bits, keep_zeros)
    usable = counts > 0.0
    stays = ~ops.isfinite(latent)
    if keep_zeros:
        usable = usable & (ops.arange(2**num_bits) != 0)
        stays = stays | (ids == 0)
    centers = ops.where(usable, means, float("inf"))
    order = ops.argsort(centers)
    centers = ops.take(centers, order, axis=0)
    middle = (centers[1:] + centers[:-1]) / 2.0
    place = ops.searchsorted(middle, ops.reshape(latent, [-1]), side="right")
    found = ops.reshape(ops.take(order, place, axis=0), ops.shape(ids))
    return ops.where(stays, ids, ops.cast(found, "int32"))


def sums_by_id(values: Any, ids: Any, size: int) -> Any:
    """The sum of the values with each of the ids 0..size - 1, in the widest type there is.

    Args:
        values: any shape.
        ids: int32, of the same shape.
        size: how many ids there are.
    """
    flat = ops.reshape(in_widest(values), [-1])
    return ops.segment_sum(flat, ops.reshape(ids, [-1]), num_segments=size)


def _means(kernel: Any, ids: Any, num_bits: int, keep_zeros: bool) -> tuple[Any, Any]:
    """The mean of each cluster, float32, 0 where there is no weight; and how many there are."""
    finite, clusters = ops.isfinite(kernel), 2**num_bits
    totals = sums_by_id(ops.where(finite, kernel, 0.0), ids, clusters)
    counts = sums_by_id(finite, ids, clusters)
    means = ops.cast(totals / ops.maximum(counts, 1.0), "float32")
    if keep_zeros:
        means = ops.where(ops.arange(clusters) == 0, 0.0, means)
    return means, counts
