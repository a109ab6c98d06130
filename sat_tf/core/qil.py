"""QIL: weights whose interval is learnt, which prunes below it and clips above it.

Jung et al., "Learning to Quantize Deep Networks by Optimizing Quantization Intervals With Task
Loss", CVPR 2019, Eq. 2 to 5, with γ = 1. Of activations they learn an interval as well; that is
another method here.

The paper's weights lie in [-1, 1], because BatchNormalization behind the layer gives them any size.
Here they are multiplied by the end of the interval, c + d, without a gradient: they have the size
of the latent weights, so that a pretrained layer keeps its function, with or without normalization.
"""

import tensorflow as tf

from sat_tf.core import grid as grids
from sat_tf.core.custom_gradient import with_gradient
from sat_tf.core.ranges import axes_within
from sat_tf.core.surrogate_gradients import passed_back
from sat_tf.core.surrogate_table import STRAIGHT_THROUGH, strength_of
from sat_tf.core.weight_levels import qil_largest_code


def first_end(kernel: tf.Tensor, *, range_axes: tuple[int, ...] = ()) -> tf.Tensor:
    """Where the interval ends at the start, max|w|; it begins at 0. What is not finite is left out.

    Args:
        kernel: latent weights, float32.
        range_axes: axes that keep an interval of their own; () is one for the layer.

    Returns:
        float32; of the kernel's rank with length 1 along the other axes, or a scalar.

    >>> first_end(tf.constant([[1.0, -2.0], [3.0, 0.0]]), range_axes=(1,)).numpy()
    array([[3., 2.]], dtype=float32)
    """
    axes = axes_within(kernel.shape.rank, range_axes)
    finite = tf.where(tf.math.is_finite(kernel), tf.abs(kernel), 0.0)
    return tf.reduce_max(finite, axes, keepdims=bool(range_axes))


def quantize_weights(
    kernel: tf.Tensor,
    center: tf.Tensor,
    distance: tf.Tensor,
    num_bits: grids.Bits,
    *,
    gradient_factor: float = 1.0,
    surrogate: str = STRAIGHT_THROUGH,
    strength: float | None = None,
) -> tf.Tensor:
    """Quantizes latent weights between c - d and c + d (Jung et al. 2019, Eq. 2 to 5, γ = 1).

    Forward, with h = 2^(b-1) - 1:
               t = clip((|w| - (c - d)) / (2 d), 0, 1),
               q = (c + d) / h · sgn(w) · round(h t).
    Backward, with c + d in front as a constant, where 0 < t < 1, and 0 elsewhere:
               dq/dw = (c + d) / (2 d),
               dq/dc = -dq/dw · sgn(w) · f,
               dq/dd = -dq/dw · sgn(w) · (|w| - c) / d · f.

    Weights with |w| <= c - d are pruned and have no gradient, nor have those that are clipped. With
    another surrogate its factor comes on top of all three. Computed in float32, returned in the
    type of `kernel`. A NaN weight stays NaN and has no part in dc and dd.

    Args:
        kernel: latent weights w; float32, float16 or bfloat16.
        center: c >= 0: a scalar, or of the kernel's rank with length 1 along the axes that share an
            interval.
        distance: d > 0, shaped like `center`.
        num_bits: 2 to 8; see `grid.Bits`.
        gradient_factor: f.
        surrogate: a row of `surrogate_table`.
        strength: see there.

    Raises:
        ValueError: bits out of range, or an unknown surrogate.

    >>> kernel = tf.constant([-9.0, -2.0, 0.9, 2.5])
    >>> quantize_weights(kernel, 2.0, 1.0, 3).numpy().tolist()
    [-3.0, -2.0, 0.0, 2.0]
    """
    strength_of(surrogate, strength)
    given = tf.convert_to_tensor(kernel)
    latent = tf.cast(given, tf.float32)
    center, distance = (tf.convert_to_tensor(each, tf.float32) for each in (center, distance))
    highest = _highest(num_bits)
    made = with_gradient(
        _backward,
        _codes(latent, center, distance, highest) * weight_scale(center, distance, num_bits),
        [latent, center, distance],
        kept=[highest],
        gradient_factor=gradient_factor,
        surrogate=surrogate,
        strength=strength,
    )
    return tf.cast(made, given.dtype)


def weight_scale(center: tf.Tensor, distance: tf.Tensor, num_bits: grids.Bits) -> tf.Tensor:
    """The real value of one code, (c + d) / h."""
    end = tf.convert_to_tensor(center, tf.float32) + distance
    # XLA turns a division by a constant into a product with its reciprocal, which rounds twice.
    return end / (_highest(num_bits) + 0.0 * end)


def weight_codes(
    kernel: tf.Tensor, center: tf.Tensor, distance: tf.Tensor, num_bits: int
) -> tf.Tensor:
    """The codes of `quantize_weights`, int32.

    Raises:
        ValueError: bits out of range.
        tf.errors.InvalidArgumentError: a weight is NaN, for which there is no code.
    """
    latent = tf.cast(kernel, tf.float32)
    center, distance = (tf.convert_to_tensor(each, tf.float32) for each in (center, distance))
    codes = _codes(latent, center, distance, _highest(num_bits))
    return tf.cast(tf.debugging.check_numerics(codes, "qil: NaN has no integer code"), tf.int32)


def _highest(num_bits: grids.Bits) -> tf.Tensor:
    """`weight_levels.qil_largest_code` as a float32 scalar."""
    if not tf.is_tensor(num_bits):
        return tf.constant(float(qil_largest_code(num_bits)))
    return tf.cast(grids.levels(num_bits, "narrow"), tf.float32) / 2.0


def _position(latent: tf.Tensor, center: tf.Tensor, distance: tf.Tensor) -> tf.Tensor:
    """The transformed magnitude t, before it is clipped."""
    return (tf.abs(latent) - center) / (2.0 * distance) + 0.5


def _codes(
    latent: tf.Tensor, center: tf.Tensor, distance: tf.Tensor, highest: tf.Tensor
) -> tf.Tensor:
    position = _position(latent, center, distance)
    magnitudes = grids.round_half_up(highest * tf.clip_by_value(position, 0.0, 1.0))
    return tf.where(tf.math.is_nan(latent), latent, tf.sign(latent) * magnitudes)


def _backward(
    upstream: tf.Tensor,
    value: tf.Tensor,
    latent: tf.Tensor,
    center: tf.Tensor,
    distance: tf.Tensor,
    highest: tf.Tensor,
    *,
    gradient_factor: float,
    surrogate: str,
    strength: float | None,
) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
    del value
    position = _position(latent, center, distance)
    inside = (position > 0.0) & (position < 1.0)
    sign = tf.sign(latent)
    if surrogate != STRAIGHT_THROUGH:
        units = sign * highest * position
        error = units - _codes(latent, center, distance, highest)
        upstream = passed_back(upstream, error, 2.0 * highest, surrogate, strength)
    slopes = tf.where(inside, upstream * (center + distance) / (2.0 * distance), 0.0)
    outwards = tf.where(inside, -gradient_factor * slopes * sign, 0.0)
    from_center = tf.where(inside, (tf.abs(latent) - center) / distance, 0.0)
    shared = None  # all axes
    if center.shape.rank:
        shared = [axis for axis, size in enumerate(center.shape) if size == 1]
    by_center, by_distance = (
        tf.reduce_sum(each, shared, keepdims=shared is not None)
        for each in (outwards, outwards * from_center)
    )
    return slopes, by_center, by_distance
