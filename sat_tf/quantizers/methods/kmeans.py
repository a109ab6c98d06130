"""Shared values: the weights of a layer have 2^b values, which k-means finds; Deep Compression.

Han et al., "Deep Compression", ICLR 2016, section 3. Which weights share one is found once, by
`cluster_ids`. From then on the value of a cluster is the mean of its latent weights, rounded to an
int8 code, so that a file holds exactly what was trained.
"""

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any, ClassVar, Literal

import numpy as np

from sat_tf.configs import (
    LevelsOfWeights,
    Tensor,
    Variables,
    computed_in_float32,
    namespace,
    round_half_up,
)


def _means(kernel: Tensor, ids: Tensor, num_bits: int, keep_zeros: bool) -> tuple[Tensor, Tensor]:
    """The mean of each cluster, float32, 0 where there is no weight; and how many there are."""
    n = namespace(kernel)
    finite, clusters = n.isfinite(kernel), 2**num_bits
    totals = n.sums_by_id(n.where(finite, kernel, 0.0), ids, clusters)
    counts = n.sums_by_id(finite, ids, clusters)
    means = n.cast(totals / n.maximum(counts, 1.0), "float32")
    if keep_zeros:
        means = n.where(n.arange(clusters) == 0, 0.0, means)
    return means, counts


def _codes(kernel: Tensor, ids: Tensor, num_bits: int, keep_zeros: bool) -> tuple[Tensor, Tensor]:
    """The code of each cluster, float32, and the scale: round(C / s) and s = max|C| / 127."""
    n = namespace(kernel)
    means, _ = _means(kernel, ids, num_bits, keep_zeros)
    largest = n.max(n.abs(means))
    # If all are smaller, 1 takes the place of the largest, and all codes are 0.
    size = n.where(largest >= 2.0**-63, largest, 1.0)
    # XLA turns a division by a constant into a product with its reciprocal, which rounds twice.
    scale = size / (127.0 + 0.0 * size)
    return round_half_up(means / scale), scale


