"""For Keras's own loops: callbacks for `fit`, and a context manager for `evaluate`."""

from sat_tf.callbacks.training_rules import TrainingRules
from sat_tf.qat.wrapper import constant_weights

__all__ = ["TrainingRules", "constant_weights"]
