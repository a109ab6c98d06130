"""BatchNormalization over several devices, with the moving statistics of one."""

from typing import Any

import tensorflow as tf
import tf_keras as keras


@keras.utils.register_keras_serializable(package="sat_tf")
class SynchronizedBatchNormalization(keras.layers.BatchNormalization):
    """Takes its statistics over all replicas, and follows them as one device does.

    On one device, the kernel for images (fused) follows the unbiased variance of a batch, V · N /
    (N - 1) for the variance V of N numbers a channel. What Keras computes over several replicas is
    V; here N / (N - 1) is made up for, with the N of all replicas together. Other inputs than
    images have V everywhere.

    It is for the time of training: in files there is the BatchNormalization of Keras.

    Args:
        **options: those of BatchNormalization.
    """

    def __init__(self, **options: Any) -> None:
        super().__init__(**{**options, "synchronized": True})

    def call(self, inputs: Any, training: Any = None, mask: Any = None) -> Any:
        """The normalized inputs; in training, the moving statistics take a step."""
        updates = isinstance(training, bool | int) and training and self.trainable
        if not updates or inputs.shape.rank not in (4, 5):
            return super().call(inputs, training=training, mask=mask)
        before = tf.convert_to_tensor(self.moving_variance)
        outputs = super().call(inputs, training=training, mask=mask)
        # The moving variance became μ v + (1 - μ) V.
        share = self.moving_variance - self.momentum * before
        count = tf.cast(tf.size(inputs) // tf.size(before), share.dtype)
        total = tf.distribute.get_replica_context().all_reduce(tf.distribute.ReduceOp.SUM, count)
        self.moving_variance.assign_add(tf.math.divide_no_nan(share, total - 1.0))
        return outputs
