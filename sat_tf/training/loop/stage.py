"""One stage of training: compile, fit, and hand back a plain model."""

import dataclasses
import zlib
from collections.abc import Callable, Sequence

import tensorflow as tf
import tf_keras as keras
from rich.console import Console

from sat_tf.data.source import ImageSource
from sat_tf.export.deployed import DeployedModel
from sat_tf.loading.load import load_model
from sat_tf.messages import RunError
from sat_tf.training.callbacks.best_weights import BestWeights, KeepBestMeasured
from sat_tf.training.callbacks.callback_list import recording
from sat_tf.training.callbacks.epoch_recorder import StopWhenNotFinite
from sat_tf.training.callbacks.progress import StepReporter
from sat_tf.training.callbacks.saving import (
    CheckpointSaver,
    DeployedRefresher,
    constant_while_measured,
)
from sat_tf.training.config.config import Config, config_text
from sat_tf.training.config.sections import AUTO, TRIED_RATES, StageConfig
from sat_tf.training.interruption import Interruption
from sat_tf.training.loop.outside_failures import reading_errors_explained
from sat_tf.training.loop.rate_trial import MEASURED_IMAGES, STEPS, Distance, chosen, try_rates
from sat_tf.training.recipes.recipes import stage_recipes, stage_teacher
from sat_tf.training.state.checkpoints import Checkpoints, Position, steps_left
from sat_tf.training.state.history import EpochMetrics, to_csv
from sat_tf.training.state.run_folder import (
    CHECKPOINTS,
    CONFIG,
    FLOAT_MODEL,
    METRICS,
    RunFolder,
)
from sat_tf.training.state.run_state import RateTrial, settled, write_trial
from sat_tf.training.step.distribution import distributed, from_first_worker
from sat_tf.training.step.learner import ImageLoss, Learner, training_copy
from sat_tf.training.step.schedule import WarmupCosine
from sat_tf.training.step.stage_plan import StagePlan, StepReport

_HELD_OUT_BATCH_SIZE = 256
_FROM_THE_START = Position()
# Training images on which activations are measured.
SAMPLE = 32


@dataclasses.dataclass(frozen=True, kw_only=True)
class Run:
    """What the stages of one run share.

    Attributes:
        config: the whole configuration.
        source: the data set.
        folder: where the files go.
        strategy: under which strategy to train.
        console: where to show progress.
        writes: whether this process writes the folder.
        records: where this process writes metrics and curves; None is the folder.
        interruption: whether the run has been asked to stop.
        report_step: called after every step.
        rows: the metrics so far; every epoch appends one.
        kept: the epoch whose weights a stage ended with, by the name of the stage; 0 is its start.
    """

    config: Config
    source: ImageSource
    folder: RunFolder
    strategy: tf.distribute.Strategy
    console: Console
    writes: bool = True
    records: RunFolder | None = None
    interruption: Interruption = dataclasses.field(default_factory=Interruption)
    report_step: StepReport | None = None
    rows: list[EpochMetrics] = dataclasses.field(default_factory=list)
    kept: dict[str, int] = dataclasses.field(default_factory=dict)

    def keeps_best(self, name: str) -> bool:
        """Whether a stage ends with its best epoch; only one behind a trained model does."""
        return name != "float" and self.config.training.keep == "best"

    def best_measured(self, name: str) -> float:
        """The best held-out top-1 of a stage, its start included."""
        return max(row.held_out_top1 for row in self.rows if row.stage == name)

    def say(self, text: str, *, style: str | None = None) -> None:
        """Prints a line as it is."""
        self.console.print(text, style=style, highlight=False, markup=False, soft_wrap=True)


def make_optimizer(
    stage: StageConfig,
    steps_per_epoch: int,
    *,
    precision: str = "float32",
    learning_rate: float | None = None,
) -> keras.optimizers.Optimizer:
    """The optimizer of a stage.

    SGD with Nesterov momentum μ: v <- μ v - η g, W <- W + μ v - η g, with the learning rate η of
    `WarmupCosine` and g the gradient of the loss, weight decay included where `training_copy` put
    it. In mixed_float16 the loss is multiplied before, and the gradient divided after, so that
    small gradients are not lost; a step whose gradients overflow is left out.

    Args:
        stage: its settings.
        steps_per_epoch: how many batches an epoch has.
        precision: name of the dtype policy that the model computes by.
        learning_rate: in place of the schedule, to be set.
    """
    optimizer = keras.optimizers.SGD(
        learning_rate or WarmupCosine.of_stage(stage, steps_per_epoch),
        momentum=stage.momentum,
        nesterov=stage.nesterov,
    )
    if precision == "mixed_float16":
        return keras.mixed_precision.LossScaleOptimizer(optimizer)
    return optimizer


