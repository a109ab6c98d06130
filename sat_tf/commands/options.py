"""Options that several commands have."""

import argparse
import pathlib
from collections.abc import Callable
from typing import Annotated

from pydantic import Field

from sat_tf.commands.parser import Parser
from sat_tf.exact.targets.processors import OUTPUT_TYPES, PROCESSORS
from sat_tf.files import check_writable
from sat_tf.messages import ProblemsError
from sat_tf.messages.validation import Seed, option


def add_resume(parser: Parser) -> None:
    """Adds --resume and --no-resume."""
    parser.advanced.add_argument(
        "--resume",
        action=argparse.BooleanOptionalAction,
        help="resume the run in the folder, or its unfinished reconstruction, or start over and "
        "move its files aside; default: resume if there is one",
    )


# The types of options: a name of a file that is empty is mostly that of a wrong variable.
_A_NAME = "the name of a file or a folder; write one, or leave it out"
nonempty = option(Annotated[str, Field(pattern=r"\S", description=_A_NAME)])
seed = option(Seed)


def add_name(parser: Parser, flag: str, metavar: str, about: str) -> None:
    """Adds an option that names a file or a folder."""
    parser.add_argument(flag, metavar=metavar, type=nonempty, help=about)


def several(one: Callable[[str], int]) -> Callable[[str], tuple[int, ...]]:
    """The type of an option: values of another one with commas between them, each once."""
    return lambda text: tuple(dict.fromkeys(one(word.strip()) for word in text.split(",")))


def add_outputs(parser: Parser, **kinds: str) -> None:
    """Adds --out, for files of some kinds, each with its ending, that a command writes if asked."""
    listed = "; ".join(f".{ending}: {what}" for ending, what in kinds.items())
    parser.add_argument(
        "--out",
        metavar="FILE",
        type=nonempty,
        action="append",
        default=[],
        help=f"a file to write, which its ending chooses: {listed}; can be given several times",
    )
    parser.set_defaults(endings=tuple(f".{ending}" for ending in kinds))


def check_outputs(arguments: argparse.Namespace) -> None:
    """Raises ValueError unless the files that are asked for can be written."""
    problems = []
    for path in map(pathlib.Path, arguments.out):
        if path.suffix.lower() not in arguments.endings:
            problems.append(
                f"{path}: received {path.suffix or 'no ending'}, expected one of "
                f"{', '.join(arguments.endings)}; give it such a name."
            )
            continue
        try:
            check_writable(path)
        except ValueError as error:
            problems.append(str(error))
    if problems:
        raise ProblemsError("--out", problems)


def write_outputs(arguments: argparse.Namespace, **writers: Callable[[str], None]) -> None:
    """Writes the files that are asked for, by the function of each ending."""
    for path in arguments.out:
        writers[pathlib.Path(path).suffix.lower()[1:]](path)


def add_trust(parser: Parser) -> None:
    """Adds --trust_model, for every command that loads a model."""
    parser.advanced.add_argument(
        "--trust_model",
        action="store_true",
        help="load a model that runs code: one of Keras 2 with Lambda layers or classes of other "
        "modules, or one of Keras 3 with a program inside; only for models of people you trust",
    )


def add_overrides(parser: "argparse._ActionsContainer", about: str) -> None:
    """Adds --set to a parser or a group; its words are `overrides` of the parsed arguments."""
    parser.add_argument(
        "--set", metavar="KEY=VALUE", action="append", default=[], dest="overrides", help=about
    )


# How a file can store kernels; what each does is in `sat_tf.export.lowering.packing`.
PACKS = ("auto", "none", "int4", "int2", "table")


def add_pack(parser: Parser, *, default: str, usual: str | None) -> None:
    """Adds --pack, for commands that write a file."""
    parser.advanced.add_argument(
        "--pack",
        metavar="|".join(PACKS),
        choices=PACKS,
        default=usual,
        help="auto stores weights in 4 bits where they fit and that costs no time, none all in 8; "
        "int4 and int2 make smaller files and slower models; table, for the target micro, makes "
        f"tables of values; default: {default}",
    )


# The type of outputs that a file has by itself, in words.
OWN_TYPE = "the target's, int8 for NPUs, else float32"


def add_output_type(parser: Parser, *, default: str) -> None:
    """Adds --output_type, for commands that write a file."""
    parser.advanced.add_argument(
        "--output_type",
        metavar="|".join(OUTPUT_TYPES),
        choices=OUTPUT_TYPES,
        help="int8 and uint8 end the file in its last codes, for processors without floating "
        f"point; default: {default}",
    )


def add_target(parser: argparse.ArgumentParser, *, default: str) -> None:
    """Adds --target, for every command that plans, makes or checks a file."""
    parser.add_argument(
        "--target",
        metavar="NAME",
        choices=list(PROCESSORS),
        help=f"the processor of the file: {', '.join(PROCESSORS)}; default: {default}",
    )
