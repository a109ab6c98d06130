"""Callbacks of a stage: extensions of Keras' own, and further measurements."""

import dataclasses
import math
import os
import pathlib
import time
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import tensorflow as tf
import tf_keras as keras

from sat_tf.exact.tflite.input_range import PIXELS, InputRange
from sat_tf.files import BYTES_BESIDE_WEIGHTS, read_arrays
from sat_tf.messages import RunError, first_ones, reason_of
from sat_tf.output_folder import OutputFolder
from sat_tf.qat.finetune import RESTART, Backup
from sat_tf.qat.wrapper import ConstantWeights, quantized_layers
from sat_tf.report.layers import clipping_levels
from sat_tf.training.audit.kappa import kappa_0
from sat_tf.training.data.source import ImageSource
from sat_tf.training.learner import training_copy
from sat_tf.training.run_folder import EPOCHS, METRICS, EpochMetrics, RunFolder, logged

_PROBED_IMAGES = 16
_MOST_NAMED = 3
_BYTES_A_WEIGHT = 8  # in float64 at most


class BestEpoch(keras.callbacks.Callback):
    """Saves the weights of the epoch that is best on the held-out images: by score, then by loss.

    It comes before callbacks that measure other weights than those of the last step, so that what
    is saved is what was measured. Epoch 0, the start of the stage, is not saved. Keras'
    ModelCheckpoint saves after an epoch, when other callbacks have changed the weights again.
    """

    def __init__(
        self, folder: pathlib.Path, rows: Sequence[EpochMetrics], *, writes: bool = True
    ) -> None:
        super().__init__()
        self.folder = folder
        self.epoch = self._current = 0
        self._writes = writes
        self._rank = (-1.0, 0.0)
        for row in rows:
            self._is_best(row.epoch, row.held_out_top1, row.held_out_loss)

    def _is_best(self, epoch: int, score: Any, loss: Any) -> bool:
        """Takes an epoch as the best if it is better than those before; NaN is not better."""
        rank = float(score), -float(loss)
        is_best = rank > self._rank
        if is_best:
            self.epoch, self._rank = epoch, rank
        return is_best

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        """Removes the weights of earlier epochs: none is resumed from, as the last one is saved."""
        self._current = epoch + 1
        for file in self.folder.glob("best-*.npz"):
            if file != self._file:
                file.unlink(missing_ok=True)

    def on_test_end(self, logs: Any = None) -> None:
        """Saves the weights that were measured, where they are the best."""
        if not self._is_best(self._current, logs["top1"], logs["loss"]):
            return
        # Every worker reads them: statistics are the means of those of all.
        weights = self.model.student.get_weights()
        if self._writes:
            folder = OutputFolder(self.folder)
            with folder.opened(), folder.written(self._file.name) as temporary:
                np.savez(temporary, *weights)

    def restore(self) -> None:
        """Gives the model the weights of the best epoch."""
        student = self.model.student
        most_bytes = _BYTES_A_WEIGHT * student.count_params() + BYTES_BESIDE_WEIGHTS
        try:
            student.set_weights(read_arrays(self._file, most_bytes))
        except Exception as error:  # Keras has many types for arrays of another model.
            raise RunError(
                f"{self._file}: cannot be read ({reason_of(error)}), expected the weights of the "
                f"best epoch of this run; {RESTART}."
            ) from error

    @property
    def _file(self) -> pathlib.Path:
        # A resumed run may do its last epoch again, so that each has a file of its own.
        return self.folder / f"best-{self.epoch}.npz"


class EpochLog(keras.callbacks.CSVLogger):
    """Adds a row to the metrics of a run after every epoch.

    Rows of this stage after the epoch that it resumes from are dropped first.
    """

    def __init__(
        self, folder: RunFolder, stage: str, rows: list[EpochMetrics], *, epochs: int, writes: bool
    ) -> None:
        rows[:] = [row for row in rows if row.stage != stage or 0 < epochs >= row.epoch]
        stage_epochs = [row.epoch for row in rows if row.stage == stage and row.epoch]
        if stage_epochs != list(range(1, epochs + 1)):
            saved = f"{len(stage_epochs)} epochs of the {stage} stage, of which {epochs} are saved"
            raise folder.damaged(METRICS, saved, "a row for each")
        lines = folder.read_text(METRICS).splitlines(keepends=True)
        if writes and len(lines) > len(rows) + 1:
            folder.write_text(METRICS, "".join(lines[: len(rows) + 1]))
        super().__init__(folder.file(METRICS) if writes else os.devnull, append=True)
        self.keys = [name for name in EpochMetrics.columns() if name != "epoch"]
        self.rows, self._stage = rows, stage

    def add(self, row: EpochMetrics) -> None:
        """Adds a row."""
        self.rows.append(row)
        super().on_epoch_end(row.epoch, dataclasses.asdict(row))

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        """Adds the logs of the epoch that ends."""
        self.add(EpochMetrics(stage=self._stage, epoch=epoch + 1, **logged(EPOCHS, logs)))


