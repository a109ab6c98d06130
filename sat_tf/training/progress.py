"""A Keras callback that shows how training goes: a bar for the epoch, a line for each one done."""

import time
from typing import Any

import tf_keras as keras
from rich.console import Console
from rich.progress import BarColumn, Progress, TaskID, TextColumn, TimeRemainingColumn


class ProgressBar(keras.callbacks.Callback):
    """Shows stage, epoch, images a second, loss and top-1; to be entered as a context.

    Where the output is no terminal, it prints the lines alone.

    Args:
        stage: name of the stage.
        epochs: how many it has.
        steps_per_epoch: how many training batches an epoch has.
        batch_size: images a step.
        console: where to show it.
    """

    def __init__(
        self,
        stage: str,
        *,
        epochs: int,
        steps_per_epoch: int,
        batch_size: int,
        console: Console,
    ) -> None:
        super().__init__()
        self.stage = stage
        self.epochs = epochs
        self.steps_per_epoch = steps_per_epoch
        self.batch_size = batch_size
        self.console = console
        self._bar = Progress(
            TextColumn("{task.description}"),
            BarColumn(),
            TextColumn("{task.fields[metrics]}"),
            TimeRemainingColumn(),
            console=console,
            transient=True,
            disable=not console.is_terminal,
        )
        self._task: TaskID | None = None
        self._started = 0.0
        self._images_per_second = 0.0

    def __enter__(self) -> "ProgressBar":
        self._bar.start()
        return self

    def __exit__(self, *exception: object) -> None:
        self._bar.stop()

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        """Starts the epoch's bar."""
        del logs
        if self._task is not None:
            self._bar.remove_task(self._task)
        self._task = self._bar.add_task(self._title(epoch), total=self.steps_per_epoch, metrics="")
        self._started = time.perf_counter()

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        """Moves the bar on."""
        if self._task is None:
            return
        images = (batch + 1) * self.batch_size
        self._images_per_second = images / (time.perf_counter() - self._started)
        self._bar.update(self._task, completed=batch + 1, metrics=self._metrics(logs))

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        """Prints the epoch's line."""
        held_out = f"  held out {100 * logs['val_top1']:5.1f} %"
        self.console.print(
            f"{self._title(epoch)}  {self._metrics(logs)}{held_out}", highlight=False
        )

    def _title(self, epoch: int) -> str:
        width = len(str(self.epochs))
        return f"{self.stage:9}  epoch {epoch + 1:{width}}/{self.epochs}"

    def _metrics(self, logs: Any) -> str:
        return (
            f"{self._images_per_second:6.0f} images/s  loss {logs['loss']:.4f}  "
            f"top-1 {100 * logs['top1']:5.1f} %"
        )
