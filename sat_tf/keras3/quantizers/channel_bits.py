"""Weights whose channels have bits of their own, as `sat_tf.quantizers.channel_bits`."""

from collections.abc import Sequence
from typing import Any, ClassVar

from keras import ops

from sat_tf.core.grid_table import find_grid
from sat_tf.core.ranges import range_shape
from sat_tf.keras3.core import l1
from sat_tf.keras3.quantizers.scaled import LevelsOfWeights, ScaledWithSurrogate
from sat_tf.quantizers.settings import check_channel_limits, true_or_false


class ChannelBitsQuantizer(ScaledWithSurrogate, LevelsOfWeights):
    """Weights of `l1.quantize_weights`, each output channel with its own bits (Lou et al. 2020).

    The variable `channel_bits`, uint8, of the kernel's rank with length 1 along the other axes,
    holds those of each channel. They are found when a tf_keras model is quantized, and nothing here
    changes them.

    Args:
        num_bits: the mean, 1 to 8, or None to not round.
        lowest: the fewest bits of a channel, 1 to 8.
        highest: the most bits of a channel, `lowest` to 8.
        grid: a name of `grid_table.GRIDS` or of `AUTOMATIC`.
        over_size: divide the gradient by the size of the channel.
        **settings: those of `ScaledWithSurrogate`.

    Raises:
        ValueError: a limit is no number of bits, they exclude each other, or the grid has a single
            value at the lowest bits.
    """

    levels_name: ClassVar[str] = "channel_bits"
    levels_type: ClassVar[str] = "uint8"

    def __init__(
        self,
        *,
        lowest: int = 2,
        highest: int = 8,
        grid: str = "auto",
        over_size: bool = True,
        **settings: Any,
    ) -> None:
        super().__init__(**settings)
        check_channel_limits(lowest, highest)
        find_grid(grid, lowest)
        self.lowest = lowest
        self.highest = highest
        self.grid = grid
        self.over_size = true_or_false("over_size", over_size)

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

    def get_config(self) -> dict[str, Any]:
        """The arguments of the constructor."""
        own = {"lowest": self.lowest, "highest": self.highest, "grid": self.grid}
        return {**super().get_config(), **own, "over_size": self.over_size}
