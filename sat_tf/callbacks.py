"""For Keras's own loops: callbacks for `fit`, and a context manager for `evaluate`."""

from sat_tf.qat.wrapper import constant_weights
from sat_tf.training.audit.training_rules import TrainingRules

__all__ = ["TrainingRules", "constant_weights"]
