"""Weights whose levels are those of a basis that is learnt: LQ-Nets."""

from typing import Any, ClassVar

import numpy as np
import tensorflow as tf

from sat_tf.core import lq_nets
from sat_tf.quantizers.constructors import OfLqNets
from sat_tf.quantizers.protocol import Variables, register_quantizer
from sat_tf.quantizers.scaled import LevelsOfWeights


@register_quantizer
class LqNetsQuantizer(OfLqNets, LevelsOfWeights):
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

    @classmethod
    def option_names(cls) -> tuple[str, ...]:
        """What a policy may choose."""
        return ("momentum",)

    def levels_shape(self, kernel_shape: Any) -> Any:
        """One row for each range."""
        axes = {axis % len(kernel_shape) for axis in self.range_axes}
        return (int(np.prod([kernel_shape[axis] for axis in axes])), self.bits)

    def first_levels(self, kernel: tf.Tensor) -> tf.Tensor:
        """`lq_nets.first_basis`."""
        return lq_nets.first_basis(kernel, self.bits, range_axes=self.range_axes)

    def values(self, latent: tf.Tensor, levels: tf.Tensor) -> tf.Tensor:
        """`lq_nets.quantize_weights`."""
        return lq_nets.quantize_weights(latent, levels, range_axes=self.range_axes)

    def next_levels(self, latent: tf.Tensor, levels: tf.Tensor) -> tf.Tensor | None:
        """`lq_nets.next_basis`."""
        settings: dict[str, Any] = {"range_axes": self.range_axes, "momentum": self.momentum}
        return lq_nets.next_basis(latent, levels, **settings)

    def codes_and_scales(
        self, latent: tf.Tensor, variables: Variables
    ) -> tuple[tf.Tensor, tf.Tensor]:
        """`lq_nets.weight_codes`."""
        basis = tf.convert_to_tensor(variables[self.levels_name])
        return lq_nets.weight_codes(latent, basis, range_axes=self.range_axes)

    @property
    def holds_zero(self) -> bool:
        """Whether a weight of 0 stays 0: where all weights of its range are 0, and by chance."""
        return self.num_bits is None

    def units(self, latent: tf.Tensor, variables: Variables) -> tf.Tensor:
        """The levels, from the lowest, of which equal ones are one."""
        basis = tf.convert_to_tensor(variables[self.levels_name])
        return lq_nets.weight_units(latent, basis, range_axes=self.range_axes)

    def can_be_held(self, latent: tf.Tensor, variables: Variables) -> tf.Tensor:
        """All of them."""
        del variables
        return tf.ones(latent.shape, tf.bool)

    def hold(
        self, latent: tf.Tensor, variables: Variables, units: tf.Tensor, held: tf.Tensor
    ) -> tf.Tensor:
        """Latent weights of which those that are held are where their level is now."""
        basis = tf.convert_to_tensor(variables[self.levels_name])
        values = lq_nets.level_values(units, basis, range_axes=self.range_axes)
        return tf.where(held, values, latent)
