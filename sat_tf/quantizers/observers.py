"""Ranges that are observed: of outputs, of what float layers read, and of inputs but images."""

import math
from collections.abc import Callable, Mapping
from typing import Any, ClassVar

import numpy as np
import tensorflow as tf
import tf_keras as keras

from sat_tf.core.asymmetric import quantize_observed
from sat_tf.core.ranges import SMALLEST_RANGE, scale_and_zero_point
from sat_tf.quantizers.constructors import OfInput, OfObserver
from sat_tf.quantizers.protocol import CodeRange, SatQuantizer, register_quantizer
from sat_tf.quantizers.settings import COUNT, ENDS

# The share of the largest values that tells how a distribution ends, and how many times as many
# values its end is extrapolated to.
_TAIL_SHARE = 0.1
_TIMES_AS_MANY = 30.0


@register_quantizer
class RangeObserver(OfObserver, SatQuantizer):
    """Remembers the range of a tensor, for the 8-bit codes of the export.

    `sat_tf.calibrate` sets the range, `lowest` and `highest`, to what its images let expect. In
    training it takes in the extremes of every batch, whatever their number of images, and never
    shrinks: a mean over batches would be the range of one of them, which is none of the whole data
    set where batches are small. `observations` counts the batches; 0 means never observed. The
    range always holds zero. Batches with infinite or NaN values leave it as it is.

    Forward and backward: the tensor itself; or with `rounds`, `asymmetric.quantize_observed`, once
    something was observed.

    Args:
        rounds: the tensor is rounded here too, because float layers read what the file rounds.
        momentum: ignored; of models that earlier versions saved.
    """

    observes_range: ClassVar[bool] = True
    rounds_before_clipping: ClassVar[bool] = True

    def build(self, tensor_shape: Any, name: str, layer: keras.layers.Layer) -> dict[str, Any]:
        """Makes the variables `lowest`, `highest` and `observations`."""
        del tensor_shape, name
        return {name: add_observed(layer, name) for name in (*ENDS, COUNT)}

    def assume_fed(self, weights: Mapping[str, Any], scale: float) -> None:
        """The range is [-scale, scale]."""
        self.remember(-scale, scale, weights, 1)

    def remember(
        self, lowest: float, highest: float, weights: Mapping[str, Any], batches: int
    ) -> None:
        """Replaces the range."""
        for name, value in zip((*ENDS, COUNT), (lowest, highest, float(batches)), strict=True):
            weights[name].assign(value)

    def code_range(self, weights: Mapping[str, Any]) -> CodeRange | None:
        """The 256 codes of the range; None where nothing but zeros was observed."""
        low, high = (np.float64(weights[name].numpy()) for name in ENDS)
        if high - low < SMALLEST_RANGE:
            return None
        scale, zero_point = scale_and_zero_point(low, high, np.rint)
        return CodeRange(np.float32(scale), np.float32(-128.0 - zero_point), 255)

    def __call__(
        self, inputs: tf.Tensor, training: Any, weights: dict[str, Any], **kwargs: Any
    ) -> tf.Tensor:
        """The tensor, rounded or as it is; in training, the range has taken it in."""
        del kwargs
        when_training(training, lambda: self.observe(inputs, weights))
        if not self.rounds:
            return inputs
        return quantize_observed(inputs, *(tf.convert_to_tensor(weights[name]) for name in ENDS))

    def observe(self, inputs: tf.Tensor, weights: dict[str, Any]) -> tf.Tensor:
        """Takes one batch into the range; returns how many there were before."""
        values = tf.cast(tf.stop_gradient(inputs), tf.float32)
        ends = {"lowest": tf.reduce_min(values), "highest": tf.reduce_max(values)}
        lowest, highest = over_replicas(ends).values()
        finite = tf.math.is_finite(lowest) & tf.math.is_finite(highest)
        before, after = (tf.convert_to_tensor(weights[name]) for name in ENDS)
        weights["lowest"].assign(tf.where(finite, tf.minimum(lowest, before), before))
        weights["highest"].assign(tf.where(finite, tf.maximum(highest, after), after))
        seen = tf.convert_to_tensor(weights[COUNT])
        weights[COUNT].assign_add(tf.cast(finite, tf.float32))
        return seen


