"""One stage of training: compile, fit, and hand back a plain model."""

import dataclasses
import math
from collections.abc import Callable

import numpy as np
import tensorflow as tf
import tf_keras as keras
from rich.console import Console

from sat_tf.data import ImageSet
from sat_tf.data.choice import spread_evenly
from sat_tf.training.batches import held_out_batches, training_batches
from sat_tf.training.config import Config
from sat_tf.training.errors import RunError
from sat_tf.training.history import EpochMetrics
from sat_tf.training.recorder import StopWhenNotFinite
from sat_tf.training.regularization import with_weight_decay
from sat_tf.training.run_folder import RunFolder
from sat_tf.training.schedule import WarmupCosine
from sat_tf.training.stage_config import StageConfig
from sat_tf.training.stage_plan import StagePlan
from sat_tf.training.top1 import accuracy_metrics
from sat_tf.training.watching import watched

_SAMPLE = 32


@dataclasses.dataclass(frozen=True, kw_only=True)
class Run:
    """What the stages of one run share.

    Attributes:
        config: the whole configuration.
        images: the data set.
        folder: where the metrics go.
        strategy: under which strategy to train.
        console: where to show progress.
        rows: the metrics so far; every epoch appends one.
    """

    config: Config
    images: ImageSet
    folder: RunFolder
    strategy: tf.distribute.Strategy
    console: Console
    rows: list[EpochMetrics] = dataclasses.field(default_factory=list)


def compile_stage(model: keras.Model, stage: StageConfig, steps_per_epoch: int) -> None:
    """Gives a model the optimizer, loss and metric of a stage.

    SGD with Nesterov momentum μ: v <- μ v - η g, W <- W + μ v - η g, with the learning rate η of
    `WarmupCosine` and g the gradient of the loss, weight decay included where
    `with_weight_decay` put it.

    Args:
        model: with logits as its output.
        stage: its settings.
        steps_per_epoch: how many batches an epoch has.
    """
    model.compile(
        optimizer=keras.optimizers.SGD(
            WarmupCosine.of_stage(stage, steps_per_epoch),
            momentum=stage.momentum,
            nesterov=stage.nesterov,
        ),
        loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        metrics=accuracy_metrics(),
    )


def train_stage(
    run: Run,
    name: str,
    model: keras.Model,
    view: Callable[[keras.Model], keras.Model] = lambda model: model,
) -> keras.Model:
    """Trains a model through one stage.

    Args:
        run: what it is a stage of.
        name: of the stage in the configuration.
        model: where to start; it is not changed.
        view: gives the model to fit, which shares the variables of the one it is given.

    Returns:
        The trained model, neither compiled nor bound to the strategy.

    Raises:
        RunError: the loss or a logit is not finite.
    """
    stage: StageConfig = getattr(run.config.stages, name)
    steps_per_epoch = len(run.images.train_labels) // stage.batch_size
    batches = training_batches(
        run.images,
        batch_size=stage.batch_size,
        shift_pixels=run.config.data.shift_pixels,
        seed=run.config.seed,
    )
    with run.strategy.scope():
        trained = with_weight_decay(model, stage.weight_decay)
        fitted = view(trained)
        compile_stage(fitted, stage, steps_per_epoch)
    plan = StagePlan(
        stage=name,
        batch_size=stage.batch_size,
        steps_per_epoch=steps_per_epoch,
        total_steps=stage.epochs * steps_per_epoch,
        steps_before=sum({row.stage: row.step for row in run.rows}.values()),
    )
    with watched(
        plan,
        trained,
        run.folder,
        rows=run.rows,
        sample=sample_of(run.images),
        console=run.console,
    ) as callbacks:
        fitted.fit(
            batches,
            epochs=stage.epochs,
            validation_data=held_out_batches(run.images),
            callbacks=[StopWhenNotFinite(name), *callbacks],
            verbose=0,
        )
    return with_weight_decay(trained, stage.weight_decay)


def sample_of(images: ImageSet) -> np.ndarray:
    """A few training images, always the same ones, on which activations are looked at."""
    return images.train_images[spread_evenly(len(images.train_labels), _SAMPLE)]


def held_out_accuracies(model: keras.Model, images: ImageSet) -> dict[str, float]:
    """Top-1 and top-5 of a model on the held-out images, in [0, 1], by name; compiles it.

    Raises:
        RunError: a logit is not finite.
    """
    model.compile(metrics=accuracy_metrics())
    found = model.evaluate(held_out_batches(images), verbose=0, return_dict=True)
    shares = {metric.name: float(found[metric.name]) for metric in accuracy_metrics()}
    if not all(map(math.isfinite, shares.values())):
        raise RunError(
            f"model {model.name!r}: gives NaN or infinite logits for held-out images, expected "
            "finite ones; train it again."
        )
    return shares


def held_out_top1(model: keras.Model, images: ImageSet) -> float:
    """Top-1 alone; see `held_out_accuracies`."""
    return held_out_accuracies(model, images)["top1"]


def batch_size_problems(config: Config, images: ImageSet) -> list[str]:
    """What is wrong with the batch sizes, which only the data can tell."""
    count = len(images.train_labels)
    sizes = {
        f"stages.{name}.batch_size": stage.batch_size
        for name, stage in config.stages.by_name().items()
    }
    return [
        f"{key}={size}: expected at most {count}, the number of training images; lower it."
        for key, size in sizes.items()
        if size > count
    ]
