"""DoReFa weights: clamped by tanh over its maximum, then rounded; see `sat_tf.core.dorefa`."""

from typing import Any

from keras import ops

from sat_tf.core.ranges import SMALLEST_SIZE, axes_within
from sat_tf.core.surrogate_table import STRAIGHT_THROUGH, strength_of
from sat_tf.keras3.core import grid as grids
from sat_tf.keras3.core.custom_gradient import Backward, sum_as, with_gradient
from sat_tf.keras3.core.precision import in_float32
from sat_tf.keras3.core.surrogate_gradients import passed_back


def clamp_weights(
    kernel: Any, detach_max: bool = False, *, range_axes: tuple[int, ...] = ()
) -> Any:
    """Clamps latent weights to [-1, 1], as `sat_tf.core.dorefa.clamp_weights`.

    Forward: Ŵ = t / m with t = tanh(W), m = max |t|.
    Backward: dW = (1 - t²) (g / m - [|t| = m] sign(t) Σ(g Ŵ) / (m ties)), the second term left out
    with `detach_max`.

    Args:
        kernel: latent weights, float32, any shape.
        detach_max: treat the maximum as a constant in the gradient.
        range_axes: axes that keep a maximum of their own; () is one maximum for the whole layer.
    """

    def make(squashed: Any) -> tuple[Any, Backward]:
        squash = _Squash(squashed, range_axes)
        clamped = squash.values / squash.maximum
        return clamped, lambda upstream: [squash.gradient(upstream, detach_max)]

    return with_gradient(make, [ops.tanh(in_float32(kernel))])


def quantize_weights(
    kernel: Any,
    num_bits: int,
    grid: str = "auto",
    detach_max: bool = False,
    *,
    range_axes: tuple[int, ...] = (),
    surrogate: str = STRAIGHT_THROUGH,
    strength: float | None = None,
) -> Any:
    """Clamps and quantizes latent weights, as `sat_tf.core.dorefa.quantize_weights`.

    Forward: Q = (n - middle) / (d / 2) with n = min(round_half_up(d (Ŵ + 1) / 2), top).
    Backward: the rounding passes the gradient on, or a surrogate's; the clamp has its own.

    Args:
        kernel: see `clamp_weights`.
        num_bits: 1 to 8.
        grid: a name of `grid_table.GRIDS` or of `AUTOMATIC`.
        detach_max: see `clamp_weights`.
        range_axes: see there.
        surrogate: a row of `surrogate_table`.
        strength: see there.

    Raises:
        ValueError: bits out of range, unknown grid or surrogate, or a grid without a step at these
            bits.
    """
    strength_of(surrogate, strength)
    half = grids.divisor(num_bits, grid) / 2.0
    middle = grids.middle(num_bits, grid)

    def make(squashed: Any) -> tuple[Any, Backward]:
        squash = _Squash(squashed, range_axes)
        # Subtracting first is exact, so that opposite codes are opposite numbers.
        centred = grids.grid_units(squash.values, squash.maximum, num_bits, grid) - middle

        def backward(upstream: Any) -> list[Any]:
            if surrogate != STRAIGHT_THROUGH:
                error = squash.values / squash.maximum * half - centred
                upstream = passed_back(upstream, error, 2.0 * half, surrogate, strength)
            return [squash.gradient(upstream, detach_max)]

        return centred * (1.0 / half), backward

    return with_gradient(make, [ops.tanh(in_float32(kernel))])


class _Squash:
    """t = tanh(W), and its largest magnitude m, which counts as 1 where all are (nearly) 0.

    Sums and maxima over the layer leave NaN out; elementwise operations keep it.
    """

    def __init__(self, squashed: Any, range_axes: tuple[int, ...]) -> None:
        self.values = squashed
        self._numbers = ops.where(ops.isnan(self.values), 0.0, self.values)
        self._sizes = ops.abs(self._numbers)
        axes = tuple(axes_within(len(squashed.shape), range_axes))
        largest = ops.max(self._sizes, axis=axes, keepdims=True)
        self.maximum = ops.where(largest >= SMALLEST_SIZE, largest, 1.0)

    def gradient(self, upstream: Any, detach_max: bool) -> Any:
        """That of t / m with respect to t."""
        found = upstream / self.maximum
        if not detach_max:
            # The gradient through the maximum is shared by its ties.
            ties = ops.cast(self._sizes == self.maximum, "float32")
            total = sum_as(found * self._numbers, self.maximum)
            squares = sum_as(ties, self.maximum) * ops.square(self.maximum)
            share = ops.divide_no_nan(total, squares)
            found = found - ties * self._numbers * share
        return found
