"""Which weights of a layer share a value: k-means in one dimension. Needs no TensorFlow."""

from collections.abc import Callable

import numpy as np

from sat_tf.core.grid_table import check_bits
from sat_tf.messages import did_you_mean

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
