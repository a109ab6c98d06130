"""Top-1 and top-5 accuracy that do not mistake a broken model for a perfect one."""

import functools
from typing import Any

import tensorflow as tf
import tf_keras as keras

from sat_tf.data.source import NO_LABEL


@keras.utils.register_keras_serializable(package="sat_tf")
class TopK(keras.metrics.Metric):
    """Share of images whose label has one of the k largest logits; NaN once one was not finite.

    Of equal logits, the one of the lower class counts as the larger, so that an image has exactly k
    such classes, however coarse logits are; with k = 1 this is the argmax. A model with k classes
    or fewer therefore has 1.0. With NaN logits no logit is larger than the label's, so a metric
    that counts larger logits reports 100 %, and one that takes the argmax the share of class 0.

    Images whose label is `sat_tf.data.source.NO_LABEL` fill up a batch: neither they nor their
    logits count. Without any other image the share is 0.

    Args:
        k: 1 or more.
        name: by default top1, top5 and so on.
        **options: options of any Keras metric.
    """

    def __init__(self, k: int, name: str | None = None, **options: Any) -> None:
        super().__init__(name=name or f"top{k}", **options)
        self.k = k
        self._correct = self.add_weight(name="correct", initializer="zeros")
        self._seen = self.add_weight(name="seen", initializer="zeros")
        self._not_finite = self.add_weight(name="not_finite", initializer="zeros")

    def update_state(self, y_true: Any, y_pred: Any, sample_weight: Any = None) -> None:
        """Takes in labels (batch,) or (batch, 1), and logits (batch, classes)."""
        del sample_weight
        logits = tf.convert_to_tensor(y_pred)
        labels = tf.reshape(tf.cast(y_true, tf.int32), [-1])
        counted = tf.not_equal(labels, NO_LABEL)
        hits = counted & (_rank(logits, labels) < self.k)
        broken = counted[:, None] & tf.logical_not(tf.math.is_finite(logits))
        for variable, found in (
            (self._correct, hits),
            (self._seen, counted),
            (self._not_finite, broken),
        ):
            variable.assign_add(tf.reduce_sum(tf.cast(found, variable.dtype)))

    def result(self) -> tf.Tensor:
        """The share, in [0, 1]."""
        share = tf.math.divide_no_nan(self._correct, self._seen)
        return tf.where(self._not_finite > 0, tf.constant(float("nan"), share.dtype), share)

    def get_config(self) -> dict[str, Any]:
        """The arguments of the constructor."""
        return {**super().get_config(), "k": self.k}


Top1 = functools.partial(TopK, 1)
Top5 = functools.partial(TopK, 5)


def accuracy_metrics() -> list[TopK]:
    """What every stage measures beside its loss: fresh metrics called top1 and top5."""
    return [Top1(), Top5()]


def _rank(logits: tf.Tensor, labels: tf.Tensor) -> tf.Tensor:
    """How many logits (batch, classes) are larger than the label's; no end of them for no class."""
    classes = tf.range(tf.shape(logits)[-1])[None]
    own = classes == labels[:, None]
    of_label = tf.reduce_sum(tf.where(own, logits, tf.zeros_like(logits)), axis=-1, keepdims=True)
    larger = (logits > of_label) | ((logits == of_label) & (classes < labels[:, None]))
    rank = tf.reduce_sum(tf.cast(larger, tf.int32), axis=-1)
    return tf.where(tf.reduce_any(own, axis=-1), rank, tf.int32.max)
