"""How many images are classified right, or alike."""

import numpy as np


def classes(outputs: np.ndarray) -> np.ndarray:
    """The class with the largest output, an image; -1 where one of them is not finite."""
    rows = outputs.reshape(len(outputs), -1)
    return np.where(np.all(np.isfinite(rows), axis=1), np.argmax(rows, axis=1), -1)


def top1(outputs: np.ndarray, labels: np.ndarray) -> float:
    """Share of right images; one with a NaN among its outputs is wrong.

    >>> top1(np.array([[np.nan, 1.0], [0.0, 1.0]]), np.array([0, 1]))
    0.5
    """
    return float(np.mean(classes(outputs) == labels))


def class_agreement(outputs: np.ndarray, reference: np.ndarray) -> float:
    """Share of images with the same class; one with a NaN on either side has none."""
    found = classes(outputs)
    return float(np.mean((found == classes(reference)) & (found >= 0)))


def largest_difference(expected: np.ndarray, computed: np.ndarray) -> float:
    """The largest absolute difference; infinite where one is NaN, 0 where there are no values."""
    with np.errstate(invalid="ignore"):
        differences = np.abs(expected.astype(np.float64) - computed)
    return float(np.max(np.where(np.isnan(differences), np.inf, differences), initial=0.0))


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
