"""Progressive bits: training starts with many and comes down to those of the policy."""

from collections.abc import Sequence

import tensorflow as tf
import tf_keras as keras

from sat_tf.qat.wrapper import QuantizedLayer
from sat_tf.training.step.distribution import replica_variable


class ProgressiveBits(tf.Module):
    """A floor under the bits of every quantizer of a model, which comes down during training.

    A quantizer of b bits works with max(b, floor), weights and activations alike. The floor is a
    variable of the graph, so one trace serves all of its values; at the end it is 0, and every
    quantizer has the bits of the policy.

    To be called after every step of the optimizer, in every replica. Create it in the strategy's
    scope.

    Args:
        model: quantized by sat-tf; the one that is trained. Copies of it have no floor.
        bits: the floors, falling.
        shares: the share of the steps that each lasts; positive, with a sum below 1.
        total_steps: of the stage.
    """

    def __init__(
        self,
        model: keras.Model,
        *,
        bits: Sequence[int],
        shares: Sequence[float],
        total_steps: int,
    ) -> None:
        super().__init__(name="progressive_bits")
        self._floors = (*bits, 0)
        ends = [sum(shares[: index + 1]) for index in range(len(shares))]
        self._ends = tuple(round(end * total_steps) for end in ends)
        self.steps = replica_variable(0, "steps", dtype=tf.int64)
        self.floor = replica_variable(self._floor_at(0), "bit_floor")
        for layer in model.layers:
            if isinstance(layer, QuantizedLayer):
                layer.keep_bits_above(self.floor)

    def __call__(self) -> None:
        """Counts a step, and sets the floor of the next one."""
        steps = self.steps + 1
        self.steps.assign(steps)
        self.floor.assign(self._floor_at(steps))

    def _floor_at(self, steps: int | tf.Tensor) -> tf.Tensor:
        """The floor after some steps; 0 after the last one."""
        over = tf.cast(steps, tf.int64) >= tf.constant(self._ends, tf.int64)
        return tf.gather(
            tf.constant(self._floors, tf.int64), tf.reduce_sum(tf.cast(over, tf.int64))
        )
