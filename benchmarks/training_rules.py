"""What `TrainingRules` costs: CPU time of a measurement against that of a training step.

    python benchmarks/training_rules.py

CPU seconds of the whole process, because they do not depend on what else the machine does; medians.
The model trains with `fit` and the callback, which measures every few steps here so that there is
something to count; its cost at every=100 is that of one measurement over 100 steps. The first
measurement of a run, which makes the graphs, is given apart.
"""

import pathlib
import statistics
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import rich
import tensorflow as tf
import tf_keras as keras
from rows import as_table, write_csv

import sat_tf
from sat_tf.training import models
from sat_tf.training.audit.training_rules import TrainingRules

_RESULTS = pathlib.Path(__file__).parent / "results" / "training_rules.csv"
_EVERY = 100
_MEASURED_EVERY = 6
_STEPS = 30
_CASES: tuple[tuple[str, int, int, int, bool], ...] = (
    # family, image size, classes, batch size, quantized
    ("mobilenet_v2_small", 24, 1000, 64, True),
    ("resnet18", 32, 100, 128, False),
    ("mobilenet_v2", 96, 1000, 64, True),
)


def main() -> None:
    """Prints and writes a row for each case."""
    rows = []
    for case in _CASES:
        rows.append(_row(*case))
        write_csv(rows, _RESULTS)
    rich.print(as_table(rows, "TrainingRules"))


def _row(family: str, size: int, classes: int, batch_size: int, quantized: bool) -> dict[str, Any]:
    keras.utils.set_random_seed(0)
    model = models.build(family, image_size=size, num_classes=classes, seed=0)
    if quantized:
        model = sat_tf.quantize_model(model, sat_tf.BitPolicy.mobile(4))
    generator = np.random.RandomState(0)
    images = generator.randint(0, 256, (batch_size, size, size, 3)).astype(np.float32)
    labels = generator.randint(0, classes, batch_size)
    batches = tf.data.Dataset.from_tensors((images, labels)).repeat()
    model.compile(
        keras.optimizers.SGD(0.01, momentum=0.9),
        keras.losses.SparseCategoricalCrossentropy(from_logits=True),
    )
    model.fit(batches, steps_per_epoch=2, verbose=0)
    watched = _Timed((images, labels))
    model.fit(batches, steps_per_epoch=_STEPS, callbacks=[watched], verbose=0)
    first, *measured = watched.measuring
    a_step = statistics.median(watched.steps)
    once = statistics.median(measured) + statistics.median(watched.remembering)
    return {
        "model": family,
        "quantized": quantized,
        "image_size": size,
        "batch_size": batch_size,
        "images_measured": len(watched._sample),
        "step_ms": round(1000 * a_step, 1),
        "measurement_ms": round(1000 * once, 1),
        "first_measurement_ms": round(1000 * first),
        "percent_at_every_100": round(100 * once / a_step / _EVERY, 2),
    }


class _Timed(TrainingRules):
    """Notes the CPU time of steps and of what the callback adds to them."""

    def __init__(self, dataset: Any) -> None:
        super().__init__(dataset, every=_MEASURED_EVERY)
        self.measuring: list[float] = []
        self.remembering: list[float] = []
        self.steps: list[float] = []
        self._started = 0.0

    def on_train_begin(self, logs: Any = None) -> None:
        """As the callback, with a clock around the codes."""
        super().on_train_begin(logs)
        remember = self._codes

        def timed() -> Any:
            codes: list[Any] = []
            self.remembering.append(_seconds(lambda: codes.append(remember())))
            return codes[0]

        self._codes = timed

    def on_train_batch_begin(self, batch: int, logs: Any = None) -> None:
        """Starts the clock of the step."""
        super().on_train_batch_begin(batch, logs)
        self._started = time.process_time()

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        """Stops it; reading a logged value waits for the device."""
        float(logs["loss"])
        self.steps.append(time.process_time() - self._started)
        super().on_train_batch_end(batch, logs)

    def _measure(self) -> None:
        self.measuring.append(_seconds(super()._measure))


def _seconds(act: Callable[[], None]) -> float:
    start = time.process_time()
    act()
    return time.process_time() - start


if __name__ == "__main__":
    main()
