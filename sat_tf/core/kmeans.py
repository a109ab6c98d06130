"""Shared values: the weights of a layer have 2^b values, which k-means finds; Deep Compression.

Han et al., "Deep Compression", ICLR 2016, section 3. Which weights share one is found once, by
`sat_tf.quantizers.clusters.cluster_ids`. From then on the value of a cluster is the mean of its
latent weights, rounded to an int8 code, so that a file holds exactly what was trained.
"""

import tensorflow as tf

from sat_tf.core.custom_gradient import compiles_with_xla, has_accelerator, with_gradient
from sat_tf.core.grid import round_half_up
from sat_tf.core.grid_table import LARGEST_INT8, check_bits
from sat_tf.core.ranges import SMALLEST_SIZE


def quantize_weights(
    kernel: tf.Tensor,
    ids: tf.Tensor,
    num_bits: int,
    *,
    keep_zeros: bool = False,
    each: bool = False,
) -> tf.Tensor:
    """Gives all weights of a cluster one value.

    Forward, with C_k the mean of the latent weights of cluster k and s = max|C| / 127:
               q_i = s · round(C_k / s), k the cluster of weight i.
    Backward:  dL/dw_i = mean of dL/dq over the cluster, which is the gradient of the mean; or, with
               `each`, dL/dq_i. Rounding is straight-through.

    The paper sums gradients over a cluster where these average them, as most codes for it do: rates
    then do not depend on how large a cluster is.

    Computed in float32, sums in float64; returned in the type of `kernel`. A NaN weight stays NaN,
    and NaN and infinite weights have no part in the mean.

    Args:
        kernel: latent weights w; float32, float16 or bfloat16.
        ids: k of each weight, integers shaped like the kernel, 0 to 2^b - 1.
        num_bits: 1 to 8.
        keep_zeros: the value of cluster 0 is 0, and its weights have no gradient.
        each: every weight has the gradient of its own, for clusters that change.

    Raises:
        ValueError: bits out of range.

    >>> kernel, ids = tf.constant([-1.0, -0.5, 0.25, 0.5]), tf.constant([0, 0, 1, 1])
    >>> quantize_weights(kernel, ids, 1).numpy().tolist()
    [-0.75, -0.75, 0.3779527544975281, 0.3779527544975281]
    """
    given = tf.convert_to_tensor(kernel)
    latent, ids = tf.cast(given, tf.float32), tf.cast(ids, tf.int32)
    codes, scale = shared_codes(latent, ids, num_bits, keep_zeros=keep_zeros)
    made = tf.gather(codes * scale, ids)
    made = with_gradient(
        _backward,
        tf.where(tf.math.is_nan(latent), latent, made),
        [latent],
        kept=[ids],
        clusters=2**num_bits,
        keep_zeros=keep_zeros,
        each=each,
    )
    return tf.cast(made, given.dtype)


def shared_codes(
    kernel: tf.Tensor, ids: tf.Tensor, num_bits: int, *, keep_zeros: bool = False
) -> tuple[tf.Tensor, tf.Tensor]:
    """The code of each cluster, float32, and the scale: round(C / s) and s = max|C| / 127.

    >>> kernel, ids = tf.constant([-1.0, -0.5, 0.25, 0.5]), tf.constant([0, 0, 1, 1])
    >>> codes, scale = shared_codes(kernel, ids, 1)
    >>> codes.numpy().tolist(), float(scale * 127)
    ([-127.0, 64.0], 0.75)
    """
    check_bits(num_bits)
    means, _ = _means(kernel, ids, num_bits, keep_zeros)
    largest = tf.reduce_max(tf.abs(means))
    # Where all are smaller, the scale is that of a largest value of 1: all codes are 0.
    size = tf.where(largest >= SMALLEST_SIZE, largest, 1.0)
    # XLA turns a division by a constant into a product with its reciprocal, which rounds twice.
    scale = size / (float(LARGEST_INT8) + 0.0 * size)
    return round_half_up(means / scale), scale


def weight_codes(
    kernel: tf.Tensor, ids: tf.Tensor, num_bits: int, *, keep_zeros: bool = False
) -> tuple[tf.Tensor, tf.Tensor]:
    """The codes of `quantize_weights`, int32, and their float64 scale.

    Raises:
        ValueError: as there.
        tf.errors.InvalidArgumentError: a weight is NaN, for which there is no code.
    """
    latent, ids = tf.cast(kernel, tf.float32), tf.cast(ids, tf.int32)
    codes, scale = shared_codes(latent, ids, num_bits, keep_zeros=keep_zeros)
    codes = tf.where(tf.math.is_nan(latent), latent, tf.gather(codes, ids))
    codes = tf.debugging.check_numerics(codes, "kmeans: NaN has no integer code")
    return tf.cast(codes, tf.int32), tf.cast(scale, tf.float64)


