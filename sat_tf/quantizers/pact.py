"""Activations with a clipping level: PACT, CG-PACT, and their forms for what can be negative."""

from typing import Any, ClassVar

import numpy as np
import tensorflow as tf
import tf_keras as keras

from sat_tf.core import asymmetric, grid, pact
from sat_tf.core.ranges import scale_and_zero
from sat_tf.quantizers.best_levels import (
    best_clipping_level,
    best_offset_level,
    search,
)
from sat_tf.quantizers.constructors import OfClipping, OfClippingAndRounding, OfOffset, OfUnit
from sat_tf.quantizers.protocol import (
    ActivationQuantizer,
    ActivationRequest,
    CodeRange,
    Function,
    Variables,
    bits_of,
    register_quantizer,
)
from sat_tf.quantizers.settings import (
    CLIPPING_LEVEL,
    SMALLEST_CLIPPING_LEVEL,
    SURROGATE_OPTIONS,
    first_clipping_level,
)


class ClippingQuantizer(OfClipping, ActivationQuantizer):
    """A quantizer with a trainable clipping level."""

    has_clipping_level: ClassVar[bool] = True
    gradient: str
    initial_clipping_level: float

    @classmethod
    def create(cls, request: ActivationRequest) -> ActivationQuantizer:
        """The quantizer of one tensor that it serves."""
        return cls(**settings_of(request), **request.options)

    @classmethod
    def asked_names(cls) -> tuple[str, ...]:
        """The arguments of the constructor that a policy and the graph give it."""
        return ("num_bits", "initial_clipping_level", "gradient", "ceiling", "rate")

    def build(self, tensor_shape: Any, name: str, layer: keras.layers.Layer) -> dict[str, Any]:
        """Makes the trainable scalar `clipping_level`, at least 1e-3 and without weight decay."""
        del tensor_shape, name
        start = first_clipping_level(self.initial_clipping_level, self.ceiling)
        level = layer.add_weight(
            name=CLIPPING_LEVEL,
            shape=(),
            dtype=tf.float32,
            initializer=keras.initializers.Constant(start),
            trainable=True,
            constraint=AtLeast(SMALLEST_CLIPPING_LEVEL),
        )
        return {CLIPPING_LEVEL: level}

    def level(self, weights: Variables) -> tf.Tensor:
        """The clipping level, which learns at its own rate."""
        level = weights[CLIPPING_LEVEL]
        return level if self.rate == 1.0 else pact.learning_at_rate(level, self.rate)

    def best_level(
        self,
        values: np.ndarray,
        largest: float,
        counts: np.ndarray | None = None,
        function: Function | None = None,
    ) -> float:
        """The clipping level with the smallest error on values, by the quantizer's own forward."""

        def quantize(values: np.ndarray, level: float) -> np.ndarray:
            variables = {CLIPPING_LEVEL: tf.constant(level, tf.float32)}
            return np.asarray(self(tf.constant(values), False, variables).numpy())

        return search(quantize, values, largest, self.num_bits, counts=counts, function=function)


def settings_of(request: ActivationRequest) -> dict[str, Any]:
    """What a quantizer with a clipping level takes of a request."""
    names = ("num_bits", "gradient", "rate", "ceiling")
    return {name: getattr(request, name) for name in names}


class RoundingQuantizer(OfClippingAndRounding, ClippingQuantizer):
    """A quantizer with a clipping level that has a choice of what rounding passes back."""

    @classmethod
    def option_names(cls) -> tuple[str, ...]:
        """What a policy may choose."""
        return SURROGATE_OPTIONS


class UpToItsLevel(RoundingQuantizer):
    """A quantizer whose largest value is its clipping level; where `signed`, on both sides."""

    def __call__(
        self, inputs: tf.Tensor, training: Any, weights: Variables, **kwargs: Any
    ) -> tf.Tensor:
        """The quantized tensor, in the type of `inputs`."""
        del training, kwargs
        return self.quantized(inputs, self.level(weights), bits_of(self.num_bits, weights))

    def quantized(self, inputs: tf.Tensor, level: tf.Tensor, bits: grid.Bits) -> tf.Tensor:
        """`pact.quantize_activation`, or where `signed` `pact.quantize_stream`."""
        quantize = pact.quantize_stream if self.signed else pact.quantize_activation
        return quantize(inputs, level, bits, self.gradient, **self.passed_back)

    def code_range(self, variables: Variables) -> CodeRange:
        """Codes 0..a, or -a/2..a/2.

        >>> found = StreamQuantizer(num_bits=3).code_range({"clipping_level": tf.constant(6.0)})
        >>> float(found.scale), float(found.lowest), found.intervals
        (2.0, -3.0, 6)
        """
        level = tf.convert_to_tensor(variables[CLIPPING_LEVEL])
        return (_symmetric if self.signed else _unsigned)(self.num_bits, level)

    def float_twin(self, inputs: tf.Tensor) -> tf.Tensor:
        """What it would be without rounding and with no clipping but the rectifier's own."""
        made = super().float_twin(inputs)
        if self.signed or self.ceiling is None:
            return made
        return tf.minimum(made, tf.cast(self.ceiling, inputs.dtype))

    def highest_value(self, variables: Variables) -> float:
        """The clipping level."""
        return float(tf.convert_to_tensor(variables[CLIPPING_LEVEL]).numpy())

    def best_level(
        self,
        values: np.ndarray,
        largest: float,
        counts: np.ndarray | None = None,
        function: Function | None = None,
    ) -> float:
        """The clipping level with the smallest error on values."""
        return best_clipping_level(
            values, largest, self.num_bits, signed=self.signed, counts=counts, function=function
        )


