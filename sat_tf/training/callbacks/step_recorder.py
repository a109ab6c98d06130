"""Keras callbacks that follow a stage step by step, and one that records it at intervals."""

import abc
import math
import time
from collections.abc import Mapping
from typing import Any

import numpy as np
import tensorflow as tf
import tf_keras as keras

from sat_tf.training.state.history import StepMetrics, steps_from_csv, steps_to_csv
from sat_tf.training.state.run_folder import STEPS, RunFolder
from sat_tf.training.step.stage_plan import StagePlan


class StepCallback(keras.callbacks.Callback, abc.ABC):
    """Counts the steps of a stage, and leaves what Keras logs on the device until it is read.

    The count starts where the plan does, so that it is also right in an epoch resumed halfway,
    however Keras numbers its batches there.

    Args:
        plan: the steps of the stage.
    """

    # Keras would otherwise fetch every logged value after every step, and wait for the device.
    _supports_tf_logs = True

    def __init__(self, plan: StagePlan) -> None:
        super().__init__()
        self.plan = plan
        self.step = plan.first_step
        self._first_batch = 0

    def on_train_batch_begin(self, batch: int, logs: Any = None) -> None:
        """Remembers where the step starts: Keras may take several batches at once."""
        del logs
        self._first_batch = batch

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        """Counts the step."""
        before = self.step
        self.step += batch - self._first_batch + 1
        self.on_step(before, logs)

    def flush(self) -> None:
        """Writes out what is still in memory; called before a checkpoint."""

    @abc.abstractmethod
    def on_step(self, before: int, logs: Any) -> None:
        """Called after a step.

        Args:
            before: `step` before it; one less, unless Keras takes several batches at once.
            logs: running means over the epoch by name; reading one waits for the device.
        """


def current_learning_rate(model: keras.Model) -> float:
    """The learning rate of a compiled model's last step; before any step, of the first one."""
    return float(keras.backend.get_value(model.optimizer.learning_rate))


class RunningMeans:
    """The means over the steps since they were last read, from the running means of an epoch.

    A mean over n steps and one over the first m of them give that over the other n - m. Steps that
    are left at the end of an epoch, where Keras starts over, count in the first reading after it.

    Args:
        names: of the logged values.

    >>> means = RunningMeans(["loss"])
    >>> means.advance(2); means.take({"loss": 3.0})
    {'loss': 3.0}
    >>> means.advance(2); means.take({"loss": 2.0})
    {'loss': 1.0}
    """

    def __init__(self, names: list[str]) -> None:
        self._steps = 0
        self._read_steps = 0
        self._read = dict.fromkeys(names, 0.0)
        self._left_steps = 0
        self._left = dict.fromkeys(names, 0.0)

    def resume(self, steps: int, logs: Mapping[str, Any]) -> None:
        """Starts within an epoch: readings begin with the next step.

        Args:
            steps: how many steps the running means already cover.
            logs: the running means.
        """
        self._steps = steps
        self.take(logs)

    def advance(self, steps: int) -> None:
        """Counts steps that the running means have taken in."""
        self._steps += steps

    def take(self, logs: Mapping[str, Any]) -> dict[str, float | None]:
        """The means over the steps since the last call; None if a name is not logged."""
        steps, sums = self._since_reading(logs)
        self._read_steps = self._steps
        self._read = {name: self._steps * _number(logs, name) for name in self._read}
        self._left_steps, self._left = 0, dict.fromkeys(self._left, 0.0)
        return {
            name: total / steps if name in logs and steps else None for name, total in sums.items()
        }

    def end_epoch(self, logs: Mapping[str, Any]) -> None:
        """Keeps what is left of an epoch; the running means start over."""
        self._left_steps, self._left = self._since_reading(logs)
        self._steps, self._read_steps = 0, 0
        self._read = dict.fromkeys(self._read, 0.0)

    def _since_reading(self, logs: Mapping[str, Any]) -> tuple[int, dict[str, float]]:
        sums = {
            name: self._steps * _number(logs, name) - read + self._left[name]
            for name, read in self._read.items()
        }
        return self._steps - self._read_steps + self._left_steps, sums


