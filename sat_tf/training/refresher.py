"""A Keras callback that keeps a deployed model on the integers of its file while it trains."""

from typing import Any

import tf_keras as keras

from sat_tf.export.deployed import DeployedModel


class Refresher(keras.callbacks.Callback):
    """Takes the integers from the quantized model before every step and every measurement.

    Args:
        deployed: the model that a learner trains.
    """

    def __init__(self, deployed: DeployedModel) -> None:
        super().__init__()
        self._supports_tf_logs = True
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
