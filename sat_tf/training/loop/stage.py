"""One stage of training: its callbacks; compile, fit, and hand back a plain model."""

import contextlib
import dataclasses
import functools
import math
import os
import pathlib
import time
import zlib
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import tensorflow as tf
import tf_keras as keras
from rich.console import Console

from sat_tf.exact.tflite.input_range import PIXELS, InputRange
from sat_tf.files import BYTES_BESIDE_WEIGHTS, read_arrays
from sat_tf.messages import RunError, first_ones, reason_of, say
from sat_tf.output_folder import OutputFolder
from sat_tf.qat.calibrate import estimate_statistics
from sat_tf.qat.finetune import RESTART, Backup
from sat_tf.qat.images import fed_batches
from sat_tf.qat.wrapper import ConstantWeights, quantized_layers
from sat_tf.report.layer_table import clipping_levels
from sat_tf.training.audit.kappa import kappa_0
from sat_tf.training.config import Config
from sat_tf.training.data.batches import fed
from sat_tf.training.data.source import ImageSource
from sat_tf.training.distribution import distributed, from_first_worker
from sat_tf.training.learner import Learner, make_optimizer, training_copy
from sat_tf.training.recipes import StageRecipes, stage_recipes
from sat_tf.training.run_folder import (
    CHECKPOINTS,
    EPOCHS,
    METRICS,
    TENSORBOARD,
    EpochMetrics,
    RunFolder,
    RunState,
    logged,
)

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

    It copies the effective weights when measuring begins, for all of its steps. Traced functions
    read the copies, so that a model is always measured with this callback. It has to come after
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


# -- a stage ---------------------------------------------------------------------------------------


_HELD_OUT_BATCH_SIZE = 256


@dataclasses.dataclass(frozen=True, kw_only=True)
class Run:
    """A run in progress, which its stages share."""

    config: Config  # The whole configuration.
    source: ImageSource  # The data set.
    input_range: InputRange  # The values that models get for its pixels.
    folder: RunFolder  # The folder of its files.
    strategy: tf.distribute.Strategy  # The strategy to train under.
    console: Console  # The console that shows progress.
    writes: bool = True  # Whether this process writes the folder.
    state: RunState  # The stages that are done.
    # The metrics so far; every epoch appends one.
    rows: list[EpochMetrics] = dataclasses.field(default_factory=list)
    # The model that each stage works on, and in the end has made.
    models: dict[str, keras.Model] = dataclasses.field(default_factory=dict)
    # Entries of the results that the file has given.
    of_file: dict[str, Any] = dataclasses.field(default_factory=dict)

    def distributed(self, batches: Callable[..., tf.data.Dataset], **options: Any) -> Any:
        """Batches of the source as `fit` takes them: for this strategy, in the range of the run."""
        return distributed(
            self.strategy, lambda **shard: fed(batches(**options, **shard), self.input_range)
        )

    def trains(self, name: str) -> bool:
        """Whether a stage trains its model, and does not take it as it is."""
        is_given = name == "float" and self.config.training.float_model is not None
        return not is_given and self.config.stages.by_name()[name].trains

    def keeps_best(self, name: str) -> bool:
        """Whether a stage ends with its best epoch; only one from a trained model does."""
        return name != "float" and self.config.training.keep == "best"

    @property
    def measures_again(self) -> bool:
        """Whether statistics are measured again on trained weights."""
        calibration = self.config.calibration
        return calibration.num_images > 0 and calibration.final_statistics

    @property
    def num_held_out(self) -> int:
        """How many held-out images have a label."""
        return int(self.state.stages["float"].get("images", self.source.num_test))

    @functools.cached_property
    def _calibration_pixels(self) -> np.ndarray:
        count = min(self.config.calibration.num_images, self.source.num_train)
        return self.source.training_sample(count, seed=self.config.seed)

    def calibration_images(self) -> dict[str, Any]:
        """Batches of training images, drawn with the run's seed, and how many images they are."""
        pixels = self._calibration_pixels
        return {"dataset": fed_batches(pixels, self.input_range.fed), "num_images": len(pixels)}

    def say(self, text: str, *, style: str | None = None) -> None:
        """Prints a line as it is."""
        say(self.console, text, style=style)


