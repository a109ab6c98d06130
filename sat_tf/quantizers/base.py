"""What all quantizers share: settings by which they are equal, and bits that may come down."""

import abc
from typing import Any

import tensorflow as tf
import tensorflow_model_optimization as tfmot
import tf_keras as keras

register_quantizer = keras.utils.register_keras_serializable(package="sat_tf")
# Among the variables a quantizer is called with, where its layer has a floor under its bits.
BIT_FLOOR = "bit_floor"


class SatQuantizer(tfmot.quantization.keras.quantizers.Quantizer):
    """What all quantizers of sat-tf share: they are equal when their settings are."""

    def build(self, tensor_shape: Any, name: str, layer: keras.layers.Layer) -> dict[str, Any]:
        """Makes no variables."""
        del tensor_shape, name, layer
        return {}

    @abc.abstractmethod
    def get_config(self) -> dict[str, Any]:
        """The arguments of the constructor."""

    def __eq__(self, other: object) -> bool:
        if type(other) is not type(self):
            return NotImplemented
        return self.get_config() == other.get_config()

    def __hash__(self) -> int:
        return hash((type(self), repr(sorted(self.get_config().items()))))

    def __repr__(self) -> str:
        settings = ", ".join(f"{name}={value!r}" for name, value in self.get_config().items())
        return f"{type(self).__name__}({settings})"


def bits_of(num_bits: int, weights: dict[str, Any]) -> Any:
    """The bits of a quantizer; a tensor where there is a floor that comes down in training."""
    floor = weights.get(BIT_FLOOR)
    if floor is None or num_bits == 8:  # nothing is above
        return num_bits
    return tf.maximum(tf.convert_to_tensor(floor), num_bits)
