"""Weights whose levels are those of a basis that is learnt, as `sat_tf.quantizers.lq_nets`."""

import math
from collections.abc import Sequence
from typing import Any, ClassVar

from sat_tf.keras3.core import lq_nets
from sat_tf.keras3.quantizers.scaled import LevelsOfWeights
from sat_tf.quantizers.constructors import OfLqNets


class LqNetsQuantizer(OfLqNets, LevelsOfWeights):
    """Weights at levels of a basis that is learnt: `lq_nets.quantize_weights` (Zhang et al. 2018).

    The variable `basis` has one row of `num_bits` numbers for the layer or for each channel, and
    follows the latent weights in training.
    """

    levels_name: ClassVar[str] = "basis"

    def levels_shape(self, kernel_shape: Sequence[int]) -> Sequence[int]:
        """One row for each range."""
        axes = {axis % len(kernel_shape) for axis in self.range_axes}
        return (math.prod(kernel_shape[axis] for axis in axes), self.num_bits or 0)

    def values(self, latent: Any, levels: Any) -> Any:
        """`lq_nets.quantize_weights`."""
        return lq_nets.quantize_weights(latent, levels, range_axes=self.range_axes)

    @property
    def follows(self) -> bool:
        """Always."""
        return True

    def next_levels(self, latent: Any, levels: Any) -> Any:
        """`lq_nets.next_basis`."""
        settings: dict[str, Any] = {"range_axes": self.range_axes, "momentum": self.momentum}
        return lq_nets.next_basis(latent, levels, **settings)
