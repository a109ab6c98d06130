"""Weights that share values, those of Deep Compression."""

from collections.abc import Callable
from typing import Any, ClassVar

import numpy as np
import tensorflow as tf

from sat_tf.core import kmeans
from sat_tf.core.grid_table import check_bits
from sat_tf.messages import did_you_mean
from sat_tf.quantizers.protocol import Variables, WeightRequest, register_quantizer
from sat_tf.quantizers.scaled import LevelsOfWeights, true_or_false

# Lloyd's iterations end when no weight changes its cluster; after so many they end anyway.
_MOST_ITERATIONS = 300

# Where centroids start, by sorted values and their number. "linear" is the paper's choice: few
# weights are large, and they matter.
INITIALIZATIONS: dict[str, Callable[[np.ndarray, int], np.ndarray]] = {
    "linear": lambda ordered, count: np.linspace(ordered[0], ordered[-1], count),
    "density": lambda ordered, count: ordered[
        ((np.arange(count) + 0.5) / count * len(ordered)).astype(np.int64)
    ],
}


@register_quantizer
class KMeansQuantizer(LevelsOfWeights):
    """Weights of a layer with 2^b shared values: `kmeans.quantize_weights` (Han et al. 2016).

    The variable `cluster_ids`, uint8 and shaped like the kernel, holds which of them share a value.
    k-means over the layer finds that when a model is quantized, and when it gets other bits.

    Args:
        num_bits: 1 to 8, or None to not round.
        rescale: see `ScaledQuantizer`.
        fan_out: see there.
        initialization: where centroids start, a row of `INITIALIZATIONS`.
        keep_zeros: weights that are 0 stay 0, as those of a pruned model; one of the values is 0.
        reassign: weights move to the nearest cluster in every training step. Each has its own
            gradient then; those of a cluster that share one would keep their distances for ever.
    """

    method: ClassVar[str] = "k-means"
    zeros_stay_with: ClassVar[str] = "weight_options={'keep_zeros': True}"
    levels_name: ClassVar[str] = "cluster_ids"
    levels_type: ClassVar[tf.DType] = tf.uint8
    levels_settings: ClassVar[tuple[str, ...]] = ("num_bits", "initialization", "keep_zeros")

    def __init__(
        self,
        *,
        num_bits: int | None,
        rescale: str | None = None,
        fan_out: int = 1,
        initialization: str = "linear",
        keep_zeros: bool = False,
        reassign: bool = False,
    ) -> None:
        super().__init__(num_bits=num_bits, rescale=rescale, fan_out=fan_out)
        self.initialization = known_initialization(initialization)
        self.keep_zeros = true_or_false("keep_zeros", keep_zeros)
        self.reassign = true_or_false("reassign", reassign)

    @classmethod
    def asked(cls, request: WeightRequest) -> dict[str, Any]:
        """What it takes of a request."""
        # Channels of a layer share its values.
        return {name: value for name, value in super().asked(request).items() if "axes" not in name}

    @classmethod
    def option_names(cls) -> tuple[str, ...]:
        """What a policy may choose."""
        return ("initialization", "keep_zeros", "reassign")

    def get_config(self) -> dict[str, Any]:
        """The arguments of the constructor."""
        return {
            "num_bits": self.num_bits,
            "rescale": self.rescale,
            "fan_out": self.fan_out,
            **{name: getattr(self, name) for name in self.option_names()},
        }

    def levels_shape(self, kernel_shape: Any) -> Any:
        """That of the kernel."""
        return kernel_shape

    def first_levels(self, kernel: tf.Tensor) -> tf.Tensor:
        """The clusters of `cluster_ids`."""
        settings: dict[str, Any] = {
            "initialization": self.initialization,
            "keep_zeros": self.keep_zeros,
        }
        return tf.constant(cluster_ids(kernel.numpy(), self.bits, **settings))

    def values(self, latent: tf.Tensor, levels: tf.Tensor) -> tf.Tensor:
        """`kmeans.quantize_weights`."""
        return kmeans.quantize_weights(
            latent, levels, self.bits, keep_zeros=self.keep_zeros, each=self.reassign
        )

    def next_levels(self, latent: tf.Tensor, levels: tf.Tensor) -> tf.Tensor | None:
        """The nearest clusters, where weights may move."""
        if not self.reassign:
            return None
        found = kmeans.nearest_ids(latent, levels, self.bits, keep_zeros=self.keep_zeros)
        return tf.cast(found, tf.uint8)

    def codes_and_scales(
        self, latent: tf.Tensor, variables: Variables
    ) -> tuple[tf.Tensor, tf.Tensor]:
        """`kmeans.weight_codes`."""
        codes, scale = kmeans.weight_codes(
            latent, variables[self.levels_name], self.bits, keep_zeros=self.keep_zeros
        )
        return codes, tf.reshape(scale, [1] * codes.shape.rank)

    @property
    def holds_zero(self) -> bool:
        """Whether a weight of 0 stays 0."""
        return self.num_bits is None or self.keep_zeros

    def units(self, latent: tf.Tensor, variables: Variables) -> tf.Tensor:
        """The clusters, of which those with the same code are one."""
        return kmeans.weight_units(
            latent, variables[self.levels_name], self.bits, keep_zeros=self.keep_zeros
        )

    def describe(self) -> str:
        """One line for people."""
        bits = "not rounded"
        if self.num_bits is not None:
            bits = f"of {self.num_bits} bits, {2**self.num_bits} values per layer"
        rescaled = f"{self.rescale} rescale" if self.rescale else "no rescale"
        line = f"{self.method} weights {bits}, {rescaled}, {self.initialization} initialization"
        zeros = ", zeros kept" if self.keep_zeros else ""
        return line + zeros + (", weights move between clusters" if self.reassign else "")


