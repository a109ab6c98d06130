"""Tensors that the backward pass computes again, instead of keeping them in memory until then."""

import tensorflow as tf

from sat_tf.core.compiler import compiles_with_xla, has_accelerator


def computed_again(x: tf.Tensor, upstream: tf.Tensor) -> tf.Tensor:
    """The values of a tensor of the forward pass, for the backward pass.

    Keeping them costs as much memory as the tensor has. What BatchNormalization puts out is cheap
    to compute again from what it reads, which its own gradient keeps anyway, and its statistics: in
    one pass over memory, and bit for bit the same. Then only the quantized tensor stays, as in a
    float network only the rectified one does. Any other tensor is kept; so are all where XLA or an
    accelerator runs the graph, whose kernels round in their own way.

    Args:
        x: a tensor of the forward pass.
        upstream: the gradient that arrives at what is made of it; nothing is computed before it is
            there.

    Returns:
        A tensor with the values of `x`, or `x` itself.
    """
    norm = normalization_of(x)
    if norm is None:
        return x
    mean, variance = statistics_of(norm)
    with tf.control_dependencies([upstream]):
        return tf.raw_ops.FusedBatchNormV3(
            x=norm.inputs[0],
            scale=norm.inputs[1],
            offset=norm.inputs[2],
            mean=mean,
            variance=variance,
            epsilon=norm.get_attr("epsilon"),
            data_format=norm.get_attr("data_format"),
            is_training=False,
        ).y


def normalization_of(x: tf.Tensor) -> tf.Operation | None:
    """The BatchNormalization kernel whose output, in this graph on a CPU, a tensor is; or None."""
    if not tf.is_symbolic_tensor(x) or compiles_with_xla() or has_accelerator():
        return None
    while x.op.type == "Identity":
        x = x.op.inputs[0]
    is_output = x.op.type == "FusedBatchNormV3" and x.value_index == 0
    return x.op if is_output and x.dtype == x.op.inputs[0].dtype == tf.float32 else None


def statistics_of(norm: tf.Operation) -> list[tf.Tensor]:
    """Mean and variance that a BatchNormalization kernel works on, as its gradient takes them.

    In training they are those of the batch, which the kernel keeps for its gradient.
    """
    return list(norm.outputs if norm.get_attr("is_training") else norm.inputs)[3:5]


def of_batch_statistics(x: tf.Tensor) -> bool:
    """Whether a tensor is the output of BatchNormalization by the statistics of its batch."""
    norm = normalization_of(x)
    return norm is not None and norm.get_attr("is_training")
