"""Progressive bits: training starts with many and comes down to those of the policy."""

from collections.abc import Sequence

import tensorflow as tf
import tf_keras as keras

from sat_tf.qat.wrapper import QuantizedLayer
from sat_tf.training.step_counter import StepCounter


class ProgressiveBits(tf.Module):
    """A floor under the bits of every quantizer of a model, which comes down as training goes on.

    A quantizer of b bits works with max(b, floor), weights and activations alike. The number of
    bits is a variable of one graph, which therefore is traced once; at the end the floor is gone
    and the model is the one it was built as.

    To be called after every step of the optimizer, in every replica.

    Args:
        model: quantized by sat-tf; the one that is trained. Copies of it have no floor.
        bits: the floors, falling.
        shares: which part of the steps each lasts; positive, with a sum below 1.
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
        self.bits = tuple(bits)
        ends = [sum(shares[: index + 1]) for index in range(len(shares))]
        self.ends = tuple(round(end * total_steps) for end in ends)
        self.steps = StepCounter()
        self.floor = tf.Variable(
            self.floor_at(0), trainable=False, dtype=tf.int64, name="bit_floor"
        )
        for layer in model.layers:
            if isinstance(layer, QuantizedLayer):
                layer.keep_bits_above(self.floor)

    def floor_at(self, step: int | tf.Tensor) -> tf.Tensor:
        """The floor under the bits of a step, counted from 0; 0 where there is none."""
        over = tf.reduce_sum(tf.cast(tf.cast(step, tf.int64) >= self.ends, tf.int64))
        return tf.gather(tf.constant([*self.bits, 0], tf.int64), over)

    def __call__(self) -> None:
        """Counts a step, and sets the floor of the next one."""
        self.steps.count(self._set, self.floor)

    def _set(self, steps: tf.Tensor, floor: tf.Variable) -> None:
        floor.assign(self.floor_at(steps))
