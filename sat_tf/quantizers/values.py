"""The arguments and the results of quantizers, and the places in which they quantize outputs."""

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from sat_tf.core.grid import LARGEST_INT8
from sat_tf.core.tensor_ops import Tensor

# The variables of a quantizer by name.
Variables = Mapping[str, Any]
# A function of many values at once, float32, each for itself.
Function = Callable[[np.ndarray], np.ndarray]
# Names of variables. A skew is the share of the clipping level by which a range reaches less far on
# the other side of 0.
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
    function: Function = itself  # The only reader of the tensor; the error is that of its values.
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
        """The int8 code of real 0: 0 if symmetric, else the one that makes the highest code 127."""
        lowest, highest = self.ends
        return 0 if lowest == -highest else LARGEST_INT8 - highest


# The places of the quantizer of a layer's output.
BEHIND = "behind"  # after the whole layer
ACTIVATION = "activation"  # instead of the layer's activation function, which rectifies
BEFORE_ACTIVATION = "before activation"  # in front of a softmax
INSTEAD = "instead"  # instead of the whole layer, which rectifies
AROUND = "around"  # in front of the whole layer and behind: what it reads is on the same grid
WITHIN = "within"  # inside a recurrent layer: what each step makes, and the next one reads
PLACES = (BEHIND, ACTIVATION, BEFORE_ACTIVATION, INSTEAD, AROUND, WITHIN)


def known_sizes(kernel_shape: Sequence[int | None]) -> tuple[int, ...]:
    """The shape of a kernel, all of which has to be known."""
    sizes = tuple(size for size in kernel_shape if size is not None)
    if len(sizes) < len(kernel_shape):
        raise ValueError(
            f"received a kernel of shape {tuple(kernel_shape)}, expected known sizes; build the "
            "layer for an input whose channels are known."
        )
    return sizes
