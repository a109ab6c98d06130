"""Variables that recipes change inside a training step, in every replica."""

from collections.abc import Sequence
from typing import Any

import tensorflow as tf


def replica_variable(
    value: Any,
    name: str,
    *,
    dtype: tf.DType | None = None,
    aggregation: tf.VariableAggregation = tf.VariableAggregation.ONLY_FIRST_REPLICA,
) -> tf.Variable:
    """Makes a variable of which every replica has its own, to be assigned to inside a step.

    Nothing is sent between devices until it is read or saved. Make it in the strategy's scope.

    Args:
        value: where it starts.
        name: of the variable.
        dtype: its type; by default that of `value`.
        aggregation: what is read and saved, of values that are the same on all replicas or
            statistics of each replica's own images.
    """
    return tf.Variable(
        value,
        trainable=False,
        dtype=dtype,
        name=name,
        synchronization=tf.VariableSynchronization.ON_READ,
        aggregation=aggregation,
    )


def assign_alike(variables: Sequence[tf.Variable], values: Sequence[tf.Tensor]) -> None:
    """Assigns to variables of the model, in a replica, values that are the same on all of them.

    Args:
        variables: mirrored ones, such as kernels.
        values: one for each.
    """

    def assign(strategy: tf.distribute.Strategy, *values: Any) -> None:
        for variable, value in zip(variables, values, strict=True):
            strategy.extended.update(
                variable, lambda own, new: own.assign(new), args=(value,), group=False
            )

    # As the optimizers of Keras do it: XLA on several accelerators knows no merging.
    tf.__internal__.distribute.interim.maybe_merge_call(
        assign, tf.distribute.get_strategy(), *values
    )
