"""Makes figures: numbers, pictures, and the page that shows them."""

import pathlib
import time
from collections.abc import Callable

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeRemainingColumn

from sat_tf.figures.figure import Claim, Figure
from sat_tf.figures.folder import INDEX, read_table, write_figure, write_text
from sat_tf.figures.gallery import gallery
from sat_tf.figures.library import FIGURES


def run(
    figures: list[Figure],
    folder: pathlib.Path,
    *,
    seed: int,
    done: Callable[[Figure, list[Claim], float], None] = lambda *_: None,
) -> pathlib.Path:
    """Makes figures one after another, with a bar on standard error.

    Args:
        figures: which.
        folder: where their files go; it is there.
        seed: of everything that is drawn at random.
        done: called after each with what it says beside the paper, and the seconds it took.

    Returns:
        The page, which shows all figures that the folder has.

    Raises:
        RunError: a file cannot be written, or one of an older figure cannot be read.
    """
    console = Console(stderr=True)
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
            table = read_table(folder, figure)
            if table is not None:
                done(figure, figure.compare(table), time.monotonic() - start)
    index = folder / INDEX
    write_text(index, gallery(folder, list(FIGURES.values())))
    return index
