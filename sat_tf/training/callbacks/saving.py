"""Callbacks that save a stage, and end one that diverges.

Keras's BackupAndRestore saves neither the running means of an epoch nor where in it a run was
stopped, and without these a resumed run would record other values than one that was left alone.
"""

import math
import time
from collections.abc import Callable
from typing import Any

import tf_keras as keras

from sat_tf.data.source import ImageSource
from sat_tf.messages import RunError
from sat_tf.training.config.sections import TrainingConfig
from sat_tf.training.interruption import Interruption
from sat_tf.training.state.checkpoints import Checkpoints, describe_break
from sat_tf.training.step.learner import Learner
from sat_tf.training.step.schedule import Position

_PROBED_IMAGES = 16


class CheckpointSaver(keras.callbacks.Callback):
    """Saves a checkpoint at intervals, and once more when the run is asked to stop.

    What any process asks for, all of them do after the same step. At the end of an epoch they do
    it once the held-out images have been measured, so that no row of the metrics is lost.

    Args:
        checkpoints: where to.
        interruption: whether to stop.
        config: how often.
        flush: writes out what was recorded; called before a checkpoint, so that resuming from it
            leaves no gap.
    """

    # Keras would otherwise fetch every logged value after every step, and wait for the device.
    _supports_tf_logs = True

    def __init__(
        self,
        checkpoints: Checkpoints,
        interruption: Interruption,
        config: TrainingConfig,
        *,
        flush: Callable[[], None],
    ) -> None:
        super().__init__()
        self._checkpoints = checkpoints
        self._flush = flush
        self._interruption = interruption
        self._seconds = 60 * config.checkpoint_minutes
        self._every = config.checkpoint_steps
        self._saved = time.monotonic()
        self._since = 0
        self._last_step = 0
        self._position = Position()
        self._wanted: set[str] = set()
        self._metrics: list[Any] | None = None

    def start_at(self, position: Position, steps: int) -> None:
        """Sets where training resumes; metrics of an epoch that has begun are kept.

        Args:
            position: the step that comes next.
            steps: how many follow in its epoch, and in those after it.
        """
        self._position = position
        self._last_step = position.step + steps
        if position.step:
            metrics = self.model.metrics
            self._metrics = [value.read_value() for metric in metrics for value in metric.weights]

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
        elif (self._every is not None and self._since >= self._every - 1) or (
            time.monotonic() - self._saved >= self._seconds
        ):
            self.model.signal("save")

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        """Does what the last step of the epoch has asked for."""
        del logs
        self._position = Position(epoch + 1)
        if self._wanted:
            self._act()

    def _act(self) -> None:
        self._flush()
        self._checkpoints.save(self._position)
        self._saved, self._since = time.monotonic(), 0
        stops = "stop" in self._wanted
        self._wanted = set()
        if stops:
            raise self._interruption.stopped()


class StopWhenNotFinite(keras.callbacks.Callback):
    """Raises `RunError` as soon as the loss or a logit is NaN or infinite.

    Keras's TerminateOnNaN ends `fit` as if all were well, without a word on what broke.

    Args:
        stage: name of the stage, for the message.
        source: the data set, whose images tell which layer broke.
        checkpoints: whose last good one is named.
    """

    _supports_tf_logs = True  # see `CheckpointSaver`

    def __init__(self, stage: str, source: ImageSource, checkpoints: Checkpoints) -> None:
        super().__init__()
        self._stage, self._source, self._checkpoints = stage, source, checkpoints
        self._epoch = 0

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        """Remembers the epoch, for the message."""
        del logs
        self._epoch = epoch + 1

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        """Checks what training reports."""
        del batch
        # The running mean stays NaN in every later batch; the message names the first one.
        self._check("", loss=logs["batch_loss"], top1=logs["top1"])

    def on_test_batch_end(self, batch: int, logs: Any = None) -> None:
        """Checks what the held-out images report."""
        del batch
        self._check("held-out images, after ", loss=logs["loss"], top1=logs["top1"])

    def _check(self, where: str, *, loss: Any, top1: Any) -> None:
        for value, what in ((loss, "the loss"), (top1, "a logit")):
            if not math.isfinite(float(value)):
                learner: Learner = self.model
                step = int(learner.optimizer.iterations.numpy())
                images = self._source.training_sample(_PROBED_IMAGES, seed=0)
                latest = self._checkpoints.latest
                raise RunError(
                    f"{self._stage} stage, epoch {self._epoch}, {where}step {step}: {what} is NaN "
                    f"or infinite ({describe_break(learner.student, images)}), expected finite "
                    f"values; lower stages.{self._stage}.base_learning_rate, lengthen its "
                    "warmup_epochs, or start from lower clipping levels. "
                    + (f"The last good checkpoint is {latest}." if latest else "No checkpoint yet.")
                )
