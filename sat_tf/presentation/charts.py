"""SVG charts inside a page, in the page's colours.

Lines over the steps of a run, a number for each layer, rows of dots, and histograms of codes. The
style sheet is "presentation/charts.css".
"""

import dataclasses
import math
import statistics
from collections.abc import Iterable, Mapping, Sequence

from markupsafe import Markup, escape


@dataclasses.dataclass(frozen=True)
class _Area:
    """A drawing, and where its axes are.

    Attributes:
        width: of the drawing.
        height: of the drawing.
        left: where x starts.
        right: where x ends.
        top: where y ends.
        bottom: where y starts.
    """

    width: float
    height: float
    left: float
    right: float
    top: float
    bottom: float


_LINES = _Area(width=480.0, height=284.0, left=52.0, right=460.0, top=34.0, bottom=248.0)
_LETTER = 7.0  # about the width of one
_MOST_POINTS = 400

Point = tuple[float, float]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Line:
    """One line of a chart.

    Attributes:
        label: what it shows, in plain text.
        points: x and y, in order of x; a non-finite y leaves a gap.
        colour: a CSS colour.
        dashed: whether it is.
        dots: whether every point has one.
    """

    label: str
    points: Sequence[Point]
    colour: str
    dashed: bool = False
    dots: bool = False


@dataclasses.dataclass(frozen=True, kw_only=True)
class LineChart:
    """A chart of lines over the steps of a run.

    Attributes:
        title: in plain text.
        lines: what to draw.
        stages: first step of each stage and its name, in order.
        logarithmic: whether y is.
        from_zero: whether y starts at 0.
        summary: what it shows, in words, for screen readers.
        caption: what to look at, in plain text; "" for nothing.
        named: the lines of the legend; by default `lines`.
        most_points: how many points of a line are drawn; of more, some are left out.
        least: y cannot be lower.
        most: y cannot be higher.
    """

    title: str
    lines: Sequence[Line]
    stages: Sequence[tuple[float, str]]
    summary: str
    logarithmic: bool = False
    from_zero: bool = False
    caption: str = ""
    named: Sequence[Line] | None = None
    most_points: int = _MOST_POINTS
    least: float = -math.inf
    most: float = math.inf

    def to_figure(self) -> Markup:
        """The chart between its title and its legend."""
        pieces = [f"<figure><figcaption>{escape(self.title)}</figcaption>", self.to_svg()]
        if self.named is not None:
            pieces.append(legend(self.named))
        elif len(self.lines) > 1:
            pieces.append(legend(self.lines))
        if self.caption:
            pieces.append(f"<p>{escape(self.caption)}</p>")
        return _joined([*pieces, "</figure>"])

    def to_svg(self) -> Markup:
        """The chart as an SVG element; a sentence if there is nothing to draw."""
        usable = [
            point
            for line in self.lines
            for point in line.points
            if math.isfinite(point[1]) and (point[1] > 0 or not self.logarithmic)
        ]
        if not usable:
            return Markup("<p>Nothing was recorded.</p>")
        xs = [x for x, _ in usable]
        x = _Axis.between(min([*xs, *(start for start, _ in self.stages)]), max(xs))
        ys = [y for _, y in usable]
        y = _Axis.over(
            0.0 if self.from_zero else min(ys),
            max(ys),
            logarithmic=self.logarithmic,
            least=self.least,
            most=self.most,
        )
        frame = _Frame(x, y)
        return _joined(
            [
                f'<svg viewBox="0 0 {_LINES.width:g} {_LINES.height:g}" role="img" class="chart">',
                f"<title>{escape(self.title)}</title><desc>{escape(self.summary)}</desc>",
                *frame.grid(),
                *frame.stages(self.stages),
                *(frame.line(line, self.most_points) for line in self.lines),
                "</svg>",
            ]
        )