def weight_units(
    kernel: tf.Tensor, ids: tf.Tensor, num_bits: int, *, keep_zeros: bool = False
) -> tf.Tensor:
    """The clusters, float32, by the first one of those that have the same code."""
    latent, ids = tf.cast(kernel, tf.float32), tf.cast(ids, tf.int32)
    codes, _ = shared_codes(latent, ids, num_bits, keep_zeros=keep_zeros)
    first = tf.argmax(codes[:, None] == codes[None, :], axis=1)
    return tf.cast(tf.gather(first, ids), tf.float32)


def nearest_ids(
    kernel: tf.Tensor, ids: tf.Tensor, num_bits: int, *, keep_zeros: bool = False
) -> tf.Tensor:
    """The clusters whose means are nearest, one of Lloyd's iterations; int32.

    Weights that are not finite stay where they are, and with `keep_zeros` those of cluster 0.

    >>> kernel, ids = tf.constant([-1.0, 0.4, 0.25, 0.5]), tf.constant([0, 0, 1, 1])
    >>> nearest_ids(kernel, ids, 1).numpy().tolist()
    [0, 1, 1, 1]
    """
    latent, ids = tf.cast(kernel, tf.float32), tf.cast(ids, tf.int32)
    means, counts = _means(latent, ids, num_bits, keep_zeros)
    usable = (counts > 0.0) & ~(keep_zeros & (tf.range(2**num_bits) == 0))
    centers = tf.where(usable, means, float("inf"))
    order = tf.argsort(centers, stable=True)
    centers = tf.gather(centers, order)
    middle = (centers[1:] + centers[:-1]) / 2.0
    place = tf.searchsorted(middle, tf.reshape(latent, [-1]), side="right")
    found = tf.reshape(tf.gather(order, place), tf.shape(ids))
    stays = ~tf.math.is_finite(latent) | (keep_zeros & (ids == 0))
    return tf.where(stays, ids, found)


def sums_by_id(values: tf.Tensor, ids: tf.Tensor, size: int) -> tf.Tensor:
    """The sum of the values with each of the ids 0..size - 1, in float64.

    In float64 it makes no difference to float32 in which order they are added.

    Args:
        values: any shape.
        ids: int32, of the same shape.
        size: how many ids there are.

    >>> sums_by_id(tf.constant([1.0, 2.0, 4.0]), tf.constant([2, 0, 2]), 3).numpy().tolist()
    [2.0, 0.0, 5.0]
    """
    values = tf.cast(values, tf.float64)
    if compiles_with_xla() or has_accelerator():
        return tf.math.unsorted_segment_sum(values, ids, size)
    # On CPUs twenty times as fast. It is not deterministic on GPUs.
    ids, values = tf.reshape(ids, [-1]), tf.reshape(values, [-1])
    return tf.math.bincount(ids, weights=values, minlength=size, maxlength=size, dtype=tf.float64)


def _means(
    kernel: tf.Tensor, ids: tf.Tensor, num_bits: int, keep_zeros: bool
) -> tuple[tf.Tensor, tf.Tensor]:
    """The mean of each cluster, float32, 0 where there is no weight; and how many there are."""
    finite, clusters = tf.math.is_finite(kernel), 2**num_bits
    totals = sums_by_id(tf.where(finite, kernel, 0.0), ids, clusters)
    counts = sums_by_id(finite, ids, clusters)
    means = tf.cast(totals / tf.maximum(counts, 1.0), tf.float32)
    if keep_zeros:
        means = tf.where(tf.range(clusters) == 0, 0.0, means)
    return means, counts


def _backward(
    upstream: tf.Tensor,
    value: tf.Tensor,
    latent: tf.Tensor,
    ids: tf.Tensor,
    *,
    clusters: int,
    keep_zeros: bool,
    each: bool,
) -> tuple[tf.Tensor]:
    del value, latent
    if not each:
        counts = sums_by_id(tf.ones_like(upstream), ids, clusters)
        mean = sums_by_id(upstream, ids, clusters) / tf.maximum(counts, 1.0)
        upstream = tf.gather(tf.cast(mean, tf.float32), ids)
    return (tf.where(keep_zeros & (ids == 0), 0.0, upstream),)
