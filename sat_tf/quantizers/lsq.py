"""LSQ: weights and activations whose scales are learnt, and LSQ+, whose offset is learnt too."""

import dataclasses
import math
from collections.abc import Sequence
from typing import Any, ClassVar, Literal

import numpy as np

from sat_tf.core import grid, lsq
from sat_tf.core.gradients import scaled_gradient
from sat_tf.core.grid import FEWEST_SIGNED_BITS, scale_and_zero
from sat_tf.core.lsq import lsq_code_ends
from sat_tf.core.tensor_ops import Tensor, in_float32, namespace
from sat_tf.quantizers import protocol
from sat_tf.quantizers.pact import BelowZero, UpToItsLevel
from sat_tf.quantizers.scaled import ScaledWithSurrogate
from sat_tf.quantizers.values import SMALLEST_CLIPPING_LEVEL, CodeRange, SampledValues, Variables

# The variable of weights, s · sqrt(highest code), and that of LSQ+, the distance that the lower end
# has moved.
MAGNITUDE, OFFSET = "magnitude", "offset"
# No magnitude is lower: scales stay positive. Weights are dead long before.
SMALLEST_MAGNITUDE = 1e-8
# Scales start at the paper's, or at the smallest quantization error.
_Start = Literal["mean", "error"]


@dataclasses.dataclass(kw_only=True, eq=False, repr=False)
class LsqQuantizer(ScaledWithSurrogate):
    """Weights with a scale that is learnt: `lsq.quantize_weights` (Esser et al. 2020).

    The trainable variable `magnitude`, for the layer or for each channel, holds
    m = s · sqrt(highest code). It is kept positive, and has no weight decay.
    """

    policy_name: ClassVar[str] = "lsq"
    method: ClassVar[str] = "LSQ"
    fewest_bits: ClassVar[int] = FEWEST_SIGNED_BITS

    # "mean" has the scale of the paper, 2 mean|v| / sqrt(highest code), "error" the one with the
    # smallest quantization error, which is better without training: at 8 bits the paper's reaches
    # far beyond the largest weight.
    start: _Start = "mean"

    def variables(self, shape: Sequence[int | None]) -> dict[str, protocol.VariableSpec]:
        specs = super().variables(shape)
        if self.num_bits is None:
            return specs
        # 2 mean|v| of a kernel with a normal distribution, until `begin` sees this one.
        usual = 2.0 * math.sqrt(2.0 / math.pi)
        magnitude = self.learnt(shape, deviations=usual, lowest=SMALLEST_MAGNITUDE)
        return {**specs, MAGNITUDE: magnitude}

    def begin(self, kernel: Any, variables: Variables) -> None:
        """Sets magnitudes by the latent weights; a channel of zeros gets that of its layer."""
        if MAGNITUDE in variables:
            magnitude = variables[MAGNITUDE]
            magnitude.assign(self._first_magnitude(kernel, magnitude))

    def _first_magnitude(self, kernel: Any, otherwise: Any) -> Tensor:
        latent, axes = in_float32(namespace(kernel), kernel), self.range_axes
        if self.start == "error":
            of_range = lsq.best_magnitude(latent, self.bits, range_axes=axes)
        else:
            of_range = lsq.weight_magnitude(latent, range_axes=axes)
        of_layer = lsq.weight_magnitude(latent)
        return self.of_range_or_layer(of_range, of_layer, otherwise, SMALLEST_MAGNITUDE)

    def carry(self, latent: Tensor, variables: Variables, before: protocol.Predecessor) -> None:
        """Takes over the gain, and the ratio of magnitudes to their start."""
        super().carry(latent, variables, before)
        if not isinstance(before.quantizer, LsqQuantizer) or MAGNITUDE not in variables:
            return
        old, new = before.variables.get(MAGNITUDE), variables[MAGNITUDE]
        if old is None or old.shape != new.shape:
            return
        old_start, new_start = (
            quantizer._first_magnitude(latent, old) for quantizer in (before.quantizer, self)
        )
        new.assign(old * (new_start / old_start))

    def quantized(self, latent: Tensor, variables: Variables, num_bits: Any) -> Tensor:
        magnitude = variables[MAGNITUDE]
        return lsq.quantize_weights(latent, magnitude, num_bits, surrogate=self.estimator)

    def codes_and_scales(
        self, latent: Tensor, variables: Variables, num_bits: grid.Bits
    ) -> tuple[Tensor, Tensor]:
        scale = lsq.weight_scale(variables[MAGNITUDE], num_bits)
        return lsq.weight_codes(latent, variables[MAGNITUDE], num_bits), scale

    @property
    def code_ends(self) -> tuple[int, int]:
        return lsq_code_ends(self.bits)

    @property
    def largest_code(self) -> int:
        return -self.code_ends[0]

    @property
    def top_unit(self) -> int:
        """The number of its codes, less one."""
        lowest, highest = self.code_ends
        return highest - lowest

    def units(self, latent: Tensor, variables: Variables) -> Tensor:
        codes = lsq.weight_codes(latent, variables[MAGNITUDE], self.bits)
        return namespace(codes).cast(codes - self.code_ends[0], "float32")

    def can_be_held(self, latent: Tensor, variables: Variables) -> Tensor:
        return namespace(latent).ones_like(latent, dtype="bool")

    def hold(self, latent: Tensor, variables: Variables, units: Tensor, held: Tensor) -> Tensor:
        """Latent weights, of which the held ones are their code times the current scale."""
        scale = lsq.weight_scale(variables[MAGNITUDE], self.bits)
        values = (units + float(self.code_ends[0])) * scale
        return namespace(latent).where(held, values, latent)


