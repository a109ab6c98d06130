"""Activations with a clipping level, as `sat_tf.quantizers.pact`."""

from collections.abc import Sequence
from typing import Any, ClassVar

from keras import ops

from sat_tf.keras3.core import asymmetric
from sat_tf.keras3.core.custom_gradient import scaled_gradient
from sat_tf.keras3.quantizers.mathematics import pact
from sat_tf.keras3.quantizers.protocol import Quantizer, Variables, VariableSpec
from sat_tf.quantizers.constructors import OfClippingAndRounding, OfOffset, OfUnit
from sat_tf.quantizers.settings import (
    CLIPPING_LEVEL,
    SMALLEST_CLIPPING_LEVEL,
    first_clipping_level,
)


class ClippingQuantizer(OfClippingAndRounding, Quantizer):
    """A quantizer with a trainable clipping level, and a choice of what rounding passes back."""

    def variables(self, shape: Sequence[int | None]) -> dict[str, VariableSpec]:
        """The trainable scalar `clipping_level`, at least 1e-3."""
        del shape
        start = first_clipping_level(self.initial_clipping_level, self.ceiling)
        level = VariableSpec(start=start, trainable=True, lowest=SMALLEST_CLIPPING_LEVEL)
        return {CLIPPING_LEVEL: level}

    def level(self, variables: Variables) -> Any:
        """The clipping level, which learns at its own rate."""
        level = ops.convert_to_tensor(variables[CLIPPING_LEVEL])
        return level if self.rate == 1.0 else scaled_gradient(level, self.rate)


class UpToItsLevel(ClippingQuantizer):
    """A quantizer whose largest value is its clipping level; where `signed`, on both sides."""

    signed: bool

    def __call__(self, inputs: Any, training: bool, variables: Variables) -> Any:
        """The quantized tensor, in the type of `inputs`."""
        del training
        return self.quantized(inputs, self.level(variables))

    def quantized(self, inputs: Any, level: Any) -> Any:
        """`pact.quantize_activation`, or where `signed` `pact.quantize_stream`."""
        functions = pact()
        quantize = functions.quantize_stream if self.signed else functions.quantize_activation
        return quantize(inputs, level, self.num_bits, self.gradient, **self.passed_back)


class PactQuantizer(UpToItsLevel):
    """Rectifies, clips and quantizes to 0..2^b - 1: `pact.quantize_activation` (Eq. 11 to 13)."""

    signed = False


class StreamQuantizer(UpToItsLevel):
    """Clips and quantizes a tensor that can be negative: `pact.quantize_stream`."""

    signed = True


class OffsetQuantizer(OfOffset, ClippingQuantizer):
    """Clips and quantizes a tensor with a small negative part: `asymmetric.quantize_offset`."""

    def __call__(self, inputs: Any, training: bool, variables: Variables) -> Any:
        """The quantized tensor, in the type of `inputs`."""
        del training
        return asymmetric.quantize_offset(
            inputs,
            self.level(variables),
            self.num_bits,
            self.gradient,
            lowest=self.lowest,
            share=self.share,
            **self.passed_back,
        )


class UnitQuantizer(OfUnit, Quantizer):
    """Quantizes what is between 0 and 1, or between -1 and 1, by its own definition.

    `pact.quantize_activation` or `pact.quantize_stream` with a clipping level of 1.
    """

    # What there is to clip at.
    level: ClassVar[float] = 1.0

    def __call__(self, inputs: Any, training: bool, variables: Variables) -> Any:
        """The quantized tensor, in the type of `inputs`."""
        del training, variables
        functions = pact()
        quantize = functions.quantize_stream if self.signed else functions.quantize_activation
        return quantize(
            inputs,
            self.level,
            self.num_bits,
            surrogate=self.surrogate,
            strength=self.surrogate_strength,
        )
