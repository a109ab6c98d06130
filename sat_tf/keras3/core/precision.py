"""The types in which is computed: float32, and for sums the widest one that a backend has."""

from typing import Any

import numpy as np
from keras import backend, ops


def in_float32(tensor: Any) -> Any:
    """A tensor, a variable or a number as a float32 tensor."""
    return ops.cast(ops.convert_to_tensor(tensor), "float32")


def in_widest(values: Any) -> Any:
    """A tensor in float64, or in float32 where JAX has no more.

    Sums in float64 are the same float32 number in whatever order they are made.
    """
    # Asked for float64, JAX would warn; of an array it takes what it can.
    widest = backend.standardize_dtype(ops.convert_to_tensor(np.zeros((), np.float64)).dtype)
    return ops.cast(values, widest)
