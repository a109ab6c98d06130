"""Questions to the quantizers of a model: their codes, scales and ranges.

Calibration, requantization, analysis, planning and export ask these questions and know no class.
They ask them of tf_keras models; those of Keras 3 have a twin there.
"""

import abc
import dataclasses
from collections.abc import Callable, Mapping
from typing import Any, ClassVar

import numpy as np

from sat_tf.core.grid import LARGEST_INT8
from sat_tf.core.tensors import Tensor, namespace

# The variables of a quantizer by name.
Variables = Mapping[str, Any]
# A function of many values at once, float32, each for itself.
Function = Callable[[np.ndarray], np.ndarray]


def itself(values: np.ndarray) -> np.ndarray:
    """The function that does nothing."""
    return values


@dataclasses.dataclass(frozen=True)
class SampledValues:
    """Values of a tensor, for which a clipping level is chosen.

    Attributes:
        values: a sample of the tensor, any shape.
        largest: the largest magnitude in the whole tensor, and the highest level; above 0.
        counts: how many values each stands for; None is 1 for all.
        function: the only one that reads the tensor; the error counts behind it.
    """

    values: np.ndarray
    largest: float
    counts: np.ndarray | None = None
    function: Function = itself


@dataclasses.dataclass(frozen=True)
class IntegerWeights:
    """Weights as a file holds them: effective = codes · scales.

    Attributes:
        codes: int32, shaped like the kernel.
        scales: real value of one code, positive; of the kernel's rank, with length 1 along every
            axis but those of output channels, and along these too where they share one.
    """

    codes: Tensor
    scales: Tensor


@dataclasses.dataclass(frozen=True)
class CodeRange:
    """Codes lowest..lowest + intervals, each worth `scale`; code 0 is real 0.

    Attributes:
        scale: the real value of one code, a float32 scalar tensor.
        lowest: the lowest code, a float32 scalar tensor that holds an integer.
        intervals: the highest code minus the lowest.
    """

    scale: Tensor
    lowest: Tensor
    intervals: int

    @property
    def ends(self) -> tuple[int, int]:
        """The lowest and the highest code."""
        lowest = int(self.lowest)
        return lowest, lowest + self.intervals

    @property
    def zero_point(self) -> int:
        """The int8 number that a file stores for real 0.

        0 where the range is symmetric; else the highest code is stored as 127, where int8
        saturates.
        """
        lowest, highest = self.ends
        return 0 if lowest == -highest else LARGEST_INT8 - highest


