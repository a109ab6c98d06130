"""Sums of products of codes in TensorFlow: what the linear operations of a file add up."""

import tensorflow as tf

from sat_tf.export import arithmetic
from sat_tf.export.graph import LinearKind, Window


def _convolution(codes: tf.Tensor, kernel: tf.Tensor, window: Window) -> tf.Tensor:
    return tf.nn.conv2d(codes, kernel, window.strides, window.padding, dilations=window.dilation)


def _depthwise(codes: tf.Tensor, kernel: tf.Tensor, window: Window) -> tf.Tensor:
    rows, columns = window.strides
    if rows == columns:
        return tf.nn.depthwise_conv2d(
            codes, kernel, [1, rows, columns, 1], window.padding, dilations=window.dilation
        )
    # There is no kernel for such strides: all windows, of which some are taken.
    margins = [
        arithmetic.placement(*axis, window.padding)[0]
        for axis in zip(
            codes.shape[1:3], kernel.shape[:2], window.strides, window.dilation, strict=True
        )
    ]
    padded = tf.pad(codes, [(0, 0), *margins, (0, 0)])
    every = tf.nn.depthwise_conv2d(padded, kernel, [1, 1, 1, 1], "VALID", dilations=window.dilation)
    return every[:, ::rows, ::columns]


def _transposed(codes: tf.Tensor, kernel: tf.Tensor, window: Window) -> tf.Tensor:
    size = arithmetic.transposed_size(codes.shape[1:3], kernel.shape[:2], window)
    shape = tf.stack([tf.shape(codes)[0], *size, kernel.shape[2]])
    return tf.nn.conv2d_transpose(codes, kernel, shape, window.strides, window.padding)


def _matrix(codes: tf.Tensor, kernel: tf.Tensor, window: Window) -> tf.Tensor:
    del window
    return tf.matmul(codes, kernel)


SUMS = {
    LinearKind.CONVOLUTION: _convolution,
    LinearKind.TRANSPOSED: _transposed,
    LinearKind.DEPTHWISE: _depthwise,
    LinearKind.FULLY_CONNECTED: _matrix,
}
