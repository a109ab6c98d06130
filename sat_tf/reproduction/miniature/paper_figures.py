"""The figures of the paper that `sat-tf figures` recomputes, for the page of the miniature."""

import dataclasses
import pathlib
from collections.abc import Sequence

from markupsafe import Markup

from sat_tf.presentation.page import image_source
from sat_tf.presentation.tables import Table
from sat_tf.reproduction.figures.figure import COMPARED, Comparison, Figure, read_numbers
from sat_tf.reproduction.figures.library import FIGURES

# Where they are kept, beside the runs.
FOLDER = "figures"


def missing(folder: pathlib.Path) -> list[Figure]:
    """The figures that the folder of the miniature lacks.

    Raises:
        RunError: the numbers of one cannot be read.
    """
    return [figure for figure in FIGURES.values() if read_numbers(folder / FOLDER, figure) is None]


@dataclasses.dataclass(frozen=True)
class Drawn:
    """A figure as the page shows it.

    Attributes:
        title: with its place in the paper.
        source: data URL of the image.
        caption: in plain text.
        comparisons: a table of comparisons with the paper.
    """

    title: str
    source: str
    caption: str
    comparisons: Markup


def drawn(folder: pathlib.Path) -> list[Drawn]:
    """The figures that the folder of the miniature has, compared with the paper.

    Raises:
        RunError: the numbers of one cannot be read.
    """
    made = {figure: read_numbers(folder / FOLDER, figure) for figure in FIGURES.values()}
    return [
        _drawn(folder, figure, figure.compare(numbers))
        for figure, numbers in made.items()
        if numbers is not None
    ]


def _drawn(folder: pathlib.Path, figure: Figure, comparisons: Sequence[Comparison]) -> Drawn:
    title = f"{figure.place}: {figure.title}"
    source = image_source((folder / FOLDER / f"{figure.name}.svg").read_bytes())
    return Drawn(
        title, source, figure.caption, Table(columns=COMPARED, rows=comparisons).to_html(title)
    )
