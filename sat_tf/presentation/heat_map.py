"""A matrix of shares as an SVG picture, in the page's colours."""

from collections.abc import Callable, Sequence

import numpy as np
from markupsafe import Markup, escape

_SIDE = 480.0
# In rem: the widest that a matrix is shown, and less of it for few rows, which fit a telephone.
_WIDEST, _WIDTH_OF_NAMES, _WIDTH_OF_ROW = 40.0, 13.0, 3.0
_FONT = 12.0  # of the widest
_LETTER = 0.6  # about the width of one, in font sizes
_LONGEST_NAME = 14
_MOST_WITH_NUMBERS = 16
# Labels of more rows than this are left out in between.
_MOST_LABELS = 25


def heat_map(
    counts: np.ndarray,
    names: Sequence[str],
    *,
    title: str,
    summary: str,
    tip: Callable[[int, int], str],
) -> Markup:
    """A square matrix, each cell as strong as its share of its row, the diagonal in another colour.

    Strengths are square roots of shares, so that rare cells are visible. The style sheet is
    "presentation/charts.css".

    Args:
        counts: (n, n), 0 or more; cells of 0 are not drawn.
        names: of the rows, which are also those of the columns, in plain text.
        title: for screen readers, in plain text.
        summary: what it shows, likewise.
        tip: what the tooltip of a row and a column says, in plain text.
    """
    size = len(counts)
    pitch = _SIDE / size
    every = max(1, -(-size // _MOST_LABELS))
    widest = min(_WIDEST, _WIDTH_OF_NAMES + _WIDTH_OF_ROW * size)
    font = min(_FONT * _WIDEST / widest, 0.62 * pitch * every)
    shown = [_shortened(name) for name in names]
    left = 10.0 + _LETTER * font * max(map(len, shown[::every]))
    # Names above the columns are tilted by 60 degrees.
    top = 10.0 + 0.87 * _LETTER * font * max(map(len, shown[::every])) + font
    shares = counts / np.maximum(counts.sum(axis=1, keepdims=True), 1)
    parts = [
        f'<rect x="{left:.1f}" y="{top:.1f}" width="{_SIDE:g}" height="{_SIDE:g}" class="frame"/>'
    ]
    for index in range(0, size, every):
        middle = pitch * (index + 0.5)
        parts.append(
            f'<text x="{left - 6:.1f}" y="{top + middle + font / 3:.1f}" text-anchor="end">'
            f"{escape(shown[index])}</text>"
            f'<text transform="translate({left + middle:.1f} {top - 6:.1f}) rotate(-60)">'
            f"{escape(shown[index])}</text>"
        )
    for row, column in np.argwhere(counts > 0).tolist():
        strength = max(0.12, float(shares[row, column]) ** 0.5)
        x, y = left + pitch * column, top + pitch * row
        kind = "right" if row == column else "wrong"
        parts.append(
            f'<g><title>{escape(tip(row, column))}</title><rect x="{x:.1f}" y="{y:.1f}" '
            f'width="{pitch:.2f}" height="{pitch:.2f}" class="{kind}" '
            f'fill-opacity="{strength:.2f}"/>'
        )
        if size <= _MOST_WITH_NUMBERS:
            parts.append(
                f'<text x="{x + pitch / 2:.1f}" y="{y + pitch / 2 + font / 3:.1f}" '
                f'text-anchor="middle" class="{"on" if strength > 0.75 else "count"}">'
                f"{int(counts[row, column])}</text>"
            )
        parts.append("</g>")
    # Tilted names of the last columns end right of the matrix.
    right = left + _SIDE + 0.5 * _LETTER * font * max(map(len, shown[::every]))
    return Markup(
        f'<svg viewBox="0 0 {right:.1f} {top + _SIDE + 2:.1f}" role="img" class="heat" '
        f'style="font-size:{font:.1f}px;--widest:{widest:g}rem"><title>{escape(title)}</title>'
        f"<desc>{escape(summary)}</desc>{chr(10).join(parts)}</svg>"
    )


def _shortened(name: str) -> str:
    """The name, without its middle if it is long: names differ at both ends.

    >>> _shortened("golden retriever, male")
    'golden r… male'
    """
    if len(name) <= _LONGEST_NAME:
        return name
    end = (_LONGEST_NAME - 1) // 3 + 1
    return f"{name[: _LONGEST_NAME - 1 - end]}…{name[-end:]}"
