"""Callbacks of a stage: its records, its progress, its checkpoints, and what is measured and kept.

Where Keras has a callback of its own, a resumed run would differ from one that was left alone:

- CSVLogger and TensorBoard go on where the file ends, and begin to count anew in each `fit`, of
  which a resumed stage needs several: steps behind the last checkpoint would be there twice.
- BackupAndRestore saves neither the running means of an epoch nor where in it a run was stopped.
- ModelCheckpoint keeps the best weights in a file that no checkpoint goes back with.
- ProgbarLogger knows neither the stage nor the time that is left, and fills a log with a line a
  step where the output is no terminal.
- TerminateOnNaN ends `fit` as if all were well, without a word on what broke.
"""

import abc
import datetime
import math
import time
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import tensorflow as tf
import tf_keras as keras
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn

from sat_tf.messages import RunError, say
from sat_tf.qat.wrapper import ConstantWeights, has_quantized_layers
from sat_tf.report.layers import ActivationProbe, clipping_levels
from sat_tf.training.config.sections import TrainingConfig
from sat_tf.training.data.source import ImageSource
from sat_tf.training.interruption import Interruption
from sat_tf.training.kappa import kappa_0
from sat_tf.training.measurements import scalar_events
from sat_tf.training.state.checkpoints import Checkpoints, describe_break
from sat_tf.training.state.history import (
    EPOCHS,
    STEPS,
    EpochMetrics,
    StepMetrics,
    drop_events_after,
    logged,
)
from sat_tf.training.state.run_folder import METRICS, TENSORBOARD, RunFolder
from sat_tf.training.state.run_folder import STEPS as STEPS_FILE
from sat_tf.training.step.distribution import replica_variable
from sat_tf.training.step.learner import Learner, score_of, training_copy
from sat_tf.training.step.schedule import Position, StagePlan


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
        self._read = {name: self._steps * float(logs.get(name, 0.0)) for name in self._read}
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
            name: self._steps * float(logs.get(name, 0.0)) - read + self._left[name]
            for name, read in self._read.items()
        }
        return self._steps - self._read_steps + self._left_steps, sums


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
    clipped. Without labels train/agreement and held_out/agreement take the place of top1 and top5.

    Args:
        plan: the steps of the stage, from where it starts or resumes.
        model: the Functional model that is trained, quantized or not.
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
        here = plan.steps_before + plan.first_step
        self.rows = rows
        self.steps = [row for row in StepMetrics.read(folder) if row.step_of_run <= here]
        drop_events_after(folder.file(TENSORBOARD), here)
        self._trained, self._folder = model, folder
        self._every = every or math.ceil(plan.total_steps / _ROWS_A_STAGE)
        self._levels = clipping_levels(model)
        self._probe = ActivationProbe(model, sample)
        self._events = tf.summary.create_file_writer(str(folder.file(TENSORBOARD)))
        self._means = RunningMeans([metric.log for metric in STEPS.values() if metric.log])
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
        if self.step == 0:
            self._write_events(self._state())

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        """Starts the clock."""
        self._epoch_started = time.perf_counter()

    def on_train_batch_begin(self, batch: int, logs: Any = None) -> None:
        """Before the first step, takes over the running means restored from a checkpoint."""
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
        scores = {score_of(logs).name: math.nan}
        measured = {"loss": math.nan, **scores, **logged(STEPS, means)}
        levels = np.asarray(tf.stack(list(self._levels.values()))) if self._levels else ()
        row = StepMetrics(
            stage=self.plan.stage,
            step=self.step,
            step_of_run=self.plan.steps_before + self.step,
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
                **{f"train/{STEPS[name].log}": mean for name, mean in measured.items()},
            }
        )

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        """Writes the row of the epoch, what the held-out images gave, and the model's state."""
        measured = logged(EPOCHS, logs)
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
        names = {name: EPOCHS[name].log for name in measured}
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
            step = self.plan.steps_before + self.step
            tf.summary.experimental.write_raw_pb(scalar_events(values), step=step)

    def _write_steps(self) -> None:
        if self._written == len(self.steps):
            return
        start = time.perf_counter()
        self._folder.write_text(STEPS_FILE, StepMetrics.to_csv(self.steps))
        self._written = len(self.steps)
        end = time.perf_counter()
        self._write_after = end + (end - start) / _WRITING


_SECONDS_BETWEEN_READINGS = 0.2
_SECONDS_BETWEEN_LINES = 60.0
_WIDTH_OF_WORDS = 74


