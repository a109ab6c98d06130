"""What a figure is: how its numbers are made, drawn, and compared with what the paper prints."""

import dataclasses
from collections.abc import Callable
from typing import TYPE_CHECKING, TypeAlias

from sat_tf.figures.table import Table

if TYPE_CHECKING:
    from matplotlib.figure import Figure as Picture

# To be called with the share of the work that has been done since the last call.
Advance: TypeAlias = Callable[[float], None]


@dataclasses.dataclass(frozen=True)
class Claim:
    """Something the paper prints beside what came out here.

    Attributes:
        about: what both are about, in plain text.
        paper: the number printed, or the words.
        ours: what was measured, with its spread where it is drawn at random.
        holds: whether they agree.
        reason: by which measure; empty where it is plain.
    """

    about: str
    paper: str
    ours: str
    holds: bool
    reason: str = ""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Figure:
    """One row of the table of figures.

    Attributes:
        name: what users write, and how its files are called.
        place: where the paper has it.
        title: one line.
        caption: what is drawn, and how it was computed.
        seconds: about how long the numbers take on two cores, for the bar.
        columns: of its table.
        measure: makes the numbers from a seed.
        draw: draws them.
        compare: sets them beside what the paper prints.
    """

    name: str
    place: str
    title: str
    caption: str
    seconds: float
    columns: tuple[str, ...]
    measure: Callable[[int, Advance], Table]
    draw: Callable[[Table], "Picture"]
    compare: Callable[[Table], list[Claim]]
