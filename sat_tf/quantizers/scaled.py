"""What weight quantizers share whose effective weights have the size of the latent ones."""

import abc
from typing import Any, ClassVar

import tensorflow as tf
import tf_keras as keras

from sat_tf.core import grid, rescale
from sat_tf.core.grid_table import LARGEST_INT8
from sat_tf.core.ranges import range_shape
from sat_tf.core.surrogate_table import describe_surrogate
from sat_tf.quantizers.constructors import OfScaled, OfScaledWithSurrogate
from sat_tf.quantizers.observers import when_training
from sat_tf.quantizers.on_grid import RoundedWeights
from sat_tf.quantizers.pact import AtLeast
from sat_tf.quantizers.protocol import (
    IntegerWeights,
    Variables,
    WeightQuantizer,
    WeightRequest,
    bits_of,
)
from sat_tf.quantizers.settings import GAIN, SURROGATE_OPTIONS

# Weights of that size need no rescaling of the kind "stddev", which gives quantized weights the
# size of the latent ones.
_RESCALES = ("constant",)


class ScaledQuantizer(OfScaled, RoundedWeights):
    """Latent weights to effective weights of their own size, with scales for layer or channels.

    Forward: Ξ = gain · c · q, with q from the subclass (the latent weights where `num_bits` is
    None). c is SAT's constant rescaling (Eq. 10) of layers without BatchNormalization right behind
    them, where the policy has rescale="constant", and 1 otherwise. Backward: c carries its
    gradient, which that of the paper does not: see `rescale.without_size`. The gain is the fixed
    variable `rescale_gain`, which gives a pretrained layer its size back; it exists where there is
    a rescaling.

    Required: `quantized`, `codes_and_scales`, `largest_code`.

    Args:
        num_bits: bits of the codes, or None to not round.
        range_axes: kernel axes with a scale of their own; () for one scale a layer.
        rescale: "constant", or None.
        fan_out: the layer's n̂, for the rescaling.
    """

    @classmethod
    def create(cls, request: WeightRequest) -> WeightQuantizer:
        """The quantizer of one kernel."""
        return cls(**cls.asked(request), **request.options)

    @classmethod
    def asked(cls, request: WeightRequest) -> dict[str, Any]:
        """What it takes of a request."""
        return {
            "num_bits": request.num_bits,
            "range_axes": request.channel_axes if request.range == "channel" else (),
            "rescale": request.rescale if request.rescale in _RESCALES else None,
            "fan_out": request.fan_out,
        }

    @classmethod
    def asked_names(cls) -> tuple[str, ...]:
        """The arguments of the constructor that a policy and the graph give it."""
        return tuple(cls.asked(WeightRequest(num_bits=8)))

    # -- what the subclasses say -------------------------------------------------------------------

    # In words, for `describe`.
    method: ClassVar[str]

    @abc.abstractmethod
    def quantized(self, latent: tf.Tensor, variables: Variables, num_bits: Any) -> tf.Tensor:
        """The quantized weights q before the rescaling, with their gradient.

        Args:
            latent: float32.
            variables: its own.
            num_bits: see `grid.Bits`.
        """

    @abc.abstractmethod
    def codes_and_scales(
        self, latent: tf.Tensor, variables: Variables
    ) -> tuple[tf.Tensor, tf.Tensor]:
        """The quantized weights q as integers and float64 scales of the kernel's rank."""

    # -- what follows from that --------------------------------------------------------------------

    def build(self, tensor_shape: Any, name: str, layer: keras.layers.Layer) -> dict[str, Any]:
        """Makes the variable `rescale_gain`, where there is a rescaling."""
        del tensor_shape, name
        if self.rescale is None:
            return {}
        gain = layer.add_weight(
            name=GAIN,
            shape=(),
            dtype=tf.float32,
            initializer=keras.initializers.Ones(),
            trainable=False,
        )
        return {GAIN: gain}

    def __call__(
        self, inputs: tf.Tensor, training: Any, weights: Variables, **kwargs: Any
    ) -> tf.Tensor:
        """Effective weights from latent weights, both in float32."""
        del training, kwargs
        values = inputs
        if self.num_bits is not None:
            values = self.quantized(inputs, weights, bits_of(self.num_bits, weights))
        if self.rescale is None:
            return values
        return rescale.without_size(values) * self._factor(values, weights)

    def _factor(self, values: tf.Tensor, variables: Variables) -> tf.Tensor:
        """The product of c and gain."""
        factor = rescale.rescale_factor(values, self.fan_out, self.rescale or "none")
        return factor * variables[GAIN] if GAIN in variables else factor

    def integer_weights(self, latent: tf.Tensor, variables: Variables) -> IntegerWeights:
        """Codes and scales of q, these times c and the gain where the layer has them."""
        codes, scales = self.codes_and_scales(latent, variables)
        if self.rescale is not None:
            values = self.quantized(latent, variables, self.num_bits)
            scales *= tf.cast(self._factor(values, variables), tf.float64)
        return IntegerWeights(codes, scales)

    def rescale_constant(self, latent: tf.Tensor, variables: Variables) -> float | None:
        """The product of c and gain; None without a rescaling."""
        if self.rescale is None:
            return None
        values = self.with_settings(rescale=None)(latent, False, variables)
        return float(self._factor(values, variables))

    def keep_function(self, kernel: tf.Variable, variables: Variables) -> None:
        """Gives the gain the size that the rescaling takes from a float kernel."""
        self.start(kernel, variables)
        if GAIN in variables:
            latent = tf.convert_to_tensor(kernel, tf.float32)
            factor = rescale.rescale_factor(latent, self.fan_out, self.rescale or "none")
            variables[GAIN].assign(1.0 / factor)

    def carries(self, before: WeightQuantizer, *, keep_function: bool) -> bool:
        """Not where another rescaling would change the function."""
        same = super().carries(before, keep_function=keep_function)
        return same and (before.rescale == self.rescale or not keep_function)

    def describe(self) -> str:
        """One line for people."""
        rounded = "not rounded" if self.num_bits is None else f"of {self.num_bits} bits"
        whose = "channel" if self.channels_differ else "layer"
        rescaled = f"{self.rescale} rescale" if self.rescale else "no rescale"
        return f"{self.method} weights {rounded}, one scale per {whose}, {rescaled}"


