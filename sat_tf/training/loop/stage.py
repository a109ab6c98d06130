"""One stage of training: compile, fit, and hand back a plain model."""

import dataclasses
import math
import zlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import tensorflow as tf
import tf_keras as keras
from rich.console import Console

from sat_tf.loading.load import load_model
from sat_tf.messages import RunError, say
from sat_tf.output_folder import CONFIG, FLOAT_MODEL
from sat_tf.qat.calibrate import estimate_statistics
from sat_tf.report.layers import SAMPLE
from sat_tf.training.config.config import Config, config_text
from sat_tf.training.config.sections import AUTO, TRIED_RATES, StageConfig
from sat_tf.training.data.source import ImageSource
from sat_tf.training.interruption import Interruption
from sat_tf.training.loop.callbacks import (
    BestWeights,
    CheckpointSaver,
    ProgressBar,
    Recorder,
    StopWhenNotFinite,
    kept_current,
    settling,
)
from sat_tf.training.recipes.recipes import StageRecipes, agreement_of, stage_recipes
from sat_tf.training.state.checkpoints import Checkpoints
from sat_tf.training.state.history import EPOCHS, EpochMetrics, logged
from sat_tf.training.state.run_folder import CHECKPOINTS, RateTrial, RunFolder, settled, write_trial
from sat_tf.training.step.distribution import distributed, from_first_worker
from sat_tf.training.step.learner import Agreement, Learner, training_copy
from sat_tf.training.step.schedule import Position, StagePlan, make_optimizer

_HELD_OUT_BATCH_SIZE = 256
# A trial of learning rates takes so many steps, and is judged by so many images.
_TRIED_STEPS, _TRIED_IMAGES, _MEASURED_BATCH_SIZE = 16, 256, 64


# A model, and the epoch whose weights it has where that was chosen; 0 is the start of the stage.
Candidate = tuple[int | None, keras.Model]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Run:
    """A run in progress, which its stages share.

    Attributes:
        config: the whole configuration.
        source: the data set.
        folder: where the files go.
        strategy: under which strategy to train.
        console: where to show progress.
        writes: whether this process writes the folder.
        records: where this process writes metrics and curves; None is the folder.
        interruption: whether the run has been asked to stop.
        rows: the metrics so far; every epoch appends one.
        is_verbose: whether all is printed that is to be known of the file.
    """

    config: Config
    source: ImageSource
    folder: RunFolder
    strategy: tf.distribute.Strategy
    console: Console
    writes: bool = True
    records: RunFolder | None = None
    interruption: Interruption = dataclasses.field(default_factory=Interruption)
    rows: list[EpochMetrics] = dataclasses.field(default_factory=list)
    is_verbose: bool = True

    def keeps_best(self, name: str) -> bool:
        """Whether a stage ends with its best epoch; only one behind a trained model does."""
        return name != "float" and self.config.training.keep == "best"

    def agreement(self, float_model: keras.Model | None = None) -> Agreement | None:
        """The classes and losses of images without labels; None where they have labels.

        Args:
            float_model: of the run; None where it is saved.
        """
        return agreement_of(self.config, self.source, float_model or self.folder)

    def held_out(self, metrics: Mapping[str, float]) -> str:
        """Says how good a model is on the held-out images."""
        name, title = self.source.score
        return f"held-out {title} {100 * metrics[name]:.2f} %"

    def say(self, text: str, *, style: str | None = None) -> None:
        """Prints a line as it is."""
        say(self.console, text, style=style)


