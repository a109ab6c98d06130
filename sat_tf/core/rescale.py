"""Rescaling of quantized weights, so that the network stays trainable (Eq. 7, 10 and S23)."""

import math
from collections.abc import Sequence

import tensorflow as tf

from sat_tf.messages import did_you_mean

METHODS = ("constant", "stddev", "none")

# What n̂ is made of: the axes of the kernel to multiply, by kind of layer.
_FAN_OUT_AXES: dict[str, tuple[int, ...]] = {
    "conv": (0, 1, 3),
    "conv2d": (0, 1, 3),
    "conv1d": (0, 2),
    "conv1dtranspose": (0, 1),
    "conv2dtranspose": (0, 1, 2),
    "depthwise": (0, 1, 3),
    "depthwiseconv1d": (0, 2),
    "depthwiseconv2d": (0, 1, 3),
    "dense": (1,),
}


def fan_out(kernel_shape: Sequence[int], layer_kind: str, groups: int = 1) -> int:
    """Number of output neurons n̂ of a linear layer: how many outputs one input reaches.

    kernel_h · kernel_w · out_channels (Conv2D, Conv2DTranspose), units (Dense), kernel_h · kernel_w
    · depth_multiplier (DepthwiseConv2D); without kernel_w in one dimension. Of the output channels
    of a grouped convolution, an input reaches those of its own group.

    Args:
        kernel_shape: shape of the Keras kernel: (kh, kw, in, out), (k, in, out), (in, units),
            (kh, kw, channels, depth_multiplier), or (kh, kw, out, in) of a Conv2DTranspose; all of
            them without kw in one dimension.
        layer_kind: "Conv2D", "Conv2DTranspose", "DepthwiseConv2D", their forms in one dimension or
            "Dense"; "conv", "depthwise" and "dense" do as well.
        groups: in how many groups the channels of a Conv1D or Conv2D fall.

    Returns:
        n̂, at least 1.

    Raises:
        ValueError: unknown kind, or a shape that is not such a kernel's.

    >>> fan_out((3, 3, 16, 32), "Conv2D"), fan_out((1280, 1000), "Dense")
    (288, 1000)
    >>> fan_out((3, 3, 96, 1), "DepthwiseConv2D"), fan_out((3, 3, 4, 32), "Conv2D", groups=4)
    (9, 72)
    """
    axes = _FAN_OUT_AXES.get(str(layer_kind).lower().replace("_", ""))
    if axes is None:
        kinds = [
            *("Conv1D", "Conv2D", "Conv1DTranspose", "Conv2DTranspose"),
            *("DepthwiseConv1D", "DepthwiseConv2D", "Dense"),
        ]
        hint = did_you_mean(str(layer_kind), kinds)
        raise ValueError(f"layer_kind={layer_kind!r} is not a linear layer. {hint}")
    rank = 4 if len(axes) == 3 else len(axes) + 1
    if len(kernel_shape) != rank:
        raise ValueError(
            f"kernel_shape={tuple(kernel_shape)}: a {layer_kind} kernel has {rank} dimensions."
        )
    return math.prod(int(kernel_shape[axis]) for axis in axes) // groups


def rescale_factor(
    weights: tf.Tensor,
    fan_out: int,
    method: str = "constant",
    latent: tf.Tensor | None = None,
    *,
    range_axes: tuple[int, ...] = (),
) -> tf.Tensor:
    """The constant c by which `rescale_weights` multiplies.

    c = 1 / sqrt(n̂ mean(Q²)) ("constant", Eq. 7 and 10), sqrt(mean(W²) / mean(Q²)) ("stddev",
    Eq. S23) or 1 ("none"). It is positive and finite whatever the weights are: the means leave NaN
    and infinite weights out, and where a mean is 0, c is 1.

    Where channels have maxima of their own, "stddev" has means of their own as well: the clamp
    takes the size of each channel away, and this is what gives it back.

    Args:
        weights: quantized or clamped weights Q, any shape.
        fan_out: the layer's n̂ (see `fan_out`).
        method: "constant", "stddev" or "none".
        latent: the latent weights W, for "stddev" only.
        range_axes: the axes whose entries have a maximum of their own (see `dorefa.clamp_weights`).

    Returns:
        A float32 scalar that carries no gradient; of "stddev" with `range_axes` a tensor that keeps
        these axes, with length 1 along the others.

    Raises:
        ValueError: as in `rescale_weights`.
    """
    if method not in METHODS:
        raise ValueError(f"method={method!r} is no rescaling. {did_you_mean(str(method), METHODS)}")
    if method == "none":
        return tf.constant(1.0)
    if fan_out < 1:
        raise ValueError(f"fan_out={fan_out!r}: expected the layer's number of output neurons.")
    if method == "constant":
        factor = tf.math.rsqrt(float(fan_out) * _mean_square(weights))
    else:
        if latent is None:
            raise ValueError(
                "method='stddev' compares with the latent weights: pass latent=..., "
                "or use method='constant'."
            )
        factor = tf.sqrt(_mean_square(latent, range_axes) / _mean_square(weights, range_axes))
    usable = tf.math.is_finite(factor) & (factor > 0.0)
    return tf.stop_gradient(tf.where(usable, factor, 1.0))


def rescale_weights(
    weights: tf.Tensor, fan_out: int, method: str = "constant", latent: tf.Tensor | None = None
) -> tf.Tensor:
    """Brings quantized weights back to a trainable size: SAT's constant rescaling (Eq. 10).

    Forward: Q* = c Q with c = 1 / sqrt(n̂ mean(Q²)) ("constant", Eq. 7 and 10),
    c = sqrt(mean(W²) / mean(Q²)) ("stddev", Eq. S23), or c = 1 ("none"); means over the whole
    layer, not centred. Backward: dQ = c dQ*; c carries no gradient.

    Computed in float32, returned in the type of `weights`. All-zero weights keep c = 1. NaN and
    infinite weights stay what they are, and have no part in c.

    Args:
        weights: quantized or clamped weights Q, any shape; float32, float16 or bfloat16.
        fan_out: the layer's n̂ (see `fan_out`).
        method: "constant", "stddev" or "none".
        latent: the latent weights W, for "stddev" only.

    Returns:
        Q*, shaped and typed like `weights`.

    Raises:
        ValueError: unknown method, "stddev" without latent weights, or a fan_out below 1.

    >>> rescale_weights(tf.constant([[-1.0, 1.0], [1.0, -1.0]]), fan_out=4).numpy().tolist()
    [[-0.5, 0.5], [0.5, -0.5]]
    """
    weights = tf.convert_to_tensor(weights)
    factor = rescale_factor(weights, fan_out, method, latent)
    return tf.cast(tf.cast(weights, tf.float32) * factor, weights.dtype)


def _mean_square(values: tf.Tensor, keep: tuple[int, ...] = ()) -> tf.Tensor:
    squares = tf.square(tf.cast(values, tf.float32))
    finite = tf.math.is_finite(squares)
    rank = squares.shape.rank
    axes = [axis for axis in range(rank) if axis not in {kept % rank for kept in keep}]
    count, total = (
        tf.reduce_sum(terms, axes, keepdims=bool(keep))
        for terms in (tf.cast(finite, tf.float32), tf.where(finite, squares, 0.0))
    )
    return total / tf.maximum(count, 1.0)