class MeasuredWeights(abc.ABC):
    """The questions to a weight quantizer beside the effective weights.

    Required: `integer_weights` and `largest_code`. The rest has answers that hold for codes from
    -`largest_code` to `largest_code`.

    Attributes:
        num_bits: 1 to 8; None where nothing is rounded.
        policy_name: what policies call its class; "" for one that none names.
        zeros_stay_with: what a policy sets so that weights of 0 stay 0, where it has no 0.
    """

    num_bits: int | None
    policy_name: ClassVar[str] = ""
    zeros_stay_with: ClassVar[str] = "weight_quantizer='lsq'"

    NOT_QUANTIZED: ClassVar[str] = (
        "received a layer whose weights are not quantized, expected 1 to 8 weight bits; call "
        "sat_tf.requantize(model, policy) with a policy that has weight_bits, train, and "
        "export again"
    )

    @abc.abstractmethod
    def integer_weights(self, latent: Tensor, variables: Variables) -> IntegerWeights:
        """The codes and scales of the effective weights; the quantizer rounds.

        The product is what the quantizer computes with, up to a few roundings of float32: the
        export refuses a layer of which that does not hold.
        """

    @property
    @abc.abstractmethod
    def largest_code(self) -> int:
        """The largest magnitude among its codes."""

    @property
    def code_ends(self) -> tuple[int, int]:
        """The smallest and the largest of its codes."""
        return -self.largest_code, self.largest_code

    def code_ends_of(self, kernel: Tensor) -> tuple[int, int]:
        """The code ends of weights that start at a float kernel, where it tells them."""
        del kernel
        return self.code_ends

    @property
    def grid_name(self) -> str:
        """The name of the grid of its codes: that of the quantizer itself."""
        return self.policy_name or "integers"

    @property
    def channels_differ(self) -> bool:
        """Whether output channels have ranges, and so scales, of their own."""
        return True

    @property
    def holds_zero(self) -> bool:
        """Whether a weight of 0 stays 0."""
        return True

    @property
    def top_unit(self) -> int:
        """The largest of the integers n = 0..top that `units` gives."""
        return 2 * self.largest_code

    def code_count(self, variables: Variables) -> int:
        """How many different codes its weights can have; `top_unit` + 1, but for special ones."""
        del variables
        return self.top_unit + 1

    def units(self, latent: Tensor, variables: Variables) -> Tensor:
        """The codes as integers n = 0..top, float32, by which they are counted and compared."""
        codes = self.integer_weights(latent, variables).codes
        return namespace(codes).cast(codes + self.largest_code, "float32")

    def can_be_held(self, latent: Tensor, variables: Variables) -> Tensor:
        """The weights that may be frozen at their codes while the others train: none by default."""
        del variables
        return ~namespace(latent).ones_like(latent, dtype="bool")

    def hold(self, latent: Tensor, variables: Variables, units: Tensor, held: Tensor) -> Tensor:
        """Latent weights of which those that are held have the given integers."""
        del variables, units, held
        return latent

    def stages(self, latent: Tensor) -> dict[str, Tensor]:
        """The tensors before the effective weights, by the names of `WeightUse` of the analysis."""
        del latent
        return {}

    def rescale_constant(self, latent: Tensor, variables: Variables) -> float | None:
        """The factor on the quantized weights; the mean, where channels have their own."""
        del latent, variables
        return None

    def export_problem(self) -> str | None:
        """Why its weights have no int8 codes, and what to do; None where they have."""
        if self.num_bits is None:
            return self.NOT_QUANTIZED
        if self.fits_int8:
            return None
        return (
            f"received {self.num_bits}-bit weights of {self!r}, whose codes reach "
            f"{self.largest_code}, expected at most {LARGEST_INT8} to fit int8; requantize with "
            "fewer bits"
        )

    @property
    def fits_int8(self) -> bool:
        """Whether a file holds its codes; also where there are none, because nothing is rounded."""
        return self.num_bits is None or self.largest_code <= LARGEST_INT8


class MeasuredActivations(abc.ABC):
    """The questions to an activation quantizer beside the quantized tensor.

    Required: `code_range`; with a clipping level, `best_level`.

    Attributes:
        num_bits: bits of the codes.
        signed: whether it has codes for negative values. One that has none gives 0 for them, and
            takes the place of a rectifier in front of it, unless `rectifies` says otherwise.
        rounds_before_clipping: whether x / scale is rounded, and clipped after that.
    """

    num_bits: int
    signed: bool = False
    rounds_before_clipping: ClassVar[bool] = False

    @abc.abstractmethod
    def code_range(self, variables: Variables) -> CodeRange:
        """Its codes and their scale, by the arithmetic of the forward pass."""

    @property
    def rectifies(self) -> bool:
        """Whether it takes the place of a rectifier, instead of following it."""
        return not self.signed

    @property
    def is_symmetric(self) -> bool:
        """Whether its range reaches as far below 0 as above."""
        return self.signed

    @property
    def fewest_bits(self) -> int:
        """The smallest number of bits at which it has a code other than 0."""
        return 2 if self.is_symmetric else 1

    @property
    def is_unit(self) -> bool:
        """Whether its range is that of a function that ends by its own definition, as a sigmoid."""
        return False

    def float_twin(self, inputs: Tensor) -> Tensor:
        """The tensor without rounding, and with no clipping to a level."""
        return namespace(inputs).maximum(inputs, 0.0) if self.rectifies else inputs

    def highest_value(self, variables: Variables) -> float:
        """The real value of its highest code."""
        found = self.code_range(variables)
        return float(found.scale * (found.lowest + float(found.intervals)))

    def best_level(self, sample: SampledValues) -> float:
        """The clipping level with the smallest error; for a quantizer with a clipping level."""
        del sample
        raise TypeError(f"{self!r}: received a quantizer without a clipping level.")
