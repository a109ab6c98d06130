"""Bases of weight quantizers: with bits and ranges, on a grid, with weights of the latent size.

The last one has values from a variable that follows the weights, not from a grid.
"""

import abc
import dataclasses
import math
from collections.abc import Sequence
from typing import Any, ClassVar

from sat_tf.core import dorefa, grid
from sat_tf.core.gradients import straight_through
from sat_tf.core.grid import LARGEST_INT8, Bits, Grid, check_bits, find_grid, range_shape
from sat_tf.core.tensor_ops import Tensor, in_float32, is_tensor, namespace
from sat_tf.quantizers import protocol
from sat_tf.quantizers.observers import when_training
from sat_tf.quantizers.values import GAIN, IntegerWeights, Variables, known_sizes


@dataclasses.dataclass(kw_only=True, eq=False, repr=False)
class RoundedWeights(protocol.WeightQuantizer):
    """A quantizer of weights with scales for a layer or for its channels."""

    num_bits: int | None  # 1 to 8, or None to not round.
    range_axes: tuple[int, ...] = ()  # Kernel axes with a scale of their own; () is one a layer.
    rescale: str | None = None  # A name of `dorefa.RESCALINGS`, or None.
    fan_out: int = 1  # The layer's n̂, for the rescaling.

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.num_bits is None:
            return
        check_bits(self.num_bits)
        if self.num_bits < self.fewest_bits:
            raise ValueError(
                f"num_bits={self.num_bits}: {self.policy_name} weights exist at "
                f"{self.fewest_bits} bits or more; give them as many, or use "
                "weight_quantizer='dorefa' or 'l1'."
            )

    @property
    def bits(self) -> int:
        """The bits of the codes; an error where it does not round."""
        if self.num_bits is None:
            raise ValueError(f"{self!r}: received a quantizer that does not round; give it bits.")
        return self.num_bits

    @property
    def channels_differ(self) -> bool:
        return bool(self.range_axes)

    def _described(self, method: str, unit: str) -> str:
        """The words that all of these quantizers have for `describe`."""
        rounded = "not rounded" if self.num_bits is None else f"of {self.num_bits} bits"
        whose = "channel" if self.channels_differ else "layer"
        rescaled = f"{self.rescale} rescale" if self.rescale else "no rescale"
        return f"{method} weights {rounded}{unit} per {whose}, {rescaled}"


@dataclasses.dataclass(kw_only=True, eq=False, repr=False)
class WeightsOnGrid(RoundedWeights):
    """A quantizer whose codes are those of a row of `grid.GRIDS`."""

    follows_grid: ClassVar[bool] = True
    zeros_stay_with: ClassVar[str] = "weight_grid='narrow'"

    grid: str = "auto"  # The name of a grid, or one of `grid.AUTOMATIC`.

    @property
    def row(self) -> Grid:
        """The row of its grid, at its bits."""
        return find_grid(self.grid, self.bits)

    @property
    def largest_code(self) -> int:
        return self.row.largest_code(self.bits)

    @property
    def code_ends(self) -> tuple[int, int]:
        return self.row.code_ends(self.bits)

    @property
    def grid_name(self) -> str:
        """The name of the grid; for an automatic one, that of the grid at its bits."""
        return self.grid if self.num_bits is None else self.row.name

    @property
    def holds_zero(self) -> bool:
        # Every other code of a grid is left out where there are two of them to a unit: 0 among
        # them.
        return self.num_bits is None or self.row.codes_per_unit == 1

    @property
    def top_unit(self) -> int:
        return self.row.top(self.bits)