def train_stage(
    run: Run,
    name: str,
    model: keras.Model,
    settle: Callable[[keras.Model], object] | None = None,
) -> Candidate:
    """Trains a model through one stage, or through what is left of it after an interruption.

    Args:
        run: what it is a stage of.
        name: of the stage in the configuration.
        model: the one to start from; it is not changed.
        settle: what the end of the stage does to a model, in place: where the best epoch is kept,
            each is measured, and kept, as it is then. By default nothing.

    Returns:
        The trained model, neither compiled nor bound to the strategy: as it was after the last
        step, or the best epoch, which is then given too; see `Run.keeps_best`.

    Raises:
        RunError: the loss or a logit is non-finite, or a checkpoint cannot be written or read.
        Stopped: the run has been asked to stop, and a checkpoint is written.
    """
    config, stages = run.config.training, run.config.stages.by_name()
    stage = stages[name]
    per_epoch = {key: one.steps_per_epoch(run.source.num_train) for key, one in stages.items()}
    before = list(stages)[: list(stages).index(name)]
    if config.float_model is not None and "float" in before:
        before.remove("float")  # it is not trained
    plan = StagePlan(
        stage=name,
        batch_size=stage.batch_size,
        steps_per_epoch=per_epoch[name],
        total_steps=stage.total_steps(per_epoch[name]),
        steps_before=sum(stages[key].total_steps(per_epoch[key]) for key in before),
    )
    # Every worker has prepared its start by itself; they must be equal to the last bit.
    weights = from_first_worker(run.strategy, model.get_weights())
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
            total_steps=plan.total_steps,
            source=run.source,
            folder=run.folder,
            writes=run.writes,
        )
    if stage.base_learning_rate == AUTO:
        stage = _with_chosen_rate(run, name, trained, recipes)
    with run.strategy.scope():
        learner = Learner(
            trained,
            batch_size=stage.batch_size,
            image_loss=recipes.image_loss,
            agreement=recipes.agreement,
            after_step=recipes.after_step,
        )
        # The learner's checkpoints include it.
        learner.best = BestWeights(trained) if run.keeps_best(name) else None
        optimizer = make_optimizer(stage, plan.steps_per_epoch, precision=config.precision)
        learner.compile(optimizer=optimizer, jit_compile=config.jit_compile)
        learner.optimizer.build(trained.trainable_variables)
        checkpoints = Checkpoints(
            run.folder.path / CHECKPOINTS / name,
            learner,
            keep=config.keep_checkpoints,
            writes=run.writes,
        )
    start = checkpoints.restore() or Position()
    own = [start.epoch, start.step]
    first = [int(number) for number in from_first_worker(run.strategy, own)]
    if first != own:
        raise RunError(
            f"{checkpoints.folder}: would resume here at epoch {own[0] + 1}, step {own[1]}, "
            f"and on the first machine at epoch {first[0] + 1}, step {first[1]}; expected one run "
            "folder for all; put it on a file system that they share."
        )
    plan = dataclasses.replace(plan, start=start)
    of_stage = [*recipes.callbacks]
    if learner.best is not None:
        of_stage = [learner.best.measured(), *of_stage]
        of_stage += [] if settle is None else [settling(trained, settle)]
    _fit(run, plan, trained, learner, checkpoints, of_stage)
    if recipes.finish is not None:
        recipes.finish()
    if learner.best is not None:
        learner.best.restore()
    return None if learner.best is None else learner.best.epoch, training_copy(trained)


