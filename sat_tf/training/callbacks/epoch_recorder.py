"""Keras callbacks that write the metrics of every epoch, and stop a run that diverges."""

import math
import time
from typing import Any

import tf_keras as keras

from sat_tf.data.source import ImageSource
from sat_tf.messages import RunError
from sat_tf.training.callbacks.step_recorder import StepCallback, current_learning_rate
from sat_tf.training.state.checkpoints import Checkpoints, describe_break
from sat_tf.training.state.history import EpochMetrics, to_csv
from sat_tf.training.state.run_folder import METRICS, RunFolder
from sat_tf.training.step.learner import Learner
from sat_tf.training.step.stage_plan import StagePlan

# The logs of Keras at the end of an epoch, by their names in the metrics file.
_MEASURED = {
    "loss": "loss",
    "data_loss": "data_loss",
    "train_top1": "top1",
    "train_top5": "top5",
    "held_out_loss": "val_loss",
    "held_out_top1": "val_top1",
    "held_out_top5": "val_top5",
}

_PROBED_IMAGES = 16


class EpochRecorder(StepCallback):
    """Adds a row an epoch to the run's metrics, and to their file.

    Args:
        plan: the steps of the stage.
        rows: the rows so far; the new ones are appended.
        folder: where the file goes.
    """

    def __init__(self, plan: StagePlan, rows: list[EpochMetrics], folder: RunFolder) -> None:
        super().__init__(plan)
        self.rows = rows
        self.folder = folder
        self._started = 0.0

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        """Starts the clock."""
        del epoch, logs
        self._started = time.perf_counter()

    def on_step(self, before: int, logs: Any) -> None:
        """Does nothing: the step is counted."""

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        """Writes the row."""
        del epoch
        measured = {name: float(logs[key]) for name, key in _MEASURED.items() if key in logs}
        self.rows.append(
            EpochMetrics(
                stage=self.plan.stage,
                epoch=self.plan.epoch_of(self.step),
                step=self.step,
                learning_rate=current_learning_rate(self.model),
                seconds=time.perf_counter() - self._started,
                **measured,
            )
        )
        self.folder.write_text(METRICS, to_csv(self.rows))


class StopWhenNotFinite(keras.callbacks.Callback):
    """Raises `RunError` as soon as the loss or a logit is NaN or infinite.

    Args:
        stage: name of the stage, for the message.
        source: the data set, whose images tell which layer broke.
        checkpoints: whose last good one is named.
    """

    def __init__(self, stage: str, source: ImageSource, checkpoints: Checkpoints) -> None:
        super().__init__()
        self._supports_tf_logs = True
        self.stage = stage
        self.source = source
        self.checkpoints = checkpoints
        self._epoch = 0

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        """Remembers the epoch, for the message."""
        del logs
        self._epoch = epoch + 1

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        """Checks what training reports."""
        del batch
        # The running mean stays NaN in every later batch; the message names the first one.
        self._check(logs, {"batch_loss": "the loss", "top1": "a logit"}, "")

    def on_test_batch_end(self, batch: int, logs: Any = None) -> None:
        """Checks what the held-out images report."""
        del batch
        self._check(logs, {"loss": "the loss", "top1": "a logit"}, "held-out images, after ")

    def _check(self, logs: Any, kinds: dict[str, str], where: str) -> None:
        for name, what in kinds.items():
            if not math.isfinite(float(logs[name])):
                learner: Learner = self.model
                step = int(learner.optimizer.iterations.numpy())
                images = self.source.training_sample(_PROBED_IMAGES, seed=0)
                latest = self.checkpoints.latest
                raise RunError(
                    f"{self.stage} stage, epoch {self._epoch}, {where}step {step}: {what} is NaN "
                    f"or infinite ({describe_break(learner.student, images)}), expected finite "
                    f"values; lower stages.{self.stage}.base_learning_rate, lengthen its "
                    "warmup_epochs, or start from lower clipping levels. "
                    + (f"The last good checkpoint is {latest}." if latest else "No checkpoint yet.")
                )
