"""`sat-tf quantize`."""

import argparse
import dataclasses
import itertools
import json
import math
import pathlib
import time
import types
import warnings
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, cast

import numpy as np
from rich.console import Console

from sat_tf.arguments import is_between
from sat_tf.commands.models import quiet_tensorflow, read_keras_model
from sat_tf.commands.options import (
    OWN_TYPE,
    Parser,
    add_input_range,
    add_output_type,
    add_overrides,
    add_resume,
    add_target,
    add_trust,
    bits,
    integer,
    policy_fields,
    seed,
)
from sat_tf.commands.pixels import fixed_input_shape
from sat_tf.commands.train import train
from sat_tf.commands.verification_table import print_certificate
from sat_tf.data import source as data_source
from sat_tf.data.folder_tree import HELD_OUT_SHARE, TRAIN
from sat_tf.data.picture_folder import FolderImages, load_folder
from sat_tf.data.source import ImageSource, spread_evenly
from sat_tf.export.certificate.certificate import ImagesFrom
from sat_tf.export.tflite.metadata import label_text
from sat_tf.messages import RunError, say, value_errors_as_run_errors
from sat_tf.preprocessing import COVERING, Preprocessing
from sat_tf.presentation.tables import marked_text, points
from sat_tf.qat.policy import BitPolicy
from sat_tf.quantizers.input_range import PIXELS, InputRange
from sat_tf.training.config.config import parse_config
from sat_tf.training.config.folder import run_name
from sat_tf.training.config.sections import AUTO, TRIED_RATES, StageConfig
from sat_tf.training.state import run_folder
from sat_tf.training.state.reconstruction import Fitted, fit
from sat_tf.training.state.run_folder import RunFolder

if TYPE_CHECKING:
    import tf_keras as keras

    from sat_tf.data.folder_source import FolderSource

_CALIBRATION_IMAGES = 512
# One of so many is held out, where folders of classes are not divided.
_PARTS = round(1 / HELD_OUT_SHARE)
_HELD_OUT_IMAGES = 1024
_BATCH_SIZE = 32
_OF_STAGE = {"batch_size", "warmup_learning_rate", "base_learning_rate"}
# Nothing is cut off, and what has a left and a right, as letters have, is not mirrored: how the
# model was trained is not known.
_CROPS: Mapping[str, Any] = types.MappingProxyType(
    {"resize_ratio": 1.0, "smallest_area": 0.6, "mirrored": False}
)
# A network that is not trained loses accuracy with fewer bits.
_FEWEST_WITHOUT_TRAINING = 7
# A calibrated model of so many bits and fewer is fitted to the float one, in as many steps a block
# as `sat_tf.reconstruct` takes by itself.
_MOST_RECONSTRUCTED = 4
_STEPS = 100

SUMMARY = "turn a trained model and a folder of pictures into a certified TFLite file"
DESCRIPTION = (
    "Quantizes a trained float model: calibrates it on pictures, at 4 bits and fewer also fits it "
    "to the float model block by block, or trains it with the float model as its teacher; writes "
    "an integer TFLite file, and proves that LiteRT computes the model's integers. Where pictures "
    "are in folders of classes, some are held out, and the accuracy of the float model, the "
    "quantized one and the file is measured on them."
)
EXAMPLES = """\
examples:
  sat-tf quantize model.keras --images photos/
  sat-tf quantize model.keras --images photos/ --bits 4
  sat-tf quantize model.keras --images photos/ --bits 4 --epochs 5
  sat-tf quantize model.keras --images photos/ --input_range=-1,1 --out app/model
  sat-tf quantize model.keras --images photos/ --target ethos-u55
"""


