"""Weights on a grid whose size is the mean magnitude of each channel; see `sat_tf.core.l1`."""

from typing import Any

from keras import ops

from sat_tf.core.ranges import SMALLEST_SIZE, axes_within
from sat_tf.core.surrogate_table import STRAIGHT_THROUGH, strength_of
from sat_tf.keras3.core import grid as grids
from sat_tf.keras3.core.custom_gradient import Backward, with_gradient
from sat_tf.keras3.core.precision import in_float32
from sat_tf.keras3.core.surrogate_gradients import passed_back


def weight_size(kernel: Any, num_bits: grids.Bits, *, range_axes: tuple[int, ...] = ()) -> Any:
    """The size c = (2^b - 1) / 2^(b-1) · mean|w| of each range: `sat_tf.core.l1.weight_size`.

    Args:
        kernel: latent weights, float32.
        num_bits: 1 to 8; see `grid.Bits`.
        range_axes: axes that keep a size of their own; () is one for the layer.

    Returns:
        float32, of the kernel's rank with length 1 along the other axes.
    """
    intervals = grids.levels(num_bits)
    if not ops.is_tensor(num_bits):
        intervals = ops.convert_to_tensor(float(intervals), "float32")
    factor = 2.0 * intervals / (intervals + 1.0)
    rank = len(kernel.shape)
    own = axes_within(rank, range_axes)
    of_range, of_layer = (_mean_magnitude(kernel, axes) for axes in (own, list(range(rank))))
    of_layer = ops.where(of_layer >= SMALLEST_SIZE, of_layer, 1.0)
    return ops.where(of_range >= SMALLEST_SIZE, of_range, of_layer) * factor


def quantize_weights(
    kernel: Any,
    num_bits: grids.Bits,
    grid: str = "auto",
    *,
    range_axes: tuple[int, ...] = (),
    over_size: bool = True,
    surrogate: str = STRAIGHT_THROUGH,
    strength: float | None = None,
) -> Any:
    """Clips and quantizes latent weights (N2UQ), as `sat_tf.core.l1.quantize_weights`.

    Forward, with c of `weight_size` and Q of a grid:  q = c · Q(clip(w / c, -1, 1)).
    Backward:  dq/dw = 1 / c, also where it is clipped; or 1 without `over_size`.

    Args:
        kernel: latent weights w, float32.
        num_bits: 1 to 8; see `grid.Bits`.
        grid: a name of `grid_table.GRIDS` or of `AUTOMATIC`.
        range_axes: see `weight_size`.
        over_size: divide the gradient by c.
        surrogate: a row of `surrogate_table`.
        strength: see there.

    Raises:
        ValueError: bits out of range, unknown grid or surrogate, or a grid without a step at these
            bits.
    """
    strength_of(surrogate, strength)
    has_tensor = ops.is_tensor(num_bits)

    def make(latent: Any, *bits: Any) -> tuple[Any, Backward]:
        given = bits[0] if has_tensor else num_bits
        size = weight_size(latent, given, range_axes=range_axes)
        half = grids.divisor(given, grid) / 2.0
        centred = grids.grid_units(latent, size, given, grid) - grids.middle(given, grid)

        def backward(upstream: Any) -> list[Any]:
            if surrogate != STRAIGHT_THROUGH:
                position = ops.clip(latent / size, -1.0, 1.0) * half
                error = position - centred
                upstream = passed_back(upstream, error, 2.0 * half, surrogate, strength)
            return [upstream / size if over_size else upstream]

        return centred * (1.0 / half) * size, backward

    return with_gradient(make, [in_float32(kernel)], [num_bits] if has_tensor else [])


def _mean_magnitude(kernel: Any, axes: list[int]) -> Any:
    finite = ops.isfinite(kernel)
    settings: dict[str, Any] = {"axis": tuple(axes), "keepdims": True}
    total = ops.sum(ops.where(finite, ops.abs(kernel), 0.0), **settings)
    return total / ops.maximum(ops.sum(ops.cast(finite, "float32"), **settings), 1.0)
