"""Charts of one number for each layer, as drawings inside a page; their colours are the page's."""

import dataclasses
import math
from collections.abc import Sequence

from sat_tf.presentation.page import text

_WIDTH, _HEIGHT = 900.0, 300.0
_LEFT, _RIGHT, _TOP, _BOTTOM = 64.0, 16.0, 14.0, 34.0
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
        names: of the layers, for who points at a mark.
        dots: what to draw, at most four kinds.
        wanted: the range of y in which all is well.
        is_share: y goes from 0 to 1.
    """

    title: str
    x_label: str
    y_label: str
    names: Sequence[str]
    dots: Sequence[Dots]
    wanted: tuple[float, float] | None = None
    is_share: bool = False

    def to_svg(self) -> str:
        """The chart with its legend; "" where there is nothing to draw."""
        kinds = [dots for dots in self.dots if any(map(self._drawable, dots.values))]
        if not kinds:
            return ""
        low, high, ticks = self._axis(kinds)
        parts = [
            f'<figure><figcaption>{text(self.title)}</figcaption><svg viewBox="0 0 {_WIDTH:g} '
            f'{_HEIGHT:g}" role="img" class="dots"><title>{text(self.title)}</title>',
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
            parts.append(_legend(kinds))
        return "\n".join([*parts, "</figure>"])

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
        return _HEIGHT - _BOTTOM - place * (_HEIGHT - _TOP - _BOTTOM)

    def _across(self, index: int) -> float:
        return _LEFT + (index + 0.5) / len(self.names) * (_WIDTH - _LEFT - _RIGHT)

    def _band(self, low: float, high: float) -> str:
        if self.wanted is None:
            return ""
        bottom, top = (self._down(min(max(v, low), high), low, high) for v in self.wanted)
        width = _WIDTH - _LEFT - _RIGHT
        return (
            f'<rect x="{_LEFT:g}" y="{top:.1f}" width="{width:g}" height="{bottom - top:.1f}" '
            'class="wanted"><title>wanted</title></rect>'
        )

    def _tick(self, tick: float, low: float, high: float) -> str:
        height = self._down(tick, low, high)
        return (
            f'<path d="M{_LEFT:g} {height:.1f}H{_WIDTH - _RIGHT:g}" class="grid"/>'
            f'<text x="{_LEFT - 6:g}" y="{height + 4:.1f}" text-anchor="end">{tick:g}</text>'
        )

    def _labels(self) -> str:
        count = len(self.names)
        every = max(1, math.ceil(count / 20))
        numbers = "".join(
            f'<text x="{self._across(index):.1f}" y="{_HEIGHT - _BOTTOM + 15:g}" '
            f'text-anchor="middle">{index + 1}</text>'
            for index in range(0, count, every)
        )
        middle, half = (_LEFT + _WIDTH - _RIGHT) / 2, (_TOP + _HEIGHT - _BOTTOM) / 2
        return (
            f'{numbers}<text x="{middle:g}" y="{_HEIGHT - 4:g}" text-anchor="middle">'
            f'{text(self.x_label)}</text><text transform="translate(12 {half:g}) rotate(-90)" '
            f'text-anchor="middle">{text(self.y_label)}</text>'
        )

    def _mark(
        self, kind: int, index: int, value: float, low: float, high: float, label: str
    ) -> str:
        shape = _MARKS[kind].format(x=self._across(index), y=self._down(value, low, high))
        words = f"{index + 1} {self.names[index]}: {label} {value:.3g}"
        return f"<g>{shape}<title>{text(words)}</title></g>"


def _legend(kinds: Sequence[Dots]) -> str:
    items = "".join(
        f'<li><svg viewBox="0 0 14 14" width="14" height="14" class="dots" aria-hidden="true">'
        f'<g class="kind{number}">{_MARKS[number].format(x=7.0, y=7.0)}</g></svg>'
        f"{text(dots.label)}</li>"
        for number, dots in enumerate(kinds)
    )
    return f'<ul class="legend">{items}</ul>'


# Okabe and Ito's colours, lighter where the page is dark; the shapes differ too.
STYLE = """
:root { --kind0: #0072b2; --kind1: #b35900; --kind2: #007a5a; --kind3: #a8437f; }
@media (prefers-color-scheme: dark) { :root { --kind0: #56b4e9; --kind1: #e69f00;
  --kind2: #35c99b; --kind3: #e39ac6; } }
figure { margin: 1rem 0; } figcaption { font-weight: 600; margin-bottom: .2rem; }
svg.dots { width: 100%; max-width: 60rem; height: auto; } .legend svg.dots { width: 14px; }
.dots text { font-size: 12.5px; fill: var(--soft); } .dots .grid { stroke: var(--line); }
.dots .wanted { fill: var(--good); opacity: .13; } .kind0 { fill: var(--kind0); }
.kind1 { fill: var(--kind1); } .kind2 { fill: var(--kind2); } .kind3 { fill: var(--kind3); }
.legend { list-style: none; margin: .2rem 0 0; padding: 0; display: flex; flex-wrap: wrap;
  gap: .1rem 1rem; color: var(--soft); } .legend li { display: flex; align-items: center;
  gap: .4rem; } .watch { font-weight: 650; } td.number { white-space: nowrap; }
"""
