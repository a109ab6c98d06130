"""Ranges observed in training, as `sat_tf.quantizers.observers`."""

from collections.abc import Mapping, Sequence
from typing import Any

from keras import ops

from sat_tf.keras3.core.asymmetric import quantize_observed
from sat_tf.keras3.core.precision import in_float32
from sat_tf.keras3.quantizers.protocol import Quantizer, Variables, VariableSpec
from sat_tf.quantizers.constructors import OfInput, OfObserver
from sat_tf.quantizers.settings import COUNT


class RangeObserver(OfObserver, Quantizer):
    """Passes a tensor through and remembers its range, for the 8-bit codes of the export.

    In training, `lowest` and `highest` follow the batch's minimum and maximum: the mean over the
    first batches, then a moving average. `observations` counts the batches; 0 means never observed.
    The range always holds zero. Infinite and NaN values leave it as it is.
    """

    def variables(self, shape: Sequence[int | None]) -> dict[str, VariableSpec]:
        """`lowest`, `highest` and `observations`."""
        del shape
        return {name: VariableSpec(follows_data=True) for name in ("lowest", "highest", COUNT)}

    def __call__(self, inputs: Any, training: bool, variables: Variables) -> Any:
        """Returns `inputs`; in training, the range has taken them in."""
        if training:
            values = ops.stop_gradient(inputs)
            batch = {
                "lowest": ops.minimum(in_float32(ops.min(values)), 0.0),
                "highest": ops.maximum(in_float32(ops.max(values)), 0.0),
            }
            move_averages(variables, batch, self.momentum)
        return inputs


class InputQuantizer(OfInput, RangeObserver):
    """Quantizes an input that is no image to 8 bits, on the range that it has observed.

    Forward and backward: `asymmetric.quantize_observed`, once something was observed; until then
    its input. The range follows the data as that of any `RangeObserver`.
    """

    def __call__(self, inputs: Any, training: bool, variables: Variables) -> Any:
        """The quantized tensor, in the type of `inputs`."""
        inputs = super().__call__(inputs, training, variables)
        return quantize_observed(inputs, variables["lowest"], variables["highest"])


def move_averages(variables: Variables, batch: Mapping[str, Any], momentum: float) -> None:
    """Takes the values of a batch, if all are finite, into averages: the mean over the first ones.

    Args:
        variables: `observations`, and those of which the batch has values.
        batch: the values, by the names of the variables.
        momentum: weight of the past.
    """
    finite = ops.convert_to_tensor(True)
    for value in batch.values():
        finite = finite & ops.all(ops.isfinite(value))
    seen = ops.convert_to_tensor(variables[COUNT])
    share = ops.maximum(1.0 / (seen + 1.0), 1.0 - momentum)
    for name, value in batch.items():
        before = ops.convert_to_tensor(variables[name])
        step = ops.where(finite, (value - before) * share, 0.0)
        variables[name].assign(before + step)
    variables[COUNT].assign(seen + ops.cast(finite, "float32"))