def _number(logs: Mapping[str, Any], name: str) -> float:
    return float(logs[name]) if name in logs else 0.0


# As many points a stage as a curve can show, and few enough to rewrite the file each time.
_ROWS_A_STAGE = 1000
# The largest share of the time that writing may take.
_WRITING = 0.01


def default_interval(total_steps: int) -> int:
    """The default number of steps between measurements.

    >>> default_interval(700), default_interval(187650)
    (1, 188)
    """
    return max(1, math.ceil(total_steps / _ROWS_A_STAGE))


class StepRecorder(StepCallback):
    """Adds a row to the steps file of the run every `every` steps.

    The file is rewritten whole, only so often that it takes at most a hundredth of the time, and
    before a checkpoint (`flush`), so that a run that resumes from there has no gap. The first row
    of a resumed run covers the steps since then.

    Args:
        plan: the steps of the stage.
        rows: the rows so far; the new ones are appended.
        folder: where the file goes.
        clipping_levels: variables by the name they get in the file.
        every: how many steps lie between rows.
    """

    def __init__(
        self,
        plan: StagePlan,
        rows: list[StepMetrics],
        folder: RunFolder,
        *,
        clipping_levels: Mapping[str, tf.Variable],
        every: int,
    ) -> None:
        super().__init__(plan)
        self.rows = rows
        self.folder = folder
        self.every = every
        self._levels = dict(clipping_levels)
        self._means = RunningMeans(["loss", "data_loss", "top1", "top5"])
        self._resumes = plan.metric_steps > 0
        self._written = len(rows)
        self._write_after = 0.0

    def on_train_batch_begin(self, batch: int, logs: Any = None) -> None:
        """Before the first step, takes over the running means restored from a checkpoint."""
        super().on_train_batch_begin(batch, logs)
        if self._resumes:
            restored = {metric.name: metric.result() for metric in self.model.metrics}
            self._means.resume(self.plan.metric_steps, restored)
            self._resumes = False

    def on_step(self, before: int, logs: Any) -> None:
        """Adds a row when one is due, and writes the file when that is due."""
        self._means.advance(self.step - before)
        if before // self.every == self.step // self.every:
            return
        self.rows.append(self._row(logs))
        if time.perf_counter() >= self._write_after:
            self.flush()

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        """Writes the file; Keras' running means start over."""
        del epoch
        self._means.end_epoch(logs)
        self.flush()

    def flush(self) -> None:
        """Writes the file, unless it already has all rows."""
        if self._written == len(self.rows):
            return
        start = time.perf_counter()
        self.folder.write_text(STEPS, steps_to_csv(self.rows))
        self._written = len(self.rows)
        end = time.perf_counter()
        self._write_after = end + (end - start) / _WRITING

    def _row(self, logs: Any) -> StepMetrics:
        means = self._means.take(logs)
        values = np.asarray(tf.stack(list(self._levels.values()))) if self._levels else ()
        levels = zip(self._levels, map(float, values), strict=True)
        return StepMetrics(
            stage=self.plan.stage,
            step=self.step,
            step_of_run=self.plan.step_of_run(self.step),
            learning_rate=current_learning_rate(self.model),
            loss=float("nan") if means["loss"] is None else means["loss"],
            data_loss=means["data_loss"],
            top1=float("nan") if means["top1"] is None else means["top1"],
            top5=means["top5"],
            clipping_levels=dict(levels),
        )


def recorded_steps(folder: RunFolder, step_of_run: int) -> list[StepMetrics]:
    """The rows in the folder of a run up to a step; later ones are dropped.

    Args:
        folder: of the run.
        step_of_run: the last step that counts, from the start of the run.

    Raises:
        RunError: the file is not a steps file.
    """
    rows = folder.read_rows(STEPS, steps_from_csv, "steps with their metrics")
    return [row for row in rows if row.step_of_run <= step_of_run]