@dataclasses.dataclass(frozen=True)
class _Axis:
    """Where values lie between the ends of an axis, and which of them are marked."""

    low: float
    high: float
    ticks: tuple[float, ...]
    logarithmic: bool = False

    @classmethod
    def over(
        cls,
        low: float,
        high: float,
        *,
        logarithmic: bool = False,
        least: float = -math.inf,
        most: float = math.inf,
    ) -> "_Axis":
        """From a mark at or below the lowest value to one at or above the highest.

        No mark is below `least` or above `most`, between which all values are.
        """
        if logarithmic:
            return cls(*_logarithmic(low, high), logarithmic=True)
        if high <= low:
            low, high = low - (abs(low) or 1.0) / 2, high + (abs(high) or 1.0) / 2
        low, high = max(low, least), min(high, most)
        distance = _tick_distance((high - low) / 5)
        first, last = math.floor(low / distance + 1e-9), math.ceil(high / distance - 1e-9)
        ticks = tuple(index * distance for index in range(first, last + 1))
        ends = max(ticks[0], least), min(ticks[-1], most)
        return cls(*ends, tuple(tick for tick in ticks if ends[0] <= tick <= ends[1]))

    @classmethod
    def between(cls, low: float, high: float) -> "_Axis":
        """From the lowest value to the highest, marked in between."""
        wide = cls.over(low, high)
        if high <= low:
            return wide
        return cls(low, high, tuple(tick for tick in wide.ticks if low <= tick <= high))

    def place(self, value: float) -> float:
        """0 at the low end, 1 at the high one."""
        if self.logarithmic:
            return math.log(value / self.low) / math.log(self.high / self.low)
        return (value - self.low) / (self.high - self.low)


def _tick_distance(least: float) -> float:
    """The next 1, 2 or 5 times a power of ten."""
    power = 10.0 ** math.floor(math.log10(least))
    return next(times * power for times in (1, 2, 5, 10) if times * power >= least * (1 - 1e-9))


def _logarithmic(low: float, high: float) -> tuple[float, float, tuple[float, ...]]:
    """Ends and marks of a logarithmic axis: 1, 2 and 5 of each decade, or the decades of many."""
    few = math.log10(high / low) < 3
    times = (1.0, 2.0, 5.0) if few else (1.0,)
    decades = range(math.floor(math.log10(low)) - 1, math.ceil(math.log10(high)) + 2)
    marks = [factor * 10.0**decade for decade in decades for factor in times]
    first = max(mark for mark in marks if mark <= low * (1 + 1e-9))
    last = min(mark for mark in marks if mark >= high * (1 - 1e-9) and mark > first)
    return first, last, tuple(mark for mark in marks if first <= mark <= last)


class _Frame:
    """The area between two axes."""

    def __init__(self, x: _Axis, y: _Axis) -> None:
        self._x, self._y = x, y

    def grid(self) -> list[str]:
        """The axes with their marks."""
        parts = []
        for tick in self._y.ticks:
            height = self._down(tick)
            parts.append(
                f'<path d="M{_LINES.left:g} {height:.1f}H{_LINES.right:g}" class="grid"/>'
                f'<text x="{_LINES.left - 6:g}" y="{height + 4:.1f}" text-anchor="end">'
                f"{_number(tick)}</text>"
            )
        for tick in self._x.ticks:
            parts.append(
                f'<text x="{self._across(tick):.1f}" y="{_LINES.bottom + 16:g}" '
                f'text-anchor="middle">{_number(tick)}</text>'
            )
        middle = (_LINES.left + _LINES.right) / 2
        parts.append(
            f'<text x="{middle:g}" y="{_LINES.height - 4:g}" text-anchor="middle">'
            "step of the run</text>"
        )
        return parts

    def stages(self, stages: Sequence[tuple[float, str]]) -> list[str]:
        """A line where each stage but the first starts, and the names of all, in two rows."""
        parts = []
        ends = [0.0, 0.0]
        for index, (start, name) in enumerate(stages):
            left = self._across(start)
            if index:
                bottom = _LINES.bottom
                parts.append(f'<path d="M{left:.1f} {_LINES.top:g}V{bottom:g}" class="stage"/>')
            width = _LETTER * len(name)
            left = min(left + 3, _LINES.width - width)
            level = 0 if left >= ends[0] else 1
            if left >= ends[level]:
                ends[level] = left + width
                height = _LINES.top - 7 - 15 * level
                parts.append(f'<text x="{left:.1f}" y="{height:g}">{escape(name)}</text>')
        return parts

    def line(self, line: Line, most_points: int) -> str:
        """One line, with its name as a tooltip."""
        pieces: list[list[Point]] = [[]]
        for x, y in line.points:
            if not math.isfinite(y) or (self._y.logarithmic and y <= 0):
                pieces.append([])
            else:
                pieces[-1].append((x, y))
        share = most_points / max(len(line.points), most_points)
        path = dots = ""
        for piece in filter(None, pieces):
            thin = thinned(piece, max(2, math.ceil(share * len(piece))))
            places = [(f"{self._across(x):.1f}", f"{self._down(y):.1f}") for x, y in thin]
            path += "M" + "L".join(" ".join(place) for place in places)
            if line.dots or len(places) == 1:
                dots += "".join(f'<circle cx="{x}" cy="{y}" r="2.2"/>' for x, y in places)
        return (
            f'<g stroke="{line.colour}" fill="{line.colour}" class="line">'
            f"<title>{escape(line.label)}</title>"
            f'<path d="{path}"{_dashes(line)}/>{dots}</g>'
        )

    def _across(self, x: float) -> float:
        return _LINES.left + self._x.place(x) * (_LINES.right - _LINES.left)

    def _down(self, y: float) -> float:
        return _LINES.bottom - self._y.place(y) * (_LINES.bottom - _LINES.top)