def add_arguments(parser: Parser) -> None:
    """Adds the command's arguments."""
    parser.add_argument(
        "model",
        metavar="MODEL",
        help="a trained float model: a .keras or .h5 file of Keras 2 or 3, or a SavedModel",
    )
    add_trust(parser)
    parser.add_argument(
        "--images",
        metavar="DIR",
        required=True,
        help="a folder of pictures; in folders of classes, named so that their order is that of "
        "the model's outputs, in train and val or not; or without labels",
    )
    parser.add_argument(
        "--bits",
        metavar="N",
        type=bits,
        default=8,
        help="of weights and activations, 1 to 8; default: 8",
    )
    parser.add_argument(
        "--epochs",
        metavar="N",
        type=integer(0, expected="an integer, 0 or more"),
        help="of training, which needs folders of classes; 0: calibrated only; default: "
        f"calibrated, and with {_MOST_RECONSTRUCTED} bits and fewer reconstructed, without labels",
    )
    parser.advanced.add_argument(
        "--learning_rate",
        metavar="N",
        type=_learning_rate,
        help="where the learning rate of the training starts to fall; default: one of "
        f"{TRIED_RATES[0]:g} to {TRIED_RATES[-1]:g}, chosen by a short trial",
    )
    add_input_range(parser, default="found, by the accuracy on folders of classes")
    add_target(parser, default="litert")
    add_output_type(parser, default=OWN_TYPE)
    parser.add_argument(
        "--out", metavar="DIR", help="where the files go; default: runs/<model>_w<N>a<N>"
    )
    add_resume(parser)
    parser.advanced.add_argument(
        "--seed", type=seed, default=0, help="of all that is drawn; default: 0"
    )
    add_overrides(parser, "change one setting of the training, as in sat-tf train")


def run(arguments: argparse.Namespace, console: Console) -> bool:
    """Does what the arguments ask for."""
    path, images = pathlib.Path(arguments.model), pathlib.Path(arguments.images)
    for given, what in ((path, "a Keras model, or a SavedModel"), (images, "a folder of pictures")):
        if not given.exists():
            raise RunError(f"{given}: not found; expected {what}.")
    if not images.is_dir():
        raise RunError(f"--images: received the file {images}, expected a folder of pictures.")
    name = f"{run_name(path.stem, 'model')}_w{arguments.bits}a{arguments.bits}"
    folder = RunFolder(pathlib.Path(arguments.out or pathlib.Path("runs") / name))
    folder.check_writable()
    quiet_tensorflow()
    advice = "expected a float model that Keras has saved; save it with model.save('model.keras')."
    model = read_keras_model(path, advice, trust=arguments.trust_model)
    with value_errors_as_run_errors():
        _expect_float(path, model)
        found = _found(images, model, console)
        policy = BitPolicy.mobile(arguments.bits, **policy_fields(arguments))
        if not policy.states_input_range:
            spelling = _input_range(path, model, found, console).spelling
            policy = dataclasses.replace(policy, input_range=spelling)
        else:
            _expect_more_than_guessing(model, found, policy, console)
        if not isinstance(found, Pictures):
            exact = _run(arguments, model, policy, found, (name, folder), console)
        elif arguments.epochs or arguments.overrides:
            raise RunError(
                f"--images: received {found.why_not}, expected pictures to train on: of a model "
                "of square colour images, in one folder for each of its classes; leave out "
                "--epochs and --set."
                + (
                    f" {arguments.bits} bits are then reconstructed from the float model, without "
                    "labels."
                    if arguments.bits <= _MOST_RECONSTRUCTED
                    else ""
                )
            )
        else:
            exact = _write_calibrated(arguments, model, policy, found, folder, console)
    for name, what in _SHOWN.items():
        if folder.file(name).exists():
            say(console, f"  {folder.file(name)}  {what}")
    if arguments.bits < _FEWEST_WITHOUT_TRAINING and not arguments.epochs:
        why_not = found.why_not if isinstance(found, Pictures) else ""
        _note_cost(arguments.bits, folder, why_not, console)
    return exact


