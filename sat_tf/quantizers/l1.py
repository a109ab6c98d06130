"""Weights whose scale is the mean magnitude of each channel: those of N2UQ."""

from typing import Any, ClassVar

import tensorflow as tf

from sat_tf.core import grid, l1
from sat_tf.core.dorefa import grid_units
from sat_tf.quantizers.constructors import OfL1
from sat_tf.quantizers.on_grid import WeightsOnGrid
from sat_tf.quantizers.protocol import Variables, WeightRequest, register_quantizer
from sat_tf.quantizers.scaled import ScaledWithSurrogate


@register_quantizer
class L1Quantizer(OfL1, WeightsOnGrid, ScaledWithSurrogate):
    """Weights on a grid whose size is 2 mean|w| or less: `l1.quantize_weights` (Liu et al. 2022).

    It has no variables: the size follows the latent weights.

    Args:
        grid: a name of `grid_table.GRIDS` or of `AUTOMATIC`.
        over_size: divide the gradient by the size, as the authors do, who train with Adam, to which
            that makes no difference. Under SGD it makes learning rates many times larger.
        **settings: those of `ScaledWithSurrogate`.
    """

    method: ClassVar[str] = "L1"
    follows_grid: ClassVar[bool] = True

    @classmethod
    def asked(cls, request: WeightRequest) -> dict[str, Any]:
        """What it takes of a request."""
        return {**super().asked(request), "grid": request.grid}

    @classmethod
    def option_names(cls) -> tuple[str, ...]:
        """What a policy may choose."""
        return ("over_size", *super().option_names())

    def quantized(self, latent: tf.Tensor, variables: Variables, num_bits: grid.Bits) -> tf.Tensor:
        """`l1.quantize_weights`."""
        del variables
        return l1.quantize_weights(
            latent,
            num_bits,
            self.grid,
            range_axes=self.range_axes,
            over_size=self.over_size,
            surrogate=self.surrogate,
            strength=self.surrogate_strength,
        )

    def codes_and_scales(
        self, latent: tf.Tensor, variables: Variables
    ) -> tuple[tf.Tensor, tf.Tensor]:
        """`l1.weight_codes`."""
        del variables
        return l1.weight_codes(latent, self.bits, self.grid, range_axes=self.range_axes)

    def units(self, latent: tf.Tensor, variables: Variables) -> tf.Tensor:
        """The integers n = 0..top."""
        del variables
        size = l1.weight_size(latent, self.bits, range_axes=self.range_axes)
        return grid_units(latent, size, self.bits, self.grid)
