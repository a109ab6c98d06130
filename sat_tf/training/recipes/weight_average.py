"""A moving average of the weights, measured and saved in their place."""

from typing import Any

import tensorflow as tf
import tf_keras as keras

from sat_tf.training.step.distribution import replica_variable


class WeightAverage(tf.Module):
    """The exponential moving average of all float variables of a model.

    After step t, counted from 1: average <- d average + (1 - d) weight, with
    d = min(decay, (1 + t) / (10 + t)), so that the first steps are soon forgotten. It holds latent
    weights, biases, clipping levels, and the statistics of BatchNormalization and of observed
    ranges.

    Reference: Polyak and Juditsky, "Acceleration of Stochastic Approximation by Averaging", 1992.

    To be called after every step of the optimizer, in every replica. Create it in the strategy's
    scope.

    Args:
        model: the one that is trained.
        decay: weight of the past after many steps, between 0 and 1.
    """

    def __init__(self, model: keras.Model, *, decay: float) -> None:
        super().__init__(name="weight_average")
        self._decay = decay
        weights = [weight for weight in model.weights if weight.dtype.is_floating]
        # Behind a function, so that tf.Module does not track them and they are not saved twice.
        self._weights = lambda: weights
        self.steps = replica_variable(0, "steps", dtype=tf.int64)
        self.averages = [
            replica_variable(
                tf.convert_to_tensor(weight),
                "average",
                aggregation=_aggregation(weight),
            )
            for weight in weights
        ]

    def __call__(self) -> None:
        """Takes the weights after a step into the average."""
        steps = self.steps + 1
        self.steps.assign(steps)
        count = tf.cast(steps, tf.float32)
        share = 1.0 - tf.minimum(self._decay, (1.0 + count) / (10.0 + count))
        for average, weight in zip(self.averages, self._weights(), strict=True):
            change = tf.cast(share, average.dtype) * (tf.convert_to_tensor(weight) - average)
            average.assign_add(change)

    def swap(self) -> None:
        """Exchanges weights and averages; outside of replicas."""
        for average, weight in zip(self.averages, self._weights(), strict=True):
            former = weight.numpy()
            weight.assign(average.numpy())
            average.assign(former)

    def keep(self) -> None:
        """Gives the model its average for good; outside of replicas."""
        for average, weight in zip(self.averages, self._weights(), strict=True):
            weight.assign(average.numpy())


class AverageMeasured(keras.callbacks.Callback):
    """Has held-out images measured with the average instead of the weights of the last step.

    Args:
        average: of the model that is trained.
    """

    def __init__(self, average: WeightAverage) -> None:
        super().__init__()
        self.average = average

    def on_test_begin(self, logs: Any = None) -> None:
        """Puts the average in the place of the weights."""
        del logs
        self.average.swap()

    def on_test_end(self, logs: Any = None) -> None:
        """Puts the weights back."""
        del logs
        self.average.swap()


def _aggregation(weight: tf.Variable) -> tf.VariableAggregation:
    """Statistics of each replica's own images, and their averages, are saved as their mean."""
    if weight.synchronization == tf.VariableSynchronization.ON_READ:
        return weight.aggregation
    return tf.VariableAggregation.ONLY_FIRST_REPLICA
