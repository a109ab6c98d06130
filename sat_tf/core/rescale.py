"""Rescaling of quantized weights, so that the network stays trainable (Eq. 7, 10 and S23)."""

import tensorflow as tf

from sat_tf.core.custom_gradient import with_gradient
from sat_tf.core.ranges import axes_within
from sat_tf.core.rescale_table import SMALLEST_SQUARE, check_rescale


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
        fan_out: the layer's n̂: how many outputs one input reaches.
        method: "constant", "stddev" or "none".
        latent: the latent weights W, for "stddev" only.
        range_axes: the axes whose entries have a maximum of their own (see `dorefa.clamp_weights`).

    Returns:
        A float32 scalar that carries no gradient; of "stddev" with `range_axes` a tensor that keeps
        these axes, with length 1 along the others.

    Raises:
        ValueError: as in `rescale_weights`.
    """
    check_rescale(method, fan_out, has_latent=latent is not None)
    if method == "none":
        return tf.constant(1.0)
    if method == "constant":
        factor = tf.math.rsqrt(float(fan_out) * _mean_square(weights))
    else:
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
        fan_out: the layer's n̂: how many outputs one input reaches.
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


def without_size(weights: tf.Tensor) -> tf.Tensor:
    """Weights whose size is taken from them anyway, with the gradient that has no part along them.

    Forward: Q. Backward: dQ = g - Q Σ(g Q) / Σ Q², so that rescaled by c, Q* = c Q, they have the
    gradient that includes that of c = 1 / sqrt(n̂ mean(Q²)).

    The constant of Eq. 10 carries none, which is right for weights whose size the clamp holds. With
    a scale that is learnt, or that follows the latent weights, Q* would stay as large as ever while
    the gradient pushes the scale on and on, to zero or to infinity.

    Args:
        weights: float32, any shape. Those that are not finite have no part in the sums.

    >>> weights = tf.constant([3.0, 4.0])
    >>> with tf.GradientTape() as tape:
    ...     tape.watch(weights)
    ...     made = without_size(weights)
    >>> print(tape.gradient(made, weights, tf.constant([1.0, 0.0])).numpy().round(2))
    [ 0.64 -0.48]
    """
    return with_gradient(_across, weights, [weights])


def _across(upstream: tf.Tensor, value: tf.Tensor, weights: tf.Tensor) -> tuple[tf.Tensor]:
    del value
    counted = tf.where(tf.math.is_finite(weights), weights, 0.0)
    along = tf.reduce_sum(upstream * counted) / tf.maximum(
        tf.reduce_sum(tf.square(counted)), SMALLEST_SQUARE
    )
    return (upstream - counted * along,)


def _mean_square(values: tf.Tensor, keep: tuple[int, ...] = ()) -> tf.Tensor:
    squares = tf.square(tf.cast(values, tf.float32))
    finite = tf.math.is_finite(squares)
    axes = axes_within(squares.shape.rank, keep)
    count, total = (
        tf.reduce_sum(terms, axes, keepdims=bool(keep))
        for terms in (tf.cast(finite, tf.float32), tf.where(finite, squares, 0.0))
    )
    return total / tf.maximum(count, 1.0)
