"""LSQ and LSQ+: scales, and an offset, that are learnt; `sat_tf.core.lsq` tells the story."""

import math
from typing import Any

from keras import ops

from sat_tf.core.surrogate_table import STRAIGHT_THROUGH, strength_of
from sat_tf.core.weight_levels import lsq_code_ends
from sat_tf.keras3.core import grid as grids
from sat_tf.keras3.core.custom_gradient import Backward, sum_as, with_gradient
from sat_tf.keras3.core.precision import in_float32
from sat_tf.keras3.core.surrogate_gradients import of_range


def quantize_weights(
    kernel: Any,
    magnitude: Any,
    num_bits: int,
    *,
    surrogate: str = STRAIGHT_THROUGH,
    strength: float | None = None,
) -> Any:
    """Quantizes latent weights with a scale that is learnt, as `sat_tf.core.lsq.quantize_weights`.

    Forward, with s = m / sqrt(highest):  q = s · clip(round(v / s), lowest, highest).
    Backward:  dq/dv = 1 where lowest < v/s < highest, else 0;
               dq/dm = dq/ds / sqrt(N), with dq/ds the code where clipped, else round(v/s) - v/s.

    Args:
        kernel: latent weights v, float32.
        magnitude: m > 0: a scalar, or of the kernel's rank with length 1 along the axes that share
            a scale; N is how many weights do.
        num_bits: 2 to 8.
        surrogate: a row of `surrogate_table`.
        strength: see there.

    Raises:
        ValueError: bits out of range, or an unknown surrogate.
    """
    strength_of(surrogate, strength)
    lowest, highest = lsq_code_ends(num_bits)

    def make(latent: Any, magnitude: Any) -> tuple[Any, Backward]:
        root = ops.sqrt(ops.convert_to_tensor(float(highest), "float32"))
        # XLA turns a division by a constant into a product with its reciprocal.
        scale = magnitude / (root + 0.0 * magnitude)
        units = latent / scale
        codes = grids.clip(grids.round_half_up(units), lowest, highest)

        def backward(upstream: Any) -> tuple[Any, Any]:
            dx, total = of_range(
                upstream,
                codes,
                units,
                (units > lowest) & (units < highest),
                lambda: units - codes,
                highest - lowest,
                surrogate,
                strength,
                lambda slopes: sum_as(slopes, magnitude),
            )
            count = math.prod(latent.shape) / math.prod(magnitude.shape)
            return dx, total * (1.0 / math.sqrt(count))

        return codes * scale, backward

    return with_gradient(make, [in_float32(kernel), in_float32(magnitude)])


def level_factor(x: Any, highest: float, *, counts_batch: bool = False) -> Any:
    """The factor g · highest² on the gradient of a clipping level α = s · highest.

    Args:
        x: the tensor that is quantized, (n, ...).
        highest: its highest code.
        counts_batch: N in g counts all samples, not the features of one.
    """
    return gradient_factor(x, highest, counts_batch=counts_batch) * highest**2


def gradient_factor(x: Any, highest: float, *, counts_batch: bool = False) -> Any:
    """The paper's g = 1 / sqrt(N · highest) of a scale; arguments as in `level_factor`."""
    samples, *sizes = ops.shape(x)
    features = ops.convert_to_tensor(1.0, "float32")
    for size in (samples, *sizes) if counts_batch else sizes:
        # Sizes of which the graph does not know are tensors.
        features = features * ops.cast(size, "float32")
    return ops.rsqrt(ops.maximum(features, 1.0) * highest)


def quantize_with_offset(
    x: Any,
    scale: Any,
    offset: Any,
    num_bits: int,
    *,
    surrogate: str = STRAIGHT_THROUGH,
    strength: float | None = None,
) -> Any:
    """Clips and quantizes with a scale and an offset: `sat_tf.core.lsq.quantize_with_offset`.

    Forward, with a = 2^b - 1 and z = clip(round(-β / s), 0, a) codes below zero:
               q = s · clip(round(x / s), -z, a - z).
    Backward:  dq/dx = 1 where -z < x/s < a - z, else 0;
               dq/ds = round(x/s) - x/s between the ends, 0 below, a above;
               dq/dβ = 0 between the ends, 1 beyond them.

    Args:
        x: any shape and floating type, which is that of what is returned.
        scale: s > 0, float32 scalar.
        offset: β, the lower end of the range, float32 scalar; above 0 it counts as 0.
        num_bits: 1 to 8.
        surrogate: a row of `surrogate_table`.
        strength: see there.

    Raises:
        ValueError: bits out of range, or an unknown surrogate.
    """
    strength_of(surrogate, strength)
    levels = grids.levels(num_bits)

    def make(x: Any, scale: Any, offset: Any) -> tuple[Any, Backward]:
        below = grids.clip(grids.round_half_up(-offset / scale), 0.0, levels)
        above = levels - below
        units = x / scale
        codes = grids.clip(grids.round_half_up(units), -below, above)

        def backward(upstream: Any) -> tuple[Any, Any, Any]:
            dx, total = of_range(
                upstream,
                codes,
                units,
                (units > -below) & (units < above),
                lambda: units - codes,
                levels,
                surrogate,
                strength,
            )
            outside = (units <= -below) | (units >= above)
            clipped = ops.sum(ops.where(outside, upstream, 0.0))
            # Where it is clipped q is (code + z) s + β.
            return dx, total + below * clipped, clipped

        return codes * scale, backward

    x = ops.convert_to_tensor(x)
    inputs = [ops.cast(x, "float32"), in_float32(scale), in_float32(offset)]
    return ops.cast(with_gradient(make, inputs), x.dtype)
