"""A figure of the paper: its numbers, its picture, and the comparison with what is printed."""

import dataclasses
import pathlib
from collections.abc import Callable
from typing import Any, NamedTuple

import matplotlib
import pandas as pd
import rich.table
from matplotlib.colors import ListedColormap, Normalize
from matplotlib.figure import Figure as Picture

from sat_tf.files import written_whole
from sat_tf.messages import charts


class Comparison(NamedTuple):
    """A statement of the paper beside our measurement.

    Attributes:
        about: their subject.
        paper: the printed number or words.
        ours: the measured value, with its spread if it is random.
        holds: whether they agree.
        reason: by which measure; empty if that is obvious.
    """

    about: str
    paper: str
    ours: str
    holds: bool
    reason: str = ""


@dataclasses.dataclass(frozen=True)
class Figure:
    """One of the paper's figures or tables.

    Attributes:
        title: its place in the paper, and what it shows.
        measure: computes its numbers from a seed.
        draw: draws them.
        compare: compares them with the paper.
    """

    title: str
    measure: Callable[[int], pd.DataFrame]
    draw: Callable[[pd.DataFrame], Picture]
    compare: Callable[[pd.DataFrame], list[Comparison]]

    def write(self, path: pathlib.Path, numbers: pd.DataFrame) -> None:
        """Writes the numbers as PATH.csv, to six digits, and the picture as PATH.png."""
        charts.write(lambda: self.draw(numbers), path.with_suffix(".png"))
        with written_whole(path.with_suffix(".csv")) as temporary:
            numbers.to_csv(temporary, index=False, float_format="%.6g", lineterminator="\n")


def as_table(title: str, comparisons: list[Comparison]) -> rich.table.Table:
    """A table of what the paper prints beside what was measured."""
    table = rich.table.Table("", "paper", "here", "", "by which measure", title=title)
    for found in comparisons:
        verdict = "[green]✓ agrees" if found.holds else "[red]✗ differs"
        table.add_row(found.about, found.paper, found.ours, verdict, found.reason)
    return table


def depths(count: int) -> Any:
    """A colour map for 1 to `count`, from dark to light, and its normalization."""
    # The lightest end of the colour map is invisible on white.
    shades = [matplotlib.colormaps["viridis"](0.78 * index / 255) for index in range(256)]
    return ListedColormap(shades), Normalize(1, count)


def plain_ticks(axis: Any, marks: list[float]) -> None:
    """Marks of a logarithmic axis, written as plain numbers."""
    axis.set_ticks(marks, [f"{mark:g}" for mark in marks])
    axis.set_ticks([], minor=True)
