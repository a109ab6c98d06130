"""The widest floating type that a backend has: float64, and for JAX as it comes float32."""

from typing import Any

import numpy as np
from keras import backend, ops


def in_widest(values: Any) -> Any:
    """A tensor in the widest type, for sums whose order must not matter."""
    # Asked for float64, JAX warns and gives float32; of an array it takes what it can.
    widest = backend.standardize_dtype(ops.convert_to_tensor(np.zeros((), np.float64)).dtype)
    return ops.cast(values, widest)
