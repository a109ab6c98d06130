"""The variance of large tensors of small numbers."""

import tensorflow as tf


def variance(tensor: tf.Tensor) -> tf.Tensor:
    """The centred variance over all elements, a float64 scalar.

    Gradients of 1e-25 are common, and their squares no float32. They are divided by the largest
    first: that costs less memory than float64 does with a kernel of 10^8 weights.
    """
    values = tf.cast(tensor, tf.float32)
    centred = values - tf.reduce_mean(values)
    largest = tf.reduce_max(tf.abs(centred))
    squares = tf.reduce_mean(tf.square(tf.math.divide_no_nan(centred, largest)))
    # What is not finite must not look like zero.
    return tf.cast(squares, tf.float64) * tf.square(tf.cast(largest, tf.float64))