class ScaledQuantizer(RoundedWeights):
    """Latent weights to effective weights of their own size, with scales for layer or channels.

    Forward: Ξ = gain · c · q, with q from the subclass (the latent weights where `num_bits` is
    None). c is SAT's constant rescaling (Eq. 10) of layers without BatchNormalization right after
    them, where the policy has rescale="constant", and 1 otherwise. Backward: c carries its
    gradient: see `dorefa.without_size`. The gain is the fixed variable `rescale_gain`, which gives
    a pretrained layer its size back; it exists where there is a rescaling.
    """

    asks: ClassVar[tuple[str, ...]] = ("num_bits", "range_axes", "fan_out")

    @classmethod
    def asked(cls, request: protocol.WeightRequest) -> dict[str, Any]:
        # These weights have the size of the latent ones: "stddev" has nothing to give back.
        rescale = "constant" if request.rescale == "constant" else None
        return {**super().asked(request), "rescale": rescale}

    # The name of the method, for `describe`.
    method: ClassVar[str]

    @abc.abstractmethod
    def codes_and_scales(
        self, latent: Tensor, variables: Variables, num_bits: Bits
    ) -> tuple[Tensor, Tensor]:
        """The quantized weights q as integers of any type, and their scales, of ranges or one.

        A NaN among the codes is an error for those who need integers.
        """

    def quantized(self, latent: Tensor, variables: Variables, num_bits: Bits) -> Tensor:
        """The quantized weights q before the rescaling, with their gradient: straight-through."""
        held = namespace(latent).stop_gradient(latent)
        codes, scales = self.codes_and_scales(held, variables, num_bits)
        return straight_through(codes * scales, latent)

    def variables(self, shape: Sequence[int | None]) -> dict[str, protocol.VariableSpec]:
        return {} if self.rescale is None else {GAIN: protocol.VariableSpec(start=1.0)}

    def __call__(self, inputs: Tensor, training: Any, variables: Variables) -> Tensor:
        values = inputs
        if self.num_bits is not None:
            n = namespace(inputs)
            values = n.tensor(inputs)
            # The types of mixed precision hold too few digits.
            bits = protocol.bits_of(self.num_bits, variables)
            quantized = self.quantized(in_float32(n, values), variables, bits)
            values = n.cast(quantized, values.dtype)
        if self.rescale is None:
            return values
        return dorefa.without_size(values) * self._factor(values, variables)

    def _factor(self, values: Tensor, variables: Variables) -> Tensor:
        """The product of c and gain."""
        factor = dorefa.rescale_factor(values, self.fan_out, self.rescale or "none")
        if GAIN not in variables:
            return factor
        return factor * namespace(factor).tensor(variables[GAIN])

    def integer_weights(self, latent: Tensor, variables: Variables) -> IntegerWeights:
        n = namespace(latent)
        latent = in_float32(n, latent)
        codes, scales = self.codes_and_scales(latent, variables, self.bits)
        problem = f"{self.policy_name}: NaN has no integer code"
        codes = n.cast(n.check_numerics(in_float32(n, codes), problem), "int32")
        scales = n.in_widest(scales)
        if not len(scales.shape):
            scales = n.reshape(scales, [1] * len(codes.shape))
        if self.rescale is not None:
            values = self.quantized(latent, variables, self.bits)
            scales *= n.in_widest(self._factor(values, variables))
        return IntegerWeights(codes, scales)

    def rescale_constant(self, latent: Tensor, variables: Variables) -> float | None:
        if self.rescale is None:
            return None
        values = self.with_settings(rescale=None)(latent, False, variables)
        return float(self._factor(values, variables))

    def keep_function(self, kernel: Any, variables: Variables) -> None:
        """Gives the gain the size that the rescaling takes from a float kernel."""
        self.begin(kernel, variables)
        if GAIN in variables:
            latent = in_float32(namespace(kernel), kernel)
            factor = dorefa.rescale_factor(latent, self.fan_out, self.rescale or "none")
            variables[GAIN].assign(1.0 / factor)

    def carries(self, before: protocol.Predecessor) -> bool:
        """Whether no other rescaling changes the function."""
        same = before.quantizer.rescale == self.rescale
        return super().carries(before) and (same or not before.keep_function)

    def describe(self) -> str:
        return self._described(self.method, ", one scale")


