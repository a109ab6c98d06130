"""Computes figures: numbers, pictures, and the page that shows them."""

import pathlib
import time
from collections.abc import Callable

from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeRemainingColumn

from sat_tf.presentation.console import make_console
from sat_tf.presentation.page import image_source, render_page
from sat_tf.presentation.tables import Column, Table
from sat_tf.reproduction.figures.figure import (
    COMPARED,
    INDEX,
    Comparison,
    Figure,
    Numbers,
    read_numbers,
    write_figure,
    write_text,
)
from sat_tf.reproduction.figures.library import FIGURES
from sat_tf.version import __version__

_REASON: Column[Comparison] = Column("by which measure", lambda found: found.reason)


def gallery(folder: pathlib.Path, figures: list[Figure]) -> str:
    """HTML of a self-contained page with the pictures and the numbers of the CSV files.

    Args:
        folder: of the files.
        figures: those to show, if the folder has them.

    Raises:
        RunError: a CSV file is damaged.
    """
    found = [(figure, read_numbers(folder, figure)) for figure in figures]
    return render_page(
        "reproduction/figures/gallery.html",
        version=__version__,
        figures=[
            _shown(folder, figure, numbers) for figure, numbers in found if numbers is not None
        ],
    )


def _shown(folder: pathlib.Path, figure: Figure, numbers: Numbers) -> dict[str, str]:
    comparisons = Table(columns=[*COMPARED, _REASON], rows=figure.compare(numbers))
    return {
        "name": figure.name,
        "title": f"{figure.place}: {figure.title}",
        "alt": figure.title,
        "caption": figure.caption,
        "source": image_source((folder / f"{figure.name}.svg").read_bytes()),
        "comparisons": comparisons.to_html("paper and here"),
    }


def run(
    figures: list[Figure],
    folder: pathlib.Path,
    *,
    seed: int,
    done: Callable[[Figure, list[Comparison], float], None] = lambda *_: None,
) -> pathlib.Path:
    """Computes figures one after another, with a bar on standard error.

    Args:
        figures: which.
        folder: where their files go; it has to exist.
        seed: of everything that is random.
        done: called after each with its comparisons and the seconds it took.

    Returns:
        The page, which shows all figures that the folder has.

    Raises:
        RunError: a file cannot be written, or that of an older figure cannot be read.
    """
    console = make_console(stderr=True)
    columns = (
        TextColumn("{task.description}", markup=False),
        BarColumn(),
        TaskProgressColumn(),
        TimeRemainingColumn(),
    )
    with Progress(
        *columns, console=console, transient=True, disable=not console.is_terminal
    ) as progress:
        task = progress.add_task("", total=sum(figure.seconds for figure in figures))
        for figure in figures:
            progress.update(task, description=figure.name)
            start = time.monotonic()

            def advance(share: float, seconds: float = figure.seconds) -> None:
                progress.advance(task, share * seconds)

            write_figure(folder, figure, figure.measure(seed, advance))
            table = read_numbers(folder, figure)
            if table is not None:
                done(figure, figure.compare(table), time.monotonic() - start)
    index = folder / INDEX
    write_text(index, gallery(folder, list(FIGURES.values())))
    return index
