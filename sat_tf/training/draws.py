"""What layers draw at random, such as what Dropout drops: the same again after a resume."""

import tensorflow as tf
import tf_keras as keras


class Draws:
    """The random generators in the layers of a model, nested models included.

    In every step they start from a place of their own. What is drawn depends on the seed, the step
    and the replica alone: no checkpoint has to hold a state, which is another one on every replica
    where their shares of a batch differ in size.

    Args:
        model: whose layers are built, with `enable_tf_random_generator` in force.
    """

    def __init__(self, model: keras.Model) -> None:
        # By private names, because there is no other way to them.
        holders = (getattr(layer, "_random_generator", None) for layer in model.submodules)
        found = (getattr(holder, "_generator", None) for holder in holders)
        self._generators = [one for one in found if isinstance(one, tf.random.Generator)]

    def start_step(self, step: tf.Tensor) -> None:
        """Called in every replica, before it draws.

        Args:
            step: counts the steps; int64, a scalar.
        """
        for generator in self._generators:
            # Of Philox, a counter of 128 bits and a key: the upper half of the counter is the step.
            state = generator.state.read_value()
            begin = tf.concat([tf.zeros_like(state[:1]), step[None], state[2:]], axis=0)
            # As the generator itself does it: a replica's own copy, which `assign` would not reach.
            tf.raw_ops.AssignVariableOp(resource=generator.state.handle, value=begin)