def _note_cost(bits: int, folder: RunFolder, why_not: str, console: Console) -> None:
    """Says what few bits have cost without training, where that was measured, and how to train.

    Args:
        bits: of weights and activations.
        folder: with the results, if any were measured.
        why_not: why the pictures cannot be trained on; empty where they can.
        console: where it is said.
    """
    from sat_tf.training.report.results import Results

    found = Results.read(folder) if folder.file(run_folder.RESULTS).exists() else None
    top1: float | None = None
    if found is not None:
        on_all = found.images_of_file == found.held_out_images
        top1 = found.tflite_top1 if on_all else found.quantized_top1
    if found is None or top1 is None:
        _note(
            f"{bits} bits without training can cost accuracy; with pictures in folders of the "
            "model's classes, it is measured, and --epochs 5 trains.",
            console,
        )
        return
    gained = points(top1 - found.float_top1)
    if gained.startswith("-"):
        refused = f"--epochs refuses {why_not}, more bits cost less"
        fix = refused if why_not else "--epochs 5 trains"
        _note(f"{bits} bits without training: {gained} points of top-1; {fix}.", console)


def _steps(arguments: argparse.Namespace) -> int:
    """The steps of reconstruction for each block; 0 where epochs are given, or bits suffice."""
    few = arguments.bits <= _MOST_RECONSTRUCTED
    return _STEPS if few and arguments.epochs is None else 0


def _note(text: str, console: Console) -> None:
    say(console, f"Note: {text}", style="yellow")


def _learning_rate(text: str) -> float:
    try:
        rate = float(text)
    except ValueError:
        rate = math.nan
    if is_between(rate, 0, math.inf):
        return rate
    raise argparse.ArgumentTypeError(f"{text!r}: expected a positive number")


def _expect_float(path: pathlib.Path, model: "keras.Model") -> None:
    from sat_tf.graph.network import Network, check_model
    from sat_tf.qat.layout import is_quantized

    check_model(model)
    network = Network(model)
    if len(network.inputs) > 1:
        raise RunError(
            f"{path}: received a model with {len(network.inputs)} inputs "
            f"({', '.join(network.inputs)}), expected one, which takes the pictures; quantize it "
            "in Python: q = sat_tf.quantize_model(model, policy), sat_tf.calibrate(q, [one, "
            "other]), sat_tf.export_tflite(q, path)."
        )
    if is_quantized(network):
        raise RunError(
            f"{path}: received a model that is quantized already, expected a float one; write its "
            "file with sat-tf export."
        )
    fixed_input_shape(model, str(path))


@dataclasses.dataclass(frozen=True, kw_only=True)
class Pictures:
    """The pictures of a folder that cannot be trained on, for the input of a model.

    Attributes:
        images: uint8, to calibrate on.
        held_out: uint8, to verify and measure on; those that it was calibrated on where there are
            no classes.
        labels: of those held out, for the only output with as many classes; None where they are
            not the model's classes.
        class_names: in the order of the labels; None where there are none.
        images_from: where those held out come from.
        why_not: why they cannot be trained on, in words.
        preprocessing: how they have been prepared.
    """

    images: np.ndarray
    held_out: np.ndarray
    labels: np.ndarray | None = None
    class_names: tuple[str, ...] | None = None
    images_from: ImagesFrom
    why_not: str
    preprocessing: Preprocessing = COVERING

    def held_out_sample(self, most: int) -> tuple[np.ndarray, np.ndarray | None]:
        """Takes images as a source does, without labels where there are none."""
        chosen = spread_evenly(len(self.held_out), most)
        return self.held_out[chosen], None if self.labels is None else self.labels[chosen]


