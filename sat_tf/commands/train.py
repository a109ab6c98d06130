"""`sat-tf train`."""

import argparse
import pathlib
from collections.abc import Callable, Iterable
from typing import TypeVar

from rich.console import Console

from sat_tf.commands.models import load_tensorflow, quiet_tensorflow
from sat_tf.commands.options import add_name, add_overrides, add_resume, add_target, add_trust
from sat_tf.commands.parser import Parser
from sat_tf.commands.verification_table import conclude
from sat_tf.files import read_text
from sat_tf.interruption import Terminated
from sat_tf.messages import say
from sat_tf.output_folder import CONFIG, TFLITE_MODEL, UNFINISHED
from sat_tf.report.results import Results
from sat_tf.training.config import DEMO, FOLDER, Config, choose, parse_config, read_config
from sat_tf.training.run_folder import RunFolder, expect_same_run

DESCRIPTION = (
    "Trains a float model with clamped weights, fine-tunes it quantized, writes an integer TFLite "
    "file, and verifies that LiteRT computes the integers that were trained."
)
EXAMPLES = """\
examples:
  sat-tf train                                   digits, MobileNet-V2, 4 bits: minutes, no download
  sat-tf train --data photos/                    your pictures, in a folder for each class
  sat-tf train --config configs/digits/mobilenet_v2_w2a2.yaml
  sat-tf train --set stages.float.epochs=3 --set policy.stream_bits=null
  sat-tf train --set seed=1 --out runs/second_seed
  sat-tf train --data photos/ --target ethos-u55
"""


def add_arguments(parser: Parser) -> None:
    """Adds the command's arguments."""
    parser.add_argument(
        "--config",
        metavar="FILE",
        help="YAML file of your own, or one of configs/, which come with sat-tf; default: the "
        "digits demo",
    )
    add_name(
        parser,
        "--data",
        "DIR",
        "a folder with a folder of pictures for each class, or with train/ and val/ of these; "
        "without --config, model, sizes and epochs are chosen by how many pictures there are",
    )
    add_overrides(parser, "change one setting, with a dotted key; can be given several times")
    add_name(parser, "--out", "DIR", "where the files go; default: runs/<name in the config>")
    add_target(parser, default="policy.target in the config, or litert")
    add_resume(parser)
    add_trust(parser)


def run(arguments: argparse.Namespace, console: Console) -> bool:
    """Does what the arguments ask for."""
    trusting = ["training.trust_model=true"] if arguments.trust_model else []
    targets = [] if arguments.target is None else [f"policy.target={arguments.target}"]
    overrides = [*arguments.overrides, *targets, *trusting]
    if arguments.data is None:
        config = load_config(arguments.config, overrides)
    else:
        config = folder_config(arguments.data, console, arguments.config, overrides)
    folder = choose_folder(config, arguments.out)
    return train(config, folder, console, resume=arguments.resume)


def load_config(path: str | None = None, overrides: Iterable[str] = ()) -> Config:
    """The configuration in a file, or that of the demo where no file is named."""
    if path is None:
        return parse_config(read_text(DEMO), overrides, subject="--set")
    return read_config(path, overrides)


def folder_config(
    data_dir: str, console: Console, path: str | None = None, overrides: Iterable[str] = ()
) -> Config:
    """The configuration for a folder of pictures: that in a file, or one chosen by their number."""
    choice = choose(data_dir)
    overrides = list(overrides)
    if path is not None:
        return read_config(path, [choice.data_override, *overrides])
    changes = [choice.data_override, *choice.overrides(overrides), *overrides]
    config = parse_config(read_text(FOLDER), changes, subject="--set")
    say(console, choice.describe())
    return config


def choose_folder(config: Config, run_dir: str | None) -> RunFolder:
    """The folder that was asked for, or runs/<name> in the working directory."""
    return RunFolder(pathlib.Path(run_dir) if run_dir else pathlib.Path("runs") / config.name)


def train(
    config: Config, folder: RunFolder, console: Console, *, resume: bool | None = None
) -> bool:
    """Trains, exports and verifies, or finishes a run; prints results; False for a red headline."""
    with folder.opened():  # which refuses a folder that cannot be written to
        if resume is not False:
            expect_same_run(folder, config)

    def work() -> Results | None:
        quiet_tensorflow()
        load_tensorflow()
        from sat_tf.training.loop import runner

        return runner.train(config, folder, console, resume=resume)

    results = unless_stopped(work, folder.path, console)
    if results is not None:
        console.print(results.table(config.name))
        say(console, f"Run folder: {folder.path}")
    return conclude_folder(folder, console)


def conclude_folder(folder: RunFolder, console: Console) -> bool:
    """Ends a command that has filled a folder: `conclude` with the headline of what is in it."""
    from sat_tf.report.report import headline_of_folder

    return conclude(folder.file(TFLITE_MODEL), headline_of_folder(folder), console)


_Result = TypeVar("_Result")


def unless_stopped(
    work: Callable[[], _Result], folder: pathlib.Path, console: Console
) -> _Result | None:
    """The result of `work`; None, with a message, if SIGTERM has stopped it.

    Ctrl-C says the same, but the command fails, so that no other one follows.
    """
    try:
        return work()
    except KeyboardInterrupt as interrupt:
        if not any(folder.rglob(CONFIG)):
            saved = "no run had begun."
        elif words := str(interrupt):  # of a stage
            saved = f"{folder}: {words}."
        else:
            blocks = ", but for the finished blocks of the reconstruction"
            saved = (
                f"what was finished is saved in {folder}, and the same command resumes: what was "
                f"under way begins again{blocks if any(folder.rglob(UNFINISHED)) else ''}."
            )
        message = f"Stopped as asked; {saved}"
        if not isinstance(interrupt, Terminated):
            raise KeyboardInterrupt(message) from None
        say(console, message)
        return None