@register_quantizer
class PactQuantizer(UpToItsLevel):
    """Rectifies, clips and quantizes to 0..2^b - 1: `pact.quantize_activation` (Eq. 11 to 13)."""

    signed = False

    @classmethod
    def serves(cls, request: ActivationRequest) -> bool:
        """All tensors, with the quantizers of this file for those that are not rectified."""
        return True

    @classmethod
    def create(cls, request: ActivationRequest) -> ActivationQuantizer:
        """The quantizer of this file for the values that a tensor has."""
        settings, reach = {**settings_of(request), **request.options}, request.reach
        if reach is None:
            return (StreamQuantizer if request.signed else cls)(**settings)
        if reach.highest is not None:
            signed = reach.is_negative
            return UnitQuantizer(num_bits=request.num_bits, signed=signed, **request.options)
        if reach.lowest is None:
            return StreamQuantizer(**settings)
        if not reach.is_negative:
            return cls(**settings)
        return OffsetQuantizer(**settings, lowest=reach.lowest, share=reach.share)


@register_quantizer
class StreamQuantizer(UpToItsLevel):
    """Clips and quantizes a tensor that can be negative: `pact.quantize_stream`."""

    signed = True


@register_quantizer
class OffsetQuantizer(OfOffset, RoundingQuantizer):
    """Clips and quantizes a tensor with a small negative part: `asymmetric.quantize_offset`.

    Args:
        lowest: see `asymmetric.quantize_offset`.
        share: see there.
        **settings: those of the other quantizers with a clipping level.
    """

    signed = True
    rounds_before_clipping: ClassVar[bool] = True

    def __call__(
        self, inputs: tf.Tensor, training: Any, weights: Variables, **kwargs: Any
    ) -> tf.Tensor:
        """The quantized tensor, in the type of `inputs`."""
        del training, kwargs
        return asymmetric.quantize_offset(
            inputs,
            self.level(weights),
            bits_of(self.num_bits, weights),
            self.gradient,
            lowest=self.lowest,
            share=self.share,
            **self.passed_back,
        )

    @property
    def is_symmetric(self) -> bool:
        """Never: it is for what reaches less far below 0."""
        return False

    def code_range(self, variables: Variables) -> CodeRange:
        """Codes -z..a - z."""
        intervals = grid.levels(self.num_bits)
        level = tf.convert_to_tensor(variables[CLIPPING_LEVEL])
        scale, below = scale_and_zero(level, intervals, self.lowest, self.share, tf.floor)
        return CodeRange(scale, -below, intervals)

    def best_level(
        self,
        values: np.ndarray,
        largest: float,
        counts: np.ndarray | None = None,
        function: Function | None = None,
    ) -> float:
        """The clipping level with the smallest error on values, of those up to the largest one."""
        del largest, function
        return best_offset_level(
            values, self.num_bits, lowest=self.lowest, share=self.share, counts=counts
        )


@register_quantizer
class UnitQuantizer(OfUnit, ActivationQuantizer):
    """Quantizes what is between 0 and 1, or between -1 and 1, by its own definition.

    `pact.quantize_activation` or `pact.quantize_stream` with a clipping level of 1, which is no
    variable.

    Args:
        num_bits: bits of the codes.
        signed: whether the range is [-1, 1].
        surrogate: what rounding passes back, a row of `surrogate_table`.
        surrogate_strength: see there; None is the usual one.
    """

    def __call__(
        self, inputs: tf.Tensor, training: Any, weights: Variables, **kwargs: Any
    ) -> tf.Tensor:
        """The quantized tensor, in the type of `inputs`."""
        del training, kwargs
        quantize = pact.quantize_stream if self.signed else pact.quantize_activation
        bits = bits_of(self.num_bits, weights)
        return quantize(
            inputs,
            tf.constant(1.0),
            bits,
            surrogate=self.surrogate,
            strength=self.surrogate_strength,
        )

    @classmethod
    def option_names(cls) -> tuple[str, ...]:
        """What a policy may choose."""
        return SURROGATE_OPTIONS

    @property
    def is_unit(self) -> bool:
        """Always."""
        return True

    @property
    def rectifies(self) -> bool:
        """Never: there is nothing to rectify."""
        return False

    def code_range(self, variables: Variables) -> CodeRange:
        """Codes 0..a, or -a/2..a/2."""
        del variables
        return (_symmetric if self.signed else _unsigned)(self.num_bits, tf.constant(1.0))


def _unsigned(num_bits: int, highest: tf.Tensor) -> CodeRange:
    intervals = grid.levels(num_bits)
    return CodeRange(highest / float(intervals), tf.constant(0.0), intervals)


def _symmetric(num_bits: int, highest: tf.Tensor) -> CodeRange:
    intervals = grid.levels(num_bits, "narrow")
    return CodeRange((highest + highest) / float(intervals), tf.constant(-intervals / 2), intervals)


@keras.utils.register_keras_serializable(package="sat_tf")
class AtLeast(keras.constraints.Constraint):
    """Keeps a variable at or above a value; clipping levels must stay positive."""

    def __init__(self, minimum: float) -> None:
        self.minimum = minimum

    def __call__(self, w: tf.Tensor) -> tf.Tensor:
        """The values of `w`, none below the minimum."""
        return tf.maximum(w, tf.cast(self.minimum, w.dtype))

    def get_config(self) -> dict[str, Any]:
        """The arguments of the constructor."""
        return {"minimum": self.minimum}