def _found(folder: pathlib.Path, model: "keras.Model", console: Console) -> ImageSource | Pictures:
    """The pictures of a folder: a source of batches where a model can be trained on them.

    Raises:
        ValueError: there are none, or the model takes no pictures.
    """
    shape, outputs = fixed_input_shape(model), [tuple(one.shape[1:]) for one in model.outputs]
    has_folders = any(entry.is_dir() for entry in folder.iterdir())
    if not has_folders or len(shape) != 3 or shape[0] != shape[1] or shape[2] != 3:
        images, found = _parted(folder, shape)
        apart = (
            "" if images is found.images else f" to calibrate on, {len(found.images):,} held out"
        )
        console.print(f"{folder}: {len(images):,} pictures{apart}", highlight=False, markup=False)
        fits = found.labels is not None and outputs.count((len(found.class_names),)) == 1
        return Pictures(
            images=images,
            held_out=found.images,
            labels=found.labels if fits else None,
            class_names=found.class_names if fits else None,
            images_from=ImagesFrom(
                "pictures of a folder, scaled and cropped to the input", files=found.files
            ),
            why_not=(
                "pictures without labels"
                if not has_folders
                else f"a model of {shape}"
                if len(outputs) == 1
                else f"a model of {len(outputs)} outputs"
            ),
        )
    source = cast(
        "FolderSource",
        data_source("folder", data_dir=str(folder), image_size=shape[0], **_CROPS),
    )
    fits = outputs.count((source.num_classes,)) == 1
    if fits and len(outputs) == 1:
        return source  # of which its run tells
    console.print(
        f"{folder}: {source.num_classes:,} classes, {source.num_train:,} pictures to calibrate on "
        f"and {source.num_test:,} held out",
        highlight=False,
        markup=False,
    )
    shapes = f"shape{'s' if len(outputs) > 1 else ''} {', '.join(map(str, outputs))}"
    why = f"{source.num_classes:,} classes for a model with outputs of {shapes}"
    not_measured = "the accuracy of the others" if fits else "accuracy"
    for note in (f"received {why}: {not_measured} is not measured.", *source.notes):
        _note(note, console)
    labels = source.held_out_files
    held_out = load_folder(
        folder,
        shape,
        most=_HELD_OUT_IMAGES,
        preprocessing=source.preprocessing,
        among=list(labels),
    )
    return Pictures(
        images=source.training_sample(min(_CALIBRATION_IMAGES, source.num_train), seed=0),
        held_out=held_out.images,
        labels=np.array([labels[str(folder / name)] for name in held_out.files], np.int32)
        if fits
        else None,
        class_names=source.class_names if fits else None,
        images_from=ImagesFrom(f"held-out pictures of {source.name}", files=held_out.files),
        why_not=why,
        preprocessing=source.preprocessing,
    )


def _parted(folder: pathlib.Path, shape: tuple[int, ...]) -> tuple[np.ndarray, FolderImages]:
    """Pictures to calibrate on, and held-out ones: the same where there are no classes."""
    found = load_folder(folder, shape, most=_CALIBRATION_IMAGES)
    train = folder / TRAIN
    if train.is_dir():
        return load_folder(train, shape, most=_CALIBRATION_IMAGES).images, found
    if found.labels is None or len(found.images) < _PARTS:
        return found.images, found
    # Sorted by class, so that every fifth is a fifth of each.
    is_held_out = np.arange(len(found.images)) % _PARTS == _PARTS // 2
    held_out = dataclasses.replace(
        found,
        images=found.images[is_held_out],
        labels=found.labels[is_held_out],
        files=dict(itertools.compress(found.files.items(), is_held_out)),
    )
    return found.images[~is_held_out], held_out


def _expect_more_than_guessing(
    model: "keras.Model",
    pictures: ImageSource | Pictures,
    policy: BitPolicy,
    console: Console,
) -> None:
    """Warns where a float model that is fed as its user says knows nothing of the pictures."""
    from sat_tf.analysis.range_accuracy import USUAL_IMAGES, guessing_problem

    if len(model.input_names) == 1:
        given = policy.range_of(model.input_names[0])
        pixels, labels = pictures.held_out_sample(USUAL_IMAGES)
        problem = guessing_problem(model, pixels, labels, given)
        if problem is not None:
            _note(problem, console)


