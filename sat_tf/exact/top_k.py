"""Counts of classifiers' right answers: a class number of every row, and the k largest outputs.

A row with an output that is NaN or infinite has no class and is never right: no output is larger
than NaN, so that a count of larger ones would call it right for any label.
"""

from typing import Any, NamedTuple

import numpy as np

# The class of a row with an output that is NaN or infinite.
NO_CLASS = -1


class Score(NamedTuple):
    """A share of held-out images by which models are compared."""

    name: str  # The name in logs, tables and files.
    title: str  # The name in words.


TOP1 = Score("top1", "top-1")
AGREEMENT = Score("agreement", "agreement")


def classes_of(values: np.ndarray) -> np.ndarray:
    """Returns the class of every place, int64 (...): the first largest number of the last axis."""
    return np.where(np.all(np.isfinite(values), axis=-1), np.argmax(values, axis=-1), NO_CLASS)


def comes_before(outputs: Any, of_label: Any, classes: Any, labels: Any) -> Any:
    """Tells whether classes precede the label: by larger outputs, or equal ones and lower numbers.

    So exactly k classes are among the k largest, however coarse outputs are; the first of them is
    the argmax. Arrays or tensors are outputs (n, classes), the labels' outputs (n, 1), class
    numbers (1, classes) and labels (n, 1).
    """
    return (outputs > of_label) | ((outputs == of_label) & (classes < labels))


def top_hits(outputs: np.ndarray, labels: np.ndarray, k: int) -> int:
    """Counts the labels among the k largest of finite outputs; equal ones in order of class."""
    classes, labels = np.arange(outputs.shape[1])[np.newaxis], labels[:, np.newaxis]
    is_label = classes == labels
    of_label = np.sum(np.where(is_label, outputs, 0), axis=1, keepdims=True)
    before = np.count_nonzero(comes_before(outputs, of_label, classes, labels), axis=1)
    finite = np.all(np.isfinite(outputs), axis=1)
    return int(np.count_nonzero(finite & np.any(is_label, axis=1) & (before < k)))
