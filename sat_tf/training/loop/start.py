"""The model that training starts from, and whether it is fed the range it was trained with."""

import dataclasses
import warnings

import tf_keras as keras
from rich.console import Console
from rich.markup import escape

from sat_tf.analysis.range_accuracy import USUAL_IMAGES, range_accuracies
from sat_tf.data.source import ImageSource
from sat_tf.messages import RunError
from sat_tf.qat.layout import GuessedClippingLevelsWarning
from sat_tf.qat.policy import BitPolicy
from sat_tf.qat.requantize import requantize
from sat_tf.qat.scheme import quantize_model
from sat_tf.qat.wrapper import QuantizedLayer
from sat_tf.quantizers.input_range import InputRange
from sat_tf.training.config.config import Config
from sat_tf.training.recipes.recipes import check_teacher
from sat_tf.training.state.classifier_file import read_float_model


def check_range(
    config: Config, model: keras.Model, pixels: ImageSource, given: InputRange, console: Console
) -> None:
    """Measures `training.float_model` in the range it is to be fed, and in the other usual ranges.

    Args:
        config: of the run.
        model: the float model.
        pixels: the data set.
        given: what the model is to be fed.
        console: where to warn, if the policy asks for this range.

    Raises:
        RunError: another range is clearly better, and the policy states none.
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
    """Measures the teacher of a file in the range that it is fed, which is the student's.

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
            "Rescaling or a Normalization layer in front that converts the student's range to "
            f"this, or set policy.input_range={found.setting} for both."
        )


# The bits of a policy, which the float stage leaves out.
_BITS = ("weight_bits", "activation_bits", "stream_bits")


def float_policy(policy: BitPolicy) -> BitPolicy:
    """The policy of the float stage: the same variant of the method, nothing rounded or clipped.

    Weights are clamped and rescaled from the start, so that quantization later changes as little
    as it can (the paper's float model).
    """
    overrides = {
        pattern: {name: value for name, value in fields.items() if name not in _BITS}
        for pattern, fields in policy.overrides.items()
    }
    return dataclasses.replace(
        policy, weight_bits=None, activation_bits=None, latent_start="as_is", overrides=overrides
    )


def float_start(config: Config, plain: keras.Model) -> keras.Model:
    """The model that the float stage trains: `plain` itself, or a copy with clamped weights.

    Args:
        config: of the run; `training.start` decides.
        plain: an ordinary float model, not trained.

    Raises:
        RunError: the policy does not fit the model; lists every problem.
    """
    if config.training.start == "vanilla":
        return plain
    try:
        return quantize_model(plain, float_policy(config.policy))
    except ValueError as error:
        raise RunError(str(error)) from error


def trained_float_model(config: Config, source: ImageSource) -> keras.Model | None:
    """The trained float model that `training.float_model` names; None if it names none.

    Raises:
        RunError: there is no such file, or it holds something else.
    """
    path = config.training.float_model
    if path is None:
        return None
    return read_float_model(
        path,
        image_size=source.image_size,
        num_classes=source.num_classes,
        key="training.float_model",
        safe_mode=not config.training.trust_model,
    )


def is_ordinary(model: keras.Model) -> bool:
    """Whether a model is neither clamped nor quantized by sat-tf."""
    return not any(isinstance(layer, QuantizedLayer) for layer in model.layers)


def quantized_start(config: Config, float_model: keras.Model) -> keras.Model:
    """The model that the quantized stage trains, still to be calibrated.

    One with clamped weights keeps its latent weights, as in the paper. An ordinary one keeps its
    function, whatever `latent_start` of the policy: its weights become atanh(r W / max|W|), and a
    fixed gain gives the quantized weights the magnitude of the float ones.

    Args:
        config: of the run.
        float_model: trained, in one of the two forms; it is not changed.

    Raises:
        RunError: the policy does not fit the model; lists every problem.
    """
    try:
        if not is_ordinary(float_model):
            return requantize(float_model, config.policy)
        policy = dataclasses.replace(config.policy, latent_start="keep_function")
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", GuessedClippingLevelsWarning)  # it is calibrated next
            return quantize_model(float_model, policy)
    except ValueError as error:
        raise RunError(str(error)) from error
