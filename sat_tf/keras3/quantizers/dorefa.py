"""DoReFa's weights, as `sat_tf.quantizers.dorefa`."""

from collections.abc import Sequence
from typing import Any

from keras import ops

from sat_tf.core.ranges import range_shape
from sat_tf.keras3.core import rescale as rescaling
from sat_tf.keras3.quantizers.mathematics import dorefa
from sat_tf.keras3.quantizers.protocol import Quantizer, Variables, VariableSpec
from sat_tf.keras3.quantizers.scaled import known
from sat_tf.quantizers.constructors import OfDorefa
from sat_tf.quantizers.settings import GAIN


class DorefaQuantizer(OfDorefa, Quantizer):
    """Latent weights to effective weights: clamp, quantize, rescale (Eq. 5 to 10).

    Forward: Ξ = gain · c · Q, with Q from `dorefa.quantize_weights` (Ŵ where `num_bits` is None)
    and c from `rescale.rescale_factor`; c = 1 where `rescale` is None. Backward: as documented
    there; c and the fixed variable `rescale_gain` are constants.
    """

    def variables(self, shape: Sequence[int | None]) -> dict[str, VariableSpec]:
        """`rescale_gain`, where there is a gain."""
        axes = self.gain_axes
        if axes is None:
            if self.rescale is None:
                return {}
            axes = self.range_axes
        of_ranges = tuple(range_shape(known(shape), axes)) if axes else ()
        return {GAIN: VariableSpec(shape=of_ranges, start=self.initial_gain)}

    def __call__(self, inputs: Any, training: bool, variables: Variables) -> Any:
        """Effective weights from latent weights, both in float32."""
        del training
        settings: dict[str, Any] = {"range_axes": self.range_axes}
        if self.num_bits is None:
            values = dorefa().clamp_weights(inputs, self.detach_max, **settings)
        else:
            settings |= {"surrogate": self.surrogate, "strength": self.surrogate_strength}
            values = dorefa().quantize_weights(
                inputs, self.num_bits, self.grid, self.detach_max, **settings
            )
        if GAIN not in variables:
            return values
        gain = ops.convert_to_tensor(variables[GAIN])
        if self.rescale is None:
            return values * gain
        factor = rescaling.rescale_factor(
            values, self.fan_out, self.rescale, latent=inputs, range_axes=self.range_axes
        )
        return values * (factor * gain)
