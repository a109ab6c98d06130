"""A trained float model of a file is fed what it was trained with, or the run says so first."""

import tf_keras as keras
from rich.console import Console
from rich.markup import escape

from sat_tf.analysis.range_accuracy import USUAL_IMAGES, range_accuracies
from sat_tf.data.source import ImageSource
from sat_tf.qat.input_ranges import InputRange
from sat_tf.training.config import Config
from sat_tf.training.errors import RunError
from sat_tf.training.recipes import check_teacher


def check_range(
    config: Config, model: keras.Model, pixels: ImageSource, given: InputRange, console: Console
) -> None:
    """Measures `training.float_model` with what it is to be fed, and with the other usual ranges.

    Args:
        config: of the run.
        model: the float model.
        pixels: the data set.
        given: what the model is to be fed.
        console: where to warn, if the policy asks for this range.

    Raises:
        RunError: another range is clearly better, and the policy says none.
    """
    if config.training.float_model is None:
        return
    images, labels = pixels.held_out_sample(USUAL_IMAGES)
    found = range_accuracies(model, images, labels, given)
    if found is None or found.fitting is None:
        return
    problem = f"training.float_model={config.training.float_model!r}: {found.problem}"
    if not config.policy.states_input_range:
        raise RunError(f"{problem}; set policy.input_range={found.setting}.")
    console.print(f"Note: {escape(problem)}.", style="yellow", highlight=False, soft_wrap=True)


def check_range_of_teacher(config: Config, pixels: ImageSource, given: InputRange) -> None:
    """Measures the teacher of a file with what it is fed, as the student is.

    Args:
        config: of the run.
        pixels: the data set.
        given: what the student is to be fed.

    Raises:
        RunError: another range is clearly better.
    """
    plan, teacher = config.recipes.distillation, check_teacher(config, pixels)
    if plan is None or teacher is None:
        return
    images, labels = pixels.held_out_sample(USUAL_IMAGES)
    found = range_accuracies(teacher, images, labels, given)
    if found is not None and found.fitting is not None:
        raise RunError(
            f"recipes.distillation.teacher={plan.teacher!r}: {found.problem}; save it with a "
            "Rescaling or a Normalization layer in front that makes this of what the student is "
            f"fed, or set policy.input_range={found.setting} for both."
        )
