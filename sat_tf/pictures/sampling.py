"""A sample of pictures."""

import numpy as np
import numpy.typing as npt


def spread_evenly(count: int, most: int | None) -> npt.NDArray[np.int64]:
    """Indices of at most `most` of `count` images, spread evenly; None chooses all.

    >>> spread_evenly(9, 3).tolist(), spread_evenly(2, 3).tolist(), spread_evenly(0, 3).tolist()
    ([0, 4, 8], [0, 1], [])
    """
    chosen = count if most is None else min(most, count)
    return np.unique(np.linspace(0, max(count - 1, 0), chosen).round().astype(np.int64))