def thinned(points: Sequence[Point], most: int) -> list[Point]:
    """At most `most` of the points, two or more, spread evenly with both ends.

    >>> thinned([(0, 5), (1, 6), (2, 7), (3, 8), (4, 9)], most=3)
    [(0, 5), (2, 7), (4, 9)]
    """
    if len(points) <= most:
        return list(points)
    return [points[index * (len(points) - 1) // (most - 1)] for index in range(most)]


def legend(lines: Sequence[Line]) -> Markup:
    """The names of lines beside their colours."""
    return _legend(
        (
            f'<svg viewBox="0 0 22 8" width="22" height="8" aria-hidden="true">'
            f'<path d="M1 4H21" stroke="{line.colour}" stroke-width="2"{_dashes(line)}/></svg>',
            line.label,
        )
        for line in lines
    )


def _legend(items: Iterable[tuple[str, str]]) -> Markup:
    """A list of drawings, each with the words that it stands for."""
    listed = "".join(f"<li>{drawing}{escape(words)}</li>" for drawing, words in items)
    return Markup(f'<ul class="legend">{listed}</ul>')


def _joined(pieces: Iterable[str]) -> Markup:
    """Pieces of HTML, of which all that is plain text has been escaped."""
    return Markup("\n".join(pieces))


def _dashes(line: Line) -> str:
    return ' stroke-dasharray="5 4"' if line.dashed else ""


def _number(value: float) -> str:
    """A mark of an axis, short.

    >>> _number(0.30000000000000004), _number(20000.0), _number(1e-05), _number(0.0)
    ('0.3', '20 000', '1e-05', '0')
    """
    if abs(value) < 1e-12:
        return "0"
    return f"{value:,.0f}".replace(",", " ") if abs(value) >= 1000 else f"{value:.4g}"


_DOTS = _Area(width=900.0, height=300.0, left=64.0, right=884.0, top=14.0, bottom=266.0)
_MARKS = (
    '<circle cx="{x:.1f}" cy="{y:.1f}" r="4"/>',
    '<path d="M{x:.1f} {y:.1f}m-4-4h8v8h-8z"/>',
    '<path d="M{x:.1f} {y:.1f}m0-5l5 9h-10z"/>',
    '<path d="M{x:.1f} {y:.1f}m0-5l5 5l-5 5l-5-5z"/>',
)


@dataclasses.dataclass(frozen=True)
class Dots:
    """A number for each layer.

    Attributes:
        label: what it is, in plain text.
        values: one a layer; None leaves the place empty.
    """

    label: str
    values: Sequence[float | None]


@dataclasses.dataclass(frozen=True, kw_only=True)
class DotChart:
    """A chart over the layers, in graph order; y is logarithmic unless it is a share.

    Attributes:
        title: in plain text.
        x_label: what is numbered along x.
        y_label: what y is, with its unit.
        names: of the layers, for tooltips.
        dots: what to draw, at most four kinds.
        wanted: the good range of y.
        is_share: y goes from 0 to 1.
    """

    title: str
    x_label: str
    y_label: str
    names: Sequence[str]
    dots: Sequence[Dots]
    wanted: tuple[float, float] | None = None
    is_share: bool = False

    def to_svg(self) -> Markup:
        """The chart with its legend; "" if there is nothing to draw."""
        kinds = [dots for dots in self.dots if any(map(self._drawable, dots.values))]
        if not kinds:
            return Markup("")
        low, high, ticks = self._axis(kinds)
        parts = [
            f"<figure><figcaption>{escape(self.title)}</figcaption>",
            f'<svg viewBox="0 0 {_DOTS.width:g} {_DOTS.height:g}" role="img" class="dots">'
            f"<title>{escape(self.title)}</title>",
            self._band(low, high),
            *(self._tick(tick, low, high) for tick in ticks),
            self._labels(),
        ]
        for number, dots in enumerate(kinds):
            parts.append(f'<g class="kind{number}">')
            parts += [
                self._mark(number, index, value, low, high, dots.label)
                for index, value in enumerate(dots.values)
                if self._drawable(value) and value is not None
            ]
            parts.append("</g>")
        parts.append("</svg>")
        if len(kinds) > 1:
            parts.append(_legend_of_dots(kinds))
        return _joined([*parts, "</figure>"])

    def _drawable(self, value: float | None) -> bool:
        return value is not None and math.isfinite(value) and (value > 0 or self.is_share)

    def _axis(self, kinds: Sequence[Dots]) -> tuple[float, float, list[float]]:
        if self.is_share:
            return 0.0, 1.0, [0.0, 0.25, 0.5, 0.75, 1.0]
        values = [v for dots in kinds for v in dots.values if self._drawable(v) and v is not None]
        values += list(self.wanted or ())
        first = math.floor(math.log10(min(values)) + 1e-9)
        last = max(math.ceil(math.log10(max(values)) - 1e-9), first + 1)
        every = math.ceil((last - first) / 8)
        return 10.0**first, 10.0**last, [10.0**k for k in range(first, last + 1, every)]

    def _down(self, value: float, low: float, high: float) -> float:
        place = value if self.is_share else math.log(value / low) / math.log(high / low)
        return _DOTS.bottom - place * (_DOTS.bottom - _DOTS.top)

    def _across(self, index: int) -> float:
        return _DOTS.left + (index + 0.5) / len(self.names) * (_DOTS.right - _DOTS.left)

    def _band(self, low: float, high: float) -> str:
        if self.wanted is None:
            return ""
        bottom, top = (self._down(min(max(v, low), high), low, high) for v in self.wanted)
        width = _DOTS.right - _DOTS.left
        return (
            f'<rect x="{_DOTS.left:g}" y="{top:.1f}" width="{width:g}" height="{bottom - top:.1f}" '
            'class="wanted"><title>wanted</title></rect>'
        )

    def _tick(self, tick: float, low: float, high: float) -> str:
        height = self._down(tick, low, high)
        return (
            f'<path d="M{_DOTS.left:g} {height:.1f}H{_DOTS.right:g}" class="grid"/>'
            f'<text x="{_DOTS.left - 6:g}" y="{height + 4:.1f}" text-anchor="end">{tick:g}</text>'
        )

    def _labels(self) -> str:
        count = len(self.names)
        every = max(1, math.ceil(count / 20))
        numbers = "".join(
            f'<text x="{self._across(index):.1f}" y="{_DOTS.bottom + 15:g}" '
            f'text-anchor="middle">{index + 1}</text>'
            for index in range(0, count, every)
        )
        middle, half = (
            (_DOTS.left + _DOTS.right) / 2,
            (_DOTS.top + _DOTS.bottom) / 2,
        )
        return (
            f'{numbers}<text x="{middle:g}" y="{_DOTS.height - 4:g}" text-anchor="middle">'
            f'{escape(self.x_label)}</text><text transform="translate(12 {half:g}) rotate(-90)" '
            f'text-anchor="middle">{escape(self.y_label)}</text>'
        )

    def _mark(
        self, kind: int, index: int, value: float, low: float, high: float, label: str
    ) -> str:
        shape = _MARKS[kind].format(x=self._across(index), y=self._down(value, low, high))
        words = f"{index + 1} {self.names[index]}: {label} {value:.3g}"
        return f"<g>{shape}<title>{escape(words)}</title></g>"


def _legend_of_dots(kinds: Sequence[Dots]) -> Markup:
    return _legend(
        (
            f'<svg viewBox="0 0 14 14" width="14" height="14" class="dots" aria-hidden="true">'
            f'<g class="kind{number}">{_MARKS[number].format(x=7.0, y=7.0)}</g></svg>',
            dots.label,
        )
        for number, dots in enumerate(kinds)
    )


_ROW_WIDTH, _ROW_HEIGHT = 480.0, 24.0
_ROW_LEFT, _ROW_RIGHT, _ROWS_TOP, _ROWS_BOTTOM = 176.0, 432.0, 6.0, 40.0


def rows_of_dots(rows: Sequence[tuple[str, Mapping[int, float]]], *, title: str) -> Markup:
    """A drawing with a line for each row, its mean beside it; "" if nothing was measured.

    Args:
        rows: label and top-1 in percent by seed; rows without seeds are drawn empty.
        title: for screen readers, in plain text.
    """
    values = [value for _, by_seed in rows for value in by_seed.values()]
    if not values:
        return Markup("")
    distance = 10.0 if max(values) - min(values) > 15 else 5.0
    low = max(0.0, distance * ((min(values) - 1) // distance))
    high = min(100.0, distance * -(-(max(values) + 1) // distance))
    height = _ROWS_TOP + _ROW_HEIGHT * len(rows) + _ROWS_BOTTOM

    def across(value: float) -> float:
        return _ROW_LEFT + (value - low) / (high - low) * (_ROW_RIGHT - _ROW_LEFT)

    parts = []
    bottom = height - _ROWS_BOTTOM
    for tick in range(round((high - low) / distance) + 1):
        value = low + distance * tick
        parts.append(
            f'<path d="M{across(value):.1f} {_ROWS_TOP:g}V{bottom:g}" class="grid"/>'
            f'<text x="{across(value):.1f}" y="{bottom + 16:g}" text-anchor="middle">'
            f"{value:g}</text>"
        )
    centre = (_ROW_LEFT + _ROW_RIGHT) / 2
    parts.append(
        f'<text x="{centre:g}" y="{height - 6:g}" text-anchor="middle">held-out top-1, %</text>'
    )
    for index, (label, by_seed) in enumerate(rows):
        middle = _ROWS_TOP + _ROW_HEIGHT * (index + 0.5)
        parts.append(
            f'<text x="{_ROW_LEFT - 10:g}" y="{middle + 4:.1f}" text-anchor="end" class="name">'
            f"{escape(label)}</text>"
        )
        if not by_seed:
            parts.append(f'<text x="{_ROW_LEFT + 6:g}" y="{middle + 4:.1f}">not run</text>')
            continue
        mean = statistics.fmean(by_seed.values())
        parts.append(
            f'<path d="M{across(mean):.1f} {middle - 8:.1f}V{middle + 8:.1f}" class="mean"/>'
            f'<text x="{_ROW_RIGHT + 8:g}" y="{middle + 4:.1f}" class="name">{mean:.1f}</text>'
        )
        parts += [
            f'<circle cx="{across(value):.1f}" cy="{middle:.1f}" r="3.6">'
            f"<title>seed {seed}: {value:.2f} %</title></circle>"
            for seed, value in sorted(by_seed.items())
        ]
    summary = "; ".join(
        f"{label} {statistics.fmean(by_seed.values()):.1f}" for label, by_seed in rows if by_seed
    )
    return Markup(
        f'<svg viewBox="0 0 {_ROW_WIDTH:g} {height:g}" role="img" class="chart strips">'
        f"<title>{escape(title)}</title><desc>Mean top-1 in percent: {escape(summary)}.</desc>"
        f"{''.join(parts)}</svg>"
    )


_BARS_HEIGHT, _BARS_WIDTH = 24, 128
# The gap between bars, as a share of their distance; many codes are drawn without.
_GAP = 0.25
_MOST_WITH_GAPS = 32
_WIDEST_BAR = 8.0


def histogram(counts: Sequence[int], caption: str) -> Markup:
    """An SVG with a place for every code, in the page's colours.

    Heights are square roots of shares, because one code, often that of 0, has most of them. A code
    that occurs at all has a visible bar, and one that does not has none.

    Args:
        counts: how often each code occurs.
        caption: what it shows, for tooltips and screen readers.
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
