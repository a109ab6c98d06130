"""The recipes of one stage, assembled as its learner takes them."""

import dataclasses
import os
from collections.abc import Callable

import tf_keras as keras

from sat_tf.data.source import ImageSource
from sat_tf.training.config.config import Config
from sat_tf.training.config.recipes import FLOAT_STAGE, RecipesConfig
from sat_tf.training.recipes.oscillation import Oscillation, OscillationLog
from sat_tf.training.recipes.progressive_bits import ProgressiveBits
from sat_tf.training.recipes.targets import distilled, smoothed_cross_entropy
from sat_tf.training.recipes.weight_average import AverageMeasured, WeightAverage
from sat_tf.training.state.classifier_file import read_classifier, read_weights
from sat_tf.training.state.run_folder import FLOAT_MODEL, RunFolder
from sat_tf.training.step.learner import ImageLoss, cross_entropy, training_copy


@dataclasses.dataclass(frozen=True, kw_only=True)
class StageRecipes:
    """What the recipes of a configuration add to one stage.

    Attributes:
        image_loss: the loss of each image.
        after_step: what happens after every step of the optimizer.
        callbacks: what happens around epochs and measuring; they come before all others.
        average: the weights that the stage ends with; None for those of the last step.
    """

    image_loss: ImageLoss = cross_entropy
    after_step: tuple[Callable[[], None], ...] = ()
    callbacks: tuple[keras.callbacks.Callback, ...] = ()
    average: WeightAverage | None = None

    def finish(self) -> None:
        """Gives the trained model the weights that the stage ends with."""
        if self.average is not None:
            self.average.keep()


def stage_recipes(
    config: RecipesConfig,
    stage: str,
    model: keras.Model,
    *,
    total_steps: int,
    teacher: keras.Model | None = None,
    folder: RunFolder | None = None,
) -> StageRecipes:
    """Makes the recipes of one stage, under the strategy that is in scope.

    Args:
        config: of the recipes.
        stage: its name.
        model: the one that is trained.
        total_steps: how many the stage has.
        teacher: see `stage_teacher`.
        folder: where counts go; None writes none.
    """
    quantized = stage == "quantized"
    after_step: list[Callable[[], None]] = []
    callbacks: list[keras.callbacks.Callback] = []
    if quantized and config.progressive_bits is not None:
        plan = config.progressive_bits
        after_step.append(
            ProgressiveBits(model, bits=plan.bits, shares=plan.shares, total_steps=total_steps)
        )
    if quantized and config.oscillation is not None:
        oscillation = Oscillation(model, total_steps=total_steps, **config.oscillation.model_dump())
        after_step.append(oscillation)
        callbacks.append(OscillationLog(oscillation, folder))
    average = None
    if config.weight_average is not None and stage in config.weight_average.stages:
        # After the others, so that it averages the weights as they have changed them.
        average = WeightAverage(model, decay=config.weight_average.decay)
        after_step.append(average)
        callbacks.append(AverageMeasured(average))
    return StageRecipes(
        image_loss=_image_loss(config, stage, teacher),
        after_step=tuple(after_step),
        callbacks=tuple(callbacks),
        average=average,
    )


def _image_loss(config: RecipesConfig, stage: str, teacher: keras.Model | None) -> ImageLoss:
    loss: ImageLoss = cross_entropy
    if config.label_smoothing is not None and stage in config.label_smoothing.stages:
        loss = smoothed_cross_entropy(config.label_smoothing.amount)
    if config.distillation is not None and teacher is not None:
        plan = config.distillation
        loss = distilled(loss, teacher, temperature=plan.temperature, weight=plan.weight)
    return loss


def stage_teacher(
    config: Config, stage: str, source: ImageSource, folder: RunFolder
) -> keras.Model | None:
    """The teacher of a stage, under the strategy that is in scope; None if it has none.

    Args:
        config: of the run.
        stage: its name.
        source: the data set, which the teacher has to fit.
        folder: of the run, with its trained float model.

    Raises:
        RunError: the file of the teacher is missing, or holds something else.
    """
    plan = config.recipes.distillation
    if plan is None or stage not in plan.stages:
        return None
    file = folder.file(FLOAT_MODEL) if plan.teacher == FLOAT_STAGE else plan.teacher
    # A copy without regularizers, whose variables are where the student's are.
    return training_copy(_read_teacher(file, config, source))


def check_teacher(config: Config, source: ImageSource) -> keras.Model | None:
    """The teacher that a file holds, which fits the data; None if none is named.

    Raises:
        RunError: as in `stage_teacher`.
    """
    plan = config.recipes.distillation
    if plan is None or plan.teacher == FLOAT_STAGE:
        return None
    return _read_teacher(plan.teacher, config, source)


def _read_teacher(file: str | os.PathLike[str], config: Config, source: ImageSource) -> keras.Model:
    key, plan = "recipes.distillation.teacher", config.recipes.distillation
    fit = {"image_size": source.image_size, "num_classes": source.num_classes}
    if plan is not None and plan.model is not None:
        name, options = plan.model.name, plan.model.options
        return read_weights(file, name=name, options=options, key=key, **fit)
    return read_classifier(file, key=key, safe_mode=not config.training.trust_model, **fit)
