"""Ranges observed in training: of tensors that only the file quantizes, and of other inputs."""

from collections.abc import Callable, Mapping
from typing import Any, ClassVar

import tensorflow as tf
import tf_keras as keras

from sat_tf.core.asymmetric import quantize_observed
from sat_tf.quantizers.constructors import OfInput, OfObserver
from sat_tf.quantizers.protocol import SatQuantizer, register_quantizer
from sat_tf.quantizers.settings import COUNT


@register_quantizer
class RangeObserver(OfObserver, SatQuantizer):
    """Passes a tensor through and remembers its range, for the 8-bit codes of the export.

    In training, `lowest` and `highest` follow the batch's minimum and maximum: the mean over the
    first batches, then a moving average. `observations` counts the batches; 0 means never observed.
    The range always holds zero. Infinite and NaN values leave it as it is.

    Args:
        momentum: weight of the past in the moving average, in [0, 1).
    """

    observes_range: ClassVar[bool] = True

    def build(self, tensor_shape: Any, name: str, layer: keras.layers.Layer) -> dict[str, Any]:
        """Makes the variables `lowest`, `highest` and `observations`."""
        del tensor_shape, name
        return {name: add_observed(layer, name) for name in ("lowest", "highest", COUNT)}

    def assume_fed(self, weights: Mapping[str, Any], scale: float) -> None:
        """The range is [-scale, scale]."""
        for name, value in (("lowest", -1.0), ("highest", 1.0), (COUNT, 1.0)):
            weights[name].assign(value * scale)

    def __call__(
        self, inputs: tf.Tensor, training: Any, weights: dict[str, Any], **kwargs: Any
    ) -> tf.Tensor:
        """Returns `inputs`; in training, the range has taken them in."""
        del kwargs
        when_training(training, lambda: self.observe(inputs, weights))
        return inputs

    def observe(self, inputs: tf.Tensor, weights: dict[str, Any]) -> tf.Tensor:
        """Takes one batch into the range; returns how many there were before."""
        values = tf.cast(tf.stop_gradient(inputs), tf.float32)
        lowest, highest = tf.reduce_min(values), tf.reduce_max(values)
        context = tf.distribute.get_replica_context()
        if context is not None and context.num_replicas_in_sync > 1:
            # The range of the whole batch, so that it does not depend on the number of devices.
            pieces = context.all_gather(tf.stack([lowest, highest])[None], axis=0)
            lowest, highest = tf.reduce_min(pieces[:, 0]), tf.reduce_max(pieces[:, 1])
        batch = {"lowest": tf.minimum(lowest, 0.0), "highest": tf.maximum(highest, 0.0)}
        return move_averages(weights, batch, self.momentum)


def when_training(training: Any, observe: Callable[[], tf.Tensor]) -> None:
    """Calls a function where a layer is called in training, which a tensor may say."""
    if isinstance(training, bool | int):
        if training:
            observe()
    elif training is not None:
        tf.cond(tf.cast(training, tf.bool), observe, lambda: tf.constant(0.0))


def add_observed(layer: keras.layers.Layer, name: str, shape: tuple[int, ...] = ()) -> tf.Variable:
    """Makes a variable that follows the data in training."""
    # Like the statistics of BatchNormalization: every replica keeps its own, and their mean is
    # what is read and saved.
    return layer.add_weight(
        name=name,
        shape=shape,
        dtype=tf.float32,
        initializer=keras.initializers.Zeros(),
        trainable=False,
        synchronization=tf.VariableSynchronization.ON_READ,
        aggregation=tf.VariableAggregation.MEAN,
    )


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

    Forward and backward: `observed.quantize_observed`, once something was observed; until then its
    input. The range follows the data as that of any `RangeObserver`.

    Args:
        input_type: what the file takes: "int8", the codes, or "float32", of which it makes them.
        momentum: see `RangeObserver`.
    """

    def __call__(
        self, inputs: tf.Tensor, training: Any, weights: dict[str, Any], **kwargs: Any
    ) -> tf.Tensor:
        """The quantized tensor, in the type of `inputs`."""
        inputs = super().__call__(inputs, training, weights, **kwargs)
        ends = (tf.convert_to_tensor(weights[name]) for name in ("lowest", "highest"))
        return quantize_observed(inputs, *ends)
