"""Quantizers of what functions give that are no rectifiers: sigmoid, swish and others."""

from typing import Any

import tensorflow as tf
import tf_keras as keras

from sat_tf.core import asymmetric, pact
from sat_tf.core.asymmetric import Reach
from sat_tf.quantizers.base import SatQuantizer, bits_of
from sat_tf.quantizers.pact import ClippingQuantizer, PactQuantizer, StreamQuantizer
from sat_tf.quantizers.table import QUANTIZERS

_register = keras.utils.register_keras_serializable(package="sat_tf")


@_register
class UnitQuantizer(SatQuantizer):
    """Quantizes what is between 0 and 1, or between -1 and 1, by its own definition.

    `pact.quantize_activation` or `pact.quantize_stream` with a clipping level of 1, which is no
    variable.

    Args:
        num_bits: bits of the codes.
        signed: whether the range is [-1, 1].
    """

    def __init__(self, *, num_bits: int, signed: bool = False) -> None:
        self.num_bits = num_bits
        self.signed = signed

    def __call__(
        self, inputs: tf.Tensor, training: Any, weights: dict[str, Any], **kwargs: Any
    ) -> tf.Tensor:
        """The quantized tensor, in the type of `inputs`."""
        del training, kwargs
        quantize = pact.quantize_stream if self.signed else pact.quantize_activation
        return quantize(inputs, tf.constant(1.0), bits_of(self.num_bits, weights))

    def get_config(self) -> dict[str, Any]:
        """The arguments of the constructor."""
        return {"num_bits": self.num_bits, "signed": self.signed}


@_register
class OffsetQuantizer(ClippingQuantizer):
    """Clips and quantizes a tensor with a small negative part: `offset.quantize_offset`.

    Args:
        lowest: see `offset.quantize_offset`.
        share: see there.
        **settings: those of the other quantizers with a clipping level.
    """

    signed = True

    def __init__(self, *, lowest: float = 0.0, share: float = 0.0, **settings: Any) -> None:
        super().__init__(**settings)
        self.lowest = lowest
        self.share = share

    def __call__(
        self, inputs: tf.Tensor, training: Any, weights: dict[str, Any], **kwargs: Any
    ) -> tf.Tensor:
        """The quantized tensor, in the type of `inputs`."""
        del training, kwargs
        return asymmetric.quantize_offset(
            inputs,
            self.level(weights),
            bits_of(self.num_bits, weights),
            self.gradient,
            lowest=self.lowest,
            share=self.share,
        )

    def float_twin(self, inputs: tf.Tensor) -> tf.Tensor:
        """What it would be without clipping and rounding: its input."""
        return inputs

    def get_config(self) -> dict[str, Any]:
        """The arguments of the constructor."""
        return {**super().get_config(), "lowest": self.lowest, "share": self.share}


QUANTIZERS |= {cls.__name__: cls for cls in (UnitQuantizer, OffsetQuantizer)}


def function_quantizer(reach: Reach, settings: dict[str, Any]) -> SatQuantizer:
    """The quantizer for what a function gives.

    Args:
        reach: which values that are.
        settings: those of a quantizer with a clipping level.
    """
    if reach.highest is not None:
        return UnitQuantizer(num_bits=settings["num_bits"], signed=reach.is_negative)
    if reach.lowest is None:
        return StreamQuantizer(**settings)
    if not reach.is_negative:
        return PactQuantizer(**settings)
    return OffsetQuantizer(**settings, lowest=reach.lowest, share=reach.share)