class EpochFacts(keras.callbacks.Callback):
    """Adds facts about the end of every epoch to its logs.

    These are step (of the stage), learning_rate, seconds (held-out images included), kappa_0 of a
    classifier, and of a quantized model clipping_level/<layer> and their mean, clipping_level.
    """

    def __init__(self, model: keras.Model, *, steps_per_epoch: int, total_steps: int) -> None:
        super().__init__()
        self._trained, self._steps = model, (steps_per_epoch, total_steps)
        self._levels = clipping_levels(model)
        self._started = 0.0

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        self._started = time.perf_counter()

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        per_epoch, total = self._steps
        logs["step"] = min((epoch + 1) * per_epoch, total)
        logs["learning_rate"] = keras.backend.get_value(self.model.optimizer.learning_rate)
        if (kappa := kappa_0(self._trained)) is not None:
            logs["kappa_0"] = kappa
        if self._levels:
            levels = {name: float(level.numpy()) for name, level in self._levels.items()}
            logs |= {f"clipping_level/{name}": level for name, level in levels.items()}
            logs["clipping_level"] = float(np.mean(list(levels.values())))
        logs["seconds"] = time.perf_counter() - self._started


def settling(
    model: keras.Model, settle: Callable[[keras.Model], object]
) -> keras.callbacks.Callback:
    """A callback that has a model settled whenever measuring begins, except before training.

    It comes after callbacks that change weights when measuring begins. What is settled is a copy,
    which no strategy is bound to; the model takes its weights.
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
    """Returns the callback for measuring a model with its current quantized weights.

    The effective weights are copied when measuring begins, for all of its steps; what Keras traces
    reads the copies, so that it is measured with this callback or not at all. It comes after
    callbacks that change weights when measuring begins.
    """
    if not quantized_layers(model):
        return []
    weights = ConstantWeights(model)
    return [
        keras.callbacks.LambdaCallback(
            on_test_begin=lambda logs: weights.fill(), on_test_end=lambda logs: weights.clear()
        )
    ]


class StopWhenNotFinite(keras.callbacks.Callback):
    """Raises `RunError` as soon as the loss or a logit is NaN or infinite.

    Keras' TerminateOnNaN ends `fit` as if all were well, without a word on what broke.
    """

    # Keras would otherwise fetch every logged value after every step, and wait for the device.
    _supports_tf_logs = True

    def __init__(
        self, stage: str, source: ImageSource, backup: Backup, input_range: InputRange = PIXELS
    ) -> None:
        super().__init__()
        self._stage, self._source, self._backup = stage, source, backup
        self._input_range = input_range
        self._epoch = 0

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        self._epoch = epoch + 1

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        # The running mean stays NaN in every later batch; the message names the first one.
        self._check("", logs["batch_loss"], logs["top1"])

    def on_test_batch_end(self, batch: int, logs: Any = None) -> None:
        """Checks the logs of the held-out images."""
        self._check("held-out images, after ", logs["loss"], logs["top1"])

    def _check(self, where: str, loss: Any, share: Any) -> None:
        if math.isfinite(float(loss)) and math.isfinite(float(share)):
            return
        what = "a logit" if math.isfinite(float(loss)) else "the loss"
        step = int(self.model.optimizer.iterations.numpy())
        pixels = self._source.training_sample(_PROBED_IMAGES, seed=0)
        broken = _describe_break(self.model.student, self._input_range.fed(pixels))
        raise RunError(
            f"{self._stage} stage, epoch {self._epoch}, {where}step {step}: {what} is NaN or "
            f"infinite ({broken}), expected finite values; lower "
            f"stages.{self._stage}.base_learning_rate, lengthen its warmup_epochs, or start from "
            f"lower clipping levels. Epochs of the stage that are saved: {self._backup.epochs}."
        )


def _describe_break(model: keras.Model, images: np.ndarray) -> str:
    """Names the non-finite variables of a model, otherwise the first layer with such an output."""
    broken = [
        f"{layer.name} ({variable.name.rpartition('/')[2].partition(':')[0]})"
        for layer in model.layers
        for variable in layer.variables
        if variable.dtype.is_floating and not _is_finite(variable)
    ]
    if broken:
        return f"not finite: {first_ones(broken, _MOST_NAMED)}"
    layers = [layer for layer in model.layers if not isinstance(layer, keras.layers.InputLayer)]
    probe = keras.Model(model.inputs, [layer.output for layer in layers])
    outputs = probe(tf.cast(images, tf.float32), training=False)
    for layer, output in zip(layers, outputs, strict=True):
        # A layer that is called several times, or gives several tensors, has a list of them.
        if not all(map(_is_finite, [*tf.nest.flatten(output), *layer.losses])):
            return f"all weights are finite, but the output or weight decay of {layer.name} is not"
    return "all weights are finite, and so are the outputs of all layers"


def _is_finite(values: Any) -> bool:
    return bool(tf.reduce_all(tf.math.is_finite(tf.convert_to_tensor(values))))
