"""Weights whose scale is the mean magnitude of each channel: those of N2UQ."""

import dataclasses
from typing import ClassVar

from sat_tf.core import l1
from sat_tf.core.grid import Bits, grid_units
from sat_tf.core.tensors import Tensor
from sat_tf.quantizers.scaled import ScaledWithSurrogate, WeightsOnGrid
from sat_tf.quantizers.settings import true_or_false
from sat_tf.quantizers.values import Variables


@dataclasses.dataclass(kw_only=True, eq=False, repr=False)
class L1Quantizer(WeightsOnGrid, ScaledWithSurrogate):
    """Weights on a grid whose size is 2 mean|w| or less: `l1.quantize_weights` (Liu et al. 2022).

    It has no variables: the size follows the latent weights.
    """

    policy_name: ClassVar[str] = "l1"
    method: ClassVar[str] = "L1"
    asks: ClassVar[tuple[str, ...]] = (*ScaledWithSurrogate.asks, "grid")

    # Divide the gradient by the size, as the authors do, who train with Adam, to which that makes
    # no difference. Under SGD it makes learning rates many times larger.
    over_size: bool = False

    def __post_init__(self) -> None:
        super().__post_init__()
        true_or_false("over_size", self.over_size)

    def quantized(self, latent: Tensor, variables: Variables, num_bits: Bits) -> Tensor:
        return l1.quantize_weights(
            latent,
            num_bits,
            self.grid,
            range_axes=self.range_axes,
            over_size=self.over_size,
            **self.passed_back,
        )

    def codes_and_scales(self, latent: Tensor, variables: Variables) -> tuple[Tensor, Tensor]:
        return l1.weight_codes(latent, self.bits, self.grid, range_axes=self.range_axes)

    def units(self, latent: Tensor, variables: Variables) -> Tensor:
        size = l1.weight_size(latent, self.bits, range_axes=self.range_axes)
        return grid_units(latent, size, self.bits, self.grid)
