"""Shared values: the weights of a layer have 2^b values, which k-means finds; Deep Compression.

Han et al., "Deep Compression", ICLR 2016, section 3. Which weights share one is found once, by
`sat_tf.quantizers.kmeans.cluster_ids`. From then on the value of a cluster is the mean of its
latent weights, rounded to an int8 code, so that a file holds exactly what was trained.
"""

from sat_tf.core.grid import LARGEST_INT8, check_bits, round_half_up
from sat_tf.core.ranges import SMALLEST_SIZE
from sat_tf.core.tensors import Namespace, Tensor, computed_in_float32, in_float32, namespace


def quantize_weights(
    kernel: Tensor,
    ids: Tensor,
    num_bits: int,
    *,
    keep_zeros: bool = False,
    each: bool = False,
) -> Tensor:
    """Gives all weights of a cluster one value.

    Forward, with C_k the mean of the latent weights of cluster k and s = max|C| / 127:
               q_i = s · round(C_k / s), k the cluster of weight i.
    Backward:  dL/dw_i = mean of dL/dq over the cluster, which is the gradient of the mean; or, with
               `each`, dL/dq_i. Rounding is straight-through.

    The paper sums gradients over a cluster where these average them, as most codes for it do: rates
    then do not depend on how large a cluster is.

    Computed in float32, sums in float64; returned in the type of `kernel`. A NaN weight stays NaN,
    and the mean leaves NaN and infinite weights out.

    Args:
        kernel: latent weights w; float32, float16 or bfloat16.
        ids: k of each weight, integers shaped like the kernel, 0 to 2^b - 1.
        num_bits: 1 to 8.
        keep_zeros: the value of cluster 0 is 0, and its weights have no gradient.
        each: every weight has the gradient of its own, for clusters that change.

    Raises:
        ValueError: bits out of range.

    >>> kernel, ids = [-1.0, -0.5, 0.25, 0.5], [0, 0, 1, 1]
    >>> quantize_weights(kernel, ids, 1).numpy().tolist()
    [-0.75, -0.75, 0.3779527544975281, 0.3779527544975281]
    """
    check_bits(num_bits)
    return computed_in_float32(
        _forward,
        _backward,
        [kernel],
        ids=namespace(kernel).cast(ids, "int32"),
        num_bits=num_bits,
        keep_zeros=keep_zeros,
        each=each,
    )


def shared_codes(
    kernel: Tensor, ids: Tensor, num_bits: int, *, keep_zeros: bool = False
) -> tuple[Tensor, Tensor]:
    """The code of each cluster, float32, and the scale: round(C / s) and s = max|C| / 127.

    >>> kernel, ids = [-1.0, -0.5, 0.25, 0.5], [0, 0, 1, 1]
    >>> codes, scale = shared_codes(kernel, ids, 1)
    >>> codes.numpy().tolist(), float(scale * 127)
    ([-127.0, 64.0], 0.75)
    """
    check_bits(num_bits)
    n = namespace(kernel)
    latent, ids = in_float32(n, kernel), n.cast(ids, "int32")
    means, _ = _means(n, latent, ids, num_bits, keep_zeros)
    largest = n.max(n.abs(means))
    # If all are smaller, 1 takes the place of the largest, and all codes are 0.
    size = n.where(largest >= SMALLEST_SIZE, largest, 1.0)
    # XLA turns a division by a constant into a product with its reciprocal, which rounds twice.
    scale = size / (float(LARGEST_INT8) + 0.0 * size)
    return round_half_up(means / scale), scale


def weight_codes(
    kernel: Tensor, ids: Tensor, num_bits: int, *, keep_zeros: bool = False
) -> tuple[Tensor, Tensor]:
    """The codes of `quantize_weights`, int32, and their float64 scale.

    Raises:
        ValueError: as there.
        tf.errors.InvalidArgumentError: a weight is NaN, for which there is no code; ValueError on
            JAX and PyTorch.
    """
    n = namespace(kernel)
    latent, ids = in_float32(n, kernel), n.cast(ids, "int32")
    codes, scale = shared_codes(latent, ids, num_bits, keep_zeros=keep_zeros)
    codes = n.where(n.isnan(latent), latent, n.take(codes, ids, axis=0))
    codes = n.check_numerics(codes, "kmeans: NaN has no integer code")
    return n.cast(codes, "int32"), n.in_widest(scale)


