"""A Keras callback that measures every so many steps, for the fine curves of a run."""

import math
import time
from collections.abc import Mapping
from typing import Any

import numpy as np
import tensorflow as tf

from sat_tf.training.errors import RunError
from sat_tf.training.run_folder import STEPS, RunFolder
from sat_tf.training.running_means import RunningMeans
from sat_tf.training.stage_plan import StagePlan
from sat_tf.training.step_callback import StepCallback, current_learning_rate
from sat_tf.training.step_history import StepMetrics, from_csv, to_csv

# As many points a stage as a curve can show, and no more than the file can be rewritten with.
_ROWS_A_STAGE = 1000
_FEWEST_STEPS = 10
# Of the time between two writings, writing takes this share at most.
_WRITING = 0.01


def default_interval(total_steps: int) -> int:
    """Every how many steps to measure where nothing else is asked for.

    >>> default_interval(700), default_interval(187650)
    (10, 188)
    """
    return max(_FEWEST_STEPS, math.ceil(total_steps / _ROWS_A_STAGE))


class StepRecorder(StepCallback):
    """Adds a row every so many steps to the steps file of the run.

    The file is rewritten whole, so often that it takes a hundredth of the time at most, and before
    a checkpoint (`flush`), so that a run that goes on from there has no gap. The first row of a run
    that goes on is about the steps since then.

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
        self._means = RunningMeans(["loss", "top1", "top5"])
        self._goes_on = plan.metric_steps > 0
        self._written = len(rows)
        self._write_after = 0.0

    def on_train_batch_begin(self, batch: int, logs: Any = None) -> None:
        """Before the first step, takes in what running means out of a checkpoint start from."""
        super().on_train_batch_begin(batch, logs)
        if self._goes_on:
            restored = {metric.name: metric.result() for metric in self.model.metrics}
            self._means.go_on(self.plan.metric_steps, restored)
            self._goes_on = False

    def on_step(self, before: int, logs: Any) -> None:
        """Adds a row where one is due, and writes the file where that is."""
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
        """Writes the file, unless it has all rows already."""
        if self._written == len(self.rows):
            return
        start = time.perf_counter()
        self.folder.write_text(STEPS, to_csv(self.rows))
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
            top1=float("nan") if means["top1"] is None else means["top1"],
            top5=means["top5"],
            clipping_levels=dict(levels),
        )


def recorded_steps(folder: RunFolder, step_of_run: int) -> list[StepMetrics]:
    """The rows that a run has left in its folder up to a step; what came later is dropped.

    Args:
        folder: of the run.
        step_of_run: the last step that counts, from the start of the run.

    Raises:
        RunError: the file is no steps file.
    """
    try:
        rows = from_csv(folder.read_text(STEPS))
    except RunError as error:
        raise folder.damaged(STEPS, error, "steps with their metrics") from error
    return [row for row in rows if row.step_of_run <= step_of_run]
