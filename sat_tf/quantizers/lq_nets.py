"""Weights whose levels are those of a basis that is learnt: LQ-Nets."""

import dataclasses
import math
from collections.abc import Sequence
from typing import ClassVar

from sat_tf.arguments import is_number
from sat_tf.core import lq_nets
from sat_tf.core.tensors import Tensor, namespace
from sat_tf.quantizers.scaled import LevelsOfWeights
from sat_tf.quantizers.values import Variables


@dataclasses.dataclass(kw_only=True, eq=False, repr=False)
class LqNetsQuantizer(LevelsOfWeights):
    """Weights at levels of a basis that is learnt: `lq_nets.quantize_weights` (Zhang et al. 2018).

    The variable `basis` has one row of `num_bits` numbers for the layer or for each channel. It
    starts at what fits the latent weights, and follows them in training.

    Args:
        momentum: of the basis in a training step; at 0 it is what fits best, at 1 it stays.
        **settings: those of `ScaledQuantizer`.
    """

    method: ClassVar[str] = "LQ-Nets"
    levels_name: ClassVar[str] = "basis"
    levels_settings: ClassVar[tuple[str, ...]] = ("num_bits", "range_axes")

    momentum: float = 0.9

    def __post_init__(self) -> None:
        super().__post_init__()
        if not is_number(self.momentum) or not 0 <= self.momentum <= 1:
            raise ValueError(
                f"momentum={self.momentum!r}: expected a number from 0 to 1; the paper has 0.9."
            )
        self.momentum = float(self.momentum)

    def levels_shape(self, kernel_shape: Sequence[int]) -> Sequence[int]:
        """One row for each range."""
        axes = {axis % len(kernel_shape) for axis in self.range_axes}
        return (math.prod(kernel_shape[axis] for axis in axes), self.bits)

    def first_levels(self, kernel: Tensor) -> Tensor:
        """`lq_nets.first_basis`."""
        return lq_nets.first_basis(kernel, self.bits, range_axes=self.range_axes)

    def values(self, latent: Tensor, levels: Tensor) -> Tensor:
        """`lq_nets.quantize_weights`."""
        return lq_nets.quantize_weights(latent, levels, range_axes=self.range_axes)

    @property
    def follows(self) -> bool:
        """Always."""
        return True

    def next_levels(self, latent: Tensor, levels: Tensor) -> Tensor:
        """`lq_nets.next_basis`."""
        return lq_nets.next_basis(
            latent, levels, range_axes=self.range_axes, momentum=self.momentum
        )

    def codes_and_scales(self, latent: Tensor, variables: Variables) -> tuple[Tensor, Tensor]:
        """`lq_nets.weight_codes`."""
        return lq_nets.weight_codes(latent, self._basis(variables), range_axes=self.range_axes)

    @property
    def holds_zero(self) -> bool:
        """Whether a weight of 0 stays 0: where all weights of its range are 0, and by chance."""
        return self.num_bits is None

    def units(self, latent: Tensor, variables: Variables) -> Tensor:
        """The levels, from the lowest, of which equal ones are one."""
        return lq_nets.weight_units(latent, self._basis(variables), range_axes=self.range_axes)

    def can_be_held(self, latent: Tensor, variables: Variables) -> Tensor:
        """All of them."""
        return namespace(latent).ones_like(latent, dtype="bool")

    def hold(self, latent: Tensor, variables: Variables, units: Tensor, held: Tensor) -> Tensor:
        """Latent weights of which those that are held are where their level is now."""
        basis = self._basis(variables)
        values = lq_nets.level_values(units, basis, range_axes=self.range_axes)
        return namespace(latent).where(held, values, latent)

    def _basis(self, variables: Variables) -> Tensor:
        basis = variables[self.levels_name]
        return namespace(basis).tensor(basis)
