"""What weight quantizers share whose effective weights have the size of the latent ones.

As `sat_tf.quantizers.scaled`.
"""

import abc
from collections.abc import Sequence
from typing import Any, ClassVar

from keras import ops

from sat_tf.core.ranges import range_shape
from sat_tf.keras3.core import rescale
from sat_tf.keras3.quantizers.protocol import Quantizer, Variables, VariableSpec
from sat_tf.quantizers.constructors import OfScaled, OfScaledWithSurrogate
from sat_tf.quantizers.settings import GAIN


class ScaledQuantizer(OfScaled, Quantizer):
    """Latent weights to effective weights of their own size, with scales for layer or channels.

    Forward: Ξ = gain · c · q, with q from the subclass (the latent weights where `num_bits` is
    None), c by `rescale`, whose gradient is that of `rescale.without_size`, and the fixed variable
    `rescale_gain`; both are 1 where there is no rescaling.
    """

    @abc.abstractmethod
    def quantized(self, latent: Any, variables: Variables, num_bits: int) -> Any:
        """The quantized weights q before the rescaling, with their gradient."""

    def variables(self, shape: Sequence[int | None]) -> dict[str, VariableSpec]:
        """`rescale_gain`, where there is a rescaling."""
        del shape
        return {} if self.rescale is None else {GAIN: VariableSpec(start=1.0)}

    def __call__(self, inputs: Any, training: bool, variables: Variables) -> Any:
        """Effective weights from latent weights, both in float32."""
        del training
        values = ops.convert_to_tensor(inputs)
        if self.num_bits is not None:
            values = self.quantized(values, variables, self.num_bits)
        if self.rescale is None:
            return values
        factor = rescale.rescale_factor(values, self.fan_out, self.rescale)
        return rescale.without_size(values) * (factor * ops.convert_to_tensor(variables[GAIN]))


class ScaledWithSurrogate(OfScaledWithSurrogate, ScaledQuantizer):
    """One that rounds to a grid, whose rounding may pass back something else."""

    def learnt(
        self, kernel_shape: Sequence[int | None], *, start: float, lowest: float
    ) -> VariableSpec:
        """A trainable variable, one number for each range, kept from `lowest` on."""
        axes = self.range_axes
        shape = tuple(range_shape(known(kernel_shape), axes)) if axes else ()
        return VariableSpec(shape=shape, start=start, trainable=True, lowest=lowest)


class LevelsOfWeights(ScaledQuantizer):
    """One whose values no grid tells, but a variable that is not trained.

    Attributes:
        levels_name: of the variable.
        levels_type: its type.
    """

    levels_name: ClassVar[str]
    levels_type: ClassVar[str] = "float32"

    @abc.abstractmethod
    def levels_shape(self, kernel_shape: Sequence[int]) -> Sequence[int]:
        """The shape of the variable."""

    @abc.abstractmethod
    def values(self, latent: Any, levels: Any) -> Any:
        """The quantized weights before the rescaling, with their gradient."""

    @property
    def follows(self) -> bool:
        """Whether the variable follows the weights in training."""
        return False

    def next_levels(self, latent: Any, levels: Any) -> Any:
        """What the variable is from the next step on, of one that follows the weights."""
        del latent
        return levels

    def variables(self, shape: Sequence[int | None]) -> dict[str, VariableSpec]:
        """The levels, where it rounds, and the gain of a rescaling."""
        made = super().variables(shape)
        if self.num_bits is None:
            return made
        levels = VariableSpec(
            shape=tuple(self.levels_shape(known(shape))),
            dtype=self.levels_type,
            follows_data=self.follows,
        )
        return {**made, self.levels_name: levels}

    def __call__(self, inputs: Any, training: bool, variables: Variables) -> Any:
        """Effective weights from latent weights, both in float32."""
        if self.num_bits is None:
            return super().__call__(inputs, training, variables)
        levels = ops.convert_to_tensor(variables[self.levels_name])
        made = super().__call__(inputs, training, {**variables, self.levels_name: levels})
        if training and self.follows:
            found = self.next_levels(ops.stop_gradient(inputs), levels)
            variables[self.levels_name].assign(found)
        return made

    def quantized(self, latent: Any, variables: Variables, num_bits: int) -> Any:
        """`values`."""
        del num_bits
        return self.values(latent, variables[self.levels_name])


def known(kernel_shape: Sequence[int | None]) -> tuple[int, ...]:
    """The shape of a kernel, all of which is known.

    Raises:
        ValueError: some of it is not.
    """
    sizes = tuple(size for size in kernel_shape if size is not None)
    if len(sizes) < len(kernel_shape):
        raise ValueError(
            f"received a kernel of shape {tuple(kernel_shape)}, expected known sizes; build the "
            "layer for an input whose channels are known."
        )
    return sizes
