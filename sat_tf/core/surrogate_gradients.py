"""The gradient that rounding passes back, by the rows of `surrogate_table`."""

from typing import Any

from sat_tf.core.surrogate_table import STRAIGHT_THROUGH, SURROGATES, strength_of
from sat_tf.core.tensors import Tensor, namespace


def passed_back(
    upstream: Tensor,
    error: Tensor,
    intervals: Any,
    surrogate: str = STRAIGHT_THROUGH,
    strength: float | None = None,
) -> Tensor:
    """The gradient at what was rounded, g · f(g, e).

    Args:
        upstream: g, float32.
        error: e = u - round(u) in codes, of the same shape; beyond 1/2 it counts as 1/2, and NaN
            as 0, so that it does not spread through sums over a layer.
        intervals: a, of the whole range; a number, or a float32 tensor that broadcasts.
        surrogate: a row of `surrogate_table.SURROGATES`.
        strength: see `strength_of`.

    >>> import numpy as np
    >>> passed_back(np.float32([2.0, -2.0]), np.float32([0.3, 0.3]), 3, "ewgs", 0.1).numpy()
    array([ 2.02, -1.98], dtype=float32)
    """
    factor, strength = SURROGATES[surrogate].factor, strength_of(surrogate, strength)
    if factor is None or strength is None:
        return upstream
    n = namespace(upstream)
    upstream, error = n.tensor(upstream), n.tensor(error)
    error = n.where(n.isnan(error), 0.0, error)
    error = n.maximum(n.minimum(error, 0.5), -0.5)
    return upstream * factor(n, upstream, error, intervals, strength)
