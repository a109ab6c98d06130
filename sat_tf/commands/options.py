"""Options that several commands have."""

import argparse
import contextlib
import math
import os
import pathlib
from collections.abc import Callable, Iterator
from typing import Any, TypeVar

from rich.console import Console

from sat_tf.arguments import SEED_LIMIT
from sat_tf.atomic_file import check_writable
from sat_tf.commands.parser import RANGE, Parser
from sat_tf.messages import RunError, list_problems, listed_problems, say
from sat_tf.presentation.palette import check_picture_path
from sat_tf.qat.policy import BitPolicy
from sat_tf.qat.policy_fields import OLD_INPUT_RANGE
from sat_tf.quantizers.input_range import range_problem
from sat_tf.targets import OUTPUT_TYPES, PROCESSORS, output_type_problem, target_problem
from sat_tf.training.config.config import load_yaml, read_yaml_text
from sat_tf.training.interruption import Interruption, Stopped


def add_resume(parser: Parser) -> None:
    """Adds --resume and --no-resume."""
    parser.advanced.add_argument(
        "--resume",
        action=argparse.BooleanOptionalAction,
        help="resume the run in the folder, or start over and move its files aside; default: "
        "resume if there is one",
    )


def integer(
    lowest: int, limit: float = math.inf, expected: str | None = None
) -> Callable[[str], int]:
    """The type of an option: an integer from `lowest` to below `limit`.

    Args:
        lowest: the lowest one.
        limit: above the highest one.
        expected: which these are, in words; by default their ends.
    """
    words = expected or f"an integer from {lowest} to {limit - 1}"

    def read(text: str) -> int:
        if text.isdecimal() and lowest <= int(text) < limit:
            return int(text)
        raise argparse.ArgumentTypeError(f"{text!r}: expected {words}")

    return read


seed = integer(0, SEED_LIMIT, f"an integer in [0, {SEED_LIMIT})")
bits = integer(1, 9)


def several(one: Callable[[str], int]) -> Callable[[str], tuple[int, ...]]:
    """The type of an option: values of another one with commas between them, each once."""
    return lambda text: tuple(dict.fromkeys(one(word.strip()) for word in text.split(",")))


def add_outputs(parser: Parser, **files: str) -> None:
    """Adds an option for each file that a command writes if asked to; by name, what it is."""
    for name, what in files.items():
        parser.add_argument(f"--{name}", metavar="FILE", help=what)
    parser.set_defaults(outputs=tuple(files))


_PICTURES = ("picture", "diagram")


def check_outputs(arguments: argparse.Namespace) -> None:
    """Raises ValueError unless the files that are asked for can be written."""
    for name in arguments.outputs:
        if (path := getattr(arguments, name)) is not None:
            (check_picture_path if name in _PICTURES else check_writable)(path)


def write_outputs(arguments: argparse.Namespace, **writers: Callable[[str], None]) -> None:
    """Writes the files that are asked for, by the function of each."""
    for name, write in writers.items():
        if (path := getattr(arguments, name)) is not None:
            write(path)


def add_trust(parser: Parser) -> None:
    """Adds --trust_model, for every command that loads a model."""
    parser.advanced.add_argument(
        "--trust_model",
        action="store_true",
        help="load a model that runs code: one of Keras 2 with Lambda layers or classes of other "
        "modules, or one of Keras 3 with a program inside; only for models of people you trust",
    )


def add_overrides(parser: argparse.ArgumentParser, about: str) -> None:
    """Adds `--set`, whose words are `overrides` of the parsed arguments."""
    parser.add_argument(
        "--set", metavar="KEY=VALUE", action="append", default=[], dest="overrides", help=about
    )


def add_input_range(parser: argparse.ArgumentParser, *, default: str = "0,255") -> None:
    """Adds --input_range, for every command that feeds or quantizes a float model.

    Args:
        parser: of the command.
        default: what holds if it is left out, in words.
    """
    parser.add_argument(
        RANGE,
        metavar="LOW,HIGH|NAME",
        type=_input_range,
        help="the real values of the pixels 0 and 255 for a float model, such as 0,1 for x / 255, "
        "or tf, torch or caffe, a preprocessing of keras.applications; a quantized model has its "
        f"own; default: {default}",
    )


def input_range_fields(arguments: argparse.Namespace) -> dict[str, Any]:
    """The policy field that --input_range gives; empty if it is left out."""
    given = arguments.input_range
    return {} if given is None else {"input_range": given}


def _input_range(text: str) -> Any:
    """A range as BitPolicy takes it; one number is the high end of a range from 0."""
    try:
        ends = [float(end) for end in text.split(",")]
    except ValueError:
        ends = []
    value: Any = text if not ends else (0.0, *ends) if len(ends) == 1 else tuple(ends)
    problem = range_problem(value)
    if problem:
        raise argparse.ArgumentTypeError(f"{text!r}: {problem}")
    return value


# The type of outputs that a file has by itself, in words.
OWN_TYPE = "the target's, int8 for NPUs, else float32"


def add_output_type(parser: argparse.ArgumentParser, *, default: str) -> None:
    """Adds --output_type, for commands that write a file.

    Args:
        parser: of the command.
        default: what holds if it is left out, in words.
    """
    parser.add_argument(
        "--output_type",
        metavar="|".join(OUTPUT_TYPES),
        type=_known("output_type", output_type_problem),
        help="int8 and uint8 end the file in its last codes, for processors without floating "
        f"point; default: {default}",
    )


