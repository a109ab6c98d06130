"""The progress of a stage in the terminal.

Keras's ProgbarLogger knows one epoch at a time: neither the stage, nor how long what is left of it
takes, and where the output is no terminal it fills the log with a line a step.
"""

import datetime
import time
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn

from sat_tf.messages import say
from sat_tf.training.callbacks.recording import StepCallback
from sat_tf.training.step.schedule import StagePlan

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
        del epoch, logs
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
        del logs
        self._measure(time.perf_counter())

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        """Prints the epoch's line."""
        del epoch
        metrics = self._metrics(logs)
        if "val_top1" in logs:
            metrics += f"  held out {100 * float(logs['val_top1']):5.1f} %"
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
        return (
            f"{self._images_per_second:6.0f} images/s  loss {loss:.4f}  "
            f"top-1 {100 * float(logs['top1']):5.1f} %"
        )