class ProgressBar(StepCallback):
    """Shows stage, epoch, images a second, loss, top-1 and the time the rest of the stage takes.

    A context manager. The loss is that of the images, without weight decay where the model tells
    them apart. It is read at most five times a second, because reading waits for the device. Where
    the output is not a terminal it prints lines only: one an epoch, and in long epochs one a
    minute.

    The time left is that of all steps still to do, at the pace of this process so far, held-out
    images included; its first step, in which TensorFlow compiles, is left out of all figures.

    Args:
        plan: the steps of the stage.
        console: where to show it.
    """

    def __init__(self, plan: StagePlan, *, console: Console) -> None:
        super().__init__(plan)
        self.console = console
        self._bar = Progress(
            TextColumn("{task.description}", markup=False),
            # The words take the rest of the line.
            BarColumn(bar_width=max(4, min(console.width - _WIDTH_OF_WORDS, 40))),
            TextColumn("{task.fields[metrics]}", markup=False),
            console=console,
            refresh_per_second=1.0 / _SECONDS_BETWEEN_READINGS,
            transient=True,
            disable=not console.is_terminal,
        )
        self._task = self._bar.add_task(
            self._short_title(), total=plan.total_steps, completed=self.step, metrics=""
        )
        # The pace counts from this step and time on: of the process, and of the epoch.
        self._started: tuple[int, float] | None = None
        self._epoch_started: tuple[int, float] | None = None
        self._last_reading = self._last_line = 0.0
        self._images_per_second = 0.0

    def __enter__(self) -> "ProgressBar":
        self._bar.start()
        return self

    def __exit__(self, *exception: object) -> None:
        self._bar.stop()

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        """Starts the epoch's clock."""
        self._last_line = time.perf_counter()
        self._epoch_started = (self.step, self._last_line) if self._started else None
        self._bar.update(self._task, description=self._short_title())

    def on_step(self, logs: Any) -> None:
        """Moves the bar on."""
        now = time.perf_counter()
        if self._epoch_started is None:
            self._epoch_started = self._started = (self.step, now)
        if now - self._last_reading < _SECONDS_BETWEEN_READINGS:
            return
        self._last_reading = now
        self._measure(now)
        if self.console.is_terminal:
            metrics = f"{self._metrics(logs)}  {self._time_left(now)}"
            self._bar.update(self._task, completed=self.step, metrics=metrics)
        elif now - self._last_line >= _SECONDS_BETWEEN_LINES:
            self._last_line = now
            steps = f"step {self.step}/{self.plan.total_steps}"
            self._print(f"{steps}  {self._metrics(logs)}  {self._time_left(now)}")

    def on_test_begin(self, logs: Any = None) -> None:
        """Stops the epoch's clock: held-out images do not count."""
        self._measure(time.perf_counter())

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        """Prints the epoch's line."""
        metrics = self._metrics(logs)
        held_out = logs.get(f"val_{score_of(logs).name}")
        if held_out is not None:
            metrics += f"  held out {100 * float(held_out):5.1f} %"
        self._print(f"{metrics}  {self._time_left(time.perf_counter())}")

    def _measure(self, now: float) -> None:
        step, start = self._epoch_started or (self.step, now)
        if self.step > step and now > start:
            self._images_per_second = (self.step - step) * self.plan.batch_size / (now - start)

    def _time_left(self, now: float) -> str:
        remaining = self.plan.total_steps - self.step
        step, start = self._started or (self.step, now)
        if remaining > 0 and self.step == step:
            return "left   ?"
        pace = (now - start) / max(self.step - step, 1)
        return f"left {datetime.timedelta(seconds=round(max(remaining, 0) * pace))}"

    def _print(self, text: str) -> None:
        epoch, epochs = self.plan.epoch_of(self.step), self.plan.epochs
        title = f"{self.plan.stage:9}  epoch {epoch:{len(str(epochs))}}/{epochs}"
        say(self.console, f"{title}  {text}")

    def _short_title(self) -> str:
        epoch = min(self.plan.epoch_of(self.step + 1), self.plan.epochs)
        return f"{self.plan.stage} {epoch}/{self.plan.epochs}"

    def _metrics(self, logs: Any) -> str:
        loss = float(logs["data_loss" if "data_loss" in logs else "loss"])
        name, title = score_of(logs)
        return (
            f"{self._images_per_second:6.0f} images/s  loss {loss:.4f}  "
            f"{title} {100 * float(logs[name]):5.1f} %"
        )


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
        if self._metrics is not None:
            variables = [variable for metric in self.model.metrics for variable in metric.weights]
            for variable, value in zip(variables, self._metrics, strict=True):
                variable.assign(value)
            self._metrics = None

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        """Saves or stops when it is due."""
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


_PROBED_IMAGES = 16


