"""DoReFa's weights, as `sat_tf.quantizers.dorefa`."""

from collections.abc import Sequence
from typing import Any

from keras import ops

from sat_tf.core.ranges import range_shape
from sat_tf.core.surrogate_table import STRAIGHT_THROUGH, strength_of
from sat_tf.keras3.core import rescale as rescaling
from sat_tf.keras3.quantizers.mathematics import dorefa
from sat_tf.keras3.quantizers.protocol import Quantizer, Variables, VariableSpec
from sat_tf.keras3.quantizers.scaled import known
from sat_tf.quantizers.settings import GAIN, surrogate_config


class DorefaQuantizer(Quantizer):
    """Latent weights to effective weights: clamp, quantize, rescale (Eq. 5 to 10).

    Forward: Ξ = gain · c · Q, with Q from `dorefa.quantize_weights` (Ŵ where `num_bits` is None)
    and c from `rescale.rescale_factor`; c = 1 where `rescale` is None. Backward: as documented
    there; c and the fixed variable `rescale_gain` are constants.

    Args:
        num_bits: 1 to 8, or None to clamp and rescale only.
        grid: a name of `grid_table.GRIDS` or of `AUTOMATIC`.
        range_axes: kernel axes with a maximum of their own; () for one maximum a layer.
        detach_max: no gradient through the maximum.
        rescale: a name of `rescale_table.METHODS`, or None.
        fan_out: the layer's n̂, for the rescaling.
        initial_gain: where the gain starts.
        gain_axes: kernel axes with gains of their own. None: as `range_axes` where there is a
            rescaling, and no variable otherwise.
        surrogate: what rounding passes back, a row of `surrogate_table`.
        surrogate_strength: see there; None is the usual one.
    """

    def __init__(
        self,
        *,
        num_bits: int | None,
        grid: str = "auto",
        range_axes: Sequence[int] = (),
        detach_max: bool = False,
        rescale: str | None = None,
        fan_out: int = 1,
        initial_gain: float = 1.0,
        gain_axes: Sequence[int] | None = None,
        surrogate: str = STRAIGHT_THROUGH,
        surrogate_strength: float | None = None,
    ) -> None:
        strength_of(surrogate, surrogate_strength)
        self.num_bits = num_bits
        self.grid = grid
        self.range_axes = tuple(range_axes)
        self.detach_max = detach_max
        self.rescale = rescale
        self.fan_out = fan_out
        self.initial_gain = initial_gain
        self.gain_axes = None if gain_axes is None else tuple(gain_axes)
        self.surrogate = surrogate
        self.surrogate_strength = surrogate_strength

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

    def get_config(self) -> dict[str, Any]:
        """The arguments of the constructor."""
        return {
            "num_bits": self.num_bits,
            "grid": self.grid,
            "range_axes": list(self.range_axes),
            "detach_max": self.detach_max,
            "rescale": self.rescale,
            "fan_out": self.fan_out,
            "initial_gain": self.initial_gain,
            "gain_axes": None if self.gain_axes is None else list(self.gain_axes),
            **surrogate_config(self),
        }