def _shared_gradient(
    n: Any,
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


@dataclasses.dataclass(kw_only=True, eq=False, repr=False)
class KMeansQuantizer(LevelsOfWeights):
    """Weights of a layer with 2^b shared values (Han et al. 2016).

    The variable `cluster_ids`, uint8 and shaped like the kernel, says which weights share a value.
    k-means over the layer finds these when a model is quantized, and when it gets other bits.

    Forward, with C_k the mean of the latent weights of cluster k and s = max|C| / 127:
               q_i = s · round(C_k / s), k the cluster of weight i.
    Backward:  dL/dw_i = mean of dL/dq over the cluster, which is the gradient of the mean; or, with
               `reassign`, dL/dq_i. Rounding is straight-through.

    The paper sums gradients over a cluster where these average them, as most codes for it do: rates
    then do not depend on how large a cluster is. Sums are in float64. A NaN weight stays NaN, and
    the mean leaves NaN and infinite weights out.
    """

    policy_name: ClassVar[str] = "kmeans"
    method: ClassVar[str] = "k-means"
    asks: ClassVar[tuple[str, ...]] = ("num_bits", "fan_out")
    zeros_stay_with: ClassVar[str] = "weight_options={'keep_zeros': True}"
    levels_name: ClassVar[str] = "cluster_ids"
    levels_type: ClassVar[str] = "uint8"
    levels_settings: ClassVar[tuple[str, ...]] = ("num_bits", "initialization", "keep_zeros")
    # Channels of a layer share its values.
    range_axes: ClassVar[tuple[int, ...]] = ()  # type: ignore[misc]

    # The start of the centroids, a row of `INITIALIZATIONS`.
    initialization: Literal["linear", "density"] = "linear"
    # Weights that are 0 stay 0, as in a pruned model; the value of cluster 0 is 0.
    keep_zeros: bool = False
    # Weights move to the nearest cluster in every training step. Each has its own gradient then;
    # weights of a cluster that share one would keep their distances forever.
    reassign: bool = False

    def levels_shape(self, kernel_shape: Sequence[int]) -> Sequence[int]:
        return kernel_shape

    def first_levels(self, kernel: Tensor) -> Any:
        return cluster_ids(kernel, self.bits, self.initialization, self.keep_zeros)

    def values(self, latent: Tensor, levels: Tensor) -> Tensor:
        latent = computed_in_float32(
            lambda n, latent, **settings: (latent, ()),
            _shared_gradient,
            [latent],
            ids=namespace(latent).cast(levels, "int32"),
            num_bits=self.bits,
            keep_zeros=self.keep_zeros,
            each=self.reassign,
        )
        return super().values(latent, levels)

    @property
    def follows(self) -> bool:
        return self.reassign

    def next_levels(self, latent: Tensor, levels: Tensor) -> Tensor:
        """The clusters whose means are nearest, one of Lloyd's iterations.

        Weights that are not finite stay where they are, and with `keep_zeros` those of cluster 0.
        """
        n, ids = namespace(latent), namespace(latent).cast(levels, "int32")
        means, counts = _means(latent, ids, self.bits, self.keep_zeros)
        usable, stays = counts > 0.0, ~n.isfinite(latent)
        if self.keep_zeros:
            usable = usable & (n.arange(2**self.bits) != 0)
            stays = stays | (ids == 0)
        centers = n.where(usable, means, float("inf"))
        order = n.argsort(centers)
        centers = n.take(centers, order, axis=0)
        middle = (centers[1:] + centers[:-1]) / 2.0
        place = n.searchsorted(middle, n.reshape(latent, [-1]), side="right")
        nearest = n.cast(n.reshape(n.take(order, place, axis=0), ids.shape), "int32")
        return n.cast(n.where(stays, ids, nearest), self.levels_type)

    def codes_and_scales(
        self, latent: Tensor, variables: Variables, num_bits: Any
    ) -> tuple[Tensor, Tensor]:
        n, ids = namespace(latent), namespace(latent).cast(variables[self.levels_name], "int32")
        codes, scale = _codes(latent, ids, self.bits, self.keep_zeros)
        return n.where(n.isnan(latent), latent, n.take(codes, ids, axis=0)), scale

    def units(self, latent: Tensor, variables: Variables) -> Tensor:
        """The clusters; those that have the same code count as the first of them."""
        n, ids = namespace(latent), namespace(latent).cast(variables[self.levels_name], "int32")
        codes, _ = _codes(latent, ids, self.bits, self.keep_zeros)
        first_ids = n.argmax(n.cast(codes[:, None] == codes[None, :], "int32"), axis=1)
        return n.cast(n.take(first_ids, ids, axis=0), "float32")

    @property
    def holds_zero(self) -> bool:
        return self.num_bits is None or self.keep_zeros

    def describe(self) -> str:
        bits = "not rounded"
        if self.num_bits is not None:
            bits = f"of {self.num_bits} bits, {2**self.num_bits} values per layer"
        rescaled = f"{self.rescale} rescale" if self.rescale else "no rescale"
        line = f"{self.method} weights {bits}, {rescaled}, {self.initialization} initialization"
        zeros = ", zeros kept" if self.keep_zeros else ""
        return line + zeros + (", weights move between clusters" if self.reassign else "")


# Lloyd's iterations end when no weight changes its cluster, and after this many in any case.
_MOST_ITERATIONS = 300

# Starts of the centroids, by sorted values and their number. "linear" is the paper's choice: few
# weights are large, and they matter.
INITIALIZATIONS: dict[str, Callable[[np.ndarray, int], np.ndarray]] = {
    "linear": lambda ordered, count: np.linspace(ordered[0], ordered[-1], count),
    "density": lambda ordered, count: ordered[
        ((np.arange(count) + 0.5) / count * len(ordered)).astype(np.int64)
    ],
}


def cluster_ids(
    kernel: Tensor, num_bits: int, initialization: str = "linear", keep_zeros: bool = False
) -> np.ndarray:
    """The clusters of k-means in one dimension, by Lloyd's iterations.

    A cluster that loses its last weight gets the upper half of the one with the largest error.
    Where there are no more distinct weights than clusters, each has its own. NaN and infinite
    weights do not count, and are in some cluster.

    The result is uint8, shaped like the kernel, and larger for larger weights. Only with
    `keep_zeros` cluster 0 is that of zeros: of weights of exactly 0, and no others; 2^b - 1 remain.
    """
    weights = np.asarray(kernel, np.float64)
    count = 2**num_bits - keep_zeros
    ordered = np.sort(weights[np.isfinite(weights) & ~(keep_zeros & (weights == 0.0))])
    distinct = np.unique(ordered)
    if len(distinct) > count:
        distinct = _lloyd(ordered, INITIALIZATIONS[initialization](ordered, count))
    ids = np.searchsorted(_midpoints(distinct), weights, side="right") + keep_zeros
    return np.where(keep_zeros & (weights == 0.0), 0, ids).astype(np.uint8)


def _midpoints(centers: np.ndarray) -> np.ndarray:
    return (centers[1:] + centers[:-1]) / 2.0


def _lloyd(ordered: np.ndarray, centers: np.ndarray) -> np.ndarray:
    # In one dimension clusters are intervals: sums over them are differences of running ones.
    sums, squares = (np.concatenate([[0.0], np.cumsum(ordered**power)]) for power in (1, 2))
    before = None
    for _ in range(_MOST_ITERATIONS):
        cuts = np.searchsorted(ordered, _midpoints(centers))
        edges = np.concatenate([[0], cuts, [len(ordered)]])
        counts, totals = np.diff(edges), np.diff(sums[edges])
        means = totals / np.maximum(counts, 1)
        errors = np.where(counts > 0, np.diff(squares[edges]) - totals * means, 0.0)
        empty = np.flatnonzero(counts == 0)
        centers = np.where(counts > 0, means, centers)
        for cluster, widest in zip(empty, np.argsort(-errors, kind="stable"), strict=False):
            low, high = edges[widest], edges[widest + 1]
            if high - low < 2 or ordered[low] == ordered[high - 1]:
                break
            middle = low + np.searchsorted(ordered[low:high], means[widest])
            middle = min(max(middle, low + 1), high - 1)
            centers[widest] = (sums[middle] - sums[low]) / (middle - low)
            centers[cluster] = (sums[high] - sums[middle]) / (high - middle)
        centers = np.sort(centers)
        if before is not None and not len(empty) and np.array_equal(edges, before):
            break
        before = edges
    return centers
