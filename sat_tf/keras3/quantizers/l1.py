"""Weights whose scale is the mean magnitude of each channel, as `sat_tf.quantizers.l1`."""

from typing import Any

from sat_tf.keras3.core import l1
from sat_tf.keras3.quantizers.protocol import Variables
from sat_tf.keras3.quantizers.scaled import ScaledWithSurrogate
from sat_tf.quantizers.constructors import OfL1


class L1Quantizer(OfL1, ScaledWithSurrogate):
    """Weights on a grid whose size is 2 mean|w| or less: `l1.quantize_weights` (Liu et al. 2022).

    It has no variables: the size follows the latent weights.
    """

    def quantized(self, latent: Any, variables: Variables, num_bits: int) -> Any:
        """`l1.quantize_weights`."""
        del variables
        return l1.quantize_weights(
            latent,
            num_bits,
            self.grid,
            range_axes=self.range_axes,
            over_size=self.over_size,
            **self.passed_back,
        )
