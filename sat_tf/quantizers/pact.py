"""Activations with a clipping level: PACT, CG-PACT, and forms for tensors that can be negative."""

import dataclasses
from collections.abc import Sequence
from typing import Any, ClassVar

import numpy as np

from sat_tf.core import asymmetric, grid, pact
from sat_tf.core.gradients import scaled_gradient
from sat_tf.core.grid import ends_of_skew, scale_and_zero
from sat_tf.core.tensor_ops import Namespace, Tensor, namespace
from sat_tf.quantizers.best_levels import (
    best_clipping_level,
    best_offset_level,
    best_skewed_range,
    search,
)
from sat_tf.quantizers.protocol import (
    CLIPPING_LEVEL,
    ActivationQuantizer,
    ActivationRequest,
    VariableSpec,
    WithSurrogate,
    bits_of,
)
from sat_tf.quantizers.values import (
    SKEW,
    SMALLEST_CLIPPING_LEVEL,
    CodeRange,
    SampledValues,
    Variables,
)

_SKEW_OF_INT16 = -(2.0**-15)


@dataclasses.dataclass(kw_only=True, eq=False, repr=False)
class ClippingQuantizer(ActivationQuantizer):
    """A quantizer with a trainable clipping level."""

    has_clipping_level: ClassVar[bool] = True
    asks: ClassVar[tuple[str, ...]] = ("num_bits", "gradient", "rate", "ceiling")

    num_bits: int
    initial_clipping_level: float = 8.0  # The start of the trainable `clipping_level`.
    gradient: str = "calibrated"  # A row of `gradients.CLIPPING_GRADIENTS`.
    # The ceiling of the replaced rectifier; no clipping level of data or a policy starts above it.
    ceiling: float | None = None
    rate: float = 1.0  # Factor on the gradient of the clipping level, above 0.

    def variables(self, shape: Sequence[int | None]) -> dict[str, VariableSpec]:
        start = self.initial_clipping_level
        if self.ceiling is not None:
            start = max(min(start, self.ceiling), SMALLEST_CLIPPING_LEVEL)
        level = VariableSpec(start=start, trainable=True, lowest=SMALLEST_CLIPPING_LEVEL)
        return {CLIPPING_LEVEL: level}

    def level(self, variables: Variables) -> Tensor:
        """The clipping level, which learns at its own rate."""
        level = variables[CLIPPING_LEVEL]
        level = namespace(level).tensor(level)
        return level if self.rate == 1.0 else scaled_gradient(level, self.rate)

    def best_level(self, sample: SampledValues) -> float:
        tensor = namespace(sample.values).tensor

        def quantize(values: np.ndarray, level: float) -> np.ndarray:
            variables = {CLIPPING_LEVEL: tensor(np.float32(level))}
            return np.asarray(self(tensor(values), False, variables))

        return search(quantize, sample, self.num_bits)


@dataclasses.dataclass(kw_only=True, eq=False, repr=False)
class UpToItsLevel(WithSurrogate, ClippingQuantizer):
    """A quantizer whose largest value is its clipping level; where `signed`, on both sides."""

    @property
    def grid_bits(self) -> int:
        """The bits of its grid in `core`."""
        return grid.bits_in_file(self.num_bits, signed=self.signed)

    def __call__(self, inputs: Tensor, training: Any, variables: Variables) -> Tensor:
        return self.quantized(inputs, self.level(variables), bits_of(self.grid_bits, variables))

    def quantized(self, inputs: Tensor, level: Tensor, bits: grid.Bits) -> Tensor:
        """The values of `pact.quantize_activation`."""
        return pact.quantize_activation(
            inputs, level, bits, self.gradient, signed=self.signed, surrogate=self.estimator
        )

    def code_range(self, variables: Variables) -> CodeRange:
        """Codes 0..a, or -a/2..a/2."""
        return _up_to(variables[CLIPPING_LEVEL], self.grid_bits, self.signed)

    def float_twin(self, inputs: Tensor) -> Tensor:
        """The tensor without rounding and with no clipping but the rectifier's own."""
        outputs = super().float_twin(inputs)
        if self.signed or self.ceiling is None:
            return outputs
        return namespace(outputs).minimum(outputs, self.ceiling)

    def highest_value(self, variables: Variables) -> float:
        """The clipping level, which is the end that is farther from 0."""
        level = variables[CLIPPING_LEVEL]
        return float(namespace(level).tensor(level))

    def best_level(self, sample: SampledValues) -> float:
        return best_clipping_level(sample, self.grid_bits, signed=self.signed)


