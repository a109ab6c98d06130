"""`sat-tf evaluate`."""

import argparse
import pathlib

import numpy as np
from rich.console import Console

from sat_tf.commands.images import add_image_arguments, image_options, say_notes
from sat_tf.commands.parser import Parser
from sat_tf.exact.evaluate import evaluate_tflite, file_interface
from sat_tf.exact.tflite.metadata import read_metadata
from sat_tf.files import read_bytes
from sat_tf.messages import RunError, say, value_errors_as_run_errors
from sat_tf.output_folder import RESULTS, TFLITE_MODEL

DESCRIPTION = "Prints top-1 and top-5 of a TFLite file in LiteRT, on labelled images and all cores."
EXAMPLES = """\
examples:
  sat-tf evaluate model.tflite --images pixels.npy --labels labels.npy
  sat-tf evaluate model.tflite --images photos/
"""


def add_arguments(parser: Parser) -> None:
    """Adds the command's arguments."""
    parser.add_argument("file", metavar="TFLITE", help="a TFLite file")
    add_image_arguments(parser, usual="all")


def run(arguments: argparse.Namespace, console: Console) -> None:
    """Does what the arguments ask for."""
    path = pathlib.Path(arguments.file)
    options = image_options(arguments, usual=None)
    if path.is_dir():
        raise RunError(
            f"{path}: received a folder, expected a TFLite file; name {path / TFLITE_MODEL}, with "
            f"--images. What a run has measured is in {path / RESULTS}."
        )
    if not path.is_file():
        raise RunError(f"{path}: not found, or no file; expected a TFLite file.")
    with value_errors_as_run_errors():
        interface = file_interface(path)
        if interface.input_type != np.uint8:
            raise RunError(
                f"{path}: received a file that takes {interface.input_type}, expected one that "
                "takes uint8 pixels; evaluate others with sat_tf.export.evaluate_tflite."
            )
        metadata = read_metadata(read_bytes(path), str(path))
        pixels = options.load(interface.input_shape, interface.num_outputs, metadata)
        if pixels.labels is None:
            raise RunError(
                f"{options.images}: received images without labels, expected a folder with a "
                "folder of pictures for each class, or --labels beside an .npy file."
            )
        say_notes(pixels.notes, console)
        top = [k for k in (1, 5) if k <= interface.num_outputs]
        evaluation = evaluate_tflite(path, pixels.images, pixels.labels, top=top)
    shares = ", ".join(f"top-{k} {100 * share:.2f} %" for k, share in evaluation.top.items())
    say(
        console,
        f"{path}: {shares} (LiteRT, {evaluation.num_images:,} images, {evaluation.seconds:.1f} s, "
        f"{evaluation.processes} threads)",
    )
    if evaluation.not_finite:
        words = f"{evaluation.not_finite:,} images have non-finite outputs and count as wrong"
        say(console, f"Note: {words}")
