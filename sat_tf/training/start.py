"""Where training starts: which model the float stage trains, and what becomes of it."""

import dataclasses
import warnings

import tf_keras as keras

import sat_tf
from sat_tf.data.source import ImageSource
from sat_tf.qat.layout import GuessedClippingLevelsWarning
from sat_tf.qat.policy import BitPolicy
from sat_tf.qat.wrapper import QuantizedLayer
from sat_tf.training.classifier_file import read_float_model
from sat_tf.training.config import Config
from sat_tf.training.errors import RunError

# What a policy says of bits, all of which the float stage leaves out.
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
    """The model that the float stage trains: `plain` itself, or the same with clamped weights.

    Args:
        config: of the run; `training.start` says which.
        plain: an ordinary float model, not trained.

    Raises:
        RunError: the policy does not fit the model; lists every problem.
    """
    if config.training.start == "vanilla":
        return plain
    try:
        return sat_tf.quantize_model(plain, float_policy(config.policy))
    except ValueError as error:
        raise RunError(str(error)) from error


def trained_float_model(config: Config, source: ImageSource) -> keras.Model | None:
    """The trained float model that `training.float_model` names; None where it names none.

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
    """Whether sat-tf has changed nothing about a model: neither clamped nor quantized it."""
    return not any(isinstance(layer, QuantizedLayer) for layer in model.layers)


def quantized_start(config: Config, float_model: keras.Model) -> keras.Model:
    """The model that the quantized stage trains, still to be calibrated.

    From one with clamped weights it goes on with the same latent weights, as in the paper. An
    ordinary one keeps its function, whatever the policy says of `latent_start`: its weights become
    atanh(r W / max|W|) (`qat.latent`), and a fixed gain gives the quantized weights the size of the
    float ones.

    Args:
        config: of the run.
        float_model: trained, in one of the two forms; it is not changed.

    Raises:
        RunError: the policy does not fit the model; lists every problem.
    """
    try:
        if not is_ordinary(float_model):
            return sat_tf.requantize(float_model, config.policy)
        policy = dataclasses.replace(config.policy, latent_start="keep_function")
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", GuessedClippingLevelsWarning)  # it is calibrated next
            return sat_tf.quantize_model(float_model, policy)
    except ValueError as error:
        raise RunError(str(error)) from error
