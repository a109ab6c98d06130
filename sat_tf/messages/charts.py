"""Pictures of matplotlib in one style, and histograms in tables."""

import base64
import contextlib
import io
import math
import os
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

from markupsafe import Markup, escape

from sat_tf.files import check_writable, written_whole

if TYPE_CHECKING:
    from matplotlib.figure import Figure as Picture

# Colours for the colour-blind: Okabe and Ito, https://jfly.uni-koeln.de/color/. Their yellow is too
# light for lines on white.
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

# Text stays readable at half the size.
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
def styled(**more: Any) -> Iterator[None]:
    """Pictures created and saved inside have the same style."""
    import matplotlib  # here and below because it is slow to load

    with matplotlib.rc_context({**_STYLE, **more}):
        yield


def canvas(
    rows: int = 1, columns: int = 1, *, size: tuple[float, float] = (6.4, 4.2), **options: Any
) -> Any:
    """An empty picture and its axes, with options of matplotlib's `subplots`."""
    # pyplot is avoided, because its figures stay in memory until closed.
    from matplotlib.figure import Figure as Picture

    picture = Picture(figsize=size)
    return picture, picture.subplots(rows, columns, **options)


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


# -- charts of a page ---------------------------------------------------------------------------


def figure(title: str, draw: Callable[[Any], object]) -> Markup:
    """Returns a chart for a page: a title, and what `draw` draws on axes of matplotlib."""
    content = io.StringIO()
    # Text stays text, which takes a tenth of the bytes of its outlines.
    with styled(**{"svg.fonttype": "none"}):
        picture, axes = canvas(size=(6.4, 3.8))
        draw(axes)
        if len(axes.get_legend_handles_labels()[1]) > 1:
            axes.legend()
        metadata = dict.fromkeys(("Date", "Creator", "Format", "Type"))
        picture.savefig(content, format="svg", metadata=metadata)
    # Each chart is its own image, because styles and ids of several would clash in a page.
    data = base64.b64encode(content.getvalue().encode()).decode()
    return Markup(
        '<figure><figcaption>{0}</figcaption>\n<img alt="{0}" src="data:image/svg+xml;base64,{1}">'
        "</figure>"
    ).format(title, data)


_BARS_HEIGHT, _BARS_WIDTH = 24, 128


def histogram(counts: Sequence[int], caption: str) -> Markup:
    """A picture for a cell of a table with a place for every code, in the page's colours.

    It is one path: a certificate has two for each tensor, for which matplotlib would take seconds.
    Heights are square roots of shares, because one code, often that of 0, has most of them. A code
    that occurs at all has a visible bar, and one that does not has none.
    """
    pitch = _BARS_WIDTH / len(counts)
    width = min(0.75 * pitch, 8.0)
    largest = max(counts, default=0)
    bars = []
    for index, count in enumerate(counts):
        if count:
            height = max(1.5, (_BARS_HEIGHT - 2) * math.sqrt(count / largest))
            edge = index * pitch + (pitch - width) / 2
            bars.append(f"M{edge:.4g} {_BARS_HEIGHT - 1}v-{height:.3g}h{width:.4g}v{height:.3g}z")
    return Markup(
        f'<svg viewBox="0 0 {_BARS_WIDTH} {_BARS_HEIGHT}" width="{_BARS_WIDTH}" '
        f'height="{_BARS_HEIGHT}" role="img">'
        f"<title>{escape(caption)}</title>"
        f'<path d="M0 {_BARS_HEIGHT - 0.5}h{_BARS_WIDTH}" stroke="currentColor" opacity=".4"/>'
        f'<path d="{"".join(bars)}" fill="currentColor"/></svg>'
    )
