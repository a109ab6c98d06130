"""Line charts as drawings inside a page; their colours are the page's."""

import dataclasses
import math
from collections.abc import Sequence

from sat_tf.presentation.page import text

_WIDTH, _HEIGHT = 480.0, 284.0
_LEFT, _RIGHT, _TOP, _BOTTOM = 52.0, 20.0, 34.0, 36.0
_LETTER = 7.0  # about the width of one
_MOST_POINTS = 400

Point = tuple[float, float]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Line:
    """One line of a chart.

    Attributes:
        label: what it shows, in plain text.
        points: x and y, in order of x; y that is not finite leaves a gap.
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
class Chart:
    """A chart of lines over the steps of a run.

    Attributes:
        title: in plain text.
        lines: what to draw.
        stages: first step of each stage and its name, in order.
        logarithmic: whether y is.
        from_zero: whether y starts at 0.
        summary: what it shows, in words, for who cannot see it.
    """

    title: str
    lines: Sequence[Line]
    stages: Sequence[tuple[float, str]]
    summary: str
    logarithmic: bool = False
    from_zero: bool = False

    def to_svg(self) -> str:
        """The chart as an SVG element; a sentence where there is nothing to draw."""
        usable = [
            point
            for line in self.lines
            for point in line.points
            if math.isfinite(point[1]) and (point[1] > 0 or not self.logarithmic)
        ]
        if not usable:
            return "<p>Nothing was recorded.</p>"
        xs = [x for x, _ in usable]
        x = _Axis.over(min([*xs, *(start for start, _ in self.stages)]), max(xs))
        ys = [y for _, y in usable]
        y = _Axis.over(0.0 if self.from_zero else min(ys), max(ys), logarithmic=self.logarithmic)
        frame = _Frame(x, y)
        return "\n".join(
            [
                f'<svg viewBox="0 0 {_WIDTH:g} {_HEIGHT:g}" role="img" class="chart">',
                f"<title>{text(self.title)}</title><desc>{text(self.summary)}</desc>",
                *frame.grid(),
                *frame.stages(self.stages),
                *(frame.line(line) for line in self.lines),
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
    def over(cls, low: float, high: float, *, logarithmic: bool = False) -> "_Axis":
        if logarithmic:
            return cls(*_logarithmic(low, high), logarithmic=True)
        if high <= low:
            low, high = low - (abs(low) or 1.0) / 2, high + (abs(high) or 1.0) / 2
        step = _round_step((high - low) / 5)
        first, last = math.floor(low / step + 1e-9), math.ceil(high / step - 1e-9)
        ticks = tuple(index * step for index in range(first, last + 1))
        return cls(ticks[0], ticks[-1], ticks)

    def place(self, value: float) -> float:
        """0 at the low end, 1 at the high one."""
        if self.logarithmic:
            return math.log(value / self.low) / math.log(self.high / self.low)
        return (value - self.low) / (self.high - self.low)


def _round_step(least: float) -> float:
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
                f'<path d="M{_LEFT:g} {height:.1f}H{_WIDTH - _RIGHT:g}" class="grid"/>'
                f'<text x="{_LEFT - 6:g}" y="{height + 4:.1f}" text-anchor="end">'
                f"{_number(tick)}</text>"
            )
        for tick in self._x.ticks:
            parts.append(
                f'<text x="{self._across(tick):.1f}" y="{_HEIGHT - _BOTTOM + 16:g}" '
                f'text-anchor="middle">{_number(tick)}</text>'
            )
        middle = (_LEFT + _WIDTH - _RIGHT) / 2
        parts.append(
            f'<text x="{middle:g}" y="{_HEIGHT - 4:g}" text-anchor="middle">step of the run</text>'
        )
        return parts

    def stages(self, stages: Sequence[tuple[float, str]]) -> list[str]:
        """A line where each stage but the first starts, and the names of all, in two rows."""
        parts = []
        ends = [0.0, 0.0]
        for index, (start, name) in enumerate(stages):
            left = self._across(start)
            if index:
                bottom = _HEIGHT - _BOTTOM
                parts.append(f'<path d="M{left:.1f} {_TOP:g}V{bottom:g}" class="stage"/>')
            width = _LETTER * len(name)
            left = min(left + 3, _WIDTH - width)
            level = 0 if left >= ends[0] else 1
            if left >= ends[level]:
                ends[level] = left + width
                height = _TOP - 7 - 15 * level
                parts.append(f'<text x="{left:.1f}" y="{height:g}">{text(name)}</text>')
        return parts

    def line(self, line: Line) -> str:
        """One line, with its name for who points at it."""
        pieces: list[list[Point]] = [[]]
        for x, y in line.points:
            if not math.isfinite(y) or (self._y.logarithmic and y <= 0):
                pieces.append([])
            else:
                pieces[-1].append((x, y))
        share = _MOST_POINTS / max(len(line.points), _MOST_POINTS)
        path = dots = ""
        for piece in filter(None, pieces):
            thin = thinned(piece, max(2, math.ceil(share * len(piece))))
            places = [(f"{self._across(x):.1f}", f"{self._down(y):.1f}") for x, y in thin]
            path += "M" + "L".join(" ".join(place) for place in places)
            if line.dots or len(places) == 1:
                dots += "".join(f'<circle cx="{x}" cy="{y}" r="2.2"/>' for x, y in places)
        return (
            f'<g stroke="{line.colour}" fill="{line.colour}" class="line">'
            f"<title>{text(line.label)}</title>"
            f'<path d="{path}"{_dashes(line)}/>{dots}</g>'
        )

    def _across(self, x: float) -> float:
        return _LEFT + self._x.place(x) * (_WIDTH - _LEFT - _RIGHT)

    def _down(self, y: float) -> float:
        return _HEIGHT - _BOTTOM - self._y.place(y) * (_HEIGHT - _TOP - _BOTTOM)


def thinned(points: Sequence[Point], most: int) -> list[Point]:
    """The points, or so many of them, two or more, spread evenly with both ends.

    >>> thinned([(0, 5), (1, 6), (2, 7), (3, 8), (4, 9)], most=3)
    [(0, 5), (2, 7), (4, 9)]
    """
    if len(points) <= most:
        return list(points)
    return [points[index * (len(points) - 1) // (most - 1)] for index in range(most)]


def legend(lines: Sequence[Line]) -> str:
    """The names of lines beside their colours."""
    items = "".join(
        f'<li><svg viewBox="0 0 22 8" width="22" height="8" aria-hidden="true">'
        f'<path d="M1 4H21" stroke="{line.colour}" stroke-width="2"{_dashes(line)}/></svg>'
        f"{text(line.label)}</li>"
        for line in lines
    )
    return f'<ul class="legend">{items}</ul>'


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


STYLE = """
svg.chart { width: 100%; height: auto; } .chart .line path { fill: none; stroke-width: 1.6;
  stroke-linejoin: round; } .chart text { font-size: 11.5px; fill: var(--soft); }
@media (max-width: 44rem) { .chart text { font-size: 13.5px; } }
.chart .grid { stroke: var(--line); } .chart .stage { stroke: var(--soft); stroke-dasharray: 2 3; }
.legend { list-style: none; margin: .2rem 0 0; padding: 0; display: flex; flex-wrap: wrap;
  gap: .1rem 1rem; font-size: .9em; color: var(--soft); }
.legend li { display: flex; align-items: center; gap: .4rem; overflow-wrap: anywhere; }
"""
