"""The variables, samples, codes and scales that quantizers are given and answer with; options."""

import dataclasses
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from sat_tf.core.grid import LARGEST_INT8, axes_within
from sat_tf.core.tensors import Tensor, namespace

# The variables of a quantizer by name.
Variables = Mapping[str, Any]
# A function of many values at once, float32, each for itself.
Function = Callable[[np.ndarray], np.ndarray]
# Names of variables. A skew says how much less far than its clipping level a range reaches on the
# other side of 0, as a share of it.
SKEW = "skew"
# The gain of a rescaling gives a pretrained layer its size back.
GAIN = "rescale_gain"
# Observers have a range, and the number of batches; 0 means never observed.
ENDS = ("lowest", "highest")
COUNT = "observations"

# No clipping level is lower.
SMALLEST_CLIPPING_LEVEL = 1e-3


def itself(values: np.ndarray) -> np.ndarray:
    """The function that does nothing."""
    return values


@dataclasses.dataclass(frozen=True)
class SampledValues:
    """Values of a tensor, for which a clipping level is chosen."""

    values: np.ndarray  # A sample of the tensor, any shape.
    largest: float  # The largest magnitude in the whole tensor, and the highest level; above 0.
    counts: np.ndarray | None = None  # How many values each stands for; None is 1 for all.
    function: Function = itself  # The only one that reads the tensor; the error counts behind it.
    # The smallest and the largest value in the whole tensor; None where only the sample tells.
    ends: tuple[float, float] | None = None


@dataclasses.dataclass(frozen=True)
class IntegerWeights:
    """Weights as a file holds them: effective = codes · scales."""

    codes: Tensor  # Int32, shaped like the kernel.
    # Real value of one code, positive; of the kernel's rank, with length 1 along every axis but
    # those of output channels, and along these too where they share one.
    scales: Tensor


@dataclasses.dataclass(frozen=True)
class CodeRange:
    """Codes lowest..lowest + intervals, each worth `scale`; code 0 is real 0."""

    scale: Tensor  # The real value of one code, a float32 scalar tensor.
    lowest: Tensor  # The lowest code, a float32 scalar tensor that holds an integer.
    # The highest code minus the lowest, an integer; or a float32 scalar tensor where a variable
    # tells it.
    intervals: Any

    @property
    def ends(self) -> tuple[int, int]:
        """The lowest and the highest code."""
        lowest = int(self.lowest)
        return lowest, lowest + int(self.intervals)

    @property
    def zero_point(self) -> int:
        """The int8 number that a file stores for real 0.

        0 where the range is symmetric; else the highest code is stored as 127, where int8
        saturates.
        """
        lowest, highest = self.ends
        return 0 if lowest == -highest else LARGEST_INT8 - highest


def off_halves(values: Tensor, found: CodeRange, window: Sequence[int] | None) -> Tensor:
    """Values moved off halves, so that rounding half up has the ties of a kernel.

    AVERAGE_POOL_2D rounds means of stored integers, code + zero point, half away from zero. Such a
    mean is a multiple of 1 / count, of which a quarter is added or taken away. RESIZE_BILINEAR
    rounds half up; for the usual factors its sums are multiples of 1/16 or 1/64, and 1/512 makes up
    for the last bits of float32. No other value is rounded otherwise.

    A mean has a window of count values; images that are resized have none. What is returned is
    float32, with the gradient of the values.

    >>> grid = CodeRange(np.float32(1.0), np.float32(0.0), 255)
    >>> [float(x) for x in off_halves(np.float32([2.5, 200.5]), grid, (1, 2))]
    [2.375, 200.625]
    """
    n = namespace(values)
    values = n.cast(n.tensor(values), "float32")
    scale, lowest = n.tensor(found.scale), n.tensor(found.lowest)
    if window is None:
        return values + n.stop_gradient(scale / 512.0)
    highest = lowest + n.cast(n.tensor(found.intervals), "float32")
    zero_point = n.where(lowest == -highest, 0.0, LARGEST_INT8 - highest)
    quarter = scale / (4.0 * math.prod(window))
    is_positive = values / scale + zero_point > 0.0
    return values + n.stop_gradient(n.where(is_positive, quarter, -quarter))


def usual_deviation(kernel_shape: Sequence[int]) -> float:
    """The deviation of a kernel of the usual size: sqrt(2 / n) with n inputs of each output.

    >>> usual_deviation((1, 1, 8, 32))
    0.5
    """
    inner = math.prod(kernel_shape[axis] for axis in axes_within(len(kernel_shape), (-1,)))
    return math.sqrt(2.0 / inner)


def known_sizes(kernel_shape: Sequence[int | None]) -> tuple[int, ...]:
    """The shape of a kernel, all of which has to be known."""
    sizes = tuple(size for size in kernel_shape if size is not None)
    if len(sizes) < len(kernel_shape):
        raise ValueError(
            f"received a kernel of shape {tuple(kernel_shape)}, expected known sizes; build the "
            "layer for an input whose channels are known."
        )
    return sizes


def true_or_false(name: str, value: Any) -> None:
    """Raises ValueError unless an option is True or False."""
    if not isinstance(value, bool):
        raise ValueError(f"{name}={value!r}: expected True or False.")
