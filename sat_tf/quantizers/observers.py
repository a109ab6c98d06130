"""Observed ranges: of outputs, of what float layers read, and of inputs other than images."""

import dataclasses
import math
import sys
from collections.abc import Callable, Mapping, Sequence
from types import ModuleType
from typing import Any, ClassVar, Self

import numpy as np

from sat_tf.core.asymmetric import quantize_observed
from sat_tf.core.grid import SMALLEST_RANGE, scale_and_zero_point
from sat_tf.core.tensors import Tensor, in_float32, namespace
from sat_tf.quantizers.protocol import Quantizer, VariableSpec
from sat_tf.quantizers.values import COUNT, ENDS, CodeRange, Variables

# The share of the largest values that tells how a distribution ends, and how many times as many
# values its end is extrapolated to.
_TAIL_SHARE = 0.1
_TIMES_AS_MANY = 30.0


@dataclasses.dataclass(kw_only=True, eq=False, repr=False)
class RangeObserver(Quantizer):
    """Remembers the range of a tensor, for the 8-bit codes of the export.

    `sat_tf.calibrate` sets the range, `lowest` and `highest`, to what its images let expect. In
    training it takes in the extremes of every batch, and never shrinks: a mean over batches would
    not be the range of any. `observations` counts the batches; 0 means never observed. The range
    always holds zero. Batches with infinite or NaN values leave it as it is.

    Forward and backward: the tensor itself; or with `rounds`, `asymmetric.quantize_observed`, once
    something was observed.
    """

    observes_range: ClassVar[bool] = True

    rounds: bool = False  # Whether it rounds the tensor, as other layers read what the file rounds.
    # Whether training leaves the tensor float: a stream that the policy leaves float is rounded by
    # the file alone, and by Keras in inference, which has to agree with the file.
    trains_float: bool = False

    @classmethod
    def from_config(cls, config: Mapping[str, Any]) -> Self:
        """Makes an observer of a config, which in earlier versions has an unused momentum."""
        return cls(**{name: value for name, value in config.items() if name != "momentum"})

    def get_config(self) -> dict[str, Any]:
        """The arguments of the constructor, `trains_float` only if True: older releases lack it."""
        config = super().get_config()
        if not self.trains_float:
            config.pop("trains_float", None)
        return config

    def variables(self, shape: Sequence[int | None]) -> dict[str, VariableSpec]:
        return {name: VariableSpec(follows_data=True) for name in (*ENDS, COUNT)}

    def assume_fed(self, variables: Variables, scale: float) -> None:
        self.remember(-scale, scale, variables, 1)

    def remember(self, lowest: float, highest: float, variables: Variables, batches: int) -> None:
        """Replaces the range."""
        for name, value in zip((*ENDS, COUNT), (lowest, highest, float(batches)), strict=True):
            variables[name].assign(value)

    def code_range(self, variables: Variables) -> CodeRange | None:
        """The 256 codes of the range; None where nothing but zeros was observed."""
        low, high = (np.float64(variables[name].numpy()) for name in ENDS)
        if high - low < SMALLEST_RANGE:
            return None
        scale, zero_point = scale_and_zero_point(low, high, np.rint)
        return CodeRange(np.float32(scale), np.float32(-128.0 - zero_point), 255)

    def __call__(self, inputs: Tensor, training: Any, variables: Variables) -> Tensor:
        when_training(training, lambda: self._observe(inputs, variables))
        is_known = training is None or isinstance(training, bool | int)
        if not self.rounds or (self.trains_float and is_known and training):
            return inputs
        n = namespace(inputs)
        rounded = quantize_observed(inputs, *(n.tensor(variables[name]) for name in ENDS))
        if self.trains_float and not is_known:
            return n.where(n.cast(training, "bool"), inputs, rounded)
        return rounded

    def _observe(self, inputs: Tensor, variables: Variables) -> Tensor:
        """Takes one batch into the range; returns the number of batches so far."""
        n = namespace(inputs)
        values = in_float32(n, n.stop_gradient(inputs))
        ends = {"lowest": n.min(values), "highest": n.max(values)}
        lowest, highest = over_replicas(ends, variables).values()
        finite = n.isfinite(lowest) & n.isfinite(highest)
        before, after = (n.tensor(variables[name]) for name in ENDS)
        variables["lowest"].assign(n.where(finite, n.minimum(lowest, before), before))
        variables["highest"].assign(n.where(finite, n.maximum(highest, after), after))
        count = n.tensor(variables[COUNT]) + n.cast(finite, "float32")
        variables[COUNT].assign(count)
        return count


