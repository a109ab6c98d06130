"""The models that commands are given: files, runs, or names."""

import argparse
import contextlib
import gc
import inspect
import logging
import os
import pathlib
import sys
from collections.abc import Iterator
from typing import TYPE_CHECKING, Annotated

from pydantic import Field

from sat_tf.commands.noise import hide_noise
from sat_tf.commands.options import add_trust, check_outputs
from sat_tf.commands.parser import Parser
from sat_tf.messages import RunError, did_you_mean, value_errors_as_run_errors
from sat_tf.messages.validation import option
from sat_tf.output_folder import QUANTIZED_MODEL, OutputFolder

if TYPE_CHECKING:
    import tf_keras as keras


def load_model(path: pathlib.Path, *, trust: bool = False) -> "keras.Model":
    """A model that sat-tf has saved."""
    advice = (
        f"expected a quantized model that sat-tf has saved, such as the {QUANTIZED_MODEL} of a run."
    )
    return read_keras_model(path, advice, trust=trust)


def read_keras_model(path: pathlib.Path, advice: str, *, trust: bool = False) -> "keras.Model":
    """A model that any Keras has saved; one of Keras 3 is converted, and a line says so."""
    load_tensorflow()
    from sat_tf.keras3.incoming import read_model
    from sat_tf.loading.model_file import OtherFileError, is_keras3_file
    from sat_tf.loading.trust import UntrustedModelError

    try:
        incoming = read_model(path, safe_mode=not trust)
    except OtherFileError as error:
        raise RunError(f"{error}.") from error
    except ValueError as error:
        # These name their own fixes, as the conversion does.
        has_fix = isinstance(error, UntrustedModelError) or is_keras3_file(path)
        raise RunError(str(error) if has_fix else f"{error}; {advice}") from error
    if incoming.note is not None:
        print(incoming.note, file=sys.stderr)
    return incoming.model


_BACKENDS = ("tensorflow", "jax", "torch", "numpy", "openvino")


def quiet_tensorflow() -> None:
    """Silences notes of TensorFlow, LiteRT and libjpeg; to be called before they are loaded.

    They would break the progress bar. TF_CPP_MIN_LOG_LEVEL set to 0 or 1 shows them.
    """
    backend = os.environ.get("KERAS_BACKEND", _BACKENDS[0])
    if backend not in _BACKENDS:
        raise RunError(
            f"KERAS_BACKEND: received {backend!r}, expected a backend of Keras 3. "
            f"{did_you_mean(backend, _BACKENDS)} Or leave the variable out."
        )
    if os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2") in ("0", "1"):
        return
    hide_noise()
    # This logger, which has a level of its own, lists what strategies reduce, line after line.
    logging.getLogger("tensorflow").setLevel(logging.ERROR)


def load_tensorflow() -> None:
    """Loads TensorFlow, whose objects then live as long as the process.

    The garbage collector would visit nearly a million of them whenever a model is built.
    """
    if "tensorflow" in sys.modules:
        return
    gc.disable()
    try:
        import tensorflow  # noqa: F401
    finally:
        gc.enable()
    gc.freeze()


_APPLICATIONS = "keras.applications:"


def add_model_argument(parser: Parser) -> None:
    """Adds MODEL and --trust_model, for `analysed_model`."""
    parser.add_argument(
        "model",
        metavar="MODEL",
        help="a Keras file (.keras, .h5) or SavedModel; a folder of sat-tf quantize or "
        f"train; {_APPLICATIONS}NAME, a model of Keras with random weights",
    )
    add_trust(parser)


_Side = Annotated[int, Field(ge=1, le=4096, description="an integer from 1 to 4096")]


def add_image_size(
    parser: Parser, image_size: str = "of a model given by its name; default: 224"
) -> None:
    """Adds --image_size, with this help."""
    parser.advanced.add_argument("--image_size", metavar="N", type=option(_Side), help=image_size)


def is_built_by_name(name: str) -> bool:
    """Whether a name is that of a model to build, and not a file."""
    return name.startswith(_APPLICATIONS)


@contextlib.contextmanager
def analysed_model(arguments: argparse.Namespace, verb: str) -> Iterator["keras.Model"]:
    """The model that MODEL names, for a command that writes files; errors have its name in front.

    Where it is not there, or a file cannot be written, nothing is loaded.
    """
    name, path = arguments.model, pathlib.Path(arguments.model)
    size, is_file = getattr(arguments, "image_size", None), not is_built_by_name(name)
    if is_file and not path.exists():
        raise RunError(
            f"{name}: not found; expected a Keras model, a folder of sat-tf quantize, or "
            f"{_APPLICATIONS}NAME, such as {_APPLICATIONS}MobileNetV2."
        )
    if is_file and size is not None:
        raise RunError(
            f"{name}: received --image_size for a saved model, expected it for the name of one; "
            "leave it out."
        )
    if path.is_dir() and not (path / "saved_model.pb").exists():
        folder = OutputFolder(path)
        folder.require(QUANTIZED_MODEL)
        path = folder.file(QUANTIZED_MODEL)
    with value_errors_as_run_errors():
        check_outputs(arguments)
    quiet_tensorflow()
    advice = (
        "expected a model that Keras 2 or 3 has saved. One with layers of your own is for "
        f"Python: sat_tf.{verb}(model, ...)."
    )
    with value_errors_as_run_errors(name):
        if is_file:
            yield read_keras_model(path, advice, trust=arguments.trust_model)
            return
        import tf_keras as keras

        builders = {
            key: build
            for key, build in vars(keras.applications).items()
            if inspect.isfunction(build) and "classes" in inspect.signature(build).parameters
        }
        application = name.removeprefix(_APPLICATIONS)
        if application not in builders:
            raise RunError(f"{name}: not an image model. {did_you_mean(application, builders)}")
        shape = None if size is None else (size, size, 3)
        yield builders[application](weights=None, classes=1000, input_shape=shape)