def train_stage(run: Run, name: str, model: keras.Model) -> tuple[int | None, keras.Model]:
    """Trains a model through one stage, or from the end of the last epoch that is saved.

    The trained model is neither compiled nor bound to the strategy, and is that of the last step,
    or of the best epoch, whose number is in front of it; 0 is the start. See `Run.keeps_best`.
    """
    stage = run.config.stages.by_name()[name]
    steps_per_epoch = stage.steps_per_epoch(run.source.num_train)
    total_steps = stage.total_steps(steps_per_epoch)
    # Every worker has prepared its start by itself; they must be equal to the last bit.
    weights = from_first_worker(run.strategy, model.get_weights())
    learner, recipes = _learner(run, name, model, weights)
    trained = learner.student
    backup = Backup(run.folder.file(CHECKPOINTS) / name)
    done = int(from_first_worker(run.strategy, [backup.epochs])[0])
    if done != backup.epochs:
        raise RunError(
            f"{backup.folder}: would resume here after epoch {backup.epochs}, and on the first "
            f"machine after epoch {done}; expected one run folder for all; put it on a file "
            "system that they share."
        )
    log = EpochLog(run.folder, name, run.rows, epochs=done, writes=run.writes)
    around_measuring = [*recipes.callbacks]
    if run.keeps_best(name) and run.measures_again:

        def measure_again(model: keras.Model) -> None:
            # The end of the stage does the same. A model whose activations are non-finite is
            # measured as it is, and its metrics show it.
            with contextlib.suppress(ValueError):
                estimate_statistics(model, **run.calibration_images())

        around_measuring.append(settling(trained, measure_again))
    around_measuring += kept_current(trained)
    held_out = {
        "x": run.distributed(run.source.held_out_batches, batch_size=_HELD_OUT_BATCH_SIZE),
        "steps": -(-run.source.num_test // _HELD_OUT_BATCH_SIZE),
    }
    if done:
        run.say(f"Resuming the {name} stage from the end of epoch {done}.")
        backup.set_model(learner)
        backup.on_train_begin()
    elif name != "float":
        # The start of a stage is measured as its epochs are; it is epoch 0.
        measured = learner.evaluate(
            **held_out, callbacks=around_measuring, verbose=0, return_dict=True
        )
        values = logged(EPOCHS, {f"val_{key}": value for key, value in measured.items()})
        log.on_train_begin()
        log.add(EpochMetrics(stage=name, epoch=0, step=0, **values))
        log.on_train_end()
        run.say(f"{name:9}  before training: held-out top-1 {100 * measured['top1']:.2f} %")

    best = None
    if run.keeps_best(name):
        rows = [row for row in run.rows if row.stage == name]
        best = BestEpoch(backup.folder, rows, writes=run.writes)
        best.set_model(learner)
    callbacks = [
        *([] if best is None else [best]),
        *around_measuring,
        StopWhenNotFinite(name, run.source, backup, run.input_range),
        keras.callbacks.ProgbarLogger(count_mode="steps"),
        EpochFacts(trained, steps_per_epoch=steps_per_epoch, total_steps=total_steps),
        keras.callbacks.TensorBoard(str(run.folder.file(TENSORBOARD) / name), write_graph=False),
        log,
        backup,  # last: what comes before is of the same epoch, and is done again if it is lost
    ]
    whole, remaining_steps = divmod(total_steps, steps_per_epoch)
    run.say(f"{name:9}  training, {total_steps:,} steps of {stage.batch_size:,} images")
    try:
        for epochs, steps in ((whole, steps_per_epoch), (whole + 1, remaining_steps)):
            if steps and done < epochs:
                batches = run.distributed(
                    run.source.training_batches,
                    batch_size=stage.batch_size,
                    seed=run.config.seed,
                    first_epoch=done,
                )
                with contextlib.redirect_stdout(run.console.file):
                    learner.fit(
                        batches,
                        initial_epoch=done,
                        epochs=epochs,
                        steps_per_epoch=steps,
                        validation_data=held_out["x"],
                        validation_steps=held_out["steps"],
                        callbacks=[*callbacks],
                        verbose=0 if run.console.quiet else 1 if run.console.is_terminal else 2,
                    )
                done = epochs
    except KeyboardInterrupt as interrupt:
        raise type(interrupt)(
            f"epoch {epochs} of the {name} stage is saved: the same command resumes after it"
            if (epochs := backup.epochs)
            else f"no epoch of the {name} stage was finished: the same command begins it again"
        ) from None

    if recipes.finish is not None:
        recipes.finish()
    if best is None:
        return None, training_copy(trained)
    # The first worker alone writes the file of the best epoch, which all read.
    from_first_worker(run.strategy, [0])
    if best.epoch:
        best.restore()
    else:
        trained.set_weights(weights)
    return best.epoch, training_copy(trained)


def _learner(
    run: Run, name: str, model: keras.Model, weights: Sequence[np.ndarray]
) -> tuple[Learner, StageRecipes]:
    """A learner of a copy of the model with these weights, and the recipes of the stage."""
    config, stage = run.config.training, run.config.stages.by_name()[name]
    steps_per_epoch = stage.steps_per_epoch(run.source.num_train)
    # Layers without a seed of their own take one here, independent of what ran before.
    keras.utils.set_random_seed(zlib.crc32(f"{run.config.seed} {name}".encode()))
    with run.strategy.scope():
        trained = training_copy(
            model,
            weight_decay=stage.weight_decay,
            precision=config.precision,
            synchronized=config.synchronized_batch_normalization
            and run.strategy.num_replicas_in_sync > 1,
        )
        trained.set_weights(weights)
        recipes = stage_recipes(
            run.config,
            name,
            trained,
            total_steps=stage.total_steps(steps_per_epoch),
            source=run.source,
            folder=run.folder,
            writes=run.writes,
        )
        learner = Learner(
            trained,
            batch_size=stage.batch_size,
            image_loss=recipes.image_loss,
            after_step=recipes.after_step,
        )
        optimizer = make_optimizer(stage, steps_per_epoch, precision=config.precision)
        learner.compile(optimizer=optimizer, jit_compile=config.jit_compile)
        learner.optimizer.build(trained.trainable_variables)
    return learner, recipes


def held_out_metrics(
    model: keras.Model, source: ImageSource, input_range: InputRange
) -> dict[str, float]:
    """The loss and accuracy of a model on the held-out images, measured on this machine alone."""
    learner = Learner(model, batch_size=_HELD_OUT_BATCH_SIZE)
    learner.compile()
    batches = fed(source.held_out_batches(batch_size=_HELD_OUT_BATCH_SIZE), input_range)
    logs = learner.evaluate(batches, verbose=0, return_dict=True, callbacks=kept_current(model))
    metrics = {name: float(value) for name, value in logs.items()}
    if not all(value == value for value in metrics.values()):  # NaN is not equal to itself
        raise RunError(
            f"model {model.name!r}: gives NaN or infinite logits for held-out images, expected "
            "finite ones; train it again."
        )
    return {**metrics, "images": int(learner.metrics[-1].count)}
