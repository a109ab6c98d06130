"""The trained models of files that a run takes: a float model to start from, and a teacher."""

import contextlib
import os
import pathlib

import tf_keras as keras

from sat_tf.graph import layer_kinds
from sat_tf.graph.flatten import layer_copy
from sat_tf.graph.network import Network, check_one_of_each
from sat_tf.graph.rewrite import network_of_layers
from sat_tf.keras3.incoming import read_model
from sat_tf.loading.load import is_saved_model
from sat_tf.loading.model_file import OtherFileError, array_bytes, is_keras3_file
from sat_tf.loading.trust import UntrustedModelError
from sat_tf.messages import ProblemsError, RunError, reason_of
from sat_tf.output_folder import FLOAT_MODEL
from sat_tf.qat.layout import inner_layer
from sat_tf.qat.wrapper import output_quantizer, weight_quantizer
from sat_tf.quantizers.protocol import ActivationQuantizer
from sat_tf.training import models
from sat_tf.training.config import Config
from sat_tf.training.config_sections import FLOAT_STAGE
from sat_tf.training.data.source import ImageSource
from sat_tf.training.run_folder import RunFolder


def trained_float_model(config: Config, source: ImageSource) -> keras.Model | None:
    """The float model that `training.float_model` names, clamped or not; None if it names none."""
    path = config.training.float_model
    if path is None:
        return None
    safe_mode = not config.training.trust_model
    model = read_classifier(path, source, key="training.float_model", safe_mode=safe_mode)
    rounded = [
        layer.name
        for layer in model.layers
        if isinstance(output_quantizer(layer), ActivationQuantizer)
        or getattr(weight_quantizer(layer), "num_bits", None) is not None
    ]
    if rounded:
        raise RunError(
            f"training.float_model={path!r}: received a model with quantized layers "
            f"({len(rounded)}, the first is {rounded[0]}), expected a float one; give the "
            "float.keras of its run."
        )
    return model


def read_teacher(
    config: Config, source: ImageSource, folder: RunFolder | None = None
) -> keras.Model | None:
    """The teacher of a run, which fits the data; None if it has none, or has still to train it."""
    plan = config.recipes.distillation
    if plan is None or (plan.teacher == FLOAT_STAGE and folder is None):
        return None
    file: str | pathlib.Path = plan.teacher
    if folder is not None and plan.teacher == FLOAT_STAGE:
        file = folder.file(FLOAT_MODEL)
    key = "recipes.distillation.teacher"
    if plan.model is None:
        safe_mode = not config.training.trust_model
        return read_classifier(file, source, key=key, safe_mode=safe_mode)
    path, name, num_classes = _expect_file(file, key), plan.model.name, source.num_classes
    size = {"image_size": source.image_size, "num_classes": num_classes}
    try:
        model = models.build(name, **size, **plan.model.options)
        array_bytes(path)
        model.load_weights(path)
    except Exception as error:  # Keras raises many types on files of other programs.
        raise RunError(
            f"{key}={str(path)!r}: {reason_of(error).rstrip('.')}; expected the weights of {name} "
            f"for {num_classes} classes, as its save_weights(...) writes them."
        ) from error
    return model


def read_classifier(
    path: str | os.PathLike[str], source: ImageSource, *, key: str, safe_mode: bool
) -> keras.Model:
    """Reads a model of any Keras that classifies the images of a run, named by a key of its config.

    A softmax at its end is removed, because losses and teachers work on logits.
    """
    path = _expect_file(path, key)
    try:
        model = read_model(path, safe_mode=safe_mode).model
    except ValueError as error:  # which names the file
        problem = str(error)
        has_fix = isinstance(error, UntrustedModelError | OtherFileError) or is_keras3_file(path)
        if not has_fix:
            problem = (
                f"{reason_of(error).rstrip('.')}; expected a model saved by Keras as .keras or "
                ".h5, with no layers of its own; save it with model.save(...)."
            )
        raise RunError(f"{key}={problem}") from error
    with contextlib.suppress(ValueError):  # the check below reports it
        if Network(model).problems:
            model = network_of_layers(model).model
    problems = data_problems(model, source.image_size, source.num_classes)
    if problems:
        raise RunError(ProblemsError(f"{key}={str(path)!r}", problems))
    return _with_logits(model)


def _expect_file(path: str | os.PathLike[str], key: str) -> pathlib.Path:
    if not os.path.isfile(path) and not is_saved_model(path):
        raise RunError(
            f"{key}={str(path)!r}: no such file; expected a .keras or .h5 file, or a SavedModel."
        )
    return pathlib.Path(path)


def data_problems(model: keras.Model, image_size: int, num_classes: int) -> list[str]:
    """Why a model does not classify the images of some data set; empty if it does."""
    try:
        network = Network(model)
        check_one_of_each(model)
    except ValueError as error:
        return [str(error)]
    problems = [f"{name}: {text}." for name, text in network.problems.items()]
    inputs, outputs = network[network.input].shape, network[network.output].shape
    expected = (image_size, image_size, 3)
    if len(inputs) != len(expected) or any(
        received not in (None, size) for received, size in zip(inputs, expected, strict=True)
    ):
        problems.append(
            f"received a model for inputs of shape {inputs}, expected {expected}, the images of "
            "the data; change its input, or the image size of the data."
        )
    if outputs != (num_classes,):
        problems.append(
            f"received a model with outputs of shape {outputs}, expected ({num_classes},), one for "
            "each class of the data."
        )
    return problems


def _with_logits(model: keras.Model) -> keras.Model:
    """The model without the softmax at its end; the model itself if it has none."""
    network = Network(model)
    last = network[network.output].layer
    if not layer_kinds.is_softmax(inner_layer(last)):
        return model
    if not model.get_layer(last.name).weights:  # a layer of its own
        return keras.Model(model.inputs, last.input, name=model.name)

    def fresh(layer: keras.layers.Layer) -> keras.layers.Layer:
        copy = layer_copy(layer)
        if layer is last:
            inner_layer(copy).activation = keras.activations.linear
        return copy

    copy = keras.models.clone_model(model, clone_function=fresh)
    copy.set_weights(model.get_weights())
    return copy
