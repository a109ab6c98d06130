"""LSQ: weights and activations whose scales are learnt, and LSQ+, whose offset is learnt too."""

import dataclasses
import math
from typing import Any, ClassVar

import numpy as np
import tensorflow as tf
import tf_keras as keras

from sat_tf.core import grid, lsq
from sat_tf.core.ranges import scale_and_zero
from sat_tf.core.weight_levels import FEWEST_SIGNED_BITS, lsq_code_ends
from sat_tf.quantizers.best_levels import best_offset_level
from sat_tf.quantizers.constructors import OfLsq, OfLsqActivation, OfLsqPlus
from sat_tf.quantizers.pact import RoundingQuantizer, UpToItsLevel, settings_of
from sat_tf.quantizers.protocol import (
    ActivationQuantizer,
    ActivationRequest,
    CodeRange,
    Function,
    Variables,
    WeightQuantizer,
    bits_of,
    register_quantizer,
)
from sat_tf.quantizers.scaled import ScaledWithSurrogate
from sat_tf.quantizers.settings import (
    CLIPPING_LEVEL,
    MAGNITUDE,
    OFFSET,
    SMALLEST_CLIPPING_LEVEL,
    SMALLEST_MAGNITUDE,
    SURROGATE_OPTIONS,
    usual_magnitude,
)


@register_quantizer
class LsqQuantizer(OfLsq, ScaledWithSurrogate):
    """Weights with a scale that is learnt: `lsq.quantize_weights` (Esser et al. 2020).

    The trainable variable `magnitude` holds m = s · sqrt(highest code), for the layer or for each
    channel. It starts at what the latent weights tell, is kept positive, and has no weight decay.

    Args:
        start: "mean" has the scale of the paper, 2 mean|v| / sqrt(highest code), "error" the one
            with the smallest quantization error, which is better without training: at 8 bits the
            paper's reaches far beyond the largest weight.
        **settings: those of `ScaledWithSurrogate`.
    """

    method: ClassVar[str] = "LSQ"
    fewest_bits: ClassVar[int] = FEWEST_SIGNED_BITS

    @classmethod
    def option_names(cls) -> tuple[str, ...]:
        """What a policy may choose."""
        return ("start", *super().option_names())

    def build(self, tensor_shape: Any, name: str, layer: keras.layers.Layer) -> dict[str, Any]:
        """Makes the trainable `magnitude`, where it rounds, and the gain of a rescaling."""
        made = super().build(tensor_shape, name, layer)
        if self.num_bits is None:
            return made
        # Until `start` sees the kernel.
        usual = usual_magnitude(tensor_shape)
        magnitude = self.learnt(
            layer, MAGNITUDE, tensor_shape, start=usual, lowest=SMALLEST_MAGNITUDE
        )
        return {**made, MAGNITUDE: magnitude}

    def start(self, kernel: tf.Variable, variables: Variables) -> None:
        """Magnitudes that the latent weights tell; of a channel of zeros that of its layer.

        Where the whole layer is zero they stay what `build` has made them.
        """
        if MAGNITUDE in variables:
            magnitude = variables[MAGNITUDE]
            magnitude.assign(self._first_magnitude(tf.convert_to_tensor(kernel), magnitude))

    def _first_magnitude(self, kernel: tf.Tensor, otherwise: tf.Tensor) -> tf.Tensor:
        latent = tf.cast(kernel, tf.float32)
        of_layer = lsq.weight_magnitude(latent)
        own = lsq.weight_magnitude(latent, range_axes=self.range_axes)
        if self.start_at == "error":
            own = lsq.best_magnitude(latent, self.bits, range_axes=self.range_axes)
        usual = tf.where(of_layer >= SMALLEST_MAGNITUDE, of_layer, otherwise)
        return tf.where(own >= SMALLEST_MAGNITUDE, own, usual)

    def carry(
        self,
        latent: tf.Tensor,
        variables: Variables,
        before: WeightQuantizer,
        before_variables: Variables,
        *,
        keep_function: bool,
    ) -> None:
        """Takes over the gain, and what magnitudes have become of their start.

        See `WeightQuantizer.carry`.
        """
        super().carry(latent, variables, before, before_variables, keep_function=keep_function)
        if not isinstance(before, LsqQuantizer) or MAGNITUDE not in variables:
            return
        old, new = before_variables.get(MAGNITUDE), variables[MAGNITUDE]
        if old is None or old.shape != new.shape:
            self.start(latent, variables)
            return
        first, then = (one._first_magnitude(latent, old) for one in (before, self))
        new.assign(old * (then / first))

    def quantized(self, latent: tf.Tensor, variables: Variables, num_bits: Any) -> tf.Tensor:
        """`lsq.quantize_weights`."""
        return lsq.quantize_weights(
            latent,
            variables[MAGNITUDE],
            num_bits,
            surrogate=self.surrogate,
            strength=self.surrogate_strength,
        )

    def codes_and_scales(
        self, latent: tf.Tensor, variables: Variables
    ) -> tuple[tf.Tensor, tf.Tensor]:
        """`lsq.weight_codes` and s."""
        magnitude = tf.convert_to_tensor(variables[MAGNITUDE])
        codes = lsq.weight_codes(latent, magnitude, self.bits)
        scales = tf.cast(lsq.weight_scale(magnitude, self.bits), tf.float64)
        return codes, scales if self.range_axes else tf.reshape(scales, [1] * codes.shape.rank)

    @property
    def code_ends(self) -> tuple[int, int]:
        """Those of two's complement; at 8 bits without -128."""
        return lsq_code_ends(self.bits)

    @property
    def largest_code(self) -> int:
        """The largest magnitude among its codes."""
        return -self.code_ends[0]

    @property
    def top_unit(self) -> int:
        """The number of its codes, less one."""
        lowest, highest = self.code_ends
        return highest - lowest

    def units(self, latent: tf.Tensor, variables: Variables) -> tf.Tensor:
        """The codes, counted from the lowest."""
        codes = lsq.weight_codes(latent, variables[MAGNITUDE], self.bits)
        return tf.cast(codes - self.code_ends[0], tf.float32)

    def can_be_held(self, latent: tf.Tensor, variables: Variables) -> tf.Tensor:
        """All of them."""
        del variables
        return tf.ones(latent.shape, tf.bool)

    def hold(
        self, latent: tf.Tensor, variables: Variables, units: tf.Tensor, held: tf.Tensor
    ) -> tf.Tensor:
        """Latent weights of which those that are held are their code times the scale of now."""
        scale = lsq.weight_scale(variables[MAGNITUDE], self.bits)
        return tf.where(held, (units + float(self.code_ends[0])) * scale, latent)


