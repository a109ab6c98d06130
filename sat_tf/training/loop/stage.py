"""One stage of training: compile, fit, and hand back a plain model."""

import contextlib
import dataclasses
import functools
import zlib
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import tensorflow as tf
import tf_keras as keras
from rich.console import Console

from sat_tf.exact.tflite.input_range import InputRange
from sat_tf.messages import RunError, say
from sat_tf.qat.calibrate import estimate_statistics
from sat_tf.qat.finetune import Backup
from sat_tf.qat.images import fed_batches
from sat_tf.training.config import Config
from sat_tf.training.data.batches import fed
from sat_tf.training.data.source import ImageSource
from sat_tf.training.distribution import distributed, from_first_worker
from sat_tf.training.learner import Learner, make_optimizer, training_copy
from sat_tf.training.loop.callbacks import (
    BestEpoch,
    EpochFacts,
    EpochLog,
    StopWhenNotFinite,
    kept_current,
    settling,
)
from sat_tf.training.recipes import StageRecipes, stage_recipes
from sat_tf.training.run_folder import (
    CHECKPOINTS,
    EPOCHS,
    TENSORBOARD,
    EpochMetrics,
    RunFolder,
    RunState,
    logged,
)

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
            f"{backup.folder}: would resume here behind epoch {backup.epochs}, and on the first "
            f"machine behind epoch {done}; expected one run folder for all; put it on a file "
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
            f"epoch {epochs} of the {name} stage is saved: the same command resumes behind it"
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
    return {**metrics, "images": learner.measured_images}