def _fit(
    run: Run,
    plan: StagePlan,
    trained: keras.Model,
    learner: Learner,
    checkpoints: Checkpoints,
    of_stage: Sequence[keras.callbacks.Callback],
) -> None:
    """Trains through the steps that a stage has left, and measures and records as it goes."""
    name, is_resumed = plan.stage, plan.start > Position()
    if is_resumed:
        run.say(
            f"Resuming the {name} stage from epoch {plan.start.epoch + 1}, step "
            f"{plan.start.step + 1}."
        )
    run.rows[:] = [
        row
        for row in run.rows
        if row.stage != name or (is_resumed and row.epoch <= plan.start.epoch)
    ]
    around_measuring = [*of_stage, *kept_current(learner.student)]
    held_out = distributed(
        run.strategy,
        lambda shard: run.source.held_out_batches(batch_size=_HELD_OUT_BATCH_SIZE, shard=shard),
    )
    held_out_steps = -(-run.source.num_test // _HELD_OUT_BATCH_SIZE)
    recorder = Recorder(
        plan,
        trained,
        run.records or run.folder,
        rows=run.rows,
        sample=run.source.training_sample(SAMPLE, seed=run.config.seed),
    )
    if name != "float" and not is_resumed:
        # The start of a stage is measured as its epochs are; it is epoch 0.
        found = learner.evaluate(
            held_out,
            steps=held_out_steps,
            callbacks=around_measuring,
            verbose=0,
            return_dict=True,
        )
        recorder.add_epoch(
            EpochMetrics(
                stage=name,
                epoch=0,
                step=0,
                **logged(EPOCHS, {f"val_{name}": value for name, value in found.items()}),
            )
        )
        run.say(f"{name:9}  before training: {run.held_out(found)}")
    saver = CheckpointSaver(
        checkpoints, run.interruption, run.config.training, flush=recorder.flush
    )
    progress = ProgressBar(plan, console=run.console)
    with recorder, progress:
        for position, epochs, steps in plan.parts():
            saver.set_model(learner)
            saver.start_at(position, steps)
            learner.fit(
                _training_batches(run, plan.batch_size, position),
                initial_epoch=position.epoch,
                epochs=position.epoch + epochs,
                steps_per_epoch=steps,
                validation_data=held_out,
                validation_steps=held_out_steps,
                callbacks=[
                    *around_measuring,
                    StopWhenNotFinite(name, run.source, checkpoints),
                    recorder,
                    progress,
                    saver,  # last, because it may stop the run
                ],
                verbose=0,
            )


def _training_batches(run: Run, batch_size: int, start: Position) -> tf.data.Dataset:
    return distributed(
        run.strategy,
        lambda shard: run.source.training_batches(
            batch_size=batch_size,
            seed=run.config.seed,
            first_epoch=start.epoch,
            first_step=start.step,
            shard=shard,
        ),
    )


def _with_chosen_rate(
    run: Run, name: str, trained: keras.Model, recipes: StageRecipes
) -> StageConfig:
    """The settings of a stage with the learning rate that a trial finds best.

    A few steps are trained at each of `TRIED_RATES`, from the same weights. Each trial is the stage
    in miniature: the same batches, momentum from 0, and a rate that falls to 0 on half a cosine.
    The loss of the steps themselves is no guide, because a model that leaves all that it knows
    behind for the batches at hand lowers it fastest: `Distance` judges. What was tried is recorded
    in the run folder, and the rate in its configuration.

    Args:
        run: what it is a stage of.
        name: of the stage.
        trained: the model that is trained; it has its weights again afterwards.
        recipes: of the stage, of which the losses are taken.
    """
    config, stage = run.config.training, run.config.stages.by_name()[name]
    run.say(
        f"{name:9}  trying learning rates from {TRIED_RATES[0]:g} to {TRIED_RATES[-1]:g}, for "
        f"{_TRIED_STEPS} steps each"
    )
    with run.strategy.scope():
        learner = Learner(
            trained,
            batch_size=stage.batch_size,
            image_loss=recipes.image_loss,
            agreement=recipes.agreement,
        )
        optimizer = make_optimizer(
            stage, 1, precision=config.precision, learning_rate=TRIED_RATES[0]
        )
        learner.compile(optimizer=optimizer, jit_compile=config.jit_compile)
        learner.optimizer.build(trained.trainable_variables)
    float_model = load_model(run.folder.file(FLOAT_MODEL), safe_mode=not config.trust_model)
    count = min(_TRIED_IMAGES, run.source.num_train)
    images = run.source.training_sample(count, seed=run.config.seed)
    distance = Distance(float_model, training_copy(trained), images)
    sgd = getattr(optimizer, "inner_optimizer", optimizer)
    weights = trained.get_weights()
    distances: dict[float, float | None] = {}
    for rate in TRIED_RATES:
        trained.set_weights(weights)
        for variable in sgd.variables:
            variable.assign(tf.zeros_like(variable))

        def cool(step: int, logs: Any, rate: float = rate) -> None:
            sgd.learning_rate = rate * 0.5 * (1.0 + math.cos(math.pi * step / _TRIED_STEPS))

        cooling = keras.callbacks.LambdaCallback(on_train_batch_begin=cool)
        learner.fit(
            _training_batches(run, stage.batch_size, Position()),
            steps_per_epoch=_TRIED_STEPS,
            callbacks=[*kept_current(trained), cooling],
            verbose=0,
        )
        distances[rate] = distance(trained.get_weights())
    trained.set_weights(weights)
    # The lowest rate is taken where all have diverged.
    sizes = {rate: math.inf if far is None else far for rate, far in distances.items()}
    best = min(sizes, key=lambda rate: (sizes[rate], rate))
    best = float(from_first_worker(run.strategy, [best])[0])
    trial = RateTrial(learning_rate=best, distances=distances)
    run.say(f"{name:9}  learning rate {best:g}: {trial.in_words()}")
    if run.writes:
        write_trial(run.folder, name, trial)
        run.folder.write_text(CONFIG, config_text(settled(run.folder, run.config)))
    return stage.with_peak(best)


class Distance:
    """How far the answers of a model are from those of the float model that it comes from.

    The mean over training images, prepared like held-out ones, of the divergence
    Σ p log(p / q), with p and q the probabilities of the float model and of the other, whose
    statistics of normalization are measured first: a few steps leave moving averages behind.

    Args:
        float_model: from images to logits.
        model: a copy of the one that is trained, not bound to a strategy.
        images: as both take them.
    """

    def __init__(self, float_model: keras.Model, model: keras.Model, images: np.ndarray) -> None:
        self._model, self._images = model, images
        self._expected = self._log_probabilities(float_model)

    def __call__(self, weights: Sequence[np.ndarray]) -> float | None:
        """The distance with these weights; None where it is not finite."""
        self._model.set_weights(weights)
        try:
            estimate_statistics(self._model, self._images, num_images=len(self._images))
        except ValueError:  # an activation is not finite
            return None
        of_model = self._log_probabilities(self._model)
        mean = np.sum(np.exp(self._expected) * (self._expected - of_model), axis=-1).mean()
        return float(mean) if np.isfinite(mean) else None

    def _log_probabilities(self, model: keras.Model) -> np.ndarray:
        batches = (
            self._images[start : start + _MEASURED_BATCH_SIZE]
            for start in range(0, len(self._images), _MEASURED_BATCH_SIZE)
        )
        logits = [model(tf.cast(batch, tf.float32), training=False) for batch in batches]
        values: np.ndarray = tf.nn.log_softmax(tf.cast(tf.concat(logits, 0), tf.float64)).numpy()
        return values


def held_out_metrics(
    model: keras.Model, source: ImageSource, agreement: Agreement | None = None
) -> dict[str, float]:
    """The loss and accuracy of a model on the held-out images, measured on this machine alone.

    Args:
        model: with logits as its output.
        source: the data set.
        agreement: gives the classes and losses of images without labels; None with labels.

    Returns:
        Shares in [0, 1], by the names of the metrics, the loss, and how many images they are of:
        pictures that cannot be read do not count.

    Raises:
        RunError: a logit is non-finite.
    """
    learner = Learner(model, batch_size=_HELD_OUT_BATCH_SIZE, agreement=agreement)
    learner.compile()
    batches = source.held_out_batches(batch_size=_HELD_OUT_BATCH_SIZE)
    found = learner.evaluate(batches, verbose=0, return_dict=True, callbacks=kept_current(model))
    metrics = {name: float(value) for name, value in found.items()}
    if not all(value == value for value in metrics.values()):  # NaN is not equal to itself
        raise RunError(
            f"model {model.name!r}: gives NaN or infinite logits for held-out images, expected "
            "finite ones; train it again."
        )
    return {**metrics, "images": learner.measured_images}
