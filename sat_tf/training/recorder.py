"""A Keras callback that writes the metrics of every epoch, and stops a run that has broken."""

import math
import time
from typing import Any

import tf_keras as keras

from sat_tf.training.errors import RunError
from sat_tf.training.history import EpochMetrics, to_csv
from sat_tf.training.run_folder import METRICS, RunFolder
from sat_tf.training.stage_plan import StagePlan
from sat_tf.training.step_callback import StepCallback, current_learning_rate

# What Keras logs at the end of an epoch, by what it is called in the metrics file.
_MEASURED = {
    "loss": "loss",
    "train_top1": "top1",
    "train_top5": "top5",
    "held_out_loss": "val_loss",
    "held_out_top1": "val_top1",
    "held_out_top5": "val_top5",
}


class Recorder(StepCallback):
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
    """

    def __init__(self, stage: str) -> None:
        super().__init__()
        self.stage = stage
        self._epoch = 0

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        """Remembers the epoch, for the message."""
        del logs
        self._epoch = epoch + 1

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        """Checks what training reports."""
        self._check(logs, f"step {batch + 1}")

    def on_test_batch_end(self, batch: int, logs: Any = None) -> None:
        """Checks what the held-out images report."""
        del batch
        self._check(logs, "held-out images")

    def _check(self, logs: Any, where: str) -> None:
        broken = {"loss": "the loss", "top1": "a logit"}
        for name, what in broken.items():
            if not math.isfinite((logs or {}).get(name, 0.0)):
                raise RunError(
                    f"{self.stage} stage, epoch {self._epoch}, {where}: {what} is NaN or "
                    f"infinite, expected finite values; lower "
                    f"stages.{self.stage}.base_learning_rate, lengthen its warmup_epochs, or start "
                    "from lower clipping levels."
                )
