"""Activations with a clipping level, as `sat_tf.quantizers.pact`."""

from collections.abc import Sequence
from typing import Any, ClassVar

from keras import ops

from sat_tf.core.surrogate_table import STRAIGHT_THROUGH, strength_of
from sat_tf.keras3.core import asymmetric
from sat_tf.keras3.core.custom_gradient import scaled_gradient
from sat_tf.keras3.quantizers.mathematics import pact
from sat_tf.keras3.quantizers.protocol import Quantizer, Variables, VariableSpec
from sat_tf.quantizers.settings import (
    CLIPPING_LEVEL,
    SMALLEST_CLIPPING_LEVEL,
    first_clipping_level,
    surrogate_config,
)


class ClippingQuantizer(Quantizer):
    """A quantizer with a trainable clipping level, and a choice of what rounding passes back.

    Args:
        num_bits: bits of the codes.
        initial_clipping_level: where the trainable `clipping_level` starts.
        gradient: a row of `clipping_gradients`.
        ceiling: max_value of the rectifier it replaces; the level does not start above it.
        rate: factor on the gradient of the clipping level, above 0.
        surrogate: a row of `surrogate_table`.
        surrogate_strength: see there; None is the usual one.
    """

    def __init__(
        self,
        *,
        num_bits: int,
        initial_clipping_level: float = 8.0,
        gradient: str = "calibrated",
        ceiling: float | None = None,
        rate: float = 1.0,
        surrogate: str = STRAIGHT_THROUGH,
        surrogate_strength: float | None = None,
    ) -> None:
        strength_of(surrogate, surrogate_strength)
        self.num_bits = num_bits
        self.initial_clipping_level = initial_clipping_level
        self.gradient = gradient
        self.ceiling = ceiling
        self.rate = rate
        self.surrogate = surrogate
        self.surrogate_strength = surrogate_strength

    @property
    def passed_back(self) -> dict[str, Any]:
        """What the functions of `core` take for it."""
        return {"surrogate": self.surrogate, "strength": self.surrogate_strength}

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

    def get_config(self) -> dict[str, Any]:
        """The arguments of the constructor."""
        return {
            "num_bits": self.num_bits,
            "initial_clipping_level": self.initial_clipping_level,
            "gradient": self.gradient,
            "ceiling": self.ceiling,
            "rate": self.rate,
            **surrogate_config(self),
        }


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


class OffsetQuantizer(ClippingQuantizer):
    """Clips and quantizes a tensor with a small negative part: `asymmetric.quantize_offset`.

    Args:
        lowest: see `asymmetric.quantize_offset`.
        share: see there.
        **settings: those of the other quantizers with a clipping level.
    """

    def __init__(self, *, lowest: float = 0.0, share: float = 0.0, **settings: Any) -> None:
        super().__init__(**settings)
        self.lowest = lowest
        self.share = share

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

    def get_config(self) -> dict[str, Any]:
        """The arguments of the constructor."""
        return {**super().get_config(), "lowest": self.lowest, "share": self.share}


class UnitQuantizer(Quantizer):
    """Quantizes what is between 0 and 1, or between -1 and 1, by its own definition.

    `pact.quantize_activation` or `pact.quantize_stream` with a clipping level of 1.

    Args:
        num_bits: bits of the codes.
        signed: whether the range is [-1, 1].
        surrogate: what rounding passes back, a row of `surrogate_table`.
        surrogate_strength: see there; None is the usual one.
    """

    # What there is to clip at.
    level: ClassVar[float] = 1.0

    def __init__(
        self,
        *,
        num_bits: int,
        signed: bool = False,
        surrogate: str = STRAIGHT_THROUGH,
        surrogate_strength: float | None = None,
    ) -> None:
        strength_of(surrogate, surrogate_strength)
        self.num_bits = num_bits
        self.signed = signed
        self.surrogate = surrogate
        self.surrogate_strength = surrogate_strength

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

    def get_config(self) -> dict[str, Any]:
        """The arguments of the constructor."""
        return {"num_bits": self.num_bits, "signed": self.signed, **surrogate_config(self)}