# -- which weights share a value -----------------------------------------------------------------


def cluster_ids(
    kernel: np.ndarray,
    num_bits: int,
    *,
    initialization: str = "linear",
    keep_zeros: bool = False,
) -> np.ndarray:
    """The clusters of k-means in one dimension, by Lloyd's iterations.

    A cluster that loses its last weight gets the upper half of the one with the largest error.
    Where there are no more distinct weights than clusters, each has its own. NaN and infinite
    weights have no part in it, and are in some cluster.

    Args:
        kernel: weights, any shape.
        num_bits: 1 to 8; there are 2^b clusters.
        initialization: a row of `INITIALIZATIONS`.
        keep_zeros: weights of exactly 0 are cluster 0, and no others are; 2^b - 1 clusters remain.

    Returns:
        uint8, shaped like the kernel; larger for larger weights, but for that of zeros.

    Raises:
        ValueError: bits out of range, or an unknown initialization.

    >>> cluster_ids(np.array([0.9, -1.0, 0.0, 1.1, 0.1]), 1).tolist()
    [1, 0, 0, 1, 0]
    >>> cluster_ids(np.array([0.9, -1.0, 0.0, 1.1, 0.1]), 2, keep_zeros=True).tolist()
    [3, 1, 0, 3, 2]
    """
    check_bits(num_bits)
    start = INITIALIZATIONS[known_initialization(initialization)]
    weights = np.asarray(kernel, np.float64)
    count = 2**num_bits - keep_zeros
    ordered = np.sort(weights[np.isfinite(weights) & ~(keep_zeros & (weights == 0.0))])
    distinct = np.unique(ordered)
    if len(distinct) > count:
        distinct = _lloyd(ordered, start(ordered, count))
    ids = np.searchsorted(_midpoints(distinct), weights, side="right") + keep_zeros
    return np.where(keep_zeros & (weights == 0.0), 0, ids).astype(np.uint8)


def known_initialization(initialization: str) -> str:
    """The name, if there is a row for it.

    Raises:
        ValueError: there is none.
    """
    if initialization not in INITIALIZATIONS:
        hint = did_you_mean(str(initialization), INITIALIZATIONS)
        raise ValueError(f"initialization={initialization!r}: {hint}")
    return initialization


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
