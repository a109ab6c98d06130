"""`sat-tf audit`."""

import argparse
import contextlib
import dataclasses
import inspect
import pathlib
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

from rich.console import Console

from sat_tf.commands.models import quiet_tensorflow
from sat_tf.commands.pixels import Choice, add_image_arguments, choice_of
from sat_tf.messages import did_you_mean
from sat_tf.training.errors import RunError
from sat_tf.training.model_config import MODEL_OPTIONS
from sat_tf.training.run_folder import CONFIG, QUANTIZED_MODEL, RunFolder
from sat_tf.wholefile import check_writable

if TYPE_CHECKING:
    import tf_keras as keras

SUMMARY = "say whether a model can be trained well, layer by layer"
DESCRIPTION = """\
Checks an image model, quantized or not, against the rules of efficient training, and says for each
linear layer what is wrong and what to do:
  rule I   the classifier's weights are small: kappa_0 below 0.1; from 1 on the softmax saturates
  rule II  gradients keep their size from layer to layer: normalization right behind each layer, or
           weights of variance 1/n; kappa_1 and kappa_2 near 1
and that weights and activations use their codes, and clipping levels cut off only the tail.
Without images only the weights are looked at; with labelled ones, gradients too."""
EXAMPLES = """\
examples:
  sat-tf audit model.keras
  sat-tf audit model.keras --images photos/ --page audit.html
  sat-tf audit runs/digits_mobilenet_v2_w4a4
  sat-tf audit mobilenet_v2 --image_size 24 --dataset glyphs
  sat-tf audit keras.applications:ResNet50 --csv audit.csv

exit status: 0; with --strict 1 where a rule is broken; 2 where something cannot be read or audited.
"""

_APPLICATIONS = "keras.applications:"
_FILES = (".keras", ".h5", ".hdf5")
_USUAL_IMAGES = 32


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the command's arguments."""
    parser.add_argument(
        "model",
        metavar="MODEL",
        help="a Keras file (.keras, .h5) or SavedModel; the folder of a finished run; the name of "
        f"a model, with random weights: {', '.join(MODEL_OPTIONS)}, or {_APPLICATIONS}NAME",
    )
    add_image_arguments(
        parser, default="none; for a run, its held-out images", usual=str(_USUAL_IMAGES)
    )
    parser.add_argument("--data", dest="dataset", help=argparse.SUPPRESS)
    parser.add_argument(
        "--image_size", metavar="N", type=int, help="of a model given by its name; default: 224"
    )
    parser.add_argument(
        "--num_classes", metavar="N", type=int, help="of a model given by its name; default: 1000"
    )
    parser.add_argument("--page", metavar="FILE", help="write a page with pictures (HTML)")
    parser.add_argument("--csv", metavar="FILE", help="write the table, all columns of it")
    parser.add_argument(
        "--only_findings", action="store_true", help="leave out layers that keep all rules"
    )
    parser.add_argument(
        "--strict", action="store_true", help="exit with status 1 where a rule is broken"
    )


def run(arguments: argparse.Namespace, console: Console) -> bool:
    """Does what the arguments ask for; False where --strict finds a broken rule."""
    choice = dataclasses.replace(choice_of(arguments), usual=_USUAL_IMAGES)
    choice.check()
    make = _maker(arguments)
    with _said_plainly():
        for path in (arguments.page, arguments.csv):
            if path is not None:
                check_writable(path)
    quiet_tensorflow()
    from sat_tf.analysis.audit import audit
    from sat_tf.analysis.audit_table import print_audit
    from sat_tf.analysis.findings import Verdict
    from sat_tf.qat.network import check_model

    with _said_plainly():
        model = make()
        check_model(model)
        images = _images(arguments, choice, model)
        found = audit(model, images, num_images=arguments.num_images or _USUAL_IMAGES)
        print_audit(found, console, only_findings=arguments.only_findings)
        if arguments.page is not None:
            found.write_page(arguments.page)
        if arguments.csv is not None:
            found.write_csv(arguments.csv)
    return not (arguments.strict and found.verdict is Verdict.BROKEN)


