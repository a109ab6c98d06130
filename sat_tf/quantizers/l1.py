"""Weights on a grid whose size is the mean magnitude of each channel: those of N2UQ.

Liu et al., "Nonuniform-to-Uniform Quantization", CVPR 2022, section 3.3 and their released code.
"""

import dataclasses
from typing import Any, ClassVar

from sat_tf.core import grid as grids
from sat_tf.core.gradients import STRAIGHT_THROUGH, Surrogate, passed_back
from sat_tf.core.grid import SMALLEST_SIZE, Bits, axes_within, grid_units
from sat_tf.core.tensor_ops import (
    Namespace,
    Tensor,
    computed_in_float32,
    in_float32,
    mean_of_finite,
    namespace,
)
from sat_tf.quantizers.scaled import ScaledWithSurrogate, WeightsOnGrid
from sat_tf.quantizers.values import Variables


def weight_size(
    kernel: Tensor, num_bits: grids.Bits, *, range_axes: tuple[int, ...] = ()
) -> Tensor:
    """The size c = (2^b - 1) / 2^(b-1) · mean|w| of each range of weights; carries no gradient.

    Of uniformly distributed weights it is nearly the largest, 2 mean|w|; at 1 bit it is mean|w|,
    as in XNOR-Net. A range of zeros has the size of its layer, and where all are zeros 1. NaN and
    infinite weights are left out.
    """
    n = namespace(kernel)
    intervals = in_float32(n, grids.levels(num_bits))
    factor = 2.0 * intervals / (intervals + 1.0)
    rank = len(kernel.shape)
    inner = axes_within(rank, range_axes)
    of_range, of_layer = (mean_of_finite(n, n.abs(kernel), axes) for axes in (inner, range(rank)))
    of_layer = n.where(of_layer >= SMALLEST_SIZE, of_layer, 1.0)
    return n.stop_gradient(n.where(of_range >= SMALLEST_SIZE, of_range, of_layer) * factor)


def quantize_weights(
    kernel: Tensor,
    num_bits: grids.Bits,
    grid: str = "auto",
    *,
    range_axes: tuple[int, ...] = (),
    over_size: bool = True,
    surrogate: Surrogate = STRAIGHT_THROUGH,
) -> Tensor:
    """Clips and quantizes latent weights (N2UQ).

    Forward, with c of `weight_size` and Q of a grid (DoReFa's: Q = 2 round(a (x + 1) / 2) / a - 1):
               q = c · Q(clip(w / c, -1, 1)).
    Backward:  dq/dw = 1 / c, also where it is clipped, as the authors' code has it: the gradient is
               that of w / c; or 1 without `over_size`. Another surrogate comes on top.
    """
    grids.levels(num_bits, grid)
    return computed_in_float32(
        _forward,
        _backward,
        [kernel],
        num_bits=num_bits,
        grid=grid,
        range_axes=tuple(range_axes),
        over_size=over_size,
        surrogate=surrogate,
    )


def weight_codes(
    kernel: Tensor, num_bits: grids.Bits, grid: str = "auto", *, range_axes: tuple[int, ...] = ()
) -> tuple[Tensor, Tensor]:
    """The codes of `quantize_weights`, int32, and float64 scales of ranges; NaN is an error."""
    n = namespace(kernel)
    latent = in_float32(n, kernel)
    size = weight_size(latent, num_bits, range_axes=range_axes)
    units = grids.grid_units(latent, size, num_bits, grid)
    units = n.check_numerics(units, "l1: NaN has no integer code")
    per_unit = grids.codes_per_unit(num_bits, grid)
    codes = (units - grids.middle(num_bits, grid)) * per_unit  # halves and their doubles are exact
    span = n.in_widest(grids.divisor(num_bits, grid) * per_unit)
    return n.cast(codes, "int32"), n.in_widest(size) * (2.0 / span)


def _forward(
    n: Namespace,
    latent: Tensor,
    *,
    num_bits: grids.Bits,
    grid: str,
    range_axes: tuple[int, ...],
    **settings: Any,
) -> tuple[Tensor, tuple[Tensor, ...]]:
    size = weight_size(latent, num_bits, range_axes=range_axes)
    half = in_float32(n, grids.divisor(num_bits, grid)) / 2.0
    centred = grids.grid_units(latent, size, num_bits, grid) - grids.middle(num_bits, grid)
    return centred * (1.0 / half) * size, (size, centred, half)


def _backward(
    n: Namespace,
    upstream: Tensor,
    value: Tensor,
    latent: Tensor,
    size: Tensor,
    centred: Tensor,
    half: Tensor,
    *,
    over_size: bool,
    surrogate: Surrogate,
    **settings: Any,
) -> tuple[Tensor]:
    if surrogate != STRAIGHT_THROUGH:
        position = n.maximum(n.minimum(latent / size, 1.0), -1.0) * half
        upstream = passed_back(upstream, position - centred, 2.0 * half, surrogate)
    return (upstream / size if over_size else upstream,)


@dataclasses.dataclass(kw_only=True, eq=False, repr=False)
class L1Quantizer(WeightsOnGrid, ScaledWithSurrogate):
    """Weights on a grid whose size is 2 mean|w| or less: `quantize_weights` (Liu et al. 2022)."""

    policy_name: ClassVar[str] = "l1"
    method: ClassVar[str] = "L1"
    asks: ClassVar[tuple[str, ...]] = (*ScaledWithSurrogate.asks, "grid")

    # Divide the gradient by the size, as the authors do, who train with Adam, to which that makes
    # no difference. Under SGD it makes learning rates many times larger.
    over_size: bool = False

    def quantized(self, latent: Tensor, variables: Variables, num_bits: Bits) -> Tensor:
        return quantize_weights(
            latent,
            num_bits,
            self.grid,
            range_axes=self.range_axes,
            over_size=self.over_size,
            surrogate=self.estimator,
        )

    def codes_and_scales(
        self, latent: Tensor, variables: Variables, num_bits: Bits
    ) -> tuple[Tensor, Tensor]:
        return weight_codes(latent, num_bits, self.grid, range_axes=self.range_axes)

    def units(self, latent: Tensor, variables: Variables) -> Tensor:
        size = weight_size(latent, self.bits, range_axes=self.range_axes)
        return grid_units(latent, size, self.bits, self.grid)