# -- activations -----------------------------------------------------------------------------------


@register_quantizer
class LsqActivationQuantizer(OfLsqActivation, UpToItsLevel):
    """Clips and quantizes with a scale that is learnt (Esser et al. 2020).

    Codes are 0..2^b - 1 of tensors that a rectifier makes, in its place, and of others
    -(2^(b-1) - 1)..2^(b-1) - 1. The values are those of `pact.quantize_activation` and
    `quantize_stream`, and so is the gradient, which is Eq. 3 of the paper, but for the factor g of
    the scale: see `lsq.level_factor`.

    Args:
        signed: whether values can be negative.
        start: where the model's statistics and `calibrate` set the level: "mean" at the paper's
            scale 2 mean|x| / sqrt(highest code), "error" at the smallest quantization error.
        counts_batch: see `lsq.level_factor`.
        **settings: those of the other quantizers with a clipping level.
    """

    has_own_gradient: ClassVar[bool] = True

    @classmethod
    def serves(cls, request: ActivationRequest) -> bool:
        """All but what has its own range by definition, or a small negative part."""
        return not _is_asymmetric(request) and (
            request.reach is None or request.reach.highest is None
        )

    @classmethod
    def create(cls, request: ActivationRequest) -> ActivationQuantizer:
        """The quantizer of one tensor that it serves."""
        reach = request.reach
        signed = request.signed if reach is None else reach.lowest is None
        return cls(**settings_of(request), signed=signed, **request.options)

    @classmethod
    def option_names(cls) -> tuple[str, ...]:
        """What a policy may choose."""
        return ("start", "counts_batch", *SURROGATE_OPTIONS)

    def __call__(
        self, inputs: tf.Tensor, training: Any, weights: Variables, **kwargs: Any
    ) -> tf.Tensor:
        """The quantized tensor, in the type of `inputs`."""
        del training, kwargs
        bits = bits_of(self.num_bits, weights)
        factor = lsq.level_factor(inputs, self._highest(bits), counts_batch=self.counts_batch)
        return self.quantized(inputs, lsq.times(self.level(weights), factor), bits)

    def best_level(
        self,
        values: np.ndarray,
        largest: float,
        counts: np.ndarray | None = None,
        function: Function | None = None,
    ) -> float:
        """The clipping level where the scale starts; see `start`."""
        if self.start == "error":
            return super().best_level(values, largest, counts, function)
        seen = values if self.signed else np.maximum(values, 0.0)
        return mean_level(seen, self._highest(self.num_bits), counts)

    def _highest(self, bits: grid.Bits) -> Any:
        """The highest code."""
        return grid.levels(bits, "narrow") / 2 if self.signed else grid.levels(bits)


def mean_level(values: np.ndarray, highest: float, counts: np.ndarray | None = None) -> float:
    """The clipping level of the paper's scale 2 mean|x| / sqrt(highest).

    >>> mean_level(np.array([0.0, 1.0, 2.0]), 4)
    4.0
    """
    magnitudes = np.abs(np.asarray(values, np.float64)).reshape(-1)
    mean = np.average(magnitudes, weights=counts)
    return max(float(2.0 * mean * math.sqrt(highest)), SMALLEST_CLIPPING_LEVEL)


