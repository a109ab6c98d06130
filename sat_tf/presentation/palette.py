"""How pictures look: colours that the colour-blind can tell apart, letters for half the size."""

import contextlib
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from matplotlib.figure import Figure as Picture

# Okabe and Ito, https://jfly.uni-koeln.de/color/. Their yellow is too light for lines on white.
BLACK, ORANGE, SKY, GREEN = "#000000", "#E69F00", "#56B4E9", "#009E73"
BLUE, VERMILION, PURPLE = "#0072B2", "#D55E00", "#CC79A7"
GREY = "#6E6E6E"

# Lines differ in more than their colour, so that they can be told apart in grey.
SERIES = (
    {"color": BLUE, "marker": "o", "linestyle": "-"},
    {"color": ORANGE, "marker": "s", "linestyle": "--"},
    {"color": GREEN, "marker": "^", "linestyle": "-."},
    {"color": PURPLE, "marker": "D", "linestyle": ":"},
)

_STYLE = {
    "font.size": 13,
    "axes.labelsize": 13,
    "axes.titlesize": 13,
    "legend.fontsize": 12,
    "legend.frameon": False,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "grid.color": "#E3E3E3",
    "lines.linewidth": 2.0,
    "lines.markersize": 6,
    "figure.constrained_layout.use": True,
    "savefig.dpi": 160,
    # Names of parts of an SVG would otherwise be drawn at random.
    "svg.hashsalt": "sat-tf",
}


@contextlib.contextmanager
def styled() -> Iterator[None]:
    """Pictures that are made and saved inside look alike."""
    import matplotlib

    with matplotlib.rc_context(_STYLE):
        yield


def canvas(
    rows: int = 1,
    columns: int = 1,
    *,
    size: tuple[float, float] = (6.4, 4.2),
    sharex: bool = False,
    sharey: bool = False,
) -> Any:
    """An empty picture and its axes.

    Args:
        rows: of axes.
        columns: of axes.
        size: width and height in inches.
        sharex: whether axes above each other have the same marks, written once.
        sharey: the same for axes beside each other.
    """
    # Not through pyplot, whose pictures stay in memory until somebody closes them.
    from matplotlib.figure import Figure as Picture

    picture = Picture(figsize=size)
    return picture, picture.subplots(rows, columns, sharex=sharex, sharey=sharey)


def depths(count: int) -> Any:
    """A colour for each of 1 to `count`, from dark to light, and what makes its number of it."""
    import matplotlib
    from matplotlib.colors import ListedColormap, Normalize

    # The lightest end of the colour map cannot be seen on white.
    shades = [matplotlib.colormaps["viridis"](0.78 * index / 255) for index in range(256)]
    return ListedColormap(shades), Normalize(1, count)


def plain_ticks(axis: Any, marks: list[float]) -> None:
    """Marks of a logarithmic axis, written as plain numbers."""
    axis.set_ticks(marks, [f"{mark:g}" for mark in marks])
    axis.set_ticks([], minor=True)


def save(picture: "Picture", path: Any) -> None:
    """Writes a picture; one that is drawn alike is the same file."""
    metadata = {"Date": None} if str(path).endswith(".svg") else {"Software": "sat-tf"}
    picture.savefig(path, metadata=metadata)
