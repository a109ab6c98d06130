"""Weights from one Keras to the other: which array of a layer is which."""

from collections.abc import Sequence
from typing import Any

import numpy as np

_DEEPEST = 4  # names inside names, such as those of attention layers in wrappers


def matched(sources: Sequence[str], targets: Sequence[str]) -> list[int]:
    """For every target, the index of the source with the same name.

    Names are paths such as "dense/kernel". Only their last parts are held against each other, as
    many as are needed to tell them apart; where they do not pair off, order decides.

    >>> matched(["dense/kernel", "dense/bias"], ["a/dense/bias:0", "a/dense/kernel:0"])
    [1, 0]
    >>> matched(["layer_scale/variable"], ["layer_scale/gamma:0"])
    [0]
    """
    for depth in range(1, _DEEPEST + 1):
        ours, theirs = ([_tail(name, depth) for name in names] for names in (sources, targets))
        if len(set(ours)) == len(ours) and sorted(ours) == sorted(theirs):
            return [ours.index(name) for name in theirs]
    return list(range(len(targets)))


def arrange(
    names: Sequence[str], arrays: Sequence[np.ndarray], target_names: Sequence[str], shapes: Any
) -> list[np.ndarray]:
    """The arrays of one layer in the order of another that holds the same.

    Args:
        names: of the arrays.
        arrays: the weights.
        target_names: of the other layer's weights.
        shapes: of the other layer's weights.

    Raises:
        ValueError: they are not as many, or not of these shapes.
    """
    shapes = [tuple(shape) for shape in shapes]
    if len(arrays) != len(shapes):
        raise ValueError(
            f"received {len(arrays)} weights ({', '.join(names)}), expected {len(shapes)} "
            f"({', '.join(target_names)})"
        )
    ordered = [arrays[index] for index in matched(names, target_names)]
    for name, array, shape in zip(target_names, ordered, shapes, strict=True):
        if array.shape != shape:
            raise ValueError(f"received {name} of shape {array.shape}, expected {shape}")
    return ordered


def non_finite(names: Sequence[str], arrays: Sequence[np.ndarray]) -> list[str]:
    """What is wrong with arrays that hold NaN or infinite values, a line each."""
    found = []
    for name, array in zip(names, arrays, strict=True):
        bad = int(np.count_nonzero(~np.isfinite(array.astype(np.float64))))
        if bad:
            found.append(
                f"received {bad} of {array.size} values of {name.split('/')[-1]} that are NaN or "
                "infinite, expected finite ones; load or train the model again"
            )
    return found


def _tail(name: str, depth: int) -> tuple[str, ...]:
    return tuple(name.split(":")[0].split("/")[-depth:])
