"""Top-1 accuracy that does not mistake a broken model for a perfect one."""

from typing import Any

import tensorflow as tf
import tf_keras as keras


@keras.utils.register_keras_serializable(package="sat_tf")
class Top1(keras.metrics.Metric):
    """Share of images whose label has the largest logit; NaN once any logit was not finite.

    With NaN logits no logit is larger than the label's, so a metric that counts larger logits
    reports 100 %, and one that takes the argmax reports the share of class 0.
    """

    def __init__(self, name: str = "top1", **options: Any) -> None:
        super().__init__(name=name, **options)
        self._correct = self.add_weight(name="correct", initializer="zeros")
        self._seen = self.add_weight(name="seen", initializer="zeros")
        self._not_finite = self.add_weight(name="not_finite", initializer="zeros")

    def update_state(self, y_true: Any, y_pred: Any, sample_weight: Any = None) -> None:
        """Takes in labels (batch,) or (batch, 1), and logits (batch, classes)."""
        del sample_weight
        logits = tf.convert_to_tensor(y_pred)
        labels = tf.reshape(tf.cast(y_true, tf.int64), [-1])
        hits = tf.cast(tf.equal(tf.argmax(logits, axis=-1), labels), self._correct.dtype)
        broken = tf.cast(tf.logical_not(tf.math.is_finite(logits)), self._not_finite.dtype)
        self._correct.assign_add(tf.reduce_sum(hits))
        self._seen.assign_add(tf.cast(tf.size(labels), self._seen.dtype))
        self._not_finite.assign_add(tf.reduce_sum(broken))

    def result(self) -> tf.Tensor:
        """The share, in [0, 1]."""
        share = tf.math.divide_no_nan(self._correct, self._seen)
        return tf.where(self._not_finite > 0, tf.constant(float("nan"), share.dtype), share)