def train_stage(
    run: Run,
    name: str,
    model: keras.Model,
    view: Callable[[keras.Model], keras.Model] = lambda model: model,
) -> keras.Model:
    """Trains a model through one stage, or through what is left of it after an interruption.

    Args:
        run: what it is a stage of.
        name: of the stage in the configuration.
        model: the one to start from; it is not changed.
        view: gives the model to fit, which shares the variables of its argument.

    Returns:
        The trained model, neither compiled nor bound to the strategy: as it was after the last
        step, or the best epoch; see `Run.keeps_best`.

    Raises:
        RunError: the loss or a logit is non-finite, or a checkpoint cannot be written or read.
        Stopped: the run has been asked to stop, and a checkpoint is written.
    """
    config = run.config.training
    plan = stage_plan(run, name)
    # The tail trains on integers, which half precision does not hold.
    precision = "float32" if name == "deploy_tail" else config.precision
    # Every worker has prepared its start by itself; they must be equal to the last bit.
    weights = from_first_worker(run.strategy, model.get_weights())
    # Layers without a seed of their own take one here, independent of what ran before.
    keras.utils.set_random_seed(zlib.crc32(f"{run.config.seed} {name}".encode()))
    with run.strategy.scope():
        trained = training_copy(
            model,
            weight_decay=getattr(run.config.stages, name).weight_decay,
            precision=precision,
            synchronized=config.synchronized_batch_normalization
            and run.strategy.num_replicas_in_sync > 1,
        )
        trained.set_weights(weights)
        recipes = stage_recipes(
            run.config.recipes,
            name,
            trained,
            total_steps=plan.total_steps,
            teacher=stage_teacher(run.config, name, run.source, run.folder),
            folder=run.folder if run.writes else None,
        )
        student = view(trained)
    run = with_chosen_rate(run, name, trained, student, recipes.image_loss, precision)
    with run.strategy.scope():
        stage: StageConfig = getattr(run.config.stages, name)
        learner = Learner(
            student,
            batch_size=stage.batch_size,
            image_loss=recipes.image_loss,
            after_step=recipes.after_step,
        )
        # The learner's checkpoints include it.
        learner.best = BestWeights(trained) if run.keeps_best(name) else None
        optimizer = make_optimizer(stage, plan.steps_per_epoch, precision=precision)
        learner.compile(optimizer=optimizer, jit_compile=config.jit_compile)
        learner.optimizer.build(learner.student.trainable_variables)
        checkpoints = Checkpoints(
            run.folder.path / CHECKPOINTS / name,
            learner,
            keep=config.keep_checkpoints,
            writes=run.writes,
        )
    _fit(run, name, trained, learner, checkpoints, recipes.callbacks)
    recipes.finish()
    if learner.best is not None:
        learner.best.restore()
        run.kept[name] = learner.best.epoch
    return training_copy(trained)


