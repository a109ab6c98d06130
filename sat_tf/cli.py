"""The command `sat-tf`."""

import argparse
import pathlib
from collections.abc import Callable, Sequence
from typing import Any

from rich.console import Console

from sat_tf.arguments import SEED_LIMIT
from sat_tf.training import commands
from sat_tf.training.errors import RunError
from sat_tf.training.run_folder import RunFolder
from sat_tf.version import __version__

_FAILED = 1
_BAD_INPUT = 2
_INTERRUPTED = 130

_TRAIN_EXAMPLES = """\
examples:
  sat-tf train                                   digits, MobileNet-V2, 4 bits: minutes, no download
  sat-tf train --config configs/digits/mobilenet_v2_w2a2.yaml
  sat-tf train --set stages.float.epochs=3 --set policy.stream_bits=null
  sat-tf train --seed 1 --run_dir runs/second_seed
"""
_EVALUATE_EXAMPLES = """\
example:
  sat-tf evaluate runs/digits_mobilenet_v2_w4a4
"""
_EXPORT_EXAMPLES = """\
examples:
  sat-tf export runs/digits_mobilenet_v2_w4a4
  sat-tf export runs/digits_mobilenet_v2_w4a4 --float_head --out app/digits.tflite
"""
_VERIFY_EXAMPLES = """\
examples:
  sat-tf verify runs/digits_mobilenet_v2_w4a4
  sat-tf verify model.keras model.tflite --images pixels.npy
"""


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs one command.

    Args:
        arguments: words of the command line after the program's name; by default those given.

    Returns:
        The exit status: 0 when all went well, 1 where LiteRT and the model differ, 2 where the
        input is wrong or a run broke, 130 after Ctrl-C.
    """
    parsed = _parser().parse_args(arguments)
    return report_errors(lambda: parsed.command(parsed))


def report_errors(command: Callable[[], bool | None]) -> int:
    """Runs a command; says what its user can mend in plain words, without a traceback.

    Args:
        command: returns False where it found a difference.

    Returns:
        The exit status; see `main`.
    """
    errors = Console(stderr=True)
    try:
        return _FAILED if command() is False else 0
    # An OSError is a full disk, or a folder that vanished.
    except (RunError, OSError) as error:
        errors.print(f"error: {error}", style="red", highlight=False, markup=False, soft_wrap=True)
        return _BAD_INPUT
    except KeyboardInterrupt:
        errors.print("interrupted; the files written so far are whole", style="red")
        return _INTERRUPTED


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="sat-tf",
        description="Low-bit quantization-aware training for Keras, with a certified TFLite export."
        " `sat-tf COMMAND --help` explains a command.",
    )
    parser.add_argument("--version", action="version", version=f"sat-tf {__version__}")
    subparsers = parser.add_subparsers(title="commands", metavar="COMMAND", required=True)

    train = _add(
        subparsers,
        "train",
        _train,
        summary="train a float and a quantized model, export and verify",
        description="Trains a float model with clamped weights, fine-tunes it quantized, writes an "
        "integer TFLite file, and proves that LiteRT computes the integers that were trained.",
        examples=_TRAIN_EXAMPLES,
    )
    train.add_argument("--config", metavar="FILE", help="YAML file; default: the digits demo")
    train.add_argument(
        "--set",
        metavar="KEY=VALUE",
        action="append",
        default=[],
        dest="overrides",
        help="change one setting, with a dotted key; can be given several times",
    )
    train.add_argument(
        "--run_dir", metavar="DIR", help="where the files go; default: runs/<name in the config>"
    )
    train.add_argument("--seed", type=_seed, help="wins over the seed in the config")

    evaluate = _add(
        subparsers,
        "evaluate",
        _evaluate,
        summary="print the held-out top-1 of a finished run",
        description="Loads the quantized model of a run and prints its held-out top-1.",
        examples=_EVALUATE_EXAMPLES,
    )
    evaluate.add_argument("run_dir", metavar="RUN_DIR", help="folder of a finished run")

    export = _add(
        subparsers,
        "export",
        _export,
        summary="write the TFLite file of a finished run",
        description="Writes the quantized model of a run as an integer TFLite file.",
        examples=_EXPORT_EXAMPLES,
    )
    export.add_argument("run_dir", metavar="RUN_DIR", help="folder of a finished run")
    export.add_argument("--out", metavar="FILE", help="default: RUN_DIR/model.tflite")
    export.add_argument(
        "--float_head",
        action=argparse.BooleanOptionalAction,
        help="keep the last layer float, so its logits exact; default: as the run's config says",
    )

    verify = _add(
        subparsers,
        "verify",
        _verify,
        summary="compare a TFLite file with its model, code by code",
        description="Runs a TFLite file in LiteRT, compares every integer with those of the "
        "quantized model, and writes certificate.json. Exit status 1 if any differs.",
        examples=_VERIFY_EXAMPLES,
    )
    verify.add_argument(
        "source", metavar="RUN_DIR|MODEL", help="folder of a run, or a quantized .keras model"
    )
    verify.add_argument(
        "tflite", metavar="TFLITE", nargs="?", help="the file; default: RUN_DIR/model.tflite"
    )
    verify.add_argument(
        "--images",
        metavar="FILE",
        help="uint8 images (n, height, width, channels) as .npy; default: the held-out images of "
        "the run, or random ones",
    )
    verify.add_argument(
        "--certificate", metavar="FILE", help="default: certificate.json beside the TFLite file"
    )
    return parser


def _add(
    subparsers: Any,
    name: str,
    command: Callable[[argparse.Namespace], bool | None],
    *,
    summary: str,
    description: str,
    examples: str,
) -> argparse.ArgumentParser:
    parser: argparse.ArgumentParser = subparsers.add_parser(
        name,
        help=summary,
        description=description,
        epilog=examples,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.set_defaults(command=command)
    return parser


def _train(arguments: argparse.Namespace) -> bool:
    config = commands.load_config(arguments.config, arguments.overrides, arguments.seed)
    return commands.train(config, commands.choose_folder(config, arguments.run_dir), Console())


def _evaluate(arguments: argparse.Namespace) -> None:
    commands.evaluate(RunFolder(pathlib.Path(arguments.run_dir)), Console())


def _export(arguments: argparse.Namespace) -> None:
    commands.export(
        RunFolder(pathlib.Path(arguments.run_dir)),
        Console(),
        out=arguments.out,
        float_head=arguments.float_head,
    )


def _verify(arguments: argparse.Namespace) -> bool:
    return commands.verify(
        arguments.source,
        Console(),
        tflite=arguments.tflite,
        images=arguments.images,
        certificate=arguments.certificate,
    )


def _seed(text: str) -> int:
    if text.isdecimal() and int(text) < SEED_LIMIT:
        return int(text)
    raise argparse.ArgumentTypeError(f"{text!r}: expected an integer in [0, {SEED_LIMIT})")
