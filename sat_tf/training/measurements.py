"""What all measurements of training share: variances, and TensorBoard's events."""

from collections.abc import Mapping

import tensorflow as tf

_SCALAR = 1  # TensorBoard's DATA_CLASS_SCALAR, which TensorFlow does not define


def scalar_events(values: Mapping[str, float]) -> bytes:
    """All values in one event for `tf.summary.experimental.write_raw_pb`.

    `tf.summary.scalar` would write one event each and take half a millisecond for each of dozens of
    clipping levels.
    """
    summary = tf.compat.v1.Summary()
    for tag, value in values.items():
        entry = summary.value.add(tag=tag, tensor=tf.make_tensor_proto(value, tf.float32))
        entry.metadata.plugin_data.plugin_name = "scalars"
        entry.metadata.data_class = _SCALAR
    return bytes(summary.SerializeToString())


def variance(tensor: tf.Tensor) -> tf.Tensor:
    """The centred variance over all elements, a float64 scalar.

    Gradients of 1e-25 are common, and their squares underflow in float32. They are divided by the
    largest first, which for a kernel of 10^8 weights takes less memory than float64.
    """
    values = tf.cast(tensor, tf.float32)
    centred = values - tf.reduce_mean(values)
    largest = tf.reduce_max(tf.abs(centred))
    squares = tf.reduce_mean(tf.square(tf.math.divide_no_nan(centred, largest)))
    # Non-finite values must not look like zero.
    return tf.cast(squares, tf.float64) * tf.square(tf.cast(largest, tf.float64))
