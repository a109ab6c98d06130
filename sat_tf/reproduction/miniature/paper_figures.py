"""The figures of the paper that `sat-tf figures` recomputes, for the page of the miniature."""

import base64
import pathlib
from collections.abc import Sequence

from sat_tf.presentation import page as pages
from sat_tf.presentation.page import text
from sat_tf.reproduction.figures.figure import Claim, Figure, read_table
from sat_tf.reproduction.figures.library import FIGURES

# Where they are kept, beside the runs.
FOLDER = "figures"


def missing(folder: pathlib.Path) -> list[Figure]:
    """The figures that the folder of the miniature lacks.

    Raises:
        RunError: the numbers of one cannot be read.
    """
    return [figure for figure in FIGURES.values() if read_table(folder / FOLDER, figure) is None]


def drawn(folder: pathlib.Path) -> str:
    """HTML of the figures that the folder of the miniature has, each beside what the paper prints.

    Raises:
        RunError: the numbers of one cannot be read.
    """
    made = {figure: read_table(folder / FOLDER, figure) for figure in FIGURES.values()}
    parts = [
        _figure(folder, figure, figure.compare(numbers))
        for figure, numbers in made.items()
        if numbers is not None
    ]
    return f'<div class="curves pictures">{"".join(parts)}</div>' if parts else ""


def _figure(folder: pathlib.Path, figure: Figure, claims: Sequence[Claim]) -> str:
    drawing = (folder / FOLDER / f"{figure.name}.svg").read_bytes()
    # As an image: inside the page itself, parts of two drawings could have the same name.
    source = f"data:image/svg+xml;base64,{base64.b64encode(drawing).decode()}"
    rows = [
        pages.row(
            [
                text(claim.about),
                '<span class="good">✓ agrees</span>'
                if claim.holds
                else '<span class="bad">✗ differs</span>',
                text(claim.paper),
                text(claim.ours),
            ]
        )
        for claim in claims
    ]
    title = f"{figure.place}: {figure.title}"
    return (
        f'<figure><figcaption>{text(title)}</figcaption><img src="{source}" alt="{text(title)}">'
        f"<p>{text(figure.caption)}</p>"
        f"{pages.table(['', '', 'paper', 'here'], rows, label=title)}</figure>"
    )


STYLE = """
.pictures img { display: block; max-width: 100%; height: auto; background: #fff; padding: .4rem;
  border-radius: 4px; box-sizing: border-box; }
.pictures td { vertical-align: top; } .pictures .good, .pictures .bad { white-space: nowrap; }
"""
