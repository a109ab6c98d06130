"""Histograms of codes as small drawings for a page."""

import math
from collections.abc import Sequence

_HEIGHT = 24
_WIDTH = 128
# Between bars, of their distance; many codes are drawn without.
_GAP = 0.25
_MOST_WITH_GAPS = 32
_WIDEST_BAR = 8.0


def histogram(counts: Sequence[int], caption: str) -> str:
    """An SVG with a bar for every code, used or not; its colours are the page's.

    Heights are square roots of shares, as one code, often that of 0, has most of them. A code that
    occurs at all has a bar that can be seen, and one that does not has none.

    Args:
        counts: how often each code occurs.
        caption: what it shows, for who points at it and for who cannot see it.
    """
    pitch = _WIDTH / len(counts)
    width = min(pitch * (1.0 - _GAP), _WIDEST_BAR) if len(counts) <= _MOST_WITH_GAPS else pitch
    largest = max(counts, default=0)
    bars = []
    for index, count in enumerate(counts):
        if count:
            height = max(1.5, (_HEIGHT - 2) * math.sqrt(count / largest))
            left = index * pitch + (pitch - width) / 2
            bars.append(f"M{left:.4g} {_HEIGHT - 1}v-{height:.3g}h{width:.4g}v{height:.3g}z")
    return (
        f'<svg viewBox="0 0 {_WIDTH} {_HEIGHT}" width="{_WIDTH}" height="{_HEIGHT}" role="img">'
        f"<title>{caption}</title>"
        f'<path d="M0 {_HEIGHT - 0.5}h{_WIDTH}" stroke="currentColor" opacity=".4"/>'
        f'<path d="{"".join(bars)}" fill="currentColor"/></svg>'
    )
