"""Activations with a trainable clipping level; `sat_tf.core.pact` tells the story and the edges."""

from typing import Any

from keras import ops

from sat_tf.core.clipping_gradients import find_clipping_gradient
from sat_tf.core.surrogate_table import STRAIGHT_THROUGH, strength_of
from sat_tf.keras3.core import grid as grids
from sat_tf.keras3.core.custom_gradient import Backward, with_gradient
from sat_tf.keras3.core.precision import in_float32
from sat_tf.keras3.core.surrogate_gradients import of_range


def quantize_activation(
    x: Any,
    clipping_level: Any,
    num_bits: int,
    gradient: str = "calibrated",
    *,
    surrogate: str = STRAIGHT_THROUGH,
    strength: float | None = None,
) -> Any:
    """Rectifies, clips and quantizes, as `sat_tf.core.pact.quantize_activation`.

    Forward, with a = 2^b - 1 and the scale α/a:  q = α · round(a · clip(x, 0, α) / α) / a.
    Backward:  dq/dx = 1 where 0 < x < α, else 0;
               dq/dα = 1 where x >= α;  q/α - x/α where 0 < x < α ("calibrated") or 0 ("pact").

    Args:
        x: any shape and floating type, which is that of what is returned.
        clipping_level: α > 0, a scalar tensor or variable.
        num_bits: 1 to 8.
        gradient: a row of `clipping_gradients`.
        surrogate: a row of `surrogate_table`.
        strength: see there.

    Raises:
        ValueError: bits out of range, or an unknown gradient or surrogate.
    """
    intervals = grids.levels(num_bits)
    return _quantize(x, clipping_level, intervals, False, gradient, surrogate, strength)


def quantize_stream(
    x: Any,
    clipping_level: Any,
    num_bits: int,
    gradient: str = "calibrated",
    *,
    surrogate: str = STRAIGHT_THROUGH,
    strength: float | None = None,
) -> Any:
    """Clips and quantizes what can be negative, as `sat_tf.core.pact.quantize_stream`.

    Forward, with a = 2^b - 2 and the scale s = 2r/a:  q = s · round(clip(x, -r, r) / s).
    Backward:  dq/dx = 1 where -r < x < r, else 0;
               dq/dr = 1 where x >= r;  -1 where x <= -r;  between them q/r - x/r or 0.

    Args:
        x: as in `quantize_activation`.
        clipping_level: r > 0; the range is [-r, r].
        num_bits: 2 to 8.
        gradient: as in `quantize_activation`.
        surrogate: see there.
        strength: see there.

    Raises:
        ValueError: as there.
    """
    intervals = grids.levels(num_bits, "narrow")
    return _quantize(x, clipping_level, intervals, True, gradient, surrogate, strength)


def round_on_range(clipped: Any, clipping_level: Any, intervals: int, signed: bool) -> Any:
    """The forward arithmetic, that of FakeQuant: see `sat_tf.core.pact.round_on_range`.

    What it is given is clipped at the level itself, where that function clips at a code times the
    scale. They differ by rounding, half a code from where it would tell.
    """
    # XLA turns a division by a constant into a product with its reciprocal, which rounds twice.
    divisor = intervals + 0.0 * clipping_level
    if not signed:
        scale = clipping_level / divisor
        return grids.round_half_up(clipped / scale) * scale
    scale, zero = (clipping_level + clipping_level) / divisor, intervals / 2
    return grids.round_half_up((clipped + scale * zero) / scale - zero) * scale


def _quantize(
    x: Any,
    clipping_level: Any,
    intervals: int,
    signed: bool,
    gradient: str,
    surrogate: str,
    strength: float | None,
) -> Any:
    reference = find_clipping_gradient(gradient)
    strength_of(surrogate, strength)

    def make(x: Any, level: Any) -> tuple[Any, Backward]:
        lowest = -level if signed else 0.0
        clipped = grids.clip(x, lowest, level)
        made = round_on_range(clipped, level, intervals, signed)
        quantized = ops.stop_gradient(made)

        def backward(upstream: Any) -> tuple[Any, Any]:
            dx, total = of_range(
                upstream,
                quantized,
                reference(clipped, quantized),
                ops.abs(clipped) < level if signed else (clipped > 0.0) & (clipped < level),
                lambda: (clipped - quantized) * (intervals / (level - lowest)),
                intervals,
                surrogate,
                strength,
            )
            return dx, total / level

        return made, backward

    x = ops.convert_to_tensor(x)
    made = with_gradient(make, [ops.cast(x, "float32"), in_float32(clipping_level)])
    return ops.cast(made, x.dtype)
