"""The gradient that rounding passes back, by the rows of `sat_tf.core.surrogate_table`."""

from collections.abc import Callable
from typing import Any

from keras import ops

from sat_tf.core.surrogate_table import STRAIGHT_THROUGH, SURROGATES, strength_of


def passed_back(
    upstream: Any,
    error: Any,
    intervals: Any,
    surrogate: str = STRAIGHT_THROUGH,
    strength: float | None = None,
) -> Any:
    """The gradient at what was rounded, g · f(g, e), as `sat_tf.core.surrogate_gradients` has it.

    Args:
        upstream: g, float32.
        error: e = u - round(u) in codes; beyond 1/2 it counts as 1/2, and NaN as 0.
        intervals: a, of the whole range; a number, or a float32 tensor that broadcasts.
        surrogate: a row of `surrogate_table.SURROGATES`.
        strength: see `surrogate_table.strength_of`.
    """
    factor, strength = SURROGATES[surrogate].factor, strength_of(surrogate, strength)
    if factor is None or strength is None:
        return upstream
    error = ops.clip(ops.where(ops.isnan(error), 0.0, error), -0.5, 0.5)
    return upstream * factor(ops, upstream, error, intervals, strength)


def of_range(
    upstream: Any,
    value: Any,
    reference: Any,
    inside: Any,
    error: Callable[[], Any],
    intervals: Any,
    surrogate: str,
    strength: float | None,
) -> tuple[Any, Any]:
    """The gradients of x in y = s · R(clip(x / s)), and of s element by element.

        dx = g f where x is between the ends, else 0
        s · ds = g y - g f r between them, g y at the ends

    With r = y, as the original PACT has it, nothing is left between the ends. y and r may both be
    in units of s; then so is the second one. A NaN has no part in it.

    Args:
        upstream: g.
        value: y.
        reference: r.
        inside: where x is between the ends, boolean.
        error: gives e, in codes, where there is a surrogate.
        intervals: see `passed_back`.
        surrogate: see there.
        strength: see there.
    """
    passed = upstream
    if surrogate != STRAIGHT_THROUGH:
        passed = passed_back(upstream, error(), intervals, surrogate, strength)
    slopes = ops.where(inside, 0.0 if reference is value else value - reference, value)
    slopes = upstream * ops.where(ops.isnan(value), 0.0, slopes)
    if passed is not upstream and reference is not value:
        slopes = slopes + ops.where(inside, (upstream - passed) * reference, 0.0)
    return ops.where(inside, passed, 0.0), slopes
