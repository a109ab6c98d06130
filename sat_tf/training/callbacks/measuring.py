"""Callbacks around the measuring of held-out images: what is measured, and what of it is kept."""

from collections.abc import Mapping
from typing import Any

import numpy as np
import tensorflow as tf
import tf_keras as keras

from sat_tf.export.deployed import DeployedModel
from sat_tf.qat.wrapper import ConstantWeights, has_quantized_layers
from sat_tf.training.step.distribution import replica_variable


class BestWeights(tf.Module):
    """The weights that did best on the held-out images, the start of the stage included.

    They are copies of a model's variables, part of the learner's checkpoints, which Keras's
    ModelCheckpoint keeps in a file that no checkpoint goes back with. Create it in the strategy's
    scope.

    Args:
        model: the one that is trained.
    """

    def __init__(self, model: keras.Model) -> None:
        super().__init__(name="best_weights")
        # A function hides them from tf.Module, so that they are not saved twice.
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


class DeployedRefresher(keras.callbacks.Callback):
    """Takes the integers from the quantized model before every step and every measurement.

    Args:
        deployed: the model that a learner trains.
    """

    # Keras would otherwise fetch every logged value after every step, and wait for the device.
    _supports_tf_logs = True

    def __init__(self, deployed: DeployedModel) -> None:
        super().__init__()
        self._deployed = deployed

    def on_train_begin(self, logs: Any = None) -> None:
        """Takes all of them: weights may come from a checkpoint."""
        del logs
        self._deployed.refresh()

    def on_train_batch_begin(self, batch: int, logs: Any = None) -> None:
        """Takes those that a step changes."""
        del batch, logs
        self._deployed.refresh_quickly()

    def on_test_begin(self, logs: Any = None) -> None:
        """Takes all of them, exactly as the export computes them."""
        del logs
        self._deployed.refresh()


def constant_while_measured(model: keras.Model) -> list[keras.callbacks.Callback]:
    """A callback that copies the effective weights when measuring begins, for all of its steps.

    It is for a model that is measured with this callback or not at all: what Keras traces reads the
    copies. It comes after callbacks that change weights when measuring begins.

    Returns:
        The callback of a quantized model; none for others, whose weights are not quantized.
    """
    # A deployed model holds the weights of its file, and these only.
    if isinstance(model, DeployedModel) or not has_quantized_layers(model):
        return []
    weights = ConstantWeights(model)
    return [
        keras.callbacks.LambdaCallback(
            on_test_begin=lambda logs: weights.fill(), on_test_end=lambda logs: weights.clear()
        )
    ]
