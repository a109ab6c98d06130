"""The table of surrogate gradients: what rounding passes back. Needs no TensorFlow.

    n = round(u),  e = u - n,  dL/du = g · f(g, e),  g = dL/dn

Rounding's own gradient is 0 or infinite; a surrogate is the factor f. Rounding itself stays what it
is, and so do codes and files. A new one is a row here, of any namespace with sign, tanh, abs
and square; quantizers take its name as the option `surrogate`, and `surrogate_strength`.

    ste   f = 1: straight-through (Bengio et al. 2013)
    ewgs  f = 1 + δ sign(g) e / a: element-wise gradient scaling (Lee et al., CVPR 2021, Eq. 5),
          where x_n - x_q = e / a is the error in units of a range of a intervals
    dsq   f = (k / 2) / (1 - α) · (1 - tanh²(k (1/2 - |e|))), k = ln(2/α - 1): differentiable soft
          quantization (Gong et al., ICCV 2019, Eq. 3 to 8): the slope of a tanh that goes from one
          code to the next, steepest half-way; α is how far from a staircase it is

EWGS makes gradients larger that push a value on in the direction in which it has been rounded, and
smaller those that push it back. The mean of dsq's factor over a cell is 1.
"""

import dataclasses
import math
from collections.abc import Callable
from typing import Any

from sat_tf.arguments import is_number
from sat_tf.messages import did_you_mean


def _ewgs(ops: Any, upstream: Any, error: Any, intervals: Any, strength: float) -> Any:
    return 1.0 + strength * ops.sign(upstream) * (error / intervals)


def _dsq(ops: Any, upstream: Any, error: Any, intervals: Any, strength: float) -> Any:
    del upstream, intervals
    steepness = math.log(2.0 / strength - 1.0)
    from_middle = ops.tanh(steepness * (0.5 - ops.abs(error)))
    return (0.5 * steepness / (1.0 - strength)) * (1.0 - ops.square(from_middle))


@dataclasses.dataclass(frozen=True)
class Surrogate:
    """One row of the table.

    Attributes:
        factor: f from a namespace of operations, g, e, a and the strength; None is 1.
        strength: δ or α where none is given; None for a surrogate that has none.
        lowest: of the strength.
        highest: of it.
    """

    factor: Callable[[Any, Any, Any, Any, float], Any] | None
    strength: float | None = None
    lowest: float = 0.0
    highest: float = 0.0


STRAIGHT_THROUGH = "ste"

SURROGATES: dict[str, Surrogate] = {
    STRAIGHT_THROUGH: Surrogate(None),
    # |e / a| is at most 1/2, so that no factor is negative.
    "ewgs": Surrogate(_ewgs, 1e-3, 0.0, 2.0),
    # The range in which the authors keep it.
    "dsq": Surrogate(_dsq, 0.2, 0.01, 0.5),
}


def strength_of(surrogate: str, strength: float | None = None) -> float | None:
    """The strength of a surrogate: the given one, or its usual one.

    Raises:
        ValueError: no surrogate has that name, or it cannot have that strength.

    >>> strength_of("ewgs"), strength_of("dsq", 0.1), strength_of("ste")
    (0.001, 0.1, None)
    """
    if not isinstance(surrogate, str) or surrogate not in SURROGATES:
        hint = did_you_mean(str(surrogate), SURROGATES)
        raise ValueError(f"surrogate={surrogate!r} is not a surrogate gradient. {hint}")
    if strength is None:
        return SURROGATES[surrogate].strength
    row = SURROGATES[surrogate]
    if row.strength is None:
        raise ValueError(
            f"surrogate_strength={strength!r} with surrogate={surrogate!r}: that gradient has no "
            "strength; leave surrogate_strength out."
        )
    if not is_number(strength) or not row.lowest <= strength <= row.highest:
        raise ValueError(
            f"surrogate_strength={strength!r} with surrogate={surrogate!r}: expected a number from "
            f"{row.lowest:g} to {row.highest:g}, usually {row.strength:g}."
        )
    return float(strength)


def describe_surrogate(surrogate: str, strength: float | None = None) -> str:
    """In words, to be appended to a line; "" for straight-through.

    >>> describe_surrogate("ewgs")
    ', ewgs gradient of 0.001'
    """
    found = strength_of(surrogate, strength)
    return "" if found is None else f", {surrogate} gradient of {found:g}"
