"""Rescaling of quantized weights, as `sat_tf.core.rescale` has it."""

from typing import Any

from keras import ops

from sat_tf.core.ranges import axes_within
from sat_tf.core.rescale_table import SMALLEST_SQUARE, check_rescale
from sat_tf.keras3.core.custom_gradient import Backward, with_gradient


def rescale_factor(
    weights: Any,
    fan_out: int,
    method: str = "constant",
    latent: Any = None,
    *,
    range_axes: tuple[int, ...] = (),
) -> Any:
    """The constant c of `sat_tf.core.rescale.rescale_factor`, by the rows of `rescale_table`.

    Args:
        weights: quantized or clamped weights Q, float32, any shape.
        fan_out: the layer's n̂.
        method: a name of `rescale_table.METHODS`.
        latent: the latent weights W, for "stddev" only.
        range_axes: the axes whose entries have a mean of their own, for "stddev".

    Returns:
        A float32 scalar that carries no gradient; of "stddev" with `range_axes` a tensor that keeps
        these axes, with length 1 along the others.

    Raises:
        ValueError: unknown method, "stddev" without latent weights, or a fan_out below 1.
    """
    check_rescale(method, fan_out, has_latent=latent is not None)
    if method == "none":
        return ops.convert_to_tensor(1.0, "float32")
    # Before anything is computed of them, so that nothing is kept for a gradient.
    weights = ops.stop_gradient(weights)
    if method == "constant":
        factor = ops.rsqrt(float(fan_out) * _mean_square(weights))
    else:
        latent = ops.stop_gradient(latent)
        factor = ops.sqrt(_mean_square(latent, range_axes) / _mean_square(weights, range_axes))
    return ops.where(ops.isfinite(factor) & (factor > 0.0), factor, 1.0)


def without_size(weights: Any) -> Any:
    """Weights whose size is taken from them anyway, as `sat_tf.core.rescale.without_size`.

    Forward: Q. Backward: dQ = g - Q Σ(g Q) / Σ Q², over weights that are finite.

    Args:
        weights: float32, any shape.
    """

    def make(weights: Any) -> tuple[Any, Backward]:
        def backward(upstream: Any) -> list[Any]:
            counted = ops.where(ops.isfinite(weights), weights, 0.0)
            squares = ops.maximum(ops.sum(ops.square(counted)), SMALLEST_SQUARE)
            return [upstream - counted * (ops.sum(upstream * counted) / squares)]

        return weights, backward

    return with_gradient(make, [weights])


def _mean_square(values: Any, keep: tuple[int, ...] = ()) -> Any:
    squares = ops.square(values)
    finite = ops.isfinite(squares)
    axes = tuple(axes_within(len(squares.shape), keep))
    count, total = (
        ops.sum(terms, axis=axes, keepdims=bool(keep))
        for terms in (ops.cast(finite, "float32"), ops.where(finite, squares, 0.0))
    )
    return total / ops.maximum(count, 1.0)
