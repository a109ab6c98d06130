"""The weights of a stage that did best on the held-out images, its start included."""

from collections.abc import Mapping
from typing import Any

import numpy as np
import tensorflow as tf
import tf_keras as keras

from sat_tf.training.step.distribution import replica_variable


class BestWeights(tf.Module):
    """A copy of a model's variables, and what they were measured with.

    Part of the learner's checkpoints. Create it in the strategy's scope.

    Args:
        model: the one that is trained.
    """

    def __init__(self, model: keras.Model) -> None:
        super().__init__(name="best_weights")
        # Behind a function, so that tf.Module does not track them and they are not saved twice.
        weights = list(model.weights)
        self._weights = lambda: weights
        self._copies = [replica_variable(tf.convert_to_tensor(w), "best") for w in weights]
        self._top1 = replica_variable(-1.0, "top1")
        self._loss = replica_variable(0.0, "loss")
        self._epoch = replica_variable(0, "epoch", dtype=tf.int64)

    @property
    def epoch(self) -> int:
        """The epoch after which the weights were these; 0 is the start."""
        return int(self._epoch.numpy())

    @property
    def top1(self) -> float:
        """Their held-out top-1; below 0 before anything is measured."""
        return float(self._top1.numpy())

    def take_if_better(self, epoch: int, metrics: Mapping[str, Any]) -> None:
        """Copies the weights that the model has now, if they are better: top-1, then the loss."""
        # They are compared in the precision in which they are kept, so that equal ones stay equal.
        top1, loss = np.float32(metrics["top1"]), np.float32(metrics["loss"])
        is_better = top1 > self.top1 or (top1 == self.top1 and loss < self._loss.numpy())
        if not is_better:  # NaN is not
            return
        self._top1.assign(top1)
        self._loss.assign(loss)
        self._epoch.assign(epoch)
        for copy, weight in zip(self._copies, self._weights(), strict=True):
            copy.assign(weight.numpy())

    def restore(self) -> None:
        """Gives the model these weights."""
        for copy, weight in zip(self._copies, self._weights(), strict=True):
            weight.assign(copy.numpy())


class KeepBestMeasured(keras.callbacks.Callback):
    """Has the best weights copied after every measurement of the held-out images.

    It comes before callbacks that measure other weights than those of the last step, so that what
    is copied is what was measured.

    Args:
        best: the copy; it counts nothing but whole epochs, from 1.
    """

    def __init__(self, best: BestWeights) -> None:
        super().__init__()
        self._best = best
        self._epoch = 0

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        """Counts the epoch."""
        del logs
        self._epoch = epoch + 1

    def on_test_end(self, logs: Any = None) -> None:
        """Copies the weights, if they are the best so far."""
        self._best.take_if_better(self._epoch, logs)
