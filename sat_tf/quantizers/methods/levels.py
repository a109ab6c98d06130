"""The base of weights whose values no grid tells, but a variable that follows them."""

import abc
from collections.abc import Sequence
from typing import Any, ClassVar

from sat_tf.core import grid
from sat_tf.core.grid import LARGEST_INT8, Bits
from sat_tf.core.tensors import Tensor, in_float32, is_tensor, namespace
from sat_tf.quantizers.observers import when_training
from sat_tf.quantizers.protocol import Predecessor, VariableSpec
from sat_tf.quantizers.scaled import ScaledQuantizer
from sat_tf.quantizers.settings import known_sizes
from sat_tf.quantizers.values import Variables


class LevelsOfWeights(ScaledQuantizer):
    """One whose values no grid tells, but a variable that follows the weights and is not trained.

    It is assigned in training steps, by every replica for itself: as all of them have the same
    latent weights, it stays the same on all. Codes are whatever int8 holds.

    While a floor keeps the bits above its own, weights are rounded to the narrow grid of as many
    bits, up to the largest weight of each range.

    Required: `codes_and_scales`, and what is abstract here; where it follows the weights,
    `next_levels`.
    """

    levels_name: ClassVar[str]  # Of the variable.
    levels_type: ClassVar[str] = "float32"  # Its type.
    # The settings on which its start depends.
    levels_settings: ClassVar[tuple[str, ...]] = ("num_bits",)

    @abc.abstractmethod
    def levels_shape(self, kernel_shape: Sequence[int]) -> Sequence[int]:
        """The shape of the variable."""

    @abc.abstractmethod
    def first_levels(self, kernel: Tensor) -> Any:
        """The first values of the variable, from latent weights in float32."""

    @abc.abstractmethod
    def values(self, latent: Tensor, levels: Tensor) -> Tensor:
        """The quantized weights before the rescaling, with their gradient."""

    @property
    def follows(self) -> bool:
        """Whether the variable changes in training steps."""
        return False

    def next_levels(self, latent: Tensor, levels: Tensor) -> Tensor:
        """The values of the variable from the next step on, where it follows the weights."""
        return levels

    def variables(self, shape: Sequence[int | None]) -> dict[str, VariableSpec]:
        made = super().variables(shape)
        if self.num_bits is None:
            return made
        levels = VariableSpec(
            shape=self.levels_shape(known_sizes(shape)),
            dtype=self.levels_type,
            follows_data=self.follows,
        )
        return {**made, self.levels_name: levels}

    def begin(self, kernel: Any, variables: Variables) -> None:
        if self.levels_name in variables:
            latent = in_float32(namespace(kernel), kernel)
            variables[self.levels_name].assign(self.first_levels(latent))

    def __call__(self, inputs: Tensor, training: Any, variables: Variables) -> Tensor:
        if self.num_bits is None:
            return super().__call__(inputs, training, variables)
        # Read once, so that graphs compute but once what both of the following need.
        n = namespace(inputs)
        levels = n.tensor(variables[self.levels_name])
        made = super().__call__(inputs, training, {**variables, self.levels_name: levels})

        def follow() -> Tensor:
            found = self.next_levels(n.stop_gradient(inputs), levels)
            variables[self.levels_name].assign(found)
            return n.tensor(0.0)

        if self.follows:
            when_training(training, follow)
        return made

    def quantized(self, latent: Tensor, variables: Variables, num_bits: Bits) -> Tensor:
        """`values`, or the narrow grid."""
        n = namespace(latent)
        values = self.values(latent, n.tensor(variables[self.levels_name]))
        if not is_tensor(num_bits):
            return values
        finer = grid.round_to_largest(latent, num_bits, range_axes=self.range_axes)
        return n.where(num_bits > self.bits, finer, values)

    @property
    def largest_code(self) -> int:
        return LARGEST_INT8

    @property
    def top_unit(self) -> int:
        """The number of its values, less one."""
        return 2**self.bits - 1

    def carry(self, latent: Tensor, variables: Variables, before: Predecessor) -> None:
        """Takes over the gain, and the variable where it would start the same way."""
        super().carry(latent, variables, before)
        old, new = before.quantizer.get_config(), self.get_config()
        if any(old.get(name) != new[name] for name in self.levels_settings):
            self.begin(latent, variables)
