"""Constraints on variables of quantizers."""

from typing import Any

import tensorflow as tf
import tf_keras as keras


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