def when_training(training: Any, observe: Callable[[], tf.Tensor]) -> None:
    """Calls a function where a layer is called in training, which a tensor may say."""
    if isinstance(training, bool | int):
        if training:
            observe()
    elif training is not None:
        tf.cond(tf.cast(training, tf.bool), observe, lambda: tf.constant(0.0))


def add_observed(layer: keras.layers.Layer, name: str, shape: tuple[int, ...] = ()) -> tf.Variable:
    """Makes a variable that follows the data in training."""
    # Every replica assigns its own, in its step; `over_replicas` has made them equal, so that any
    # one of them is saved bit for bit, which their mean is not.
    return layer.add_weight(
        name=name,
        shape=shape,
        dtype=tf.float32,
        initializer=keras.initializers.Zeros(),
        trainable=False,
        synchronization=tf.VariableSynchronization.ON_READ,
        aggregation=tf.VariableAggregation.ONLY_FIRST_REPLICA,
    )


def over_replicas(batch: Mapping[str, tf.Tensor]) -> dict[str, tf.Tensor]:
    """What the whole batch has, of what each replica's share has, on all devices and workers.

    Args:
        batch: float32; the largest is taken of each value, but of "lowest" the smallest.
    """
    context = tf.distribute.get_replica_context()
    if context is None or context.num_replicas_in_sync == 1:
        return dict(batch)
    signs = {name: -1.0 if name == "lowest" else 1.0 for name in batch}
    flat = tf.concat([tf.reshape(signs[name] * v, [-1]) for name, v in batch.items()], axis=0)
    largest = tf.reduce_max(context.all_gather(flat[None], axis=0), axis=0)
    parts = tf.split(largest, [value.shape.num_elements() for value in batch.values()])
    return {
        name: signs[name] * tf.reshape(part, value.shape)
        for (name, value), part in zip(batch.items(), parts, strict=True)
    }


def move_averages(
    weights: Mapping[str, Any], batch: Mapping[str, tf.Tensor], momentum: float
) -> tf.Tensor:
    """Takes the values of a batch, if all are finite, into averages: the mean over the first ones.

    Returns:
        How many batches there were before.
    """
    finite = tf.reduce_all([tf.reduce_all(tf.math.is_finite(v)) for v in batch.values()])
    seen = tf.convert_to_tensor(weights[COUNT])
    share = tf.where(finite, tf.maximum(1.0 / (seen + 1.0), 1.0 - momentum), 0.0)
    for name, value in batch.items():
        step = tf.math.multiply_no_nan(value - weights[name], share)
        weights[name].assign_add(step)
    weights[COUNT].assign_add(tf.cast(finite, tf.float32))
    return seen


@register_quantizer
class InputQuantizer(OfInput, RangeObserver):
    """Quantizes an input that is no image to 8 bits, on the range that it has observed.

    Forward and backward: those of a `RangeObserver` that rounds.

    Args:
        input_type: what the file takes: "int8", the codes, or "float32", of which it makes them.
        momentum: see `RangeObserver`.
    """


def expected_largest(values: np.ndarray) -> float:
    """The largest value that is expected of 30 times as many as were seen, and at least 0.

        max(v) + b ln 30,  b = mean of v - t over the tenth of the values above t

    An end that falls off exponentially beyond t, the peaks-over-threshold method, has its largest
    value there. Values that all end at one bound, like probabilities, leave it where it is; that of
    a normal distribution is a quarter higher, and that of a heavy-tailed one twice as high. Where
    no value is positive, none is expected to be.

    Args:
        values: any number of them; those that are not finite do not count.

    >>> expected_largest(np.array([1.0, 1.0, 0.5])), expected_largest(np.array([-1.0, -2.0]))
    (1.0, 0.0)
    >>> round(expected_largest(np.arange(101.0)), 1)
    120.4
    """
    ordered = np.sort(values[np.isfinite(values)].astype(np.float64))
    if not ordered.size or ordered[-1] <= 0.0:
        return 0.0
    count = min(math.ceil(_TAIL_SHARE * ordered.size), ordered.size - 1)
    excess = np.mean(ordered[-count:] - ordered[-count - 1]) if count else 0.0
    return float(ordered[-1] + excess * math.log(_TIMES_AS_MANY))