def weight_units(kernel: Tensor, ids: Tensor, num_bits: int, *, keep_zeros: bool = False) -> Tensor:
    """The clusters, float32, by the first one of those that have the same code."""
    n = namespace(kernel)
    codes, _ = shared_codes(kernel, ids, num_bits, keep_zeros=keep_zeros)
    first = n.argmax(n.cast(codes[:, None] == codes[None, :], "int32"), axis=1)
    return n.cast(n.take(first, n.cast(ids, "int32"), axis=0), "float32")


def nearest_ids(kernel: Tensor, ids: Tensor, num_bits: int, *, keep_zeros: bool = False) -> Tensor:
    """The clusters whose means are nearest, one of Lloyd's iterations; int32.

    Weights that are not finite stay where they are, and with `keep_zeros` those of cluster 0.

    >>> kernel, ids = [-1.0, 0.4, 0.25, 0.5], [0, 0, 1, 1]
    >>> nearest_ids(kernel, ids, 1).numpy().tolist()
    [0, 1, 1, 1]
    """
    n = namespace(kernel)
    latent, ids = in_float32(n, kernel), n.cast(ids, "int32")
    means, counts = _means(n, latent, ids, num_bits, keep_zeros)
    usable, stays = counts > 0.0, ~n.isfinite(latent)
    if keep_zeros:
        usable = usable & (n.arange(2**num_bits) != 0)
        stays = stays | (ids == 0)
    centers = n.where(usable, means, float("inf"))
    order = n.argsort(centers)
    centers = n.take(centers, order, axis=0)
    middle = (centers[1:] + centers[:-1]) / 2.0
    place = n.searchsorted(middle, n.reshape(latent, [-1]), side="right")
    found = n.reshape(n.take(order, place, axis=0), ids.shape)
    return n.where(stays, ids, n.cast(found, "int32"))


def _means(
    n: Namespace, kernel: Tensor, ids: Tensor, num_bits: int, keep_zeros: bool
) -> tuple[Tensor, Tensor]:
    """The mean of each cluster, float32, 0 where there is no weight; and how many there are."""
    finite, clusters = n.isfinite(kernel), 2**num_bits
    totals = n.sums_by_id(n.where(finite, kernel, 0.0), ids, clusters)
    counts = n.sums_by_id(finite, ids, clusters)
    means = n.cast(totals / n.maximum(counts, 1.0), "float32")
    if keep_zeros:
        means = n.where(n.arange(clusters) == 0, 0.0, means)
    return means, counts


def _forward(
    n: Namespace, latent: Tensor, *, ids: Tensor, num_bits: int, keep_zeros: bool, each: bool
) -> tuple[Tensor, tuple[()]]:
    codes, scale = shared_codes(latent, ids, num_bits, keep_zeros=keep_zeros)
    made = n.take(codes * scale, ids, axis=0)
    return n.where(n.isnan(latent), latent, made), ()


def _backward(
    n: Namespace,
    upstream: Tensor,
    value: Tensor,
    latent: Tensor,
    *,
    ids: Tensor,
    num_bits: int,
    keep_zeros: bool,
    each: bool,
) -> tuple[Tensor]:
    if not each:
        counts = n.sums_by_id(n.ones_like(upstream), ids, 2**num_bits)
        mean = n.sums_by_id(upstream, ids, 2**num_bits) / n.maximum(counts, 1.0)
        upstream = n.take(n.cast(mean, "float32"), ids, axis=0)
    return (n.where(ids == 0, 0.0, upstream) if keep_zeros else upstream,)
