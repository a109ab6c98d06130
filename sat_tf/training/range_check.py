"""A trained float model of a file is fed what it was trained with, or the run says so first."""

import tf_keras as keras
from rich.console import Console
from rich.markup import escape

from sat_tf.analysis.range_accuracy import USUAL_IMAGES, range_accuracies
from sat_tf.data.source import ImageSource
from sat_tf.qat.input_ranges import InputRange
from sat_tf.training.config import Config
from sat_tf.training.errors import RunError


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
    images, labels = pixels.held_out_sample(USUAL_IMAGES)
    found = range_accuracies(model, images, labels, given)
    if found is None or found.fitting is None:
        return
    problem = f"training.float_model={config.training.float_model!r}: {found.problem}"
    if not config.policy.states_input_range:
        raise RunError(f"{problem}; set policy.input_range={found.setting}.")
    console.print(f"Note: {escape(problem)}.", style="yellow", highlight=False, soft_wrap=True)
