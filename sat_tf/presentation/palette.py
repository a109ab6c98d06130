"""The style of pictures: colours for the colour-blind, letters readable at half the size."""

import contextlib
import os
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

from sat_tf.files import check_writable, written_whole

if TYPE_CHECKING:
    from matplotlib.figure import Figure as Picture

# Okabe and Ito, https://jfly.uni-koeln.de/color/. Their yellow is too light for lines on white.
BLACK, ORANGE, SKY, GREEN = "#000000", "#E69F00", "#56B4E9", "#009E73"
BLUE, VERMILION, PURPLE = "#0072B2", "#D55E00", "#CC79A7"
GREY = "#6E6E6E"

# Lines differ in more than colour, so that they are distinct in greyscale.
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
    # Ids in an SVG would otherwise be random.
    "svg.hashsalt": "sat-tf",
}


@contextlib.contextmanager
def styled() -> Iterator[None]:
    """Pictures created and saved inside have the same style."""
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
    """An empty picture and its axes."""
    # Not through pyplot, whose figures stay in memory until closed.
    from matplotlib.figure import Figure as Picture

    picture = Picture(figsize=size)
    return picture, picture.subplots(rows, columns, sharex=sharex, sharey=sharey)


def save(picture: "Picture", path: Any) -> None:
    """Writes a picture; equal pictures give equal files."""
    metadata = {"Date": None} if str(path).endswith(".svg") else {"Software": "sat-tf"}
    picture.savefig(path, metadata=metadata)


_FORMATS = (".png", ".svg")


def write(draw: "Callable[[], Picture]", path: str | os.PathLike[str]) -> None:
    """Draws a picture in the common style; the file appears whole, or not at all."""
    path = check_writable(path)
    if path.suffix.lower() not in _FORMATS:
        raise ValueError(
            f"{path}: received a picture that ends in {path.suffix or 'nothing'}, expected "
            f"{' or '.join(_FORMATS)}; give it such a name."
        )
    with styled(), written_whole(path) as temporary:
        save(draw(), temporary)