@contextlib.contextmanager
def _said_plainly() -> Iterator[None]:
    try:
        yield
    except ValueError as error:
        raise RunError(str(error)) from error


def _maker(arguments: argparse.Namespace) -> Callable[[], "keras.Model"]:
    """What makes the model; what is wrong with its name is said before TensorFlow is loaded."""
    name, path = arguments.model, pathlib.Path(arguments.model)
    sizes = {
        key: getattr(arguments, key)
        for key in ("image_size", "num_classes")
        if getattr(arguments, key) is not None
    }
    if name.startswith(_APPLICATIONS):
        return lambda: _application(name.removeprefix(_APPLICATIONS), sizes)
    if name in MODEL_OPTIONS and not path.exists():
        return lambda: _built(name, sizes)
    if sizes:
        raise RunError(
            f"{name}: received {' and '.join(f'--{key}' for key in sizes)} for a saved model, "
            "expected it for the name of one; leave it out."
        )
    if path.is_dir() and not (path / "saved_model.pb").exists():
        folder = RunFolder(path)
        folder.require(QUANTIZED_MODEL, CONFIG)
        return lambda: _loaded(folder.file(QUANTIZED_MODEL))
    if path.exists():
        return lambda: _loaded(path)
    if path.suffix in _FILES or path.parent != pathlib.Path():
        raise RunError(f"{name}: not found; expected a Keras model, or the folder of a run.")
    raise RunError(
        f"{name}: received neither a file nor the name of a model, expected one of them. "
        f"{did_you_mean(name, MODEL_OPTIONS)}"
    )


def _built(name: str, sizes: dict[str, int]) -> "keras.Model":
    from sat_tf import models

    return models.build(name, **{"image_size": 224, "num_classes": 1000, **sizes})


def _application(name: str, sizes: dict[str, int]) -> "keras.Model":
    import tf_keras as keras

    known = {
        key: make
        for key, make in vars(keras.applications).items()
        if inspect.isfunction(make) and "classes" in inspect.signature(make).parameters
    }
    if name not in known:
        raise RunError(
            f"{_APPLICATIONS}{name}: received no image model. {did_you_mean(name, known)}"
        )
    options: dict[str, Any] = {"weights": None, "classes": sizes.get("num_classes", 1000)}
    if "image_size" in sizes:
        options["input_shape"] = (sizes["image_size"], sizes["image_size"], 3)
    return known[name](**options)


def _loaded(path: pathlib.Path) -> "keras.Model":
    import tf_keras as keras

    try:
        return keras.models.load_model(path, compile=False)
    except (OSError, ValueError, TypeError, KeyError, AttributeError) as error:
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise RunError(
            f"{path}: {reason}; expected a model that tf_keras (Keras 2) has saved. One with layers"
            " of your own is audited from Python: sat_tf.audit(model, dataset)."
        ) from error


def _images(
    arguments: argparse.Namespace, choice: Choice, model: "keras.Model"
) -> tuple[Any, Any] | None:
    """The images to measure on, with their labels; None where none are asked for."""
    from sat_tf.training.config_file import read_config

    if choice.is_given:
        shape, classes = tuple(model.input_shape[1:]), model.output_shape[-1]
        if None in shape:
            raise ValueError(
                f"model {model.name!r}: received images for a model of any size, expected one of "
                f"a fixed size, not {shape}; build it for one."
            )
        found = choice.load(shape, classes)
        return found.images, found.labels
    path = pathlib.Path(arguments.model)
    if not (path / CONFIG).is_file():
        return None
    from sat_tf.training.runner import load_source

    source = load_source(read_config(path / CONFIG))
    return source.held_out_sample(arguments.num_images or _USUAL_IMAGES)
