"""LSQ and LSQ+, whose scales and offset are learnt, as `sat_tf.quantizers.lsq`."""

from collections.abc import Sequence
from typing import Any

from keras import ops

from sat_tf.core.ranges import scale_and_zero
from sat_tf.keras3.core import grid, lsq
from sat_tf.keras3.core.custom_gradient import scaled_gradient
from sat_tf.keras3.quantizers.pact import ClippingQuantizer, UpToItsLevel
from sat_tf.keras3.quantizers.protocol import Variables, VariableSpec
from sat_tf.keras3.quantizers.scaled import ScaledWithSurrogate, known
from sat_tf.quantizers.constructors import OfLsq, OfLsqActivation, OfLsqPlus
from sat_tf.quantizers.settings import (
    MAGNITUDE,
    OFFSET,
    SMALLEST_MAGNITUDE,
    usual_magnitude,
)


class LsqQuantizer(OfLsq, ScaledWithSurrogate):
    """Weights with a scale that is learnt: `lsq.quantize_weights` (Esser et al. 2020).

    The trainable variable `magnitude` holds m = s · sqrt(highest code), for the layer or for each
    channel, and is kept positive.

    Args:
        start: where the scale starts when a tf_keras model is quantized, "mean" or "error".
        **settings: those of `ScaledWithSurrogate`.
    """

    def variables(self, shape: Sequence[int | None]) -> dict[str, VariableSpec]:
        """The trainable `magnitude`, where it rounds, and the gain of a rescaling."""
        made = super().variables(shape)
        if self.num_bits is None:
            return made
        usual = usual_magnitude(known(shape))
        return {**made, MAGNITUDE: self.learnt(shape, start=usual, lowest=SMALLEST_MAGNITUDE)}

    def quantized(self, latent: Any, variables: Variables, num_bits: int) -> Any:
        """`lsq.quantize_weights`."""
        return lsq.quantize_weights(latent, variables[MAGNITUDE], num_bits, **self.passed_back)


class LsqActivationQuantizer(OfLsqActivation, UpToItsLevel):
    """Clips and quantizes with a scale that is learnt (Esser et al. 2020).

    Values and gradient are those of `pact.quantize_activation`, or of `quantize_stream`, but for
    the factor of the scale: see `lsq.level_factor`.

    Args:
        signed: whether values can be negative.
        start: where calibration of a tf_keras model sets the level, "mean" or "error".
        counts_batch: see `lsq.level_factor`. The batch is that of one replica where the strategy
            is one of TensorFlow's.
        **settings: those of the other quantizers with a clipping level.
    """

    def __call__(self, inputs: Any, training: bool, variables: Variables) -> Any:
        """The quantized tensor, in the type of `inputs`."""
        del training
        bits = self.num_bits
        highest = grid.levels(bits, "narrow") / 2 if self.signed else grid.levels(bits)
        factor = lsq.level_factor(inputs, highest, counts_batch=self.counts_batch)
        return self.quantized(inputs, scaled_gradient(self.level(variables), factor))


class LsqPlusQuantizer(OfLsqPlus, ClippingQuantizer):
    """Clips and quantizes with a scale and an offset that are learnt (Bhalgat et al. 2020).

    Its width is the trainable `clipping_level`, and its lower end moves by the trainable `offset`,
    which starts at 0. Forward and backward as in `lsq.quantize_with_offset`, gradients times g.

    Args:
        lowest: -ℓ, see `asymmetric.quantize_offset`.
        share: ρ, see there.
        counts_batch: as in `LsqActivationQuantizer`.
        **settings: those of the other quantizers with a clipping level.
    """

    def variables(self, shape: Sequence[int | None]) -> dict[str, VariableSpec]:
        """`clipping_level`, and the trainable scalar `offset`."""
        return {**super().variables(shape), OFFSET: VariableSpec(trainable=True)}

    def __call__(self, inputs: Any, training: bool, variables: Variables) -> Any:
        """The quantized tensor, in the type of `inputs`."""
        del training
        bits = self.num_bits
        levels = float(grid.levels(bits))
        # A level that is c times the scale gets g c² times its own gradient: see `lsq`.
        factor = lsq.gradient_factor(inputs, levels, counts_batch=self.counts_batch)
        of_level = factor * (levels / (1.0 + self.share)) ** 2
        level = scaled_gradient(self.level(variables), of_level)
        moved = scaled_gradient(variables[OFFSET], factor)
        # XLA turns a division by a constant into a product with its reciprocal.
        divisor = levels + 0.0 * ops.stop_gradient(level)
        scale, _ = scale_and_zero(level, divisor, self.lowest, self.share, ops.floor)
        offset = moved - ops.stop_gradient(self.share * level - self.lowest)
        return lsq.quantize_with_offset(inputs, scale, offset, bits, **self.passed_back)