@dataclasses.dataclass(kw_only=True, eq=False, repr=False)
class LsqActivationQuantizer(UpToItsLevel):
    """Clips and quantizes with a scale that is learnt (Esser et al. 2020).

    Values are those of `pact.quantize_activation`, `signed` where it is in the place of no
    rectifier, and so is the gradient, Eq. 3 of the paper, except for the factor g of the scale, see
    `lsq.gradient_factor`: a level that is c times the scale gets g c².
    """

    policy_name: ClassVar[str] = "lsq"
    has_own_gradient: ClassVar[bool] = True

    signed: bool = False
    # The level that the model's statistics and `calibrate` set: "mean" for the paper's scale
    # 2 mean|x| / sqrt(highest code), "error" for the smallest quantization error.
    start: _Start = "mean"
    counts_batch: bool = False  # See `lsq.gradient_factor`.

    @classmethod
    def serves(cls, request: protocol.ActivationRequest) -> bool:
        """Whether it quantizes the tensor; 8-bit streams, which no paper has, get the default."""
        reach, has_two_ends = request.reach, request.skews and request.num_bits == 8
        is_stream = has_two_ends and request.signed and (reach is None or reach.lowest is None)
        has_range = reach is not None and reach.highest is not None
        return not (is_stream or has_range or _is_asymmetric(request))

    @classmethod
    def asked(cls, request: protocol.ActivationRequest) -> dict[str, Any]:
        reach = request.reach
        signed = request.signed if reach is None else reach.lowest is None
        return {**super().asked(request), "signed": signed}

    def __call__(self, inputs: Tensor, training: Any, variables: Variables) -> Tensor:
        bits = protocol.bits_of(self.num_bits, variables)
        n = namespace(inputs)
        highest = in_float32(n, self._highest(bits))
        factor = lsq.gradient_factor(inputs, highest, counts_batch=self.counts_batch)
        level = scaled_gradient(self.level(variables), factor * n.square(highest))
        return self.quantized(inputs, level, bits)

    def best_level(self, sample: SampledValues) -> float:
        if self.start == "error":
            return super().best_level(sample)
        seen = sample.values if self.signed else np.maximum(sample.values, 0.0)
        return mean_level(seen, self._highest(self.num_bits), sample.counts)

    def _highest(self, bits: grid.Bits) -> Any:
        """The highest code."""
        return grid.levels(bits, "narrow") / 2 if self.signed else grid.levels(bits)


