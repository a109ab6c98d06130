"""Ranges observed in training, as `sat_tf.quantizers.observers`."""

from collections.abc import Mapping, Sequence
from typing import Any

from keras import ops

from sat_tf.keras3.core.asymmetric import quantize_observed
from sat_tf.keras3.core.precision import in_float32
from sat_tf.keras3.quantizers.protocol import Quantizer, Variables, VariableSpec
from sat_tf.quantizers.constructors import OfInput, OfObserver
from sat_tf.quantizers.settings import COUNT, ENDS


class RangeObserver(OfObserver, Quantizer):
    """Remembers the range of a tensor; see `sat_tf.quantizers.observers.RangeObserver`."""

    def variables(self, shape: Sequence[int | None]) -> dict[str, VariableSpec]:
        """`lowest`, `highest` and `observations`."""
        del shape
        return {name: VariableSpec(follows_data=True) for name in (*ENDS, COUNT)}

    def __call__(self, inputs: Any, training: bool, variables: Variables) -> Any:
        """The tensor, rounded or as it is; in training, the range has taken it in."""
        if training:
            self._observe(ops.stop_gradient(inputs), variables)
        if not self.rounds:
            return inputs
        return quantize_observed(inputs, *(variables[name] for name in ENDS))

    def _observe(self, values: Any, variables: Variables) -> None:
        lowest, highest = in_float32(ops.min(values)), in_float32(ops.max(values))
        finite = ops.isfinite(lowest) & ops.isfinite(highest)
        before, after = (ops.convert_to_tensor(variables[name]) for name in ENDS)
        variables["lowest"].assign(ops.where(finite, ops.minimum(lowest, before), before))
        variables["highest"].assign(ops.where(finite, ops.maximum(highest, after), after))
        count = ops.convert_to_tensor(variables[COUNT])
        variables[COUNT].assign(count + ops.cast(finite, "float32"))


class InputQuantizer(OfInput, RangeObserver):
    """Quantizes an input that is no image to 8 bits, on the range that it has observed.

    Forward and backward: those of a `RangeObserver` that rounds.
    """


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