@dataclasses.dataclass(kw_only=True, eq=False, repr=False)
class ScaledWithSurrogate(protocol.WithSurrogate, ScaledQuantizer):
    """A base of weight quantizers with scales for the layer or its channels.

    It has the bits, the ranges, the rescaling and the options `surrogate` and `surrogate_strength`:

        @sat_tf.configs.weight_quantizer("largest")
        @dataclasses.dataclass(kw_only=True, eq=False, repr=False)
        class Largest(sat_tf.configs.ScaledWithSurrogate):
            method = "largest"  # for people
            fewest_bits = 2

            @property
            def largest_code(self):
                return 2 ** (self.bits - 1) - 1

            def codes_and_scales(self, latent, variables, num_bits):
                n = sat_tf.configs.namespace(latent)
                inner = sat_tf.configs.axes_within(len(latent.shape), self.range_axes)
                largest = n.max(n.abs(latent), axis=tuple(inner), keepdims=True)
                highest = sat_tf.configs.levels(num_bits, "narrow") / 2.0
                scales = n.maximum(largest, 1e-12) / highest
                return sat_tf.configs.round_half_up(latent / scales), scales

    With progressive bits `num_bits` is a tensor. `quantized` is straight-through: a quantizer with
    another gradient, to its variables too, has its own. Options that are annotated `bool`, `float`
    or `Literal` are checked.
    """

    def learnt(
        self, kernel_shape: Sequence[int | None], *, deviations: float, lowest: float
    ) -> protocol.VariableSpec:
        """A trainable variable, one number for each range, kept from `lowest` on.

        Until `begin` sees the kernel it has so many deviations of a usual one, sqrt(2 / n) with n
        inputs of each output.
        """
        sizes, axes = known_sizes(kernel_shape), self.range_axes
        start = deviations * math.sqrt(2.0 / math.prod(sizes[:-1]))
        shape = range_shape(sizes, axes) if axes else ()
        return protocol.VariableSpec(shape=shape, start=start, trainable=True, lowest=lowest)

    def of_range_or_layer(self, own: Tensor, of_layer: Tensor, usual: Any, lowest: float) -> Tensor:
        """A size for each range; for a range of zeros, that of its layer or the usual one."""
        n = namespace(own)
        of_layer = n.where(of_layer >= lowest, of_layer, n.tensor(usual))
        return n.where(own >= lowest, own, of_layer)

    def describe(self) -> str:
        return super().describe() + self.estimator.describe()


class LevelsOfWeights(ScaledQuantizer):
    """A base of weight quantizers with values from a variable that follows the weights, untrained.

    A dataclass of its own names the variable and has `levels_shape`, `first_levels` and
    `codes_and_scales`; where the variable changes in training, `follows` and `next_levels` as well.
    It is assigned in training steps, by every replica for itself: as all of them have the same
    latent weights, it stays the same on all. Codes are whatever int8 holds. While a floor keeps the
    bits above its own, weights are rounded to the narrow grid of the floor's bits.
    """

    levels_name: ClassVar[str]  # The name of the variable.
    levels_type: ClassVar[str] = "float32"  # Its type.
    # The settings on which its start depends.
    levels_settings: ClassVar[tuple[str, ...]] = ("num_bits",)

    @abc.abstractmethod
    def levels_shape(self, kernel_shape: Sequence[int]) -> Sequence[int]:
        """The shape of the variable."""

    @abc.abstractmethod
    def first_levels(self, kernel: Tensor) -> Any:
        """The first values of the variable, from latent weights in float32."""

    def values(self, latent: Tensor, levels: Tensor) -> Tensor:
        """The quantized weights before the rescaling, with their gradient: straight-through."""
        return super().quantized(latent, {self.levels_name: levels}, self.bits)

    @property
    def follows(self) -> bool:
        """Whether the variable changes in training steps."""
        return False

    def next_levels(self, latent: Tensor, levels: Tensor) -> Tensor:
        """The values of the variable from the next step on, where it follows the weights."""
        return levels

    def variables(self, shape: Sequence[int | None]) -> dict[str, protocol.VariableSpec]:
        specs = super().variables(shape)
        if self.num_bits is None:
            return specs
        levels = protocol.VariableSpec(
            shape=self.levels_shape(known_sizes(shape)),
            dtype=self.levels_type,
            follows_data=self.follows,
        )
        return {**specs, self.levels_name: levels}

    def begin(self, kernel: Any, variables: Variables) -> None:
        if self.levels_name in variables:
            latent = in_float32(namespace(kernel), kernel)
            variables[self.levels_name].assign(self.first_levels(latent))

    def __call__(self, inputs: Tensor, training: Any, variables: Variables) -> Tensor:
        if self.num_bits is None:
            return super().__call__(inputs, training, variables)
        # The variable is read once, so that graphs compute only once what both uses need.
        n = namespace(inputs)
        levels = n.tensor(variables[self.levels_name])
        quantized = super().__call__(inputs, training, {**variables, self.levels_name: levels})

        def follow() -> Tensor:
            latent = in_float32(n, n.stop_gradient(inputs))
            next_levels = self.next_levels(latent, levels)
            variables[self.levels_name].assign(next_levels)
            return n.tensor(0.0)

        if self.follows:
            when_training(training, follow)
        return quantized

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

    def carry(self, latent: Tensor, variables: Variables, before: protocol.Predecessor) -> None:
        """Takes over the gain, and the variable where it would start the same way."""
        old, new = before.quantizer.get_config(), self.get_config()
        if any(old.get(name) != new[name] for name in self.levels_settings):
            kept = {name: v for name, v in before.variables.items() if name != self.levels_name}
            before = dataclasses.replace(before, variables=kept)
        super().carry(latent, variables, before)