@register_quantizer
class LsqPlusQuantizer(OfLsqPlus, RoundingQuantizer):
    """Clips and quantizes with a scale and an offset that are learnt (Bhalgat et al. 2020).

    For what swish and its kin make, whose negative part is small. All other tensors have LSQ, of
    which LSQ+ is another start alone where values are never negative: "error".

    The range is that of `OffsetQuantizer`, from -(ℓ + ρ α) up to α, until it learns: its width is
    the trainable `clipping_level`, and its lower end moves by the trainable `offset`, which starts
    at 0. Forward and backward as in `lsq.quantize_with_offset`, gradients times g.

    Args:
        lowest: -ℓ, see `asymmetric.quantize_offset`.
        share: ρ, see there.
        counts_batch: see `lsq.level_factor`.
        **settings: those of the other quantizers with a clipping level.
    """

    signed = True
    rounds_before_clipping: ClassVar[bool] = True
    has_own_gradient: ClassVar[bool] = True

    @classmethod
    def serves(cls, request: ActivationRequest) -> bool:
        """All but what has its own range by definition."""
        return request.reach is None or request.reach.highest is None

    @classmethod
    def create(cls, request: ActivationRequest) -> ActivationQuantizer:
        """The quantizer of one tensor that it serves."""
        reach = request.reach
        if reach is None or not _is_asymmetric(request):
            options = {"start": "error", **request.options}
            return LsqActivationQuantizer.create(dataclasses.replace(request, options=options))
        settings = {**settings_of(request), **request.options}
        return cls(lowest=reach.lowest or 0.0, share=reach.share, **settings)

    @classmethod
    def option_names(cls) -> tuple[str, ...]:
        """What a policy may choose."""
        return ("counts_batch", *SURROGATE_OPTIONS)

    def build(self, tensor_shape: Any, name: str, layer: keras.layers.Layer) -> dict[str, Any]:
        """Makes `clipping_level`, and the trainable scalar `offset`, without weight decay."""
        made = super().build(tensor_shape, name, layer)
        zero = keras.initializers.Zeros()
        offset = layer.add_weight(
            name=OFFSET, shape=(), dtype=tf.float32, initializer=zero, trainable=True
        )
        return {**made, OFFSET: offset}

    def __call__(
        self, inputs: tf.Tensor, training: Any, weights: Variables, **kwargs: Any
    ) -> tf.Tensor:
        """The quantized tensor, in the type of `inputs`."""
        del training, kwargs
        bits = bits_of(self.num_bits, weights)
        levels = tf.cast(grid.levels(bits), tf.float32)
        # A level that is c times the scale gets g c² times its own gradient: see `lsq`.
        factor = lsq.gradient_factor(inputs, levels, counts_batch=self.counts_batch)
        of_level = factor * tf.square(levels / (1.0 + self.share))
        level = lsq.times(self.level(weights), of_level)
        moved = lsq.times(weights.get(OFFSET, 0.0), factor)
        scale, offset = self._scale_and_offset(level, moved, bits)
        return lsq.quantize_with_offset(inputs, scale, offset, bits, **self.passed_back)

    def _scale_and_offset(
        self, level: tf.Tensor, moved: tf.Tensor, bits: grid.Bits
    ) -> tuple[tf.Tensor, tf.Tensor]:
        """Scale and β; the lower end that the level tells has no gradient."""
        levels = tf.cast(grid.levels(bits), tf.float32)
        scale, _ = scale_and_zero(level, levels, self.lowest, self.share, tf.floor)
        return scale, moved - tf.stop_gradient(self.share * level - self.lowest)

    @property
    def is_symmetric(self) -> bool:
        """Never: it is for what reaches less far below 0."""
        return False

    def code_range(self, variables: Variables) -> CodeRange:
        """Codes -z..a - z."""
        level = tf.convert_to_tensor(variables[CLIPPING_LEVEL])
        moved = tf.convert_to_tensor(variables.get(OFFSET, 0.0))
        scale, offset = self._scale_and_offset(level, moved, self.num_bits)
        below = lsq.codes_below_zero(scale, offset, self.num_bits)
        return CodeRange(scale, -below, grid.levels(self.num_bits))

    def best_level(
        self,
        values: np.ndarray,
        largest: float,
        counts: np.ndarray | None = None,
        function: Function | None = None,
    ) -> float:
        """The clipping level with the smallest error on values, of those up to the largest one.

        With the offset where it starts.
        """
        del largest, function
        return best_offset_level(
            values, self.num_bits, lowest=self.lowest, share=self.share, counts=counts
        )


def _is_asymmetric(request: ActivationRequest) -> bool:
    """Whether a tensor has a negative part that is small, and known."""
    reach = request.reach
    return reach is not None and reach.has_lowest_alone and reach.is_negative
