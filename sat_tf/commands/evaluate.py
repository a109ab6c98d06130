"""`sat-tf evaluate`."""

import argparse
import pathlib

import numpy as np
from rich.console import Console

from sat_tf.commands.models import load_model, quiet_tensorflow
from sat_tf.commands.options import add_trust
from sat_tf.commands.parser import Parser
from sat_tf.commands.pixels import ImageOptions, add_image_arguments, image_options, say_notes
from sat_tf.export.evaluate import evaluate_tflite, file_interface
from sat_tf.export.tflite.metadata import read_metadata
from sat_tf.messages import ProblemsError, RunError, say, value_errors_as_run_errors
from sat_tf.output_folder import CONFIG, QUANTIZED_MODEL
from sat_tf.training.config.config import read_config
from sat_tf.training.state.run_folder import RunFolder

DESCRIPTION = (
    "Prints the held-out top-1 of a run's quantized model; or top-1 and top-5 of a TFLite file in "
    "LiteRT, on all cores."
)
EXAMPLES = """\
examples:
  sat-tf evaluate runs/digits_mobilenet_v2_w4a4
  sat-tf evaluate model.tflite --dataset digits
  sat-tf evaluate model.tflite --images photos/
"""

_USUAL_TOP = (1, 5)


def add_arguments(parser: Parser) -> None:
    """Adds the command's arguments."""
    parser.add_argument(
        "source", metavar="RUN_DIR|TFLITE", help="folder of a finished run, or a TFLite file"
    )
    add_image_arguments(parser, default="the held-out images of the run", usual="all")
    add_trust(parser)


def run(arguments: argparse.Namespace, console: Console) -> None:
    """Does what the arguments ask for."""
    source = pathlib.Path(arguments.source)
    wanted = image_options(arguments, usual=None)
    if not source.exists():
        raise RunError(f"{source}: not found; expected the folder of a run, or a TFLite file.")
    if source.is_file():
        evaluate_file(source, console, wanted=wanted)
        return
    if not source.is_dir():
        raise RunError(
            f"{source}: received a device or a pipe, expected the folder of a run, or a TFLite "
            "file; name one."
        )
    if wanted.is_given:
        raise RunError(
            f"{source}: received a folder with images, expected those of a TFLite file; "
            f"name {source / 'model.tflite'}, or leave out the images."
        )
    evaluate(RunFolder(source), console, trust=arguments.trust_model)


def evaluate(folder: RunFolder, console: Console, *, trust: bool = False) -> None:
    """Prints the held-out top-1 of a finished run's quantized model; its agreement without labels.

    Args:
        folder: of the run.
        console: where to print it.
        trust: see `load_model`.

    Raises:
        RunError: the folder does not hold such a run.
    """
    folder.require(CONFIG, QUANTIZED_MODEL)
    config = read_config(folder.file(CONFIG))
    quiet_tensorflow()
    from sat_tf.training.loop.runner import reading_errors_explained
    from sat_tf.training.loop.stage import held_out_metrics
    from sat_tf.training.loop.start import fed_range, fed_source, load_source
    from sat_tf.training.recipes.recipes import agreement_of
    from sat_tf.training.state.classifier_file import data_problems

    model = load_model(folder.file(QUANTIZED_MODEL), trust=trust)
    source = load_source(config)
    agreement = agreement_of(config, source, folder)
    problems = data_problems(model, source.image_size, source.num_classes or model.output_shape[-1])
    if problems:
        raise RunError(ProblemsError(str(folder.file(QUANTIZED_MODEL)), problems))
    source = fed_source(source, fed_range(model))
    with (
        value_errors_as_run_errors(folder.file(QUANTIZED_MODEL)),
        reading_errors_explained(source),
    ):
        found = held_out_metrics(model, source, agreement)
    name, title = source.score
    console.print(
        f"{config.name}: held-out {title} {100 * found[name]:.2f} % ({found['images']} images)",
        highlight=False,
    )


def evaluate_file(
    path: pathlib.Path,
    console: Console,
    *,
    wanted: ImageOptions,
) -> None:
    """Prints top-1 and top-5 of a TFLite file.

    Args:
        path: of the file.
        console: where to print them.
        wanted: which images; they need labels.

    Raises:
        RunError: there are no labelled images, or they do not fit the file.
    """
    wanted.check()
    if not wanted.is_given:
        raise RunError(
            f"{path}: received a TFLite file without images, expected labelled ones; name them "
            "with --images or --dataset."
        )
    with value_errors_as_run_errors():
        interface = file_interface(path)
        if interface.input_type != np.uint8:
            raise RunError(
                f"{path}: received a file that takes {interface.input_type}, expected one that "
                "takes uint8 pixels; evaluate others with sat_tf.export.evaluate_tflite."
            )
        said = read_metadata(path.read_bytes(), str(path))
        pixels = wanted.load(interface.input_shape, interface.num_outputs, said)
        if pixels.labels is None:
            raise RunError(
                f"{wanted.images}: received images without labels, expected a folder with a folder "
                "of pictures for each class, --labels beside an .npy file, or --dataset."
            )
        say_notes(pixels.notes, console)
        top = [k for k in _USUAL_TOP if k <= interface.num_outputs]
        found = evaluate_tflite(path, pixels.images, pixels.labels, top=top)
    shares = ", ".join(f"top-{k} {100 * share:.2f} %" for k, share in found.top.items())
    say(
        console,
        f"{path}: {shares} (LiteRT, {found.num_images:,} images, {found.seconds:.1f} s, "
        f"{found.processes} processes)",
    )
    if found.not_finite:
        console.print(
            f"Note: {found.not_finite:,} images have non-finite outputs and count as wrong",
            highlight=False,
        )
