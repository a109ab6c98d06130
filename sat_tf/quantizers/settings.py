"""What the arguments of quantizers may be, and how their variables are named and start.

Needs no TensorFlow: quantizers of Keras 3 have the same arguments and variables.
"""

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from sat_tf.arguments import is_number
from sat_tf.core.grid_table import is_bits
from sat_tf.core.surrogate_table import STRAIGHT_THROUGH
from sat_tf.messages import did_you_mean

# -- names of variables ----------------------------------------------------------------------------

# Of quantizers that clip at a level which is learnt.
CLIPPING_LEVEL = "clipping_level"
# Of LSQ+: by how much the lower end has moved.
OFFSET = "offset"
# Of LSQ's weights: s · sqrt(highest code).
MAGNITUDE = "magnitude"
# Of QIL.
CENTER, DISTANCE = "interval_center", "interval_distance"
# Of weight quantizers with a rescaling: what gives a pretrained layer its size back.
GAIN = "rescale_gain"
# Of observers: the range, and how many batches there were; 0 means never observed.
ENDS = ("lowest", "highest")
COUNT = "observations"

# -- starts, and what is kept above them -----------------------------------------------------------

# No clipping level is lower.
SMALLEST_CLIPPING_LEVEL = 1e-3
# No magnitude is lower: scales stay positive. Weights are dead long before.
SMALLEST_MAGNITUDE = 1e-8
# No distance is shorter: what is divided by it stays finite.
SMALLEST_DISTANCE = 1e-8


def first_clipping_level(initial: float, ceiling: float | None) -> float:
    """Where a clipping level starts: at `initial`, but no higher than a rectifier's own ceiling.

    >>> first_clipping_level(8.0, 6.0), first_clipping_level(8.0, None)
    (6.0, 8.0)
    """
    return initial if ceiling is None else max(min(initial, ceiling), SMALLEST_CLIPPING_LEVEL)


def usual_deviation(kernel_shape: Sequence[int]) -> float:
    """That of a kernel of the usual size: sqrt(2 / n) with n inputs of each output.

    >>> usual_deviation((1, 1, 8, 32))
    0.5
    """
    return math.sqrt(2.0 / inner_size(kernel_shape, ()))


def usual_magnitude(kernel_shape: Sequence[int]) -> float:
    """2 mean|v| of a kernel with a normal distribution of the usual size."""
    return 2.0 * math.sqrt(2.0 / math.pi) * usual_deviation(kernel_shape)


def usual_half_interval(kernel_shape: Sequence[int]) -> float:
    """QIL's center and distance that reach to three deviations of a kernel of the usual size."""
    return 1.5 * usual_deviation(kernel_shape)


def inner_size(shape: Sequence[int], range_axes: Sequence[int]) -> int:
    """How many weights one output is made of, of a kernel with these axes of outputs.

    >>> inner_size((3, 3, 16, 32), (3,)), inner_size((3, 3, 16, 32), ())
    (144, 144)
    """
    rank = len(shape)
    outputs = {axis % rank for axis in range_axes or (-1,)}
    return int(np.prod([size for axis, size in enumerate(shape) if axis not in outputs]))


# -- how images are observed -----------------------------------------------------------------------

IMAGE_MOMENTUM = 0.99
# Whether values are pixels is told from so many images of a batch.
FEW_IMAGES = 4


def as_floats(value: float | Sequence[float]) -> tuple[float, ...]:
    """An end of the range of pixels, given as one number or as one for each channel.

    >>> as_floats(255), as_floats([0, 1])
    ((255.0,), (0.0, 1.0))
    """
    return tuple(map(float, np.atleast_1d(value)))


# -- options ---------------------------------------------------------------------------------------

# What a policy may choose of what rounding passes back.
SURROGATE_OPTIONS = ("surrogate", "surrogate_strength")
# Where LSQ's scales start: at the paper's, or at the smallest quantization error.
STARTS = ("mean", "error")


def surrogate_config(quantizer: Any) -> dict[str, Any]:
    """The choice as arguments of the constructor.

    None where it is the usual one, so that versions before there was a choice read such models.
    """
    if quantizer.surrogate == STRAIGHT_THROUGH:
        return {}
    return {name: getattr(quantizer, name) for name in SURROGATE_OPTIONS}


def true_or_false(name: str, value: Any) -> bool:
    """An option that is True or False.

    Raises:
        ValueError: it is neither.
    """
    if not isinstance(value, bool):
        raise ValueError(f"{name}={value!r}: expected True or False.")
    return value


def one_of_starts(start: Any) -> str:
    """The name of where LSQ starts.

    Raises:
        ValueError: there is none of that name.
    """
    if start not in STARTS:
        raise ValueError(f"start={start!r}: {did_you_mean(str(start), STARTS)}")
    return str(start)


def momentum_of_basis(momentum: Any) -> float:
    """The momentum of LQ-Nets' basis.

    Raises:
        ValueError: it is no number from 0 to 1.
    """
    if not is_number(momentum) or not 0 <= momentum <= 1:
        raise ValueError(
            f"momentum={momentum!r}: expected a number from 0 to 1; the paper has 0.9."
        )
    return float(momentum)


def factor_of_interval(factor: Any) -> float:
    """The factor on the gradients of QIL's interval.

    Raises:
        ValueError: it is no number of 0 or more.
    """
    if not is_number(factor) or not 0 <= factor < math.inf:
        raise ValueError(f"gradient_factor={factor!r}: expected a number of 0 or more, as 0.01.")
    return float(factor)


def check_channel_limits(lowest: Any, highest: Any) -> None:
    """Raises ValueError unless both are bits, in their order; says all that is wrong."""
    problems = [
        f"{name}={value!r}: expected an integer from 1 to 8."
        for name, value in (("lowest", lowest), ("highest", highest))
        if not is_bits(value)
    ]
    if not problems and lowest > highest:
        problems.append(f"lowest={lowest}, highest={highest}: expected lowest to be no more.")
    if problems:
        raise ValueError(" ".join(problems))
