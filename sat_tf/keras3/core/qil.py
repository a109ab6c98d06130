"""QIL: weights whose interval is learnt; `sat_tf.core.qil` tells the story."""

from typing import Any

from keras import ops

from sat_tf.core.surrogate_table import STRAIGHT_THROUGH, strength_of
from sat_tf.core.weight_levels import qil_largest_code
from sat_tf.keras3.core import grid as grids
from sat_tf.keras3.core.custom_gradient import Backward, sum_as, with_gradient
from sat_tf.keras3.core.precision import in_float32
from sat_tf.keras3.core.surrogate_gradients import passed_back


def quantize_weights(
    kernel: Any,
    center: Any,
    distance: Any,
    num_bits: int,
    *,
    gradient_factor: float = 1.0,
    surrogate: str = STRAIGHT_THROUGH,
    strength: float | None = None,
) -> Any:
    """Quantizes latent weights between c - d and c + d, as `sat_tf.core.qil.quantize_weights`.

    Forward, with h = 2^(b-1) - 1:
               t = clip((|w| - (c - d)) / (2 d), 0, 1),
               q = (c + d) / h · sgn(w) · round(h t).
    Backward, with c + d in front as a constant, where 0 < t < 1, and 0 elsewhere:
               dq/dw = (c + d) / (2 d),
               dq/dc = -dq/dw · sgn(w) · f,
               dq/dd = -dq/dw · sgn(w) · (|w| - c) / d · f.

    Args:
        kernel: latent weights w, float32.
        center: c >= 0: a scalar, or of the kernel's rank with length 1 along the axes that share an
            interval.
        distance: d > 0, shaped like `center`.
        num_bits: 2 to 8.
        gradient_factor: f.
        surrogate: a row of `surrogate_table`.
        strength: see there.

    Raises:
        ValueError: bits out of range, or an unknown surrogate.
    """
    strength_of(surrogate, strength)
    highest = float(qil_largest_code(num_bits))

    def make(latent: Any, center: Any, distance: Any) -> tuple[Any, Backward]:
        end = center + distance
        # XLA turns a division by a constant into a product with its reciprocal.
        scale = end / (highest + 0.0 * end)
        size, sign = ops.abs(latent), ops.sign(latent)
        position = (size - center) / (2.0 * distance) + 0.5
        codes = sign * grids.round_half_up(highest * grids.clip(position, 0.0, 1.0))
        codes = ops.where(ops.isnan(latent), latent, codes)

        def backward(upstream: Any) -> tuple[Any, Any, Any]:
            if surrogate != STRAIGHT_THROUGH:
                error = sign * highest * position - codes
                upstream = passed_back(upstream, error, 2.0 * highest, surrogate, strength)
            inside = (position > 0.0) & (position < 1.0)
            slopes = ops.where(inside, upstream * end / (2.0 * distance), 0.0)
            outwards = ops.where(inside, -gradient_factor * slopes * sign, 0.0)
            from_center = ops.where(inside, (size - center) / distance, 0.0)
            return slopes, sum_as(outwards, center), sum_as(outwards * from_center, center)

        return codes * scale, backward

    return with_gradient(make, [in_float32(kernel), in_float32(center), in_float32(distance)])
