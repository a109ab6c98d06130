"""`sat-tf evaluate`."""

import argparse
import pathlib

from rich.console import Console

from sat_tf.commands.models import load_model, quiet_tensorflow
from sat_tf.training.config_file import read_config
from sat_tf.training.run_folder import CONFIG, QUANTIZED_MODEL, RunFolder

SUMMARY = "print the held-out top-1 of a finished run"
DESCRIPTION = "Loads the quantized model of a run and prints its held-out top-1."
EXAMPLES = """\
example:
  sat-tf evaluate runs/digits_mobilenet_v2_w4a4
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the command's arguments."""
    parser.add_argument("run_dir", metavar="RUN_DIR", help="folder of a finished run")


def run(arguments: argparse.Namespace, console: Console) -> None:
    """Does what the arguments ask for."""
    evaluate(RunFolder(pathlib.Path(arguments.run_dir)), console)


def evaluate(folder: RunFolder, console: Console) -> None:
    """Prints the held-out top-1 of a finished run's quantized model.

    Raises:
        RunError: the folder holds no such run.
    """
    folder.require(CONFIG, QUANTIZED_MODEL)
    config = read_config(folder.file(CONFIG))
    quiet_tensorflow()
    from sat_tf.export import deployed_model
    from sat_tf.training.runner import load_images
    from sat_tf.training.stage import held_out_top1

    model = load_model(folder.file(QUANTIZED_MODEL))
    images = load_images(config)
    if config.stages.deploy_tail is not None:
        model = deployed_model(model, float_head=config.export.float_head)
    share = held_out_top1(model, images)
    console.print(
        f"{config.name}: held-out top-1 {100 * share:.2f} % ({len(images.test_labels)} images)",
        highlight=False,
    )
