"""QIL: weights whose interval is learnt."""

from typing import Any, ClassVar

import tensorflow as tf
import tf_keras as keras

from sat_tf.core import grid, qil
from sat_tf.core.weight_levels import FEWEST_SIGNED_BITS, qil_largest_code
from sat_tf.quantizers.constructors import OfQil
from sat_tf.quantizers.protocol import Variables, WeightQuantizer, register_quantizer
from sat_tf.quantizers.scaled import ScaledWithSurrogate
from sat_tf.quantizers.settings import (
    CENTER,
    DISTANCE,
    SMALLEST_DISTANCE,
    usual_half_interval,
)


@register_quantizer
class QilQuantizer(OfQil, ScaledWithSurrogate):
    """Weights with an interval that is learnt: `qil.quantize_weights` (Jung et al. 2019).

    The trainable variables `interval_center` and `interval_distance`, for the layer or for each
    channel, start at c = d = max|w| / 2, which prunes and clips nothing. c is kept at 0 or above,
    d positive; they have no weight decay.

    Args:
        gradient_factor: of the gradients of c and d, which are sums over all weights.
        **settings: those of `ScaledWithSurrogate`.
    """

    method: ClassVar[str] = "QIL"
    fewest_bits: ClassVar[int] = FEWEST_SIGNED_BITS

    @classmethod
    def option_names(cls) -> tuple[str, ...]:
        """What a policy may choose."""
        return ("gradient_factor", *super().option_names())

    def build(self, tensor_shape: Any, name: str, layer: keras.layers.Layer) -> dict[str, Any]:
        """Makes the trainable interval, where it rounds, and the gain of a rescaling."""
        made = super().build(tensor_shape, name, layer)
        if self.num_bits is None:
            return made
        half = usual_half_interval(tensor_shape)  # until `start` sees the kernel
        interval = {
            variable: self.learnt(layer, variable, tensor_shape, start=half, lowest=lowest)
            for variable, lowest in ((CENTER, 0.0), (DISTANCE, SMALLEST_DISTANCE))
        }
        return {**made, **interval}

    def start(self, kernel: tf.Variable, variables: Variables) -> None:
        """From 0 to the largest latent weight; of a channel of zeros to that of its layer.

        Where the whole layer is zero it stays what `build` has made it.
        """
        if CENTER not in variables:
            return
        latent = tf.cast(tf.convert_to_tensor(kernel), tf.float32)
        own = qil.first_end(latent, range_axes=self.range_axes) / 2.0
        of_layer = qil.first_end(latent) / 2.0
        for variable in (variables[CENTER], variables[DISTANCE]):
            usual = tf.where(of_layer >= SMALLEST_DISTANCE, of_layer, variable)
            variable.assign(tf.where(own >= SMALLEST_DISTANCE, own, usual))

    def carry(
        self,
        latent: tf.Tensor,
        variables: Variables,
        before: WeightQuantizer,
        before_variables: Variables,
        *,
        keep_function: bool,
    ) -> None:
        """Takes over the gain and the interval, but for one of other ranges.

        See `WeightQuantizer.carry`.
        """
        super().carry(latent, variables, before, before_variables, keep_function=keep_function)
        if CENTER not in variables or not isinstance(before, QilQuantizer):
            return
        old = before_variables.get(CENTER)
        if old is None or old.shape != variables[CENTER].shape:
            self.start(latent, variables)

    def quantized(self, latent: tf.Tensor, variables: Variables, num_bits: grid.Bits) -> tf.Tensor:
        """`qil.quantize_weights`."""
        return qil.quantize_weights(
            latent,
            variables[CENTER],
            variables[DISTANCE],
            num_bits,
            gradient_factor=self.gradient_factor,
            surrogate=self.surrogate,
            strength=self.surrogate_strength,
        )

    def codes_and_scales(
        self, latent: tf.Tensor, variables: Variables
    ) -> tuple[tf.Tensor, tf.Tensor]:
        """`qil.weight_codes` and `qil.weight_scale`."""
        interval = variables[CENTER], variables[DISTANCE]
        codes = qil.weight_codes(latent, *interval, self.bits)
        scales = tf.cast(qil.weight_scale(*interval, self.bits), tf.float64)
        return codes, scales if self.range_axes else tf.reshape(scales, [1] * codes.shape.rank)

    @property
    def largest_code(self) -> int:
        """2^(b-1) - 1."""
        return qil_largest_code(self.bits)
