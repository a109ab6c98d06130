"""The records of a stage in training: a row an epoch, one every few steps, TensorBoard's events.

Keras has CSVLogger and TensorBoard, but both go on where the file ends: a run that was killed a few
steps behind its last checkpoint would have these steps twice. They also begin to count anew in each
`fit`, of which a resumed stage needs several, and so the files are written, and cut back, here.
"""

import abc
import math
import pathlib
import time
from collections.abc import Mapping
from typing import Any

import numpy as np
import tensorflow as tf
import tf_keras as keras

from sat_tf.analysis.code_use import ActivationProbe, clipping_levels, scalar_events
from sat_tf.analysis.kappa import kappa_0
from sat_tf.atomic_file import renamed_when_done
from sat_tf.training.state import history
from sat_tf.training.state.history import EpochMetrics, StepMetrics, logged
from sat_tf.training.state.run_folder import METRICS, STEPS, TENSORBOARD, RunFolder
from sat_tf.training.step.schedule import StagePlan


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

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        """Counts the step."""
        del batch
        self.step += 1
        self.on_step(logs)

    @abc.abstractmethod
    def on_step(self, logs: Any) -> None:
        """Called after a step.

        Args:
            logs: running means over the epoch by name; reading one waits for the device.
        """


class RunningMeans:
    """The means over the steps since they were last read, from the running means of an epoch.

    A mean over n steps and one over the first m of them give that over the other n - m. Steps that
    are left at the end of an epoch, where Keras starts over, count in the first reading after it.

    Args:
        names: of the logged values.

    >>> means = RunningMeans(["loss"])
    >>> means.advance(); means.take({"loss": 3.0})
    {'loss': 3.0}
    >>> means.advance(); means.take({"loss": 2.0})
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

    def advance(self) -> None:
        """Counts a step that the running means have taken in."""
        self._steps += 1

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


# A stage has about as many rows as a curve can show points, few enough to rewrite the file often.
_ROWS_A_STAGE = 1000
# The largest share of the time that writing may take.
_WRITING = 0.01
# Keras's logs of held-out images begin with this.
_HELD_OUT = "val_"


class Recorder(StepCallback):
    """Records a stage in the run folder: metrics.csv, steps.csv, and TensorBoard's events.

    A context manager, which writes at its end what is still in memory. When a run resumes, rows and
    events after the step it resumes from are dropped first. Every worker has to have one: what one
    reads of the model, all do.

    metrics.csv gets a row an epoch. steps.csv gets a row every `every` steps, of the means since
    the row before; it is rewritten whole, only so often that it takes at most a hundredth of the
    time, and before a checkpoint (`flush`), so that a run that resumes from there has no gap.

    TensorBoard's steps count on from stage to stage. With every row of steps.csv it gets
    train/loss, train/data_loss (without weight decay), train/top1, train/top5, learning_rate, and
    clipping_level/<layer>; after every epoch held_out/loss, held_out/top1, held_out/top5; and then,
    and at the start of the stage, kappa_0 and clipped/<layer>, the share of a tensor that is
    clipped.

    Args:
        plan: the steps of the stage, from where it starts or resumes.
        model: the Functional model that is trained, quantized or not; not a view of it.
        folder: of the run.
        rows: the rows of metrics.csv so far; the new ones are appended.
        sample: a few training images (n, rows, columns, channels), always the same ones, on which
            to measure what is clipped.
        every: how many steps lie between rows of steps.csv; None: about a thousand rows a stage.

    Raises:
        RunError: the folder's steps file cannot be read.
        ValueError: the model is not a graph of calls.
    """

    def __init__(
        self,
        plan: StagePlan,
        model: keras.Model,
        folder: RunFolder,
        *,
        rows: list[EpochMetrics],
        sample: np.ndarray,
        every: int | None = None,
    ) -> None:
        super().__init__(plan)
        here = plan.step_of_run(plan.first_step)
        self.rows = rows
        self.steps = [row for row in StepMetrics.read(folder) if row.step_of_run <= here]
        drop_events_after(folder.file(TENSORBOARD), here)
        self._trained, self._folder = model, folder
        self._every = every or math.ceil(plan.total_steps / _ROWS_A_STAGE)
        self._levels = clipping_levels(model)
        self._probe = ActivationProbe(model, sample)
        self._events = tf.summary.create_file_writer(str(folder.file(TENSORBOARD)))
        self._means = RunningMeans([metric.log for metric in history.STEPS.values() if metric.log])
        self._resumes = plan.start.step > 0
        self._written = len(self.steps)
        self._write_after = self._epoch_started = 0.0

    def __enter__(self) -> "Recorder":
        return self

    def __exit__(self, *exception: object) -> None:
        try:
            self.flush()
        finally:
            self._events.close()

    def add_epoch(self, row: EpochMetrics) -> None:
        """Adds a row to metrics.csv."""
        self.rows.append(row)
        self._folder.write_text(METRICS, EpochMetrics.to_csv(self.rows))

    def on_train_begin(self, logs: Any = None) -> None:
        """Measures the model that the stage starts from, unless that has been done."""
        del logs
        if self.step == 0:
            self._write_events(self._state())

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        """Starts the clock."""
        del epoch, logs
        self._epoch_started = time.perf_counter()

    def on_train_batch_begin(self, batch: int, logs: Any = None) -> None:
        """Before the first step, takes over the running means restored from a checkpoint."""
        del batch, logs
        if self._resumes:
            restored = {metric.name: metric.result() for metric in self.model.metrics}
            self._means.resume(self.plan.start.step, restored)
            self._resumes = False

    def on_step(self, logs: Any) -> None:
        """Adds a row when one is due, and writes the file when that is due."""
        self._means.advance()
        if self.step % self._every:
            return
        means = {name: mean for name, mean in self._means.take(logs).items() if mean is not None}
        measured = {"loss": math.nan, "top1": math.nan, **logged(history.STEPS, means)}
        levels = np.asarray(tf.stack(list(self._levels.values()))) if self._levels else ()
        row = StepMetrics(
            stage=self.plan.stage,
            step=self.step,
            step_of_run=self.plan.step_of_run(self.step),
            learning_rate=self._learning_rate(),
            clipping_levels=dict(zip(self._levels, map(float, levels), strict=True)),
            **measured,
        )
        self.steps.append(row)
        if time.perf_counter() >= self._write_after:
            self._write_steps()
        self._write_events(
            {
                "learning_rate": row.learning_rate,
                **{f"clipping_level/{name}": level for name, level in row.clipping_levels.items()},
                **{f"train/{history.STEPS[name].log}": mean for name, mean in measured.items()},
            }
        )

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        """Writes the row of the epoch, what the held-out images gave, and the model's state."""
        del epoch
        measured = logged(history.EPOCHS, logs)
        self.add_epoch(
            EpochMetrics(
                stage=self.plan.stage,
                epoch=self.plan.epoch_of(self.step),
                step=self.step,
                learning_rate=self._learning_rate(),
                seconds=time.perf_counter() - self._epoch_started,
                **measured,
            )
        )
        self._means.end_epoch(logs)
        names = {name: history.EPOCHS[name].log for name in measured}
        held_out = {
            f"held_out/{log.removeprefix(_HELD_OUT)}": measured[name]
            for name, log in names.items()
            if log.startswith(_HELD_OUT)
        }
        self._write_events({**held_out, **self._state()})
        self.flush()

    def flush(self) -> None:
        """Writes out what is still in memory; called before a checkpoint."""
        self._write_steps()
        self._events.flush()

    def _learning_rate(self) -> float:
        """The learning rate of the model's last step."""
        return float(keras.backend.get_value(self.model.optimizer.learning_rate))

    def _state(self) -> dict[str, float]:
        values = {f"clipped/{name}": use.clipped for name, use in self._probe().items()}
        kappa = kappa_0(self._trained)
        return values if kappa is None else {**values, "kappa_0": kappa}

    def _write_events(self, values: Mapping[str, float]) -> None:
        with self._events.as_default():
            step = self.plan.step_of_run(self.step)
            tf.summary.experimental.write_raw_pb(scalar_events(values), step=step)

    def _write_steps(self) -> None:
        if self._written == len(self.steps):
            return
        start = time.perf_counter()
        self._folder.write_text(STEPS, StepMetrics.to_csv(self.steps))
        self._written = len(self.steps)
        end = time.perf_counter()
        self._write_after = end + (end - start) / _WRITING


def drop_events_after(folder: pathlib.Path, step_of_run: int) -> None:
    """Removes later steps from the event files in a folder, so that a run can resume from a step.

    A truncated file keeps its whole records. Files without later steps stay as they are.

    Args:
        folder: where the event files are; it need not exist.
        step_of_run: the last step to keep.
    """
    for path in sorted(folder.glob("*tfevents*")):
        kept, changes = [], False
        try:
            for record in tf.data.TFRecordDataset(str(path)).as_numpy_iterator():
                event = tf.compat.v1.Event.FromString(record)
                if event.WhichOneof("what") == "summary" and event.step > step_of_run:
                    changes = True
                else:
                    kept.append(record)
        except tf.errors.DataLossError:  # a truncated record
            changes = True
        if changes:
            with (
                renamed_when_done(path) as temporary,
                tf.io.TFRecordWriter(str(temporary)) as writer,
            ):
                for record in kept:
                    writer.write(record)
