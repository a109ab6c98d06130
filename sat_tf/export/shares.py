"""How far two arrays differ, and how many images are classified right."""

import numpy as np


def largest_difference(expected: np.ndarray, computed: np.ndarray) -> float:
    """The largest absolute difference; infinite where one is NaN, 0 where there are no values."""
    with np.errstate(invalid="ignore"):
        differences = np.abs(expected.astype(np.float64) - computed)
    return float(np.max(np.where(np.isnan(differences), np.inf, differences), initial=0.0))


def mean_difference(expected: np.ndarray, computed: np.ndarray) -> float:
    """The mean absolute difference; infinite where one is NaN, 0 where there are no values."""
    with np.errstate(invalid="ignore"):
        found = (
            float(np.mean(np.abs(expected.astype(np.float64) - computed))) if expected.size else 0
        )
    return float("inf") if np.isnan(found) else float(found)


def top_hits(outputs: np.ndarray, labels: np.ndarray, k: int) -> int:
    """How many labels are among the k largest of finite outputs; equal ones in order of class.

    >>> top_hits(np.array([[0.0, 2.0, 2.0], [np.nan, 1.0, 0.0]]), np.array([2, 1]), 1)
    0
    >>> top_hits(np.array([[0.0, 2.0, 2.0], [np.nan, 1.0, 0.0]]), np.array([2, 1]), 2)
    1
    """
    finite = np.all(np.isfinite(outputs), axis=1)
    largest = np.argsort(-outputs.astype(np.float64), axis=1, kind="stable")[:, :k]
    return int(np.count_nonzero(finite & np.any(largest == labels[:, np.newaxis], axis=1)))
