"""Keras callbacks to hand to `model.fit`."""

from sat_tf.callbacks.training_rules import TrainingRules

__all__ = ["TrainingRules"]