def mean_level(values: np.ndarray, highest: float, counts: np.ndarray | None = None) -> float:
    """The clipping level of the paper's scale 2 mean|x| / sqrt(highest)."""
    magnitudes = np.abs(np.asarray(values, np.float64)).reshape(-1)
    mean = np.average(magnitudes, weights=counts)
    return max(float(2.0 * mean * math.sqrt(highest)), SMALLEST_CLIPPING_LEVEL)


@dataclasses.dataclass(kw_only=True, eq=False, repr=False)
class LsqPlusQuantizer(BelowZero):
    """Clips and quantizes with a scale and an offset that are learnt (Bhalgat et al. 2020).

    It serves the outputs of swish and its kin, whose negative part is small; others get LSQ.
    The range is that of `OffsetQuantizer`, from -(ℓ + ρ α) up to α, until it learns: its width is
    the trainable `clipping_level`, and its lower end moves by the trainable `offset`, which starts
    at 0. Forward and backward as in `lsq.quantize_with_offset`, gradients times g.
    """

    policy_name: ClassVar[str] = "lsq_plus"
    has_own_gradient: ClassVar[bool] = True

    counts_batch: bool = False  # See `lsq.gradient_factor`.

    @classmethod
    def serves(cls, request: protocol.ActivationRequest) -> bool:
        """Whether LSQ serves the tensor, or its negative part is small and known."""
        return _is_asymmetric(request) or LsqActivationQuantizer.serves(request)

    @classmethod
    def create(cls, request: protocol.ActivationRequest) -> protocol.ActivationQuantizer:
        if _is_asymmetric(request):
            return super().create(request)
        options = {"start": "error", **request.options}
        return LsqActivationQuantizer.create(dataclasses.replace(request, options=options))

    def variables(self, shape: Sequence[int | None]) -> dict[str, protocol.VariableSpec]:
        return {**super().variables(shape), OFFSET: protocol.VariableSpec(trainable=True)}

    def __call__(self, inputs: Tensor, training: Any, variables: Variables) -> Tensor:
        n = namespace(inputs)
        bits = protocol.bits_of(self.num_bits, variables)
        levels = in_float32(n, grid.levels(bits))
        # A level that is c times the scale gets g c² times its own gradient: see `lsq`.
        factor = lsq.gradient_factor(inputs, levels, counts_batch=self.counts_batch)
        of_level = factor * n.square(levels / (1.0 + self.share))
        level = scaled_gradient(self.level(variables), of_level)
        moved = scaled_gradient(n.tensor(variables.get(OFFSET, 0.0)), factor)
        scale, offset = self._scale_and_offset(level, moved, levels)
        return lsq.quantize_with_offset(inputs, scale, offset, bits, surrogate=self.estimator)

    def _scale_and_offset(
        self, level: Tensor, moved: Tensor, levels: Tensor
    ) -> tuple[Tensor, Tensor]:
        """The scale and β; the lower end that the level gives has no gradient."""
        n = namespace(level)
        divisor = n.exact_divisor(levels, n.stop_gradient(level))
        scale, _ = scale_and_zero(level, divisor, self.lowest, self.share, n.floor)
        return scale, moved - n.stop_gradient(self.share * level - self.lowest)

    def code_range(self, variables: Variables) -> CodeRange:
        level = variables[protocol.CLIPPING_LEVEL]
        n = namespace(level)
        intervals = grid.levels(self.num_bits)
        moved, levels = n.tensor(variables.get(OFFSET, 0.0)), in_float32(n, intervals)
        scale, offset = self._scale_and_offset(n.tensor(level), moved, levels)
        return CodeRange(scale, -lsq.codes_below_zero(scale, offset, intervals), intervals)


def _is_asymmetric(request: protocol.ActivationRequest) -> bool:
    """Whether a tensor has a negative part that is small, and known."""
    reach = request.reach
    return reach is not None and reach.has_lowest_alone and reach.is_negative
