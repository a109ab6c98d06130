"""Quantizers as tf_keras and TFMOT see them: the variables that a layer makes, and an adapter."""

from collections.abc import Mapping
from typing import Any

import tensorflow as tf
import tensorflow_model_optimization as tfmot
import tf_keras as keras

from sat_tf.quantizers.protocol import Quantizer, VariableSpec


@keras.utils.register_keras_serializable(package="sat_tf")
class AtLeast(keras.constraints.Constraint):
    """Keeps a variable at or above a value; clipping levels must stay positive."""

    def __init__(self, minimum: float) -> None:
        self.minimum = minimum

    def __call__(self, w: tf.Tensor) -> tf.Tensor:
        return tf.maximum(w, tf.cast(self.minimum, w.dtype))

    def get_config(self) -> dict[str, Any]:
        return {"minimum": self.minimum}


# Every replica assigns its own, and nothing is sent between them: they would wait for each other
# for ever, as layers make their effective weights one at a time. All of them assign the same value,
# so that any one is saved bit for bit, which their mean is not.
_OF_REPLICAS = {
    "synchronization": tf.VariableSynchronization.ON_READ,
    "aggregation": tf.VariableAggregation.ONLY_FIRST_REPLICA,
}


def make_variables(
    layer: keras.layers.Layer, specs: Mapping[str, VariableSpec]
) -> dict[str, tf.Variable]:
    """The variables that a quantizer declares, as weights of a layer, in their order."""
    return {
        name: layer.add_weight(
            name=name,
            shape=spec.shape,
            dtype=spec.dtype,
            initializer=keras.initializers.Constant(spec.start),
            trainable=spec.trainable,
            constraint=None if spec.lowest is None else AtLeast(spec.lowest),
            **(_OF_REPLICAS if spec.follows_data else {}),
        )
        for name, spec in specs.items()
    }


class TfmotQuantizer(tfmot.quantization.keras.quantizers.Quantizer):
    """One of our quantizers behind the interface of TFMOT's, for its wrappers."""

    def __init__(self, quantizer: Quantizer) -> None:
        self.quantizer = quantizer

    def build(
        self, tensor_shape: Any, name: str, layer: keras.layers.Layer
    ) -> dict[str, tf.Variable]:
        """Makes the variables, as weights of the layer that wraps the user's."""
        return make_variables(layer, self.quantizer.variables(tensor_shape))

    def __call__(
        self, inputs: tf.Tensor, training: Any, weights: dict[str, tf.Variable], **kwargs: Any
    ) -> tf.Tensor:
        return self.quantizer(inputs, training, weights)

    def get_config(self) -> dict[str, Any]:
        return self.quantizer.get_config()
