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
    add_up: Callable[[Any], Any] = ops.sum,
) -> tuple[Any, Any]:
    """The gradients of x in y = s · R(clip(x / s)), and the sum of those of s, times s.

        dx = g f where x is between the ends, else 0
        s · ds = Σ g y - Σ dx r

    With r = y, as the original PACT has it, nothing is left between the ends, whatever f is. y and
    r may both be in units of s; then the sum is that of ds. A NaN has no part in it.

    Args:
        upstream: g.
        value: y.
        reference: r, which may be anything at and beyond the ends.
        inside: where x is between the ends, boolean.
        error: gives e, in codes, where there is a surrogate.
        intervals: see `passed_back`.
        surrogate: see there.
        strength: see there.
        add_up: the sum over what shares an s.
    """
    passed = upstream
    if surrogate != STRAIGHT_THROUGH:
        passed = passed_back(upstream, error(), intervals, surrogate, strength)
    # A product with the mask takes half as long as a choice by it.
    mask = ops.cast(inside, "float32")
    dx = passed * mask
    through = upstream * mask if reference is value else dx
    total = add_up(upstream * value) - add_up(through * reference)

    def by_choice() -> Any:
        between = ops.where(inside, through * reference, 0.0)
        return add_up(ops.where(ops.isnan(value), 0.0, upstream * value - between))

    # Most tensors hold numbers alone; of one that does not, the sum is made once more.
    return dx, ops.cond(ops.all(ops.isfinite(total)), lambda: total, by_choice)
