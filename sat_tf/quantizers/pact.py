"""Activations with a trainable clipping level: PACT, CG-PACT, and a signed form for streams."""

import abc
from typing import Any

import tensorflow as tf
import tf_keras as keras

from sat_tf.core import pact
from sat_tf.quantizers.base import SatQuantizer, bits_of, register_quantizer

SMALLEST_CLIPPING_LEVEL = 1e-3


class ClippingQuantizer(SatQuantizer):
    """A quantizer with a trainable clipping level.

    Attributes:
        signed: whether what it quantizes can be negative.
    """

    signed: bool

    def __init__(
        self,
        *,
        num_bits: int,
        initial_clipping_level: float = 8.0,
        gradient: str = "calibrated",
        ceiling: float | None = None,
        rate: float = 1.0,
    ) -> None:
        """See the subclasses.

        Args:
            num_bits: bits of the codes.
            initial_clipping_level: where the trainable `clipping_level` starts.
            gradient: "calibrated" or "pact".
            ceiling: max_value of the rectifier it replaces; no clipping level taken from data or
                from a policy starts above it.
            rate: factor on the gradient of the clipping level, above 0.
        """
        self.num_bits = num_bits
        self.initial_clipping_level = initial_clipping_level
        self.gradient = gradient
        self.ceiling = ceiling
        self.rate = rate

    def build(self, tensor_shape: Any, name: str, layer: keras.layers.Layer) -> dict[str, Any]:
        """Makes the trainable scalar `clipping_level`, at least 1e-3 and without weight decay."""
        del tensor_shape, name
        start = self.initial_clipping_level
        if self.ceiling is not None:
            start = max(min(start, self.ceiling), SMALLEST_CLIPPING_LEVEL)
        level = _add_scalar(
            layer,
            "clipping_level",
            keras.initializers.Constant(start),
            trainable=True,
            constraint=AtLeast(SMALLEST_CLIPPING_LEVEL),
        )
        return {"clipping_level": level}

    def get_config(self) -> dict[str, Any]:
        """The arguments of the constructor."""
        return {
            "num_bits": self.num_bits,
            "initial_clipping_level": self.initial_clipping_level,
            "gradient": self.gradient,
            "ceiling": self.ceiling,
            "rate": self.rate,
        }

    @abc.abstractmethod
    def float_twin(self, inputs: tf.Tensor) -> tf.Tensor:
        """What the tensor would be without rounding, and with no clipping to the level."""

    def level(self, weights: dict[str, Any]) -> tf.Tensor:
        """The clipping level, which learns at its own rate."""
        level = weights["clipping_level"]
        return level if self.rate == 1.0 else pact.learning_at_rate(level, self.rate)


@register_quantizer
class PactQuantizer(ClippingQuantizer):
    """Rectifies, clips and quantizes to 0..2^b - 1: `pact.quantize_activation` (Eq. 11 to 13)."""

    signed = False

    def __call__(
        self, inputs: tf.Tensor, training: Any, weights: dict[str, Any], **kwargs: Any
    ) -> tf.Tensor:
        """The quantized tensor, in the type of `inputs`."""
        del training, kwargs
        level, bits = self.level(weights), bits_of(self.num_bits, weights)
        return pact.quantize_activation(inputs, level, bits, self.gradient)

    def float_twin(self, inputs: tf.Tensor) -> tf.Tensor:
        """What it would be without rounding and with no clipping but the rectifier's own."""
        rectified = tf.nn.relu(inputs)
        if self.ceiling is None:
            return rectified
        return tf.minimum(rectified, tf.cast(self.ceiling, inputs.dtype))


@register_quantizer
class StreamQuantizer(ClippingQuantizer):
    """Clips and quantizes a tensor that can be negative: `pact.quantize_stream`."""

    signed = True

    def __call__(
        self, inputs: tf.Tensor, training: Any, weights: dict[str, Any], **kwargs: Any
    ) -> tf.Tensor:
        """The quantized tensor, in the type of `inputs`."""
        del training, kwargs
        level, bits = self.level(weights), bits_of(self.num_bits, weights)
        return pact.quantize_stream(inputs, level, bits, self.gradient)

    def float_twin(self, inputs: tf.Tensor) -> tf.Tensor:
        """What it would be without clipping and rounding: its input."""
        return inputs


def _add_scalar(
    layer: keras.layers.Layer, name: str, initializer: Any, *, trainable: bool, **options: Any
) -> tf.Variable:
    return layer.add_weight(
        name=name,
        shape=(),
        dtype=tf.float32,
        initializer=initializer,
        trainable=trainable,
        **options,
    )


@keras.utils.register_keras_serializable(package="sat_tf")
class AtLeast(keras.constraints.Constraint):
    """Keeps a variable at or above a value; clipping levels must stay positive."""

    def __init__(self, minimum: float) -> None:
        self.minimum = minimum

    def __call__(self, w: tf.Tensor) -> tf.Tensor:
        """The values of `w`, none below the minimum."""
        return tf.maximum(w, tf.cast(self.minimum, w.dtype))

    def get_config(self) -> dict[str, Any]:
        """The arguments of the constructor."""
        return {"minimum": self.minimum}
