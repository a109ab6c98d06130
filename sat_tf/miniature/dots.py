"""Top-1 of several rows side by side: a dot for each seed, a bar at their mean."""

import statistics
from collections.abc import Mapping, Sequence

from sat_tf.page import text

_WIDTH, _ROW = 480.0, 24.0
_LEFT, _RIGHT, _TOP, _BOTTOM = 176.0, 48.0, 6.0, 40.0


def dots(rows: Sequence[tuple[str, Mapping[int, float]]], *, title: str) -> str:
    """A drawing with a line for each row, its mean beside it; "" where nothing was measured.

    Args:
        rows: label and top-1 in percent by seed; what has no seed is drawn empty.
        title: for who cannot see it, in plain text.
    """
    values = [value for _, by_seed in rows for value in by_seed.values()]
    if not values:
        return ""
    step = 10.0 if max(values) - min(values) > 15 else 5.0
    low = max(0.0, step * ((min(values) - 1) // step))
    high = min(100.0, step * -(-(max(values) + 1) // step))
    height = _TOP + _ROW * len(rows) + _BOTTOM

    def across(value: float) -> float:
        return _LEFT + (value - low) / (high - low) * (_WIDTH - _LEFT - _RIGHT)

    parts = []
    bottom = height - _BOTTOM
    for tick in range(round((high - low) / step) + 1):
        value = low + step * tick
        parts.append(
            f'<path d="M{across(value):.1f} {_TOP:g}V{bottom:g}" class="grid"/>'
            f'<text x="{across(value):.1f}" y="{bottom + 16:g}" text-anchor="middle">'
            f"{value:g}</text>"
        )
    centre = (_LEFT + _WIDTH - _RIGHT) / 2
    parts.append(
        f'<text x="{centre:g}" y="{height - 6:g}" text-anchor="middle">held-out top-1, %</text>'
    )
    for index, (label, by_seed) in enumerate(rows):
        middle = _TOP + _ROW * (index + 0.5)
        parts.append(
            f'<text x="{_LEFT - 10:g}" y="{middle + 4:.1f}" text-anchor="end" class="name">'
            f"{text(label)}</text>"
        )
        if not by_seed:
            parts.append(f'<text x="{_LEFT + 6:g}" y="{middle + 4:.1f}">not run</text>')
            continue
        mean = statistics.fmean(by_seed.values())
        parts.append(
            f'<path d="M{across(mean):.1f} {middle - 8:.1f}V{middle + 8:.1f}" class="mean"/>'
            f'<text x="{_WIDTH - _RIGHT + 8:g}" y="{middle + 4:.1f}" class="name">{mean:.1f}</text>'
        )
        parts += [
            f'<circle cx="{across(value):.1f}" cy="{middle:.1f}" r="3.6">'
            f"<title>seed {seed}: {value:.2f} %</title></circle>"
            for seed, value in sorted(by_seed.items())
        ]
    summary = "; ".join(
        f"{label} {statistics.fmean(by_seed.values()):.1f}" for label, by_seed in rows if by_seed
    )
    return (
        f'<svg viewBox="0 0 {_WIDTH:g} {height:g}" role="img" class="chart dots">'
        f"<title>{text(title)}</title><desc>Mean top-1 in percent: {text(summary)}.</desc>"
        f"{''.join(parts)}</svg>"
    )


STYLE = """
.dots circle { fill: var(--curve); fill-opacity: .75; } .dots .mean { stroke: var(--ink);
  stroke-width: 1.6; } .chart.dots .name { fill: var(--ink); }
"""
