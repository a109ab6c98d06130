"""Makes figures: numbers, pictures, and the page that shows them."""

import base64
import pathlib
import time
from collections.abc import Callable

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeRemainingColumn

from sat_tf.presentation.page import page, row, table, text
from sat_tf.reproduction.figures.figure import (
    INDEX,
    Claim,
    Figure,
    read_table,
    write_figure,
    write_text,
)
from sat_tf.reproduction.figures.library import FIGURES
from sat_tf.version import __version__


def gallery(folder: pathlib.Path, figures: list[Figure]) -> str:
    """HTML of a page of its own: pictures are inside, numbers are those of the CSV files.

    Args:
        folder: of the files.
        figures: those to show, if the folder has them.

    Raises:
        RunError: a CSV file is not what was written.
    """
    body = [
        "<p>Numbers and pictures of <cite>Towards Efficient Training for Neural Network "
        "Quantization</cite> that need no ImageNet, computed by sat-tf "
        f"{text(__version__)}. A value “a ± b” is a mean and the standard deviation of one "
        "sample.</p>"
    ]
    for figure in figures:
        numbers = read_table(folder, figure)
        if numbers is not None:
            body += _section(folder, figure, figure.compare(numbers))
    return page("The paper's figures, recomputed", body, _STYLE)


def _section(folder: pathlib.Path, figure: Figure, claims: list[Claim]) -> list[str]:
    drawing = (folder / f"{figure.name}.svg").read_bytes()
    # As an image: inside the page itself, parts of two drawings could have the same name.
    source = f"data:image/svg+xml;base64,{base64.b64encode(drawing).decode()}"
    files = ", ".join(
        f'<a href="{figure.name}{suffix}">{figure.name}{suffix}</a>'
        for suffix in (".csv", ".png", ".svg")
    )
    rows = [
        row(
            [
                text(claim.about),
                text(claim.paper),
                text(claim.ours),
                '<span class="good">✓ agrees</span>'
                if claim.holds
                else '<span class="bad">✗ differs</span>',
                text(claim.reason),
            ]
        )
        for claim in claims
    ]
    return [
        f'<h2 id="{figure.name}">{text(figure.place)}: {text(figure.title)}</h2>',
        f'<figure><img src="{source}" alt="{text(figure.title)}">'
        f"<figcaption>{text(figure.caption)} {files}</figcaption></figure>",
        table(["", "paper", "here", "", "by which measure"], rows, label="paper and here"),
    ]


_STYLE = """
figure { margin: .6rem 0; } figcaption { color: var(--soft); max-width: 60rem; margin: .3rem 0; }
img { display: block; max-width: 100%; height: auto; background: #fff; padding: .4rem;
  border-radius: 4px; box-sizing: border-box; }
a { color: var(--bars); } .good, .bad { white-space: nowrap; } h2 { margin-top: 2.2rem; }
td { vertical-align: top; padding-top: .2rem; padding-bottom: .2rem; }
"""


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