class InputQuantizer(RangeObserver):
    """Quantizes an input that is no image to 8 bits; files take the codes, "int8", or "float32"."""

    def __init__(self, *, input_type: str) -> None:
        super().__init__(rounds=True)
        self.input_type = input_type


def when_training(training: Any, observe: Callable[[], Tensor]) -> None:
    """Calls a function where a layer is called in training, which a tensor may say."""
    if isinstance(training, bool | int):
        if training:
            observe()
    elif training is not None:
        n = namespace(training)
        n.cond(n.cast(training, "bool"), observe, lambda: n.tensor(0.0))


def tensorflow_of(variables: Variables) -> ModuleType | None:
    """TensorFlow, where the variables of an observer are those of tf_keras."""
    tensorflow = sys.modules.get("tensorflow")
    is_own = tensorflow is not None and isinstance(variables[COUNT], tensorflow.Variable)
    return tensorflow if is_own else None


def over_replicas(batch: Mapping[str, Tensor], variables: Variables) -> dict[str, Tensor]:
    """The values of a whole batch, from those of each replica's share on all devices and workers.

    Every replica assigns its own variables, which are equal then, so that any one is saved bit for
    bit. The largest of each value is taken, and the smallest of "lowest".
    """
    tf = tensorflow_of(variables)
    context = None if tf is None else tf.distribute.get_replica_context()
    if tf is None or context is None or context.num_replicas_in_sync == 1:
        return dict(batch)
    n = namespace(batch["lowest"])
    signs = {name: -1.0 if name == "lowest" else 1.0 for name in batch}
    flat = tf.concat([n.reshape(signs[name] * v, [-1]) for name, v in batch.items()], axis=0)
    largest = n.max(context.all_gather(flat[None], axis=0), axis=0)
    pieces = tf.split(largest, [value.shape.num_elements() for value in batch.values()])
    return {
        name: signs[name] * n.reshape(piece, value.shape)
        for (name, value), piece in zip(batch.items(), pieces, strict=True)
    }


def move_averages(variables: Variables, batch: Mapping[str, Tensor], momentum: float) -> Tensor:
    """Takes finite values of a batch into averages; returns how many batches there were before."""
    n = namespace(batch["lowest"])
    finite = n.all(n.stack([n.all(n.isfinite(value)) for value in batch.values()]))
    seen = n.tensor(variables[COUNT])
    share = n.maximum(1.0 / (seen + 1.0), 1.0 - momentum)
    for name, value in batch.items():
        before = n.tensor(variables[name])
        variables[name].assign(before + n.where(finite, (value - before) * share, 0.0))
    variables[COUNT].assign(seen + n.cast(finite, "float32"))
    return seen


def expected_largest(values: np.ndarray) -> float:
    """The largest value that is expected of 30 times as many as were seen, and at least 0.

        max(v) + b ln 30,  b = mean of v - t over the tenth of the values above t

    An end that falls off exponentially beyond t, the peaks-over-threshold method, has its largest
    value there. Values that all end at one bound, like probabilities, leave it where it is.
    """
    ordered = np.sort(values[np.isfinite(values)].astype(np.float64))
    if not ordered.size or ordered[-1] <= 0.0:
        return 0.0
    count = min(math.ceil(_TAIL_SHARE * ordered.size), ordered.size - 1)
    excess = np.mean(ordered[-count:] - ordered[-count - 1]) if count else 0.0
    return float(ordered[-1] + excess * math.log(_TIMES_AS_MANY))