class StopWhenNotFinite(keras.callbacks.Callback):
    """Raises `RunError` as soon as the loss or a logit is NaN or infinite.

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
        self._epoch = epoch + 1

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        """Checks what training reports."""
        # The running mean stays NaN in every later batch; the message names the first one.
        self._check("", loss=logs["batch_loss"], share=logs[score_of(logs).name])

    def on_test_batch_end(self, batch: int, logs: Any = None) -> None:
        """Checks what the held-out images report."""
        share = logs[score_of(logs).name]
        self._check("held-out images, after ", loss=logs["loss"], share=share)

    def _check(self, where: str, *, loss: Any, share: Any) -> None:
        for value, what in ((loss, "the loss"), (share, "a logit")):
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


class BestWeights(tf.Module):
    """The weights that did best on the held-out images, the start of the stage included.

    They are copies of a model's variables, part of the learner's checkpoints. Create it in the
    strategy's scope.

    Args:
        model: the one that is trained.
    """

    def __init__(self, model: keras.Model) -> None:
        super().__init__(name="best_weights")
        # A function hides them from tf.Module, so that they are not saved twice.
        weights = list(model.weights)
        self._weights = lambda: weights
        self._copies = [replica_variable(tf.convert_to_tensor(w), "best") for w in weights]
        # Checkpoints know it by this name.
        self._top1 = replica_variable(-1.0, "top1")
        self._loss = replica_variable(0.0, "loss")
        self._epoch = replica_variable(0, "epoch", dtype=tf.int64)

    @property
    def epoch(self) -> int:
        """The epoch after which the weights were these; 0 is the start."""
        return int(self._epoch.numpy())

    @property
    def score(self) -> float:
        """Their held-out top-1, or agreement without labels; below 0 before any is measured."""
        return float(self._top1.numpy())

    def take_if_better(self, epoch: int, metrics: Mapping[str, Any]) -> None:
        """Copies the weights that the model has now if they are better: the score, then the loss.

        Args:
            epoch: after which they are those.
            metrics: what a learner logs of the held-out images.
        """
        # They are compared in the precision in which they are kept, so that equal ones stay equal.
        score, loss = np.float32(metrics[score_of(metrics).name]), np.float32(metrics["loss"])
        is_better = score > self.score or (score == self.score and loss < self._loss.numpy())
        if not is_better:  # NaN is not
            return
        self._top1.assign(score)
        self._loss.assign(loss)
        self._epoch.assign(epoch)
        for copy, weight in zip(self._copies, self._weights(), strict=True):
            copy.assign(weight.numpy())

    def restore(self) -> None:
        """Gives the model these weights."""
        for copy, weight in zip(self._copies, self._weights(), strict=True):
            weight.assign(copy.numpy())

    def measured(self) -> keras.callbacks.Callback:
        """A callback that has them copied after every measurement of the held-out images.

        It comes before callbacks that measure other weights than those of the last step, so that
        what is copied is what was measured. A measurement outside of `fit` is that of the start.
        """
        done = [0]  # epochs

        def begin(epoch: int, logs: Any) -> None:
            done[0] = epoch + 1

        return keras.callbacks.LambdaCallback(
            on_epoch_begin=begin,
            on_test_end=lambda logs: self.take_if_better(done[0], logs),
        )


def settling(
    model: keras.Model, settle: Callable[[keras.Model], object]
) -> keras.callbacks.Callback:
    """A callback that has a model settled whenever measuring begins, except before training.

    It comes after callbacks that change weights when measuring begins.

    Args:
        model: the one that is trained.
        settle: changes a copy of it, which no strategy is bound to; the model takes its weights.
    """
    copies: list[keras.Model] = []

    def begin(logs: Any) -> None:
        if not copies:
            return
        copies[0].set_weights(model.get_weights())
        settle(copies[0])
        model.set_weights(copies[0].get_weights())

    return keras.callbacks.LambdaCallback(
        on_train_begin=lambda logs: copies.extend([] if copies else [training_copy(model)]),
        on_test_begin=begin,
    )


def kept_current(model: keras.Model) -> list[keras.callbacks.Callback]:
    """Returns the callback with which a model is measured with its quantized weights of now.

    The effective weights are copied when measuring begins, for all of its steps; what Keras traces
    reads the copies, so that it is measured with this callback or not at all. It comes after
    callbacks that change weights when measuring begins.

    Returns:
        The callback; none for a float model.
    """
    if not has_quantized_layers(model):
        return []
    weights = ConstantWeights(model)
    return [
        keras.callbacks.LambdaCallback(
            on_test_begin=lambda logs: weights.fill(), on_test_end=lambda logs: weights.clear()
        )
    ]
