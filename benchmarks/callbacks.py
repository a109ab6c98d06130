"""What it costs to watch a stage: steps with all callbacks and without, in turns.

    python benchmarks/callbacks.py

The digits demo in its quantized stage, batch 32. CPU seconds of the whole process a step, because
they do not depend on what else the machine does; the two kinds of epoch take turns, and the median
of their ratios counts. What comes once an epoch (clip rates, kappa_0, files) is measured apart.
"""

import io
import pathlib
import statistics
import tempfile
import time

import tensorflow as tf
import tf_keras as keras
from absl import app
from rich.console import Console

import sat_tf
from sat_tf.commands.train import load_config
from sat_tf.training.loop.callbacks import ProgressBar, Recorder
from sat_tf.training.loop.start import float_model, load_source
from sat_tf.training.state.run_folder import RunFolder
from sat_tf.training.step.learner import accuracy_metrics
from sat_tf.training.step.schedule import StagePlan

_PAIRS = 8
_IMAGES = 32


def main(argv: list[str]) -> None:
    """Prints the cost of the callbacks a step, in percent, and of what comes once an epoch."""
    if len(argv) > 1:
        raise app.UsageError(f"received {argv[1:]}, expected no arguments.")
    config = load_config()
    source = load_source(config)
    model = sat_tf.requantize(float_model(config, source)[0], config.policy)
    stage = config.stages.quantized
    steps = source.num_train // stage.batch_size
    batches = source.training_batches(batch_size=stage.batch_size, seed=0).map(
        lambda images, labels: (tf.cast(images, tf.float32), labels)
    )
    model.compile(
        keras.optimizers.SGD(0.01, momentum=0.9, nesterov=True),
        keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        metrics=accuracy_metrics(model),
    )
    plan = StagePlan(
        stage="quantized",
        batch_size=stage.batch_size,
        steps_per_epoch=steps,
        total_steps=(_PAIRS + 1) * steps,
    )
    console = Console(file=io.StringIO(), force_terminal=True)
    with (
        tempfile.TemporaryDirectory() as folder,
        Recorder(
            plan,
            model,
            RunFolder(pathlib.Path(folder)),
            rows=[],
            sample=source.training_sample(_IMAGES, seed=0),
        ) as recorder,
        ProgressBar(plan, console=console) as progress,
    ):
        watching = _Timed([recorder, progress])
        _epoch(model, batches, steps, [])
        _epoch(model, batches, steps, [watching])
        watching.steps.clear()
        watching.ended.clear()
        ratios = []
        for _ in range(_PAIRS):
            plain = _epoch(model, batches, steps, [])
            ratios.append((_epoch(model, batches, steps, [watching]), plain))
    a_step = statistics.median(plain for _, plain in ratios) / steps
    cost = statistics.median(watched / plain - 1 for watched, plain in ratios)
    at_ends = statistics.median(watching.ended)
    in_steps = statistics.fmean(watching.steps)
    print(f"{tf.config.list_physical_devices()}")
    print(f"a step without callbacks: {1000 * a_step:.1f} ms of CPU time")
    print(f"inside the callbacks: {1000 * in_steps:.3f} ms a step, {100 * in_steps / a_step:.2f} %")
    print(f"end of an epoch: {1000 * at_ends:.0f} ms, {100 * at_ends / a_step / steps:.2f} %")
    print(f"epochs with and without in turns, difference: {100 * cost:+.1f} %")


class _Timed(keras.callbacks.Callback):
    """Calls other callbacks, and notes the CPU time they take."""

    _supports_tf_logs = True

    def __init__(self, callbacks: list[keras.callbacks.Callback]) -> None:
        super().__init__()
        self._list = keras.callbacks.CallbackList(callbacks)
        self.ended: list[float] = []
        self.steps: list[float] = []

    def set_model(self, model: keras.Model) -> None:
        """As Keras does."""
        super().set_model(model)
        self._list.set_model(model)

    def on_train_begin(self, logs: dict | None = None) -> None:
        """Passes it on."""
        self._list.on_train_begin(logs)

    def on_epoch_begin(self, epoch: int, logs: dict | None = None) -> None:
        """Passes it on."""
        self._list.on_epoch_begin(epoch, logs)

    def on_train_batch_begin(self, batch: int, logs: dict | None = None) -> None:
        """Passes it on."""
        self._list.on_train_batch_begin(batch, logs)

    def on_train_batch_end(self, batch: int, logs: dict | None = None) -> None:
        """Passes it on."""
        start = time.process_time()
        self._list.on_train_batch_end(batch, logs)
        self.steps.append(time.process_time() - start)

    def on_epoch_end(self, epoch: int, logs: dict | None = None) -> None:
        """Passes it on, with held-out figures in which nothing depends on the values."""
        start = time.process_time()
        held_out = {f"val_{name}": value for name, value in (logs or {}).items()}
        self._list.on_epoch_end(epoch, {**(logs or {}), **held_out})
        self.ended.append(time.process_time() - start)


def _epoch(
    model: keras.Model,
    batches: tf.data.Dataset,
    steps: int,
    callbacks: list[keras.callbacks.Callback],
) -> float:
    """CPU seconds of an epoch."""
    start = time.process_time()
    model.fit(batches, steps_per_epoch=steps, callbacks=callbacks, verbose=0)
    return time.process_time() - start


if __name__ == "__main__":
    app.run(main)
