"""Keras callbacks that save a stage, and keep what is measured up to date."""

import time
from collections.abc import Sequence
from typing import Any

import tf_keras as keras

from sat_tf.export.deployed import DeployedModel
from sat_tf.qat.wrapper import ConstantWeights, has_quantized_layers
from sat_tf.training.callbacks.step_recorder import StepCallback
from sat_tf.training.config.sections import TrainingConfig
from sat_tf.training.interruption import Interruption
from sat_tf.training.state.checkpoints import Checkpoints, Position
from sat_tf.training.step.learner import Learner


class CheckpointSaver(keras.callbacks.Callback):
    """Saves a checkpoint at intervals, and once more when the run is asked to stop.

    What any process asks for, all of them do after the same step. At the end of an epoch they do
    it once the held-out images have been measured, so that no row of the metrics is lost.

    Args:
        checkpoints: where to.
        interruption: whether to stop.
        config: how often.
    """

    def __init__(
        self,
        checkpoints: Checkpoints,
        interruption: Interruption,
        config: TrainingConfig,
    ) -> None:
        super().__init__()
        self._supports_tf_logs = True
        self._checkpoints = checkpoints
        self._interruption = interruption
        self._seconds = 60 * config.checkpoint_minutes
        self._every = config.checkpoint_steps
        self._saved = time.monotonic()
        self._since = 0
        self._last_step = 0
        self._position = Position()
        self._wanted: set[str] = set()
        self._metrics: list[Any] | None = None
        self._flushed_first: Sequence[StepCallback] = ()

    def flush_first(self, callbacks: Sequence[StepCallback]) -> None:
        """Sets what to write out before a checkpoint, so that resuming from it leaves no gap."""
        self._flushed_first = callbacks

    def start_at(self, position: Position, steps: int) -> None:
        """Sets where training resumes; metrics of an epoch that has begun are kept.

        Args:
            position: the step that comes next.
            steps: how many follow in its epoch, and in those after it.
        """
        self._position = position
        self._last_step = position.step + steps
        learner: Learner = self.model
        values = [
            variable.read_value() for metric in learner.metrics for variable in metric.weights
        ]
        self._metrics = values if position.step else None

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        """Restores the metrics of an epoch that had begun, which `fit` has reset."""
        del epoch, logs
        if self._metrics is not None:
            variables = [variable for metric in self.model.metrics for variable in metric.weights]
            for variable, value in zip(variables, self._metrics, strict=True):
                variable.assign(value)
            self._metrics = None

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        """Saves or stops when it is due."""
        del batch
        step = self._position.step + 1
        self._position = Position(self._position.epoch, step)
        self._since += 1
        self._wanted = {name for name in ("stop", "save") if float(logs[name]) > 0}
        if self._wanted and step < self._last_step:
            self._act()
        if self._interruption.requested:
            self.model.signal("stop")
        elif self._is_time():
            self.model.signal("save")

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        """Does what the last step of the epoch has asked for."""
        del logs
        self._position = Position(epoch + 1)
        if self._wanted:
            self._act()

    def _is_time(self) -> bool:
        if self._every is not None and self._since >= self._every - 1:
            return True
        return time.monotonic() - self._saved >= self._seconds

    def _act(self) -> None:
        for callback in self._flushed_first:
            callback.flush()
        self._checkpoints.save(self._position)
        self._saved, self._since = time.monotonic(), 0
        stops = "stop" in self._wanted
        self._wanted = set()
        if stops:
            raise self._interruption.stopped()


class DeployedRefresher(keras.callbacks.Callback):
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


class ConstantWhileMeasured(keras.callbacks.Callback):
    """Copies the effective weights when measuring begins, for all of its steps.

    For a model that is measured with this callback or not at all: what Keras traces reads the
    copies. It comes after callbacks that change weights when measuring begins.

    Args:
        weights: of the model that is measured.
    """

    def __init__(self, weights: ConstantWeights) -> None:
        super().__init__()
        self._weights = weights

    def on_test_begin(self, logs: Any = None) -> None:
        """Makes the copies."""
        del logs
        self._weights.fill()

    def on_test_end(self, logs: Any = None) -> None:
        """Training computes effective weights again."""
        del logs
        self._weights.clear()


def constant_while_measured(model: keras.Model) -> list[ConstantWhileMeasured]:
    """The callback for a quantized model; none for others, whose weights are not quantized."""
    # A deployed model holds the weights of its file, and these only.
    if isinstance(model, DeployedModel) or not has_quantized_layers(model):
        return []
    return [ConstantWhileMeasured(ConstantWeights(model))]
