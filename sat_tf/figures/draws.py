"""Random weights as the paper's figures have them."""

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt


def gaussian(
    shape: Sequence[int], variance: float, *key: int, out: npt.NDArray[np.float32] | None = None
) -> npt.NDArray[np.float32]:
    """Normal weights of mean 0.

    From NumPy, because TensorFlow's normal numbers end at 5.7 standard deviations, which the
    largest of the 16 million weights of a 4096 x 4096 layer often exceeds.

    Args:
        shape: of the weights.
        variance: of each of them.
        *key: integers that choose the numbers, the seed among them.
        out: where to write them, an array of this shape.

    >>> gaussian((2, 2), 1.0, 0, 7).tolist() == gaussian((2, 2), 1.0, 0, 7).tolist()
    True
    """
    weights = np.empty(shape, np.float32) if out is None else out
    np.random.Generator(np.random.PCG64(list(key))).standard_normal(out=weights, dtype=np.float32)
    weights *= np.float32(np.sqrt(variance))
    return weights