class ScaledWithSurrogate(OfScaledWithSurrogate, ScaledQuantizer):
    """One that rounds to a grid, whose rounding may pass back something else.

    Args:
        surrogate: what rounding passes back, a row of `surrogate_table`.
        surrogate_strength: see there; None is the usual one.
        **settings: those of `ScaledQuantizer`.
    """

    def learnt(
        self,
        layer: keras.layers.Layer,
        name: str,
        tensor_shape: Any,
        *,
        start: float,
        lowest: float,
    ) -> tf.Variable:
        """A new trainable variable of a layer, one number for each range, kept from `lowest` on."""
        axes = self.range_axes
        return layer.add_weight(
            name=name,
            shape=range_shape(tensor_shape, axes) if axes else (),
            dtype=tf.float32,
            initializer=keras.initializers.Constant(start),
            trainable=True,
            constraint=AtLeast(lowest),
        )

    @classmethod
    def option_names(cls) -> tuple[str, ...]:
        """What a policy may choose."""
        return SURROGATE_OPTIONS

    def describe(self) -> str:
        """One line for people."""
        return super().describe() + describe_surrogate(self.surrogate, self.surrogate_strength)


class LevelsOfWeights(ScaledQuantizer):
    """One whose values no grid tells, but a variable that follows the weights and is not trained.

    It is assigned in training steps, by every replica for itself: as all of them have the same
    latent weights, it stays the same on all. Codes are whatever int8 holds.

    While a floor keeps the bits above its own, weights are rounded to the narrow grid of as many
    bits, up to the largest weight of each range.

    Required: `codes_and_scales`, and what is abstract here.

    Attributes:
        levels_name: of the variable.
        levels_type: its type.
        levels_settings: the settings on which its start depends.
    """

    levels_name: ClassVar[str]
    levels_type: ClassVar[tf.DType] = tf.float32
    levels_settings: ClassVar[tuple[str, ...]] = ("num_bits",)

    @abc.abstractmethod
    def levels_shape(self, kernel_shape: Any) -> Any:
        """The shape of the variable."""

    @abc.abstractmethod
    def first_levels(self, kernel: tf.Tensor) -> tf.Tensor:
        """What the variable starts with, from latent weights, in float32."""

    @abc.abstractmethod
    def values(self, latent: tf.Tensor, levels: tf.Tensor) -> tf.Tensor:
        """The quantized weights before the rescaling, with their gradient."""

    @abc.abstractmethod
    def next_levels(self, latent: tf.Tensor, levels: tf.Tensor) -> tf.Tensor | None:
        """What the variable is from the next step on; None where it stays as it is."""

    def build(self, tensor_shape: Any, name: str, layer: keras.layers.Layer) -> dict[str, Any]:
        """Makes the variable, where it rounds, and the gain of a rescaling."""
        made = super().build(tensor_shape, name, layer)
        if self.num_bits is None:
            return made
        levels = layer.add_weight(
            name=self.levels_name,
            shape=self.levels_shape(tensor_shape),
            dtype=self.levels_type,
            initializer=keras.initializers.Zeros(),
            trainable=False,
            # Nothing is sent between replicas: they would wait for each other for ever, as layers
            # make their effective weights one at a time.
            synchronization=tf.VariableSynchronization.ON_READ,
            aggregation=tf.VariableAggregation.ONLY_FIRST_REPLICA,
        )
        return {**made, self.levels_name: levels}

    def start(self, kernel: tf.Variable, variables: Variables) -> None:
        """What the latent weights tell."""
        if self.levels_name in variables:
            latent = tf.cast(tf.convert_to_tensor(kernel), tf.float32)
            variables[self.levels_name].assign(self.first_levels(latent))

    def __call__(
        self, inputs: tf.Tensor, training: Any, weights: Variables, **kwargs: Any
    ) -> tf.Tensor:
        """Effective weights from latent weights, both in float32."""
        if self.num_bits is None:
            return super().__call__(inputs, training, weights, **kwargs)
        # Read once, so that graphs compute but once what both of the following need.
        levels = tf.convert_to_tensor(weights[self.levels_name])
        read = {**weights, self.levels_name: levels}
        made = super().__call__(inputs, training, read, **kwargs)

        def follow() -> tf.Tensor:
            found = self.next_levels(inputs, levels)
            if found is not None:
                weights[self.levels_name].assign(found)
            return tf.constant(0.0)

        when_training(training, follow)
        return made

    def quantized(self, latent: tf.Tensor, variables: Variables, num_bits: grid.Bits) -> tf.Tensor:
        """`values`, or the narrow grid."""
        values = self.values(latent, tf.convert_to_tensor(variables[self.levels_name]))
        if not tf.is_tensor(num_bits):
            return values
        finer = grid.round_to_largest(latent, num_bits, range_axes=self.range_axes)
        return tf.where(num_bits > self.bits, finer, values)

    @property
    def largest_code(self) -> int:
        """That of int8."""
        return LARGEST_INT8

    @property
    def top_unit(self) -> int:
        """The number of its values, less one."""
        return 2**self.bits - 1

    def carry(
        self,
        latent: tf.Tensor,
        variables: Variables,
        before: WeightQuantizer,
        before_variables: Variables,
        *,
        keep_function: bool,
    ) -> None:
        """Takes over the gain, and what the variable has become where it would start the same way.

        See `WeightQuantizer.carry`.
        """
        super().carry(latent, variables, before, before_variables, keep_function=keep_function)
        old, new = before.get_config(), self.get_config()
        if any(old.get(name) != new[name] for name in self.levels_settings):
            self.start(latent, variables)
