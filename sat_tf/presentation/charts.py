"""Pictures of matplotlib: files in one style, and charts of a page, in the page's colours.

Charts are lines over the steps of a run, a number for each layer, and the histograms of codes
inside tables, as SVG elements. Their style sheet is "presentation/charts.css".
"""

import contextlib
import dataclasses
import io
import math
import os
import re
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any
from xml.etree import ElementTree

import numpy as np
from markupsafe import Markup, escape

from sat_tf.files import check_writable, written_whole
from sat_tf.messages import printable

if TYPE_CHECKING:
    from matplotlib.figure import Figure as Picture

# -- pictures in files: colours for the colour-blind, letters readable at half the size --------

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

_FILE_STYLE = {
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

    with matplotlib.rc_context(_FILE_STYLE):
        yield


def canvas(
    rows: int = 1, columns: int = 1, *, size: tuple[float, float] = (6.4, 4.2), **options: Any
) -> Any:
    """An empty picture and its axes, with options of matplotlib's `subplots`."""
    # Not through pyplot, whose figures stay in memory until closed.
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

# A page has its own colours, which depend on whether it is dark. matplotlib knows no variables of
# CSS, and draws with stand-ins for them.
_VARIABLES = (
    *("ink", "paper", "soft", "line", "good"),
    *("curve", "other", "third", "kind0", "kind1", "kind2", "kind3"),
)
STAND_INS = {f"var(--{name})": f"#fe01{index:02x}" for index, name in enumerate(_VARIABLES)}
_COLOUR_OF = {stand_in: name for name, stand_in in STAND_INS.items()}
_SOFT, _LINE = STAND_INS["var(--soft)"], STAND_INS["var(--line)"]

_POINTS_PER_INCH = 72.0  # of which a unit of an SVG is one
_FONT = 11.5
_PAGE_STYLE = {
    "font.size": _FONT,
    # Names of layers and classes are no formulas.
    "text.parse_math": False,
    "text.color": _SOFT,
    "axes.labelcolor": _SOFT,
    "xtick.labelcolor": _SOFT,
    "ytick.labelcolor": _SOFT,
    "axes.grid": True,
    "axes.grid.axis": "y",
    "grid.color": _LINE,
    "grid.linewidth": 1.0,
    **{f"{axis}tick.{size}.size": 0.0 for axis in "xy" for size in ("major", "minor")},
    "lines.linewidth": 1.6,
    "lines.markersize": 4.4,
    # Text stays text, which can be selected and searched.
    "svg.fonttype": "none",
    # Ids would otherwise be random.
    "svg.hashsalt": "sat-tf",
}
_TIP = "tip:"
_REFERENCE = "{http://www.w3.org/1999/xlink}href"
_LONG_NUMBER = re.compile(r"\d+\.\d{3,}")


@contextlib.contextmanager
def drawn_for_a_page() -> Iterator[None]:
    """Pictures created and saved inside have the style of pages; `STAND_INS` are their colours."""
    import matplotlib  # here and below because it is slow to load

    with matplotlib.rc_context(_PAGE_STYLE), warnings.catch_warnings():
        # The fonts of the browser have what matplotlib's own lack.
        warnings.filterwarnings("ignore", message="Glyph")
        yield


def tip(words: str) -> str:
    """The id of an artist that has a tooltip on a page."""
    return _TIP + printable(words)


def svg_element(picture: "Picture", *, kind: str, title: str, summary: str = "") -> Markup:
    """A picture drawn inside `drawn_for_a_page` as an element of a page, of a class of its CSS."""
    content = io.StringIO()
    metadata = dict.fromkeys(("Date", "Creator", "Format", "Type"))  # equal pictures are equal text
    picture.savefig(content, format="svg", metadata=metadata)
    root = ElementTree.fromstring(printable(content.getvalue()))
    root.remove(root[0])  # a style of everything on the page
    _tidy(root)
    root.attrib = {"viewBox": root.attrib["viewBox"], "role": "img", "class": kind}
    root.set("stroke-linejoin", "round")
    root[:0] = [_named("title", title), *([_named("desc", summary)] if summary else [])]
    text = ElementTree.tostring(root, encoding="unicode")
    # Letters are those of the page, of which matplotlib's are as wide or wider.
    text = re.sub("'DejaVu Sans'[^;]*sans-serif", "system-ui, sans-serif", text)
    return Markup(re.sub("#fe01[0-9a-f]{2}", lambda found: _COLOUR_OF[found[0]], text))


def _tidy(element: ElementTree.Element) -> None:
    """Leaves what is drawn, with tooltips, and to a hundredth of a unit.

    Nothing is clipped: dots at the ends of an axis are whole.
    """
    element.tag = element.tag.partition("}")[2]
    element.attrib.pop("clip-path", None)
    identity = element.attrib.pop("id", "")
    if element.tag == "path" and identity:
        element.set("id", identity)  # of a mark, which is drawn by reference
    if (mark := element.attrib.pop(_REFERENCE, None)) is not None:
        element.set("href", mark)
    for name in {"d", "x", "y", "transform"} & element.attrib.keys():
        rounded = _LONG_NUMBER.sub(lambda found: f"{float(found[0]):.2f}", element.attrib[name])
        element.set(name, " ".join(rounded.split()))
    if element.get("transform", "").startswith("rotate(-0 "):
        del element.attrib["transform"]
    children: list[ElementTree.Element] = []
    for child in element:
        if child.tag.endswith("}clipPath"):
            continue
        _tidy(child)
        child.tail = ""
        is_group = child.tag == "g" and not child.attrib and child.find("title") is None
        children += child if is_group else [child]
    element[:] = children
    if children:
        element.text = ""
    if identity.startswith(_TIP):
        element.insert(0, _named("title", identity.removeprefix(_TIP)))


def _named(tag: str, words: str) -> ElementTree.Element:
    element = ElementTree.Element(tag)
    element.text = words
    return element


Point = tuple[float, float]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Line:
    """One line of a chart."""

    label: str  # What it shows, in plain text.
    points: Sequence[Point] = ()  # X and y, in order of x; a non-finite y leaves a gap.
    colour: str  # A CSS colour.
    dashed: bool = False  # Whether it is.
    dots: bool = False  # Whether every point has one.


_LINES_SIZE = (480.0, 284.0)
_LINES_AREA = (52.0, 36.0, 408.0, 214.0)  # left, bottom, width and height of the axes


@dataclasses.dataclass(frozen=True, kw_only=True)
class LineChart:
    """A chart of lines over the steps of a run."""

    title: str  # In plain text.
    lines: Sequence[Line]  # What to draw.
    stages: Sequence[tuple[float, str]]  # First step of each stage and its name, in order.
    summary: str  # What it shows, in words, for screen readers.
    logarithmic: bool = False  # Whether y is.
    from_zero: bool = False  # Whether y starts at 0.
    caption: str = ""  # What to look at, in plain text; "" for nothing.
    least: float = -math.inf  # Y cannot be lower.
    most: float = math.inf  # Y cannot be higher.
    across: str = "step of the run"  # What x is.

    def to_figure(self) -> Markup:
        """The chart between its title and its legend."""
        pieces = [f"<figure><figcaption>{escape(self.title)}</figcaption>", self.to_svg()]
        if len(self.lines) > 1:
            pieces.append(legend(self.lines))
        if self.caption:
            pieces.append(f"<p>{escape(self.caption)}</p>")
        return Markup("\n".join([*pieces, "</figure>"]))

    def to_svg(self) -> Markup:
        """The chart as an SVG element; a sentence if there is nothing to draw."""
        with drawn_for_a_page():
            picture, axes = _with_axes(_LINES_SIZE, _LINES_AREA)
            if not self._draw(axes):
                return Markup("<p>Nothing was recorded.</p>")
            return svg_element(picture, kind="chart", title=self.title, summary=self.summary)

    def _draw(self, axes: Any) -> bool:
        """Draws the chart on axes of matplotlib; returns whether there is anything to draw."""
        usable = [point for line in self.lines for point in line.points if self._is_drawn(point[1])]
        if not usable:
            return False
        xs, ys = zip(*usable, strict=True)
        low = min([*xs, *(start for start, _ in self.stages)])
        # One step alone is in the middle.
        axes.set_xlim((low, max(xs)) if low < max(xs) else (low - 0.5, low + 0.5))
        axes.set_xlabel(self.across, labelpad=3.0)
        _show_marks(axes.xaxis, logarithmic=False, count=5)
        if self.logarithmic:
            axes.set_yscale("log")
        _show_marks(axes.yaxis, logarithmic=self.logarithmic, count=6)
        low, high = _held(axes.yaxis, 0.0 if self.from_zero else min(ys), max(ys))
        axes.set_ylim(max(low, self.least), min(high, self.most))
        for line in self.lines:
            drawn = np.array([self._is_drawn(y) for _, y in line.points], bool)
            # A point between two gaps has no line through it.
            around = np.pad(drawn, 1)
            lonely = np.flatnonzero(drawn & ~around[:-2] & ~around[2:]).tolist()
            axes.plot(
                [x for x, _ in line.points],
                np.where(drawn, [y for _, y in line.points], np.nan),
                label=line.label,
                color=STAND_INS.get(line.colour, line.colour),
                linestyle=(0, (5, 4)) if line.dashed else "-",
                marker="o" if line.dots or lonely else "",
                markevery=None if line.dots else lonely or None,
                gid=tip(line.label),
            )
        # A line stands where each stage but the first starts, and the names of all in two rows.
        left, right = axes.get_xlim()
        for index, (start, name) in enumerate(self.stages):
            if index:
                axes.axvline(start, color=_SOFT, linewidth=1.0, linestyle=(0, (2, 3)))
            is_late = start - left > 0.75 * (right - left)
            axes.annotate(
                printable(name),
                (start, 1.0),
                xycoords=("data", "axes fraction"),
                xytext=(-3 if is_late else 3, 7 + 14 * (index % 2)),
                textcoords="offset points",
                horizontalalignment="right" if is_late else "left",
            )
        return True

    def _is_drawn(self, y: float) -> bool:
        return math.isfinite(y) and (y > 0 or not self.logarithmic)


def _with_axes(
    size: tuple[float, float], area: tuple[float, float, float, float]
) -> "tuple[Picture, Any]":
    """A picture without a ground, with axes in an area: left, bottom, width, height of the SVG."""
    from matplotlib.figure import Figure

    (width, height), (left, bottom, across, up) = size, area
    inches = width / _POINTS_PER_INCH, height / _POINTS_PER_INCH
    picture = Figure(figsize=inches, dpi=_POINTS_PER_INCH, frameon=False)
    place = (left / width, bottom / height, across / width, up / height)
    axes = picture.add_axes(place, frameon=False)
    axes.set_axisbelow(True)
    return picture, axes


def _show_marks(axis: Any, *, logarithmic: bool, count: int) -> None:
    """Marks an axis at round numbers."""
    from matplotlib.ticker import FuncFormatter, LogLocator, MaxNLocator, NullLocator

    locator = (
        LogLocator(subs=(1.0, 2.0, 5.0)) if logarithmic else MaxNLocator(count, steps=[1, 2, 5, 10])
    )
    axis.set_major_locator(locator)
    axis.set_minor_locator(NullLocator())
    axis.set_major_formatter(FuncFormatter(lambda value, _: _number(value)))


def _held(axis: Any, low: float, high: float) -> tuple[float, float]:
    """The last mark at or below the lowest value, and the first at or above the highest."""
    locator = axis.get_major_locator()
    place: Callable[[Any], Any] = np.asarray
    if axis.get_scale() == "log":
        place = np.log10
        if high >= 1000 * low:
            locator.set_params(subs=(1.0,))
        ends = low / 10, high * 10
    elif high <= low:
        low, high = ends = low - (abs(low) or 1.0) / 2, high + (abs(high) or 1.0) / 2
    else:
        ends = low, high
    marks = np.asarray(locator.tick_values(*ends))
    slack = 1e-9 * np.ptp(place(marks))
    first = marks[place(marks) <= place(low) + slack][-1]
    return first, marks[(marks > first) & (place(marks) >= place(high) - slack)][0]


def legend(lines: Sequence[Line]) -> Markup:
    """The names of lines beside their colours."""
    return _legend(
        (
            f'<svg viewBox="0 0 22 8" width="22" height="8" aria-hidden="true">'
            f'<path d="M1 4H21" stroke="{line.colour}" stroke-width="2" '
            f'stroke-dasharray="{"5 4" if line.dashed else "none"}"/></svg>',
            line.label,
        )
        for line in lines
    )


def _legend(items: Iterable[tuple[str, str]]) -> Markup:
    """A list of drawings, each with the words that it stands for."""
    listed = "".join(f"<li>{drawing}{escape(words)}</li>" for drawing, words in items)
    return Markup(f'<ul class="legend">{listed}</ul>')


def _number(value: float) -> str:
    """A mark of an axis, short.

    >>> _number(0.30000000000000004), _number(20000.0), _number(1e-05), _number(0.0)
    ('0.3', '20 000', '1e-05', '0')
    """
    if abs(value) < 1e-12:
        return "0"
    return f"{value:,.0f}".replace(",", " ") if abs(value) >= 1000 else f"{value:.4g}"


_DOTS_SIZE = (900.0, 300.0)
_DOTS_AREA = (80.0, 34.0, 804.0, 252.0)
# For matplotlib, and in the legend.
_MARKS = (("o", "●"), ("s", "■"), ("^", "▲"), ("D", "◆"))


@dataclasses.dataclass(frozen=True)
class Dots:
    """A number for each layer."""

    label: str  # What it is, in plain text.
    values: Sequence[float | None]  # One a layer; None leaves the place empty.


@dataclasses.dataclass(frozen=True, kw_only=True)
class DotChart:
    """A chart over the layers, in graph order; y is logarithmic unless it is a share."""

    title: str  # In plain text.
    x_label: str  # What is numbered along x.
    y_label: str  # What y is, with its unit.
    names: Sequence[str]  # Of the layers, for tooltips.
    dots: Sequence[Dots]  # What to draw, at most four kinds.
    wanted: tuple[float, float] | None = None  # The good range of y.
    is_share: bool = False  # Y goes from 0 to 1.

    def to_figure(self) -> Markup:
        """The chart between its title and its legend; "" if there is nothing to draw."""
        kinds = [dots for dots in self.dots if any(map(self._is_drawn, dots.values))]
        if not kinds:
            return Markup("")
        with drawn_for_a_page():
            picture, axes = _with_axes(_DOTS_SIZE, _DOTS_AREA)
            count = len(self.names)
            axes.set_xlim(0.5, count + 0.5)
            axes.set_xticks(range(1, count + 1, max(1, math.ceil(count / 20))))
            if self.is_share:
                axes.set_ylim(0.0, 1.0)
                axes.set_yticks([0.0, 0.25, 0.5, 0.75, 1.0], ["0", "0.25", "0.5", "0.75", "1"])
            else:
                axes.set_yscale("log")
                _show_marks(axes.yaxis, logarithmic=True, count=8)
                axes.yaxis.get_major_locator().set_params(subs=(1.0,))
                values = (value for dots in kinds for value in dots.values)
                drawn = [value for value in values if value is not None and self._is_drawn(value)]
                drawn += self.wanted or ()
                axes.set_ylim(_held(axes.yaxis, min(drawn), max(drawn)))
            axes.set_xlabel(self.x_label)
            axes.set_ylabel(self.y_label, rotation_mode="anchor")
            axes.yaxis.set_label_coords(-66.0 / _DOTS_AREA[2], 0.5)
            if self.wanted is not None:
                axes.axhspan(
                    *self.wanted, color=STAND_INS["var(--good)"], alpha=0.13, gid=tip("wanted")
                )
            for number, dots in enumerate(kinds):
                for index, value in enumerate(dots.values):
                    if self._is_drawn(value):
                        words = f"{index + 1} {self.names[index]}: {dots.label} {value:.3g}"
                        axes.plot(
                            index + 1,
                            value,
                            marker=_MARKS[number][0],
                            markersize=8.0,
                            color=STAND_INS[f"var(--kind{number})"],
                            gid=tip(words),
                        )
            # It scrolls by itself where it is wider than the page.
            region = Markup('<div class="wide" tabindex="0" role="region" aria-label="{}">{}</div>')
            element = svg_element(picture, kind="dots", title=self.title)
            pieces = [
                f"<figure><figcaption>{escape(self.title)}</figcaption>",
                region.format(self.title, element),
            ]
        if len(kinds) > 1:
            pieces.append(
                _legend(
                    (
                        f'<span style="color:var(--kind{number})" aria-hidden="true">'
                        f"{_MARKS[number][1]}</span>",
                        dots.label,
                    )
                    for number, dots in enumerate(kinds)
                )
            )
        return Markup("\n".join([*pieces, "</figure>"]))

    def _is_drawn(self, value: float | None) -> bool:
        return value is not None and math.isfinite(value) and (value > 0 or self.is_share)


_BARS_HEIGHT, _BARS_WIDTH = 24, 128
# The gap between bars, as a share of their distance; many codes are drawn without.
_GAP = 0.25
_MOST_WITH_GAPS = 32
_WIDEST_BAR = 8.0


def histogram(counts: Sequence[int], caption: str) -> Markup:
    """A picture for a cell of a table with a place for every code, in the page's colours.

    It is one path: a certificate has two for each tensor, for which matplotlib would take seconds.
    Heights are square roots of shares, because one code, often that of 0, has most of them. A code
    that occurs at all has a visible bar, and one that does not has none.
    """
    pitch = _BARS_WIDTH / len(counts)
    width = min(pitch * (1.0 - _GAP), _WIDEST_BAR) if len(counts) <= _MOST_WITH_GAPS else pitch
    largest = max(counts, default=0)
    bars = []
    for index, count in enumerate(counts):
        if count:
            height = max(1.5, (_BARS_HEIGHT - 2) * math.sqrt(count / largest))
            left = index * pitch + (pitch - width) / 2
            bars.append(f"M{left:.4g} {_BARS_HEIGHT - 1}v-{height:.3g}h{width:.4g}v{height:.3g}z")
    return Markup(
        f'<svg viewBox="0 0 {_BARS_WIDTH} {_BARS_HEIGHT}" width="{_BARS_WIDTH}" '
        f'height="{_BARS_HEIGHT}" role="img">'
        f"<title>{escape(caption)}</title>"
        f'<path d="M0 {_BARS_HEIGHT - 0.5}h{_BARS_WIDTH}" stroke="currentColor" opacity=".4"/>'
        f'<path d="{"".join(bars)}" fill="currentColor"/></svg>'
    )
