"""A drawing as SVG."""

import itertools
from collections.abc import Iterator

from sat_tf.page import text
from sat_tf.planning.drawing import Drawing, Line, Rectangle, Shape, Words

# On a page, the page's own colours; a file of its own has these.
_STYLE = """<style>.edge { stroke: #5c6370; fill: none; } .arrow { fill: #5c6370; }
.words { fill: #1c1f23; } .ground { fill: #ffffff; }</style>"""
PAGE_STYLE = """
.plan .edge { stroke: var(--soft); fill: none; } .plan .arrow { fill: var(--soft); }
.plan .words { fill: var(--ink); } .plan .ground { fill: none; }
"""


def svg_file(drawing: Drawing) -> str:
    """A file of its own."""
    return f'<?xml version="1.0" encoding="UTF-8"?>\n{_svg(drawing, _STYLE)}\n'


def svg_element(drawing: Drawing) -> str:
    """An element of a page that has `PAGE_STYLE`."""
    return _svg(drawing, "")


def _svg(drawing: Drawing, style: str) -> str:
    width, height = drawing.width, drawing.height
    parts = "\n".join(part for shape in drawing.shapes for part in _element(shape))
    return (
        f'<svg class="plan" xmlns="http://www.w3.org/2000/svg" width="{width:.0f}" '
        f'height="{height:.0f}" viewBox="0 0 {width:.0f} {height:.0f}" role="img" '
        'font-family="DejaVu Sans, Verdana, sans-serif">\n'
        f"<title>{text(drawing.title)}</title>{style}\n"
        f'<rect class="ground" width="100%" height="100%"/>\n{parts}\n</svg>'
    )


def _element(shape: Shape) -> Iterator[str]:
    if isinstance(shape, Rectangle):
        dashes = ' stroke-dasharray="4 3"' if shape.dashed else ""
        tip = f"<title>{text(shape.tip)}</title>" if shape.tip else ""
        yield (
            f'<rect x="{shape.left:.1f}" y="{shape.top:.1f}" width="{shape.width:.1f}" '
            f'height="{shape.height:.1f}" rx="3" fill="{shape.fill}" stroke="{shape.outline}" '
            f'stroke-width="{shape.line_width:g}"{dashes}>{tip}</rect>'
        )
    elif isinstance(shape, Line):
        yield f'<path class="edge" stroke-width="1.4" d="{_path(shape)}"/>'
        x, y = shape.points[-1]
        yield f'<path class="arrow" d="M{x:.1f} {y:.1f}l-4-7h8z"/>'
    elif isinstance(shape, Words):
        anchor = ' text-anchor="middle"' if shape.middle else ""
        weight = ' font-weight="bold"' if shape.bold else ""
        color = f'fill="{shape.color}"' if shape.color else 'class="words"'
        yield (
            f'<text x="{shape.x:.1f}" y="{shape.y:.1f}" dy="0.35em" font-size="{shape.size:g}" '
            f"{color}{anchor}{weight}>{text(shape.words)}</text>"
        )


def _path(line: Line) -> str:
    points = line.points
    words = [f"M{points[0][0]:.1f} {points[0][1]:.1f}"]
    for (x, y), (to_x, to_y) in itertools.pairwise(points):
        if x == to_x or y == to_y or to_y < y:
            words.append(f"L{to_x:.1f} {to_y:.1f}")
        else:
            half = (y + to_y) / 2
            words.append(f"C{x:.1f} {half:.1f} {to_x:.1f} {half:.1f} {to_x:.1f} {to_y:.1f}")
    return "".join(words)
