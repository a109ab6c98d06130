"""Masks and sums that go over memory once, where TensorFlow has a kernel that does."""

import tensorflow as tf

from sat_tf.core.compiler import compiles_with_xla, has_accelerator

# The float32 next below 1, as a factor: the largest number below another one.
JUST_BELOW_ONE = 1.0 - 2.0**-24


def keep_inside(
    values: tf.Tensor, x: tf.Tensor, lowest: tf.Tensor, highest: tf.Tensor
) -> tf.Tensor:
    """`values` where lowest <= x <= highest, else 0; also where x is NaN.

    Args:
        values: float32, any shape.
        x: float32, of the same shape.
        lowest: float32 scalar.
        highest: float32 scalar.

    >>> keep_inside(tf.constant([1.0, 2.0]), tf.constant([0.5, 7.0]), 0.0, 1.0).numpy().tolist()
    [1.0, 0.0]
    """
    if compiles_with_xla():
        return tf.where((x >= lowest) & (x <= highest), values, 0.0)
    # No mask is written, but there is no XLA kernel. FakeQuant's gradient kernel computes more than
    # is needed, which takes two to three times as long, and its range cannot leave out zero.
    return tf.raw_ops.QuantizeAndDequantizeV4Grad(
        gradients=values, input=x, input_min=lowest, input_max=highest
    ).input_backprop


def dot(a: tf.Tensor, b: tf.Tensor) -> tf.Tensor:
    """Σ a b over all elements.

    Args:
        a: float32, any shape.
        b: float32, of the same shape.

    >>> float(dot(tf.constant([1.0, 2.0]), tf.constant([3.0, 4.0])))
    11.0
    """
    if compiles_with_xla() or has_accelerator():
        # Accelerators multiply matrices in less than float32; XLA fuses this into one pass.
        return tf.reduce_sum(a * b)
    # The product of a row and a column writes nothing to memory, and all cores take part. Both are
    # given as rows, one transposed: in other layouts of the same product they are copied first.
    row = tf.constant([1, -1])
    product = tf.matmul(tf.reshape(a, row), tf.reshape(b, row), transpose_b=True)
    return tf.squeeze(product)