class PactQuantizer(UpToItsLevel):
    """Rectifies, clips and quantizes to 0..2^b - 1: `pact.quantize_activation` (Eq. 11 to 13)."""

    policy_name: ClassVar[str] = "pact"
    takes_wide: ClassVar[bool] = True
    signed = False

    @classmethod
    def serves(cls, request: ActivationRequest) -> bool:
        """Always True: the quantizers of this file serve the tensors that are not rectified."""
        return True

    @classmethod
    def create(cls, request: ActivationRequest) -> ActivationQuantizer:
        reach = request.reach
        has_own_grid = reach is not None and reach.highest not in (None, 1.0)
        if request.num_bits == grid.WIDE_BITS and not has_own_grid:  # around 0
            signed = request.signed or (reach is not None and reach.is_negative)
            request = dataclasses.replace(request, reach=None, skews=False, signed=signed)
            reach = None
        quantizer_class: type[ActivationQuantizer] = cls
        if reach is None:
            quantizer_class = StreamQuantizer if request.signed else cls
        elif reach.highest is not None:
            quantizer_class = UnitQuantizer if reach.highest == 1.0 else FixedGridQuantizer
        elif reach.lowest is None:
            quantizer_class = StreamQuantizer
        elif reach.is_negative:
            quantizer_class = OffsetQuantizer
        return quantizer_class(**quantizer_class.asked(request), **request.options)


@dataclasses.dataclass(kw_only=True, eq=False, repr=False)
class StreamQuantizer(UpToItsLevel):
    """Clips and quantizes a tensor that can be negative: `asymmetric.quantize_skewed`.

    Its range is symmetric until `calibrate` sets the variable `skew`, which training moves then.
    Codes of 16 bits are -32768 to 32767 around 0.
    """

    signed = True
    asks: ClassVar[tuple[str, ...]] = (*ClippingQuantizer.asks, "skews")

    # Whether it has the variable `skew`; False in models saved before it existed, and where only a
    # symmetric range can be stored.
    skews: bool = False

    def variables(self, shape: Sequence[int | None]) -> dict[str, VariableSpec]:
        specs = super().variables(shape)
        return {**specs, SKEW: VariableSpec(trainable=True)} if self.skews else specs

    def _skew(self, n: Namespace, variables: Variables) -> Tensor | None:
        """The skew; None where the range is symmetric."""
        # Int16 has one more code below 0 than above it, which values below the range get.
        fixed = _SKEW_OF_INT16 if self.num_bits == grid.WIDE_BITS else None
        skew = variables.get(SKEW, fixed)
        return None if skew is None else n.tensor(skew)

    def __call__(self, inputs: Tensor, training: Any, variables: Variables) -> Tensor:
        n = namespace(inputs)
        skew = self._skew(n, variables)
        if skew is None:
            return super().__call__(inputs, training, variables)
        level = self.level(variables)
        # A step is to move the smaller end, κ times α, as far as the larger one: the end's gradient
        # is α times smaller than that of κ, and so is the step of κ.
        factor = self.rate / n.square(n.stop_gradient(level))
        skew = scaled_gradient(skew, factor)
        bits = bits_of(self.num_bits, variables)
        return asymmetric.quantize_skewed(
            inputs, level, skew, bits, self.gradient, surrogate=self.estimator
        )

    def code_range(self, variables: Variables) -> CodeRange:
        """Codes -a/2..a/2, or where there is a skew -z..a - z."""
        symmetric, level = super().code_range(variables), variables[CLIPPING_LEVEL]
        n = namespace(level)
        if (skew := self._skew(n, variables)) is None:
            return symmetric
        skew = n.maximum(n.minimum(skew, 1.0), -1.0)
        low, high = ends_of_skew(n.tensor(level), skew, n.where)
        skewed = _from_lowest(high, self.num_bits, low)
        # In a graph only the variable tells which of the two it is.
        pairs = ((symmetric.scale, skewed.scale), (symmetric.lowest, skewed.lowest))
        scale, lowest = (n.where(skew == 0.0, *of_both) for of_both in pairs)
        intervals = n.where(skew == 0.0, float(symmetric.intervals), float(skewed.intervals))
        return CodeRange(scale, lowest, intervals)

    def best_range(self, sample: SampledValues) -> dict[str, float]:
        if not self.skews:
            return super().best_range(sample)
        level, skew = best_skewed_range(sample, self.num_bits)
        return {CLIPPING_LEVEL: level, SKEW: skew}


