"""`sat-tf figures`."""

import argparse

from rich.console import Console

from sat_tf.commands.models import quiet_tensorflow
from sat_tf.commands.options import open_folder, seed
from sat_tf.messages import RunError, list_problems
from sat_tf.presentation.tables import Column, Table, digits
from sat_tf.reproduction.figures.figure import COMPARED, Comparison, Figure
from sat_tf.reproduction.figures.library import find
from sat_tf.reproduction.figures.run import run as make

SUMMARY = "reproduce the paper's figures, beside the printed values"
DESCRIPTION = (
    "Computes the paper's figures and tables that need no ImageNet, and writes the numbers (CSV) "
    "and the picture (PNG and SVG) of each, and index.html, which shows all of them beside the "
    "printed values. A few minutes on two cores."
)
EXAMPLES = """\
examples:
  sat-tf figures --out figures
  sat-tf figures table_s1 figure2a --out figures         only these
  sat-tf figures --list
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the command's arguments."""
    parser.add_argument(
        "names", metavar="NAME", nargs="*", help="a figure; --list shows all; default: all"
    )
    parser.add_argument("--out", metavar="DIR", help="folder for the files, which may be new")
    parser.add_argument(
        "--seed",
        metavar="N",
        type=seed,
        default=0,
        help="of everything that is drawn at random; default: 0",
    )
    parser.add_argument("--list", action="store_true", help="show the names, and compute nothing")


def run(arguments: argparse.Namespace, console: Console) -> bool:
    """Does what the arguments ask for."""
    figures, problems = find(arguments.names)
    if arguments.out is None and not arguments.list:
        problems.append("received no --out, expected a folder for the files; add --out DIR.")
    if problems:
        raise RunError(list_problems("sat-tf figures", problems))
    if arguments.list:
        _list(figures, console)
        return True
    quiet_tensorflow()
    with open_folder(arguments.out) as folder:
        page = make(
            figures,
            folder,
            seed=arguments.seed,
            done=lambda figure, found, seconds: _show(figure, found, seconds, console),
        )
    console.print(f"Page: {page}", highlight=False, markup=False, soft_wrap=True)
    return True


_FIGURE: list[Column[Figure]] = [
    Column("name", lambda figure: figure.name),
    Column("in the paper", lambda figure: figure.place),
    Column("what", lambda figure: figure.title),
    Column("seconds, about", lambda figure: figure.seconds, digits(".0f")),
]


def _list(figures: list[Figure], console: Console) -> None:
    console.print(Table(columns=_FIGURE, rows=figures).to_rich(box=None))


def _show(figure: Figure, found: list[Comparison], seconds: float, console: Console) -> None:
    title = f"{figure.place}: {figure.title} ({seconds:.0f} s)"
    console.print(title, style="bold", highlight=False, markup=False, soft_wrap=True)
    console.print(Table(columns=COMPARED, rows=found).to_rich(box=None, pad_edge=False))
