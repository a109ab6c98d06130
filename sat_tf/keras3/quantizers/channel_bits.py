"""Weights whose channels have bits of their own, as `sat_tf.quantizers.channel_bits`."""

from collections.abc import Sequence
from typing import Any, ClassVar

from keras import ops

from sat_tf.core.ranges import range_shape
from sat_tf.keras3.core import l1
from sat_tf.keras3.quantizers.scaled import LevelsOfWeights, ScaledWithSurrogate
from sat_tf.quantizers.constructors import OfChannelBits


class ChannelBitsQuantizer(OfChannelBits, ScaledWithSurrogate, LevelsOfWeights):
    """Weights of `l1.quantize_weights`, each output channel with its own bits (Lou et al. 2020).

    The variable `channel_bits`, uint8, of the kernel's rank with length 1 along the other axes,
    holds those of each channel. They are found when a tf_keras model is quantized, and nothing here
    changes them.

    Raises:
        ValueError: a limit is no number of bits, they exclude each other, or the grid has a single
            value at the lowest bits.
    """

    levels_name: ClassVar[str] = "channel_bits"
    levels_type: ClassVar[str] = "uint8"

    def levels_shape(self, kernel_shape: Sequence[int]) -> Sequence[int]:
        """One number for each channel."""
        return range_shape(kernel_shape, self.range_axes)

    def values(self, latent: Any, levels: Any) -> Any:
        """`l1.quantize_weights`."""
        return l1.quantize_weights(
            latent,
            ops.cast(levels, "int32"),
            self.grid,
            range_axes=self.range_axes,
            over_size=self.over_size,
            **self.passed_back,
        )
