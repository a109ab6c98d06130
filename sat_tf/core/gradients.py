"""The gradients that rounding and clipping pass back, by name, and values with another's gradient.

Rounding's own gradient is 0 or infinite. A surrogate is a factor f in its place:

    n = round(u),  e = u - n,  dL/du = g · f(g, e),  g = dL/dn

Rounding itself stays as it is, and so do codes and files. A new surrogate is a row of `SURROGATES`,
for any namespace of `tensors`; quantizers take its name as the option `surrogate`, and
`surrogate_strength`.

    ste   f = 1: straight-through (Bengio et al. 2013)
    ewgs  f = 1 + δ sign(g) e / a: element-wise gradient scaling (Lee et al., CVPR 2021, Eq. 5),
          where x_n - x_q = e / a is the error in units of a range of a intervals
    dsq   f = (k / 2) / (1 - α) · (1 - tanh²(k (1/2 - |e|))), k = ln(2/α - 1): differentiable soft
          quantization (Gong et al., ICCV 2019, Eq. 3 to 8): the slope of a tanh that goes from one
          code to the next, steepest half-way; α is how far from a staircase it is

EWGS makes gradients larger that push a value on in the direction in which it has been rounded, and
smaller those that push it back. The mean of dsq's factor over a cell is 1.

The gradient of a clipping level is, with q the quantized value of x,

    α · dα = Σ g q - Σ dx r

A row of `CLIPPING_GRADIENTS` gives r from x and q: x in CG-PACT (Eq. 13), so that the quantization
error q - x remains between the ends of the range; q in the original PACT, so that nothing remains.
Policies and quantizers read the table.
"""

import dataclasses
import math
from collections.abc import Callable
from typing import Any

from sat_tf.arguments import is_number
from sat_tf.core.tensor_ops import Namespace, Tensor, in_float32, namespace
from sat_tf.messages import did_you_mean

CLIPPING_GRADIENTS: dict[str, Callable[[Any, Any], Any]] = {
    "calibrated": lambda x, q: x,
    "pact": lambda x, q: q,
}


def find_clipping_gradient(name: str) -> Callable[[Any, Any], Any]:
    """Returns the row of `CLIPPING_GRADIENTS` with a name."""
    if name not in CLIPPING_GRADIENTS:
        hint = did_you_mean(str(name), CLIPPING_GRADIENTS)
        raise ValueError(f"gradient={name!r} is not a clipping-level gradient. {hint}")
    return CLIPPING_GRADIENTS[name]


def _ewgs(n: Namespace, upstream: Any, error: Any, intervals: Any, strength: float) -> Any:
    return 1.0 + strength * n.sign(upstream) * (error / intervals)


def _dsq(n: Namespace, upstream: Any, error: Any, intervals: Any, strength: float) -> Any:
    steepness = math.log(2.0 / strength - 1.0)
    from_middle = n.tanh(steepness * (0.5 - n.abs(error)))
    return (0.5 * steepness / (1.0 - strength)) * (1.0 - n.square(from_middle))


@dataclasses.dataclass(frozen=True)
class SurrogateRow:
    """One row of the table."""

    # The factor f from a namespace, g, e, a and the strength; None is 1.
    factor: Callable[[Any, Any, Any, Any, float], Any] | None
    strength: float | None = None  # The usual strength; None for a row without a strength.
    lowest: float = 0.0  # The smallest strength.
    highest: float = 0.0  # The largest strength.


SURROGATES: dict[str, SurrogateRow] = {
    "ste": SurrogateRow(None),
    # |e / a| is at most 1/2, so that no factor is negative.
    "ewgs": SurrogateRow(_ewgs, 1e-3, 0.0, 2.0),
    # The range in which the authors keep the strength.
    "dsq": SurrogateRow(_dsq, 0.2, 0.01, 0.5),
}


@dataclasses.dataclass(frozen=True)
class Surrogate:
    """The gradient of rounding: a row of `SURROGATES`, and its strength; None is the usual one."""

    name: str = "ste"
    strength: float | None = None

    def __post_init__(self) -> None:
        name, strength = self.name, self.strength
        if not isinstance(name, str) or name not in SURROGATES:
            hint = did_you_mean(str(name), SURROGATES)
            raise ValueError(f"surrogate={name!r} is not a surrogate gradient. {hint}")
        row = SURROGATES[name]
        if strength is None:
            strength = row.strength
        elif row.strength is None:
            raise ValueError(
                f"surrogate_strength={strength!r} with surrogate={name!r}: that gradient has no "
                "strength; leave surrogate_strength out."
            )
        elif not is_number(strength) or not row.lowest <= strength <= row.highest:
            raise ValueError(
                f"surrogate_strength={strength!r} with surrogate={name!r}: expected a number from "
                f"{row.lowest:g} to {row.highest:g}, usually {row.strength:g}."
            )
        object.__setattr__(self, "strength", None if strength is None else float(strength))

    def describe(self) -> str:
        """The surrogate in words, to be appended to a line; "" for straight-through."""
        return "" if self.strength is None else f", {self.name} gradient of {self.strength:g}"


STRAIGHT_THROUGH = Surrogate()


def passed_back(
    upstream: Tensor, error: Tensor, intervals: Any, surrogate: Surrogate = STRAIGHT_THROUGH
) -> Tensor:
    """The gradient that rounding passes back, g · f(g, e), for a range of `intervals` intervals.

    The error e = u - round(u) is in codes. Beyond 1/2 it counts as 1/2, and NaN as 0, so that it
    does not spread through sums over a layer.
    """
    factor, strength = SURROGATES[surrogate.name].factor, surrogate.strength
    if factor is None or strength is None:
        return upstream
    n = namespace(upstream)
    upstream, error = n.tensor(upstream), n.tensor(error)
    error = n.where(n.isnan(error), 0.0, error)
    error = n.maximum(n.minimum(error, 0.5), -0.5)
    return upstream * factor(n, upstream, error, intervals, strength)


def straight_through(value: Tensor, surrogate: Tensor) -> Tensor:
    """`value`, exactly, with the gradient of `surrogate`; both of the same shape and type.

    The sum surrogate + (value - surrogate) would be rounded twice, and NaN where one of them is
    infinite.
    """
    n = namespace(surrogate)
    return n.with_gradient(
        lambda n, surrogate, value: (value, ()),
        lambda n, upstream, *tensors, value: (upstream,),
        [n.tensor(surrogate)],
        value=n.tensor(value),
    )


def scaled_gradient(variable: Any, factor: Any) -> Tensor:
    """The exact value of a variable, with its gradient multiplied by a factor.

    A clipping level gets gradient from every element of its tensor, many more than a weight does;
    at the learning rate of the weights it jumps about.
    """
    n = namespace(variable)
    inputs = [in_float32(n, variable)]
    return n.with_gradient(lambda n, itself, factor: (itself, ()), _scaled, inputs, factor=factor)


def _scaled(n: Namespace, upstream: Tensor, *tensors: Tensor, factor: Any) -> tuple[Tensor]:
    return (upstream * factor,)