def _fit(
    run: Run,
    name: str,
    trained: keras.Model,
    learner: Learner,
    checkpoints: Checkpoints,
    of_recipes: Sequence[keras.callbacks.Callback],
) -> None:
    stage: StageConfig = getattr(run.config.stages, name)
    start = checkpoints.restore() or _FROM_THE_START
    _expect_agreement(run, checkpoints, start)
    if start > _FROM_THE_START:
        run.say(f"Resuming the {name} stage from epoch {start.epoch + 1}, step {start.step + 1}.")
    plan = stage_plan(run, name, start)
    is_resumed = start > _FROM_THE_START
    run.rows[:] = [
        row for row in run.rows if row.stage != name or (is_resumed and row.epoch <= start.epoch)
    ]
    saver = CheckpointSaver(checkpoints, run.interruption, run.config.training)
    around_measuring = [
        *_refreshers(learner.student),
        *([] if learner.best is None else [KeepBestMeasured(learner.best)]),
        *of_recipes,
        *constant_while_measured(learner.student),
    ]
    held_out = distributed(
        run.strategy,
        lambda shard: run.source.held_out_batches(batch_size=_HELD_OUT_BATCH_SIZE, shard=shard),
    )
    held_out_steps = -(-run.source.num_test // _HELD_OUT_BATCH_SIZE)
    if name != "float" and not is_resumed:
        _measure_start(run, name, learner, held_out, held_out_steps, around_measuring)
    parts = steps_left(start, total_steps=plan.total_steps, steps_per_epoch=plan.steps_per_epoch)
    recorded = recording(
        plan,
        trained,
        run.records or run.folder,
        rows=run.rows,
        sample=run.source.training_sample(SAMPLE, seed=run.config.seed),
        console=run.console,
    )
    with recorded as watchers:
        saver.flush_first(watchers)
        callbacks = [
            *around_measuring,
            StopWhenNotFinite(name, run.source, checkpoints),
            *watchers,
            *([StepReporter(plan, run.report_step)] if run.report_step else []),
            saver,  # last, because it may stop the run
        ]
        for position, epochs, steps in parts:
            saver.set_model(learner)
            saver.start_at(position, steps)
            learner.fit(
                _training_batches(run, stage, position),
                initial_epoch=position.epoch,
                epochs=position.epoch + epochs,
                steps_per_epoch=steps,
                validation_data=held_out,
                validation_steps=held_out_steps,
                callbacks=callbacks,
                verbose=0,
            )


def _refreshers(student: keras.Model) -> list[keras.callbacks.Callback]:
    return [DeployedRefresher(student)] if isinstance(student, DeployedModel) else []


def _measure_start(
    run: Run,
    name: str,
    learner: Learner,
    held_out: tf.data.Dataset,
    steps: int,
    callbacks: Sequence[keras.callbacks.Callback],
) -> None:
    """Measures what a stage starts from, as its epochs are measured: it is epoch 0."""
    found = learner.evaluate(
        held_out, steps=steps, callbacks=list(callbacks), verbose=0, return_dict=True
    )
    run.rows.append(
        EpochMetrics(
            stage=name,
            epoch=0,
            step=0,
            held_out_loss=float(found["loss"]),
            held_out_top1=float(found["top1"]),
            held_out_top5=float(found["top5"]) if "top5" in found else None,
        )
    )
    (run.records or run.folder).write_text(METRICS, to_csv(run.rows))
    run.say(f"{name:9}  before training: held-out top-1 {100 * found['top1']:.2f} %")


def with_chosen_rate(
    run: Run,
    name: str,
    trained: keras.Model,
    student: keras.Model,
    image_loss: ImageLoss,
    precision: str,
) -> Run:
    """The run with a number for the learning rate of a stage: where it is auto, a trial finds it.

    What was tried is recorded in the run folder, and the number in its configuration.

    Args:
        run: what it is a stage of.
        name: of the stage.
        trained: the model that is trained; it has its weights again afterwards.
        student: what is fitted, a view of it.
        image_loss: of the stage.
        precision: see `make_optimizer`.
    """
    stage: StageConfig = getattr(run.config.stages, name)
    if stage.base_learning_rate != AUTO:
        return run
    run.say(
        f"{name:9}  trying learning rates from {TRIED_RATES[0]:g} to {TRIED_RATES[-1]:g}, for "
        f"{STEPS} steps each"
    )
    with run.strategy.scope():
        learner = Learner(student, batch_size=stage.batch_size, image_loss=image_loss)
        optimizer = make_optimizer(stage, 1, precision=precision, learning_rate=TRIED_RATES[0])
        learner.compile(optimizer=optimizer, jit_compile=run.config.training.jit_compile)
        learner.optimizer.build(student.trainable_variables)
    float_model = load_model(
        run.folder.file(FLOAT_MODEL), safe_mode=not run.config.training.trust_model
    )
    count = min(MEASURED_IMAGES, run.source.num_train)
    images = run.source.training_sample(count, seed=run.config.seed)
    distances = try_rates(
        trained,
        learner,
        getattr(optimizer, "inner_optimizer", optimizer),
        lambda: _training_batches(run, stage, _FROM_THE_START),
        Distance(float_model, training_copy(trained), images),
        around=_refreshers(student),
    )
    rate = float(from_first_worker(run.strategy, [chosen(distances)])[0])
    trial = RateTrial(learning_rate=rate, distances=distances)
    run.say(f"{name:9}  learning rate {rate:g}: {trial.in_words()}")
    if run.writes:
        write_trial(run.folder, name, trial)
        run.folder.write_text(CONFIG, config_text(settled(run.folder, run.config)))
    return dataclasses.replace(run, config=run.config.with_stages({name: stage.with_peak(rate)}))


def stage_plan(run: Run, name: str, start: Position = _FROM_THE_START) -> StagePlan:
    """The steps of a stage, those before `start` done."""
    stages = run.config.stages.by_name()
    per_epoch = {key: stage.steps_per_epoch(run.source.num_train) for key, stage in stages.items()}
    before = list(stages)[: list(stages).index(name)]
    if run.config.training.float_model is not None and "float" in before:
        before.remove("float")  # it is not trained
    return StagePlan(
        stage=name,
        batch_size=stages[name].batch_size,
        steps_per_epoch=per_epoch[name],
        total_steps=stages[name].total_steps(per_epoch[name]),
        first_step=start.epoch * per_epoch[name] + start.step,
        steps_before=sum(stages[key].total_steps(per_epoch[key]) for key in before),
        metric_steps=start.step,
    )


def _training_batches(run: Run, stage: StageConfig, position: Position) -> tf.data.Dataset:
    return distributed(
        run.strategy,
        lambda shard: run.source.training_batches(
            batch_size=stage.batch_size,
            seed=run.config.seed,
            first_epoch=position.epoch,
            first_step=position.step,
            shard=shard,
        ),
    )


def _expect_agreement(run: Run, checkpoints: Checkpoints, start: Position) -> None:
    """Raises an error if workers have read different checkpoints."""
    own = [start.epoch, start.step]
    first = [int(number) for number in from_first_worker(run.strategy, own)]
    if first != own:
        raise RunError(
            f"{checkpoints.folder}: would resume here at epoch {own[0] + 1}, step {own[1]}, "
            f"and on the first machine at epoch {first[0] + 1}, step {first[1]}; expected one run "
            "folder for all; put it on a file system that they share."
        )


def held_out_metrics(model: keras.Model, source: ImageSource) -> dict[str, float]:
    """The loss and accuracy of a model on the held-out images, measured on this machine alone.

    Args:
        model: with logits as its output.
        source: the data set.

    Returns:
        Shares in [0, 1], by the names of the metrics, the loss, and how many images they are of:
        pictures that cannot be read do not count.

    Raises:
        RunError: a logit is non-finite, or the images cannot be read.
    """
    learner = Learner(model, batch_size=_HELD_OUT_BATCH_SIZE)
    learner.compile()
    batches = source.held_out_batches(batch_size=_HELD_OUT_BATCH_SIZE)
    with reading_errors_explained(source):
        found = learner.evaluate(
            batches, verbose=0, return_dict=True, callbacks=constant_while_measured(model)
        )
    metrics = {name: float(value) for name, value in found.items()}
    if not all(value == value for value in metrics.values()):  # NaN is not equal to itself
        raise RunError(
            f"model {model.name!r}: gives NaN or infinite logits for held-out images, expected "
            "finite ones; train it again."
        )
    return {**metrics, "images": learner.measured_images}


def batch_size_problems(config: Config, source: ImageSource, replicas: int = 1) -> list[str]:
    """Problems of batch sizes and steps that depend on the data and the devices."""
    problems = []
    for name, stage in config.stages.by_name().items():
        if name == "float" and config.training.float_model is not None:
            continue  # which is loaded
        if stage.batch_size > source.num_train:
            problems.append(
                f"stages.{name}.batch_size={stage.batch_size}: expected at most "
                f"{source.num_train}, the number of training images; lower it."
            )
            continue
        if stage.batch_size < replicas:
            problems.append(
                f"stages.{name}.batch_size={stage.batch_size}: expected at least {replicas}, the "
                "number of devices that share a batch; raise it, or train on fewer."
            )
        steps_per_epoch = stage.steps_per_epoch(source.num_train)
        total = stage.total_steps(steps_per_epoch)
        if stage.warmup_epochs * steps_per_epoch >= total and stage.trains:
            problems.append(
                f"stages.{name}.warmup_epochs={stage.warmup_epochs:g}: "
                f"{stage.warmup_epochs * steps_per_epoch:g} steps of {total}; expected a warm-up "
                "shorter than the stage; lower it."
            )
    return problems
