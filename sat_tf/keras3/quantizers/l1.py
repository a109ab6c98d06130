"""Weights whose scale is the mean magnitude of each channel, as `sat_tf.quantizers.l1`."""

from typing import Any

from sat_tf.keras3.core import l1
from sat_tf.keras3.quantizers.protocol import Variables
from sat_tf.keras3.quantizers.scaled import ScaledWithSurrogate
from sat_tf.quantizers.settings import true_or_false


class L1Quantizer(ScaledWithSurrogate):
    """Weights on a grid whose size is 2 mean|w| or less: `l1.quantize_weights` (Liu et al. 2022).

    It has no variables: the size follows the latent weights.

    Args:
        grid: a name of `grid_table.GRIDS` or of `AUTOMATIC`.
        over_size: divide the gradient by the size.
        **settings: those of `ScaledWithSurrogate`.
    """

    def __init__(self, *, grid: str = "auto", over_size: bool = True, **settings: Any) -> None:
        super().__init__(**settings)
        self.grid = grid
        self.over_size = true_or_false("over_size", over_size)

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

    def get_config(self) -> dict[str, Any]:
        """The arguments of the constructor."""
        return {**super().get_config(), "grid": self.grid, "over_size": self.over_size}