@dataclasses.dataclass(kw_only=True, eq=False, repr=False)
class BelowZero(WithSurrogate, ClippingQuantizer):
    """A quantizer whose range reaches less far below 0 than above; see `quantize_offset`."""

    signed = True
    is_symmetric = False

    lowest: float = 0.0  # -ℓ.
    share: float = 0.0  # ρ.

    @classmethod
    def asked(cls, request: ActivationRequest) -> dict[str, Any]:
        reach = request.reach or asymmetric.POSITIVE
        arguments = {"lowest": reach.lowest or 0.0, "share": reach.share}
        return {**super().asked(request), **arguments}

    def best_level(self, sample: SampledValues) -> float:
        return best_offset_level(sample, self.num_bits, lowest=self.lowest, share=self.share)


class OffsetQuantizer(BelowZero):
    """Clips and quantizes a tensor with a small negative part: `asymmetric.quantize_offset`."""

    def __call__(self, inputs: Tensor, training: Any, variables: Variables) -> Tensor:
        return asymmetric.quantize_offset(
            inputs,
            self.level(variables),
            bits_of(self.num_bits, variables),
            self.gradient,
            lowest=self.lowest,
            share=self.share,
            surrogate=self.estimator,
        )

    def code_range(self, variables: Variables) -> CodeRange:
        level = variables[CLIPPING_LEVEL]
        return _from_lowest(level, self.num_bits, self.lowest, self.share)


class _FixedQuantizer(WithSurrogate, ActivationQuantizer):
    """A quantizer of a function's results, whose range is known and learns nothing."""

    is_unit = True
    rectifies = False  # There is nothing to rectify.


@dataclasses.dataclass(kw_only=True, eq=False, repr=False)
class UnitQuantizer(_FixedQuantizer):
    """Quantizes values that by definition are between 0, or -1, and 1: at a level of 1."""

    num_bits: int
    signed: bool = False  # Whether the range is [-1, 1].

    @classmethod
    def asked(cls, request: ActivationRequest) -> dict[str, Any]:
        reach = request.reach
        signed = reach is not None and reach.is_negative
        return {**super().asked(request), "signed": signed}

    def __call__(self, inputs: Tensor, training: Any, variables: Variables) -> Tensor:
        bits = bits_of(self.num_bits, variables)
        return pact.quantize_activation(
            inputs, 1.0, bits, signed=self.signed, surrogate=self.estimator
        )

    def code_range(self, variables: Variables) -> CodeRange:
        return _up_to(1.0, self.num_bits, self.signed)


@dataclasses.dataclass(kw_only=True, eq=False, repr=False)
class FixedGridQuantizer(_FixedQuantizer):
    """Quantizes the result of a function to the codes that its operator in a file has.

    It is `asymmetric.quantize_offset` with constant ends: TFLite gives a sigmoid the scale
    1/256 from 0 to 255/256, and a tanh 1/128 from -1 to 127/128; both 1/32768 with 16 bits.
    """

    is_symmetric = False

    num_bits: int = 8
    lowest: float = 0.0  # The real value of the lowest code.
    highest: float = 1.0  # The real value of the highest code.

    def __post_init__(self) -> None:
        super().__post_init__()
        self.signed = self.lowest < 0.0

    @classmethod
    def asked(cls, request: ActivationRequest) -> dict[str, Any]:
        reach = request.reach or asymmetric.UNIT
        ends = {"lowest": reach.lowest or 0.0, "highest": reach.highest or 1.0}
        return {**super().asked(request), **ends}

    @property
    def _grid_bits(self) -> int:
        return grid.bits_in_file(self.num_bits, signed=self.signed)

    def __call__(self, inputs: Tensor, training: Any, variables: Variables) -> Tensor:
        bits = bits_of(self._grid_bits, variables)
        return asymmetric.quantize_offset(
            inputs, self.highest, bits, lowest=self.lowest, surrogate=self.estimator
        )

    def code_range(self, variables: Variables) -> CodeRange:
        return _from_lowest(self.highest, self._grid_bits, self.lowest)


def _up_to(highest: Any, num_bits: int, signed: bool) -> CodeRange:
    """The codes of a range that ends at a number, a tensor or a variable."""
    n = namespace(highest)
    highest, intervals = n.tensor(highest), grid.levels(num_bits, "narrow" if signed else "dorefa")
    width = highest + highest if signed else highest
    lowest = n.tensor(-intervals / 2 if signed else 0.0)
    return CodeRange(width / float(intervals), lowest, intervals)


def _from_lowest(highest: Any, num_bits: int, lowest: Any, share: float = 0.0) -> CodeRange:
    """The codes -z..a - z of a range with two ends; see `asymmetric.quantize_offset`."""
    n, intervals = namespace(highest), grid.levels(num_bits)
    scale, below = scale_and_zero(n.tensor(highest), intervals, lowest, share, n.floor)
    return CodeRange(scale, -below, intervals)