def _input_range(
    path: pathlib.Path,
    model: "keras.Model",
    pictures: ImageSource | Pictures,
    console: Console,
) -> InputRange:
    """The range of a model's input: pixels where its own layers convert them, else found.

    Raises:
        ValueError: it cannot be found.
    """
    from sat_tf.analysis.range_accuracy import USUAL_IMAGES, found_range
    from sat_tf.graph.layer_kinds import role_of
    from sat_tf.graph.layers.kind import Role
    from sat_tf.graph.network import Network
    from sat_tf.graph.rewrite import with_layers_for_operations

    network = Network(with_layers_for_operations(model))
    readers = [role_of(node.layer) for node in network if network.input in node.inputs]
    if any(role in (Role.AFFINE, Role.SCALING) for role in readers):
        said, found = "pixels, which its own layers convert", PIXELS
    else:
        measured = found_range(str(path), model, *pictures.held_out_sample(USUAL_IMAGES))
        said = (
            f"{measured.given}, found: {measured}. If the model is better than that, give "
            "--input_range"
        )
        found = measured.given
    say(console, f"Input range: {said}.")
    return found


def _run(
    arguments: argparse.Namespace,
    model: "keras.Model",
    policy: BitPolicy,
    source: ImageSource,
    run: tuple[str, RunFolder],
    console: Console,
) -> bool:
    """Trains or calibrates, exports and verifies as a run of `sat-tf train`."""
    from sat_tf.training.state.classifier_file import ends_in_softmax

    (name, folder), epochs = run, arguments.epochs or 0
    batch_size, rate = min(_BATCH_SIZE, source.num_train), arguments.learning_rate
    stage = StageConfig(batch_size=batch_size, warmup_learning_rate=0.0, base_learning_rate=AUTO)
    if rate is not None:
        stage = stage.with_peak(rate)
    values = {
        "name": name,
        "seed": arguments.seed,
        "data": {
            "name": "folder",
            "options": {
                "data_dir": str(arguments.images),
                "image_size": source.image_size,
                **_CROPS,
            },
        },
        "policy": policy.to_dict(),
        "stages": {
            "float": stage.model_dump(include=_OF_STAGE),
            "quantized": {"epochs": epochs, "warmup_epochs": epochs / 10},
        },
        "calibration": {
            "num_images": _CALIBRATION_IMAGES,
            "final_statistics": True,
            "reconstruction_steps": _steps(arguments),
        },
        "export": {
            "softmax": ends_in_softmax(model),
            "output_type": arguments.output_type,
            "verify_images": _HELD_OUT_IMAGES,
        },
        "training": {
            "start": "vanilla",
            "float_model": str(arguments.model),
            "trust_model": arguments.trust_model,
        },
        "recipes": {"distillation": {}} if epochs else {},
    }
    # JSON is YAML.
    config = parse_config(json.dumps(values), arguments.overrides, subject="--set")
    return train(config, folder, console, resume=arguments.resume)


# These are the files of a run to look at first.
_SHOWN = {
    run_folder.TFLITE_MODEL: "the file for the device",
    run_folder.CERTIFICATE_PAGE: "the proof, to read",
    run_folder.REPORT: "the report, to read",
    run_folder.QUANTIZED_MODEL: "the quantized Keras model",
}


