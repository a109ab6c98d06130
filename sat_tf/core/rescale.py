"""Rescaling of quantized weights, so that the network stays trainable (Eq. 7, 10 and S23)."""

from sat_tf.core.ranges import axes_within
from sat_tf.core.tensors import Namespace, Tensor, namespace
from sat_tf.messages import did_you_mean

METHODS = ("constant", "stddev", "none")
# It takes the place of the sum of the squares of weights that are all 0.
SMALLEST_SQUARE = 2.0**-126


def rescale_factor(
    weights: Tensor,
    fan_out: int,
    method: str = "constant",
    latent: Tensor | None = None,
    *,
    range_axes: tuple[int, ...] = (),
) -> Tensor:
    """SAT's constant c, which brings quantized weights back to a trainable size: Q* = c Q.

    c = 1 / sqrt(n̂ mean(Q²)) ("constant", Eq. 7 and 10), sqrt(mean(W²) / mean(Q²)) ("stddev",
    Eq. S23) or 1 ("none"), with the n̂ outputs that one input reaches; means over the whole layer,
    not centred. It is positive and finite whatever the weights are: the means leave NaN and
    infinite weights out, and where a mean is 0, c is 1. It is float32, and carries no gradient.

    Where channels have maxima of their own (see `dorefa.clamp_weights`), "stddev" has means of
    their own as well: the clamp takes the size of each channel away, and this is what gives it
    back. Then c keeps the axes, with length 1 along the others; else it is a scalar.

    >>> weights = [[-1.0, 1.0], [1.0, -1.0]]
    >>> float(rescale_factor(weights, fan_out=4))
    0.5
    """
    if method not in METHODS:
        raise ValueError(f"method={method!r} is no rescaling. {did_you_mean(str(method), METHODS)}")
    if method != "none" and fan_out < 1:
        raise ValueError(f"fan_out={fan_out!r}: expected the layer's number of output neurons.")
    if method == "stddev" and latent is None:
        raise ValueError(
            "method='stddev' compares with the latent weights: pass latent=..., "
            "or use method='constant'."
        )
    n = namespace(weights)
    if method == "none":
        return n.constant(1.0)
    # Before anything is computed of them, so that nothing is kept for a gradient.
    weights = n.stop_gradient(n.tensor(weights))
    if method == "constant":
        factor = n.rsqrt(float(fan_out) * _mean_square(n, weights))
    else:
        latent = _mean_square(n, n.stop_gradient(n.tensor(latent)), range_axes)
        factor = n.sqrt(latent / _mean_square(n, weights, range_axes))
    return n.where(n.isfinite(factor) & (factor > 0.0), factor, 1.0)


def without_size(weights: Tensor) -> Tensor:
    """Weights whose size is taken from them anyway, with the gradient that has no part along them.

    Forward: Q. Backward: dQ = g - Q Σ(g Q) / Σ Q², so that rescaled by c, Q* = c Q, they have the
    gradient that includes that of c = 1 / sqrt(n̂ mean(Q²)).

    The constant of Eq. 10 carries none, which is right for weights whose size the clamp holds. With
    a scale that is learnt, or that follows the latent weights, Q* would stay as large as ever while
    the gradient pushes the scale on and on, to zero or to infinity.

    Args:
        weights: float32, any shape. The sums leave out those that are not finite.

    >>> import tensorflow as tf
    >>> weights = tf.constant([3.0, 4.0])
    >>> with tf.GradientTape() as tape:
    ...     tape.watch(weights)
    ...     made = without_size(weights)
    >>> print(tape.gradient(made, weights, tf.constant([1.0, 0.0])).numpy().round(2))
    [ 0.64 -0.48]
    """
    n = namespace(weights)
    return n.with_gradient(lambda n, weights: (weights, ()), _across, [n.tensor(weights)])


def _across(n: Namespace, upstream: Tensor, value: Tensor, weights: Tensor) -> tuple[Tensor]:
    counted = n.where(n.isfinite(weights), weights, 0.0)
    squares = n.maximum(n.sum(n.square(counted)), SMALLEST_SQUARE)
    return (upstream - counted * (n.sum(upstream * counted) / squares),)


def _mean_square(n: Namespace, values: Tensor, keep: tuple[int, ...] = ()) -> Tensor:
    squares = n.square(n.cast(values, "float32"))
    finite = n.isfinite(squares)
    axes = tuple(axes_within(len(squares.shape), keep))
    count, total = (
        n.sum(terms, axis=axes, keepdims=bool(keep))
        for terms in (n.cast(finite, "float32"), n.where(finite, squares, 0.0))
    )
    return total / n.maximum(count, 1.0)