def add_target(parser: argparse.ArgumentParser, *, default: str) -> None:
    """Adds --target, for every command that plans, makes or checks a file.

    Args:
        parser: of the command.
        default: what holds if it is left out, in words.
    """
    parser.add_argument(
        "--target",
        metavar="NAME",
        type=_known("target", target_problem),
        help=f"the processor of the file: {', '.join(PROCESSORS)}; default: {default}",
    )


def _known(name: str, problem_of: Callable[[str], str | None]) -> Callable[[str], str]:
    """The type of an option whose value the library checks, and whose name it says in front."""

    def known(text: str) -> str:
        if problem := problem_of(text):
            raise argparse.ArgumentTypeError(problem.removeprefix(f"{name}: "))
        return text

    return known


def policy_fields(arguments: argparse.Namespace) -> dict[str, Any]:
    """The policy fields that --input_range and --target give; empty if they are left out."""
    target = arguments.target
    return input_range_fields(arguments) | ({} if target is None else {"target": target})


def add_policy(parser: Parser) -> None:
    """Adds --policy, for `read_policy`."""
    parser.fields = BitPolicy.__dataclass_fields__
    parser.add_argument(
        "--policy",
        nargs="+",
        default=[],
        metavar="FILE|KEY=VALUE",
        help="how to quantize: a YAML file, fields of BitPolicy, or a file and then fields",
    )


def read_policy(words: list[str], config: pathlib.Path, flags: dict[str, Any]) -> BitPolicy | None:
    """The policy that --policy describes, or the run's, with flags; None if nothing is given.

    Args:
        words: a file and fields, in any order.
        config: of the run whose folder is explained, if it is one.
        flags: fields that have options of their own, which override the others.

    Raises:
        RunError: the policy is invalid; lists every problem.
    """
    files = [word for word in words if "=" not in word]
    if len(files) > 1:
        raise RunError(
            f"--policy: received the files {' and '.join(files)}, expected one at most; write "
            "fields as KEY=VALUE."
        )
    if not words and not flags and not config.is_file():
        return None
    fields: dict[str, Any] = {}
    if files:
        fields = _fields_in(pathlib.Path(files[0]))
    elif config.is_file():
        fields = _fields_in(config)
    problems = []
    for word in words:
        if word in files:
            continue
        key, _, text = word.partition("=")
        try:
            fields[key.strip()] = load_yaml(text)
        except ValueError as error:
            problems.append(f"{word!r}: the value is not valid YAML; {error}")
    if flags:
        fields = {key: value for key, value in fields.items() if key != OLD_INPUT_RANGE} | flags
    policy = None
    try:
        policy = BitPolicy(**fields)
    except ValueError as error:
        problems += listed_problems(error)
    if problems:
        raise RunError(list_problems("--policy", problems))
    return policy


def _fields_in(path: pathlib.Path) -> dict[str, Any]:
    """The fields of a policy in a file, or in the configuration of a run."""
    try:
        values = load_yaml(read_yaml_text(path))
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise RunError(
            f"--policy {path}: {reason}; expected a YAML file with fields of BitPolicy, or "
            "KEY=VALUE."
        ) from error
    if isinstance(values, dict) and isinstance(values.get("policy"), dict):
        values = values["policy"]
    if not isinstance(values, dict):
        raise RunError(
            f"--policy {path}: received {type(values).__name__}, expected a mapping with fields of "
            "BitPolicy, such as `weight_bits: 4`."
        )
    return {str(key): value for key, value in values.items()}


@contextlib.contextmanager
def open_folder(path: str | os.PathLike[str]) -> Iterator[pathlib.Path]:
    """The folder of --out, created if it does not exist; a new one that stays empty is removed.

    Raises:
        RunError: it is a file, or cannot be created or written.
    """
    folder = pathlib.Path(path)
    is_new = not folder.exists()
    if folder.exists() and not folder.is_dir():
        raise RunError(f"--out: received {folder}, which is a file; expected a folder; name one.")
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise RunError(
            f"--out: received {folder}, which cannot be created ({error.strerror}); expected a "
            "writable folder; choose another."
        ) from error
    if not os.access(folder, os.W_OK | os.X_OK):
        raise RunError(
            f"--out: received {folder}, which is not writable; expected a folder that is; choose "
            "another, or change its permissions."
        )
    try:
        yield folder
    finally:
        if is_new:
            with contextlib.suppress(OSError):
                folder.rmdir()


_Result = TypeVar("_Result")


def unless_stopped(
    work: Callable[[], _Result], folder: pathlib.Path, console: Console
) -> _Result | None:
    """The result of `work`; None, with a message, if SIGTERM has stopped it.

    Ctrl-C saves as SIGTERM does, but the command fails, so that no other one follows.

    Args:
        work: may be stopped at any moment, also while it is starting.
        folder: of the run.
        console: where to say it.

    Raises:
        KeyboardInterrupt: Ctrl-C has stopped it; says that it can be resumed.
    """
    try:
        with Interruption().catching_signals():
            return work()
    except Stopped as stopped:
        said = f"Stopped as asked; everything is saved in {folder}: the same command resumes."
        if stopped.by_keyboard:
            raise KeyboardInterrupt(said) from None
        say(console, said)
        return None