def _write_calibrated(
    arguments: argparse.Namespace,
    model: "keras.Model",
    policy: BitPolicy,
    pictures: Pictures,
    folder: RunFolder,
    console: Console,
) -> bool:
    """Calibrates, exports and verifies, without a run; returns whether the certificate is exact.

    The folder gets a report too: with labels, the results and the answers are in it.
    """
    if folder.holds_run:
        raise RunError(
            f"{folder.path}: received the folder of a run, expected one for other files; name one "
            "with --out."
        )
    from sat_tf.analysis.code_use import layer_rows
    from sat_tf.export.snapping import snap_biases
    from sat_tf.qat.calibrate import calibrate
    from sat_tf.qat.layout import GuessedClippingLevelsWarning
    from sat_tf.qat.scheme import quantize_model
    from sat_tf.training.loop.outcome import of_certificate, write_file
    from sat_tf.training.loop.stage import SAMPLE
    from sat_tf.training.report.report import write_layers, write_report
    from sat_tf.training.report.results import Results
    from sat_tf.training.state.classifier_file import ends_in_softmax

    begun = time.monotonic()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", GuessedClippingLevelsWarning)  # it is calibrated next
        quantized = quantize_model(model, policy)
    feed = policy.range_of(model.input_names[0]).fed
    fed = feed(pictures.images)
    calibrate(quantized, fed, num_images=len(fed), keep_function=True)
    fitted = _reconstructed(arguments, quantized, model, pictures, feed, console)
    snap_biases(quantized)
    folder.start()  # what is there belongs to other pictures
    if fitted is not None:
        fitted.write(folder)
    options: dict[str, Any] = {"output_type": arguments.output_type}
    labels: Any = pictures.labels
    if len(model.outputs) == 1:  # as TFLite Metadata are, and a softmax that is asked for
        options["softmax"] = ends_in_softmax(model)
        options |= {"labels": pictures.class_names, "preprocessing": pictures.preprocessing}
    elif labels is not None:
        size = (len(pictures.class_names or ()),)
        labels = [labels if tuple(one.shape[1:]) == size else None for one in model.outputs]
    report, certificate = write_file(
        folder,
        quantized,
        (pictures.held_out, labels),
        images_from=pictures.images_from,
        float_model=model,
        feed=feed,
        class_names=pictures.class_names,
        progress=True,
        **options,
    )
    with folder.written(run_folder.QUANTIZED_MODEL) as temporary:
        quantized.save(temporary)
    # Warnings of the certificate are printed with it.
    for warning in (text for text in report.warnings if text not in certificate.warnings):
        say(console, f"Note: {warning}")
    for statement in report.on_target:
        say(console, marked_text(statement))
    print_certificate(certificate, str(folder.file(run_folder.TFLITE_MODEL)), console)
    if fitted is not None and fitted.kept and pictures.held_out is pictures.images:
        _note(
            "four in five of these pictures are those that it was fitted to; how it answers "
            "others stands above, behind its reconstruction.",
            console,
        )
    folder.write_text(run_folder.PREPROCESSING, pictures.preprocessing.to_json())
    write_layers(folder, layer_rows(quantized, feed(pictures.images[:SAMPLE])))
    if pictures.labels is not None:
        if pictures.class_names is not None:
            folder.write_text(run_folder.LABELS, label_text(pictures.class_names))
        results = Results(
            float_top1=certificate.top1["float"],
            quantized_top1=certificate.top1["quantized"],
            held_out_images=len(pictures.held_out),
            parameters=model.count_params(),
            seconds=time.monotonic() - begun,
            reconstruction=fitted,
            **of_certificate(certificate),
        )
        folder.write_json(run_folder.RESULTS, results.to_dict())
    write_report(folder)
    return certificate.is_exact


def _reconstructed(
    arguments: argparse.Namespace,
    quantized: "keras.Model",
    model: "keras.Model",
    pictures: Pictures,
    feed: Callable[[np.ndarray], np.ndarray],
    console: Console,
) -> Fitted | None:
    """Fits a calibrated model in place, and says what it gains; None where it stays as it is."""
    import tf_keras as keras

    from sat_tf.export.snapping import snap_biases
    from sat_tf.top_k import classes_of

    steps, labels = _steps(arguments), pictures.labels
    if not steps:
        return None

    def measure() -> dict[str, float]:
        if labels is None:
            return {}
        snap_biases(quantized)
        size = (len(pictures.class_names or ()),)
        (of_classes,) = (one for one in quantized.outputs if tuple(one.shape[1:]) == size)
        classifier = keras.Model(quantized.inputs, of_classes)
        found = classifier.predict(feed(pictures.held_out), batch_size=_BATCH_SIZE, verbose=0)
        return {"top1": float(np.mean(classes_of(found) == labels))}

    say(console, f"Reconstructing, {steps} steps a block")
    try:
        fitted = fit(
            quantized,
            model,
            feed(pictures.images),
            steps=steps,
            seed=arguments.seed,
            measure=measure,
            keep_better=True,
        )
    except ValueError as error:
        _note(f"calibrated only. {error}", console)
        return None
    say(console, f"Reconstructed {fitted.how}: {fitted.gained}")
    return fitted
