"""The diagram of a plan as a file, SVG or PNG."""

import functools
import itertools
import os
import pathlib
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from markupsafe import Markup, escape

from sat_tf.atomic_file import expect_path, written_whole
from sat_tf.planning.diagram import (
    FLOAT_COLOR,
    LINE_COLOR,
    NO_COLOR,
    PLAIN_COLOR,
    Drawing,
    Edge,
    Label,
    Rectangle,
    Shape,
    draw,
)
from sat_tf.planning.planned_model import PlannedModel

if TYPE_CHECKING:
    from PIL.Image import Image

# A page has its own colours, which depend on whether it is dark; a separate file has these.
_STYLE = f"""<style>.edge {{ stroke: {LINE_COLOR}; fill: none; }} .arrow {{ fill: {LINE_COLOR}; }}
.outline {{ stroke: {LINE_COLOR}; }} .float {{ fill: {FLOAT_COLOR}; }}
.plain {{ fill: {PLAIN_COLOR}; }} .words {{ fill: #1c1f23; }}
.ground {{ fill: #ffffff; }}</style>"""
_FILLS = {FLOAT_COLOR: "float", PLAIN_COLOR: "plain"}


def svg_file(drawing: Drawing) -> str:
    """The drawing as a whole SVG file."""
    return f'<?xml version="1.0" encoding="UTF-8"?>\n{_svg(drawing, _STYLE)}\n'


def svg_element(drawing: Drawing) -> Markup:
    """An element of a page, in the page's colours."""
    return Markup(_svg(drawing, ""))


def _svg(drawing: Drawing, style: str) -> str:
    width, height = drawing.width, drawing.height
    parts = "\n".join(part for shape in drawing.shapes for part in _element(shape))
    return (
        f'<svg class="plan" xmlns="http://www.w3.org/2000/svg" width="{width:.0f}" '
        f'height="{height:.0f}" viewBox="0 0 {width:.0f} {height:.0f}" role="img" '
        'font-family="DejaVu Sans, Verdana, sans-serif">\n'
        f"<title>{escape(drawing.title)}</title>{style}\n"
        f'<rect class="ground" width="100%" height="100%"/>\n{parts}\n</svg>'
    )


def _element(shape: Shape) -> Iterator[str]:
    if isinstance(shape, Rectangle):
        dashes = ' stroke-dasharray="4 3"' if shape.dashed else ""
        tip = f"<title>{escape(shape.tip)}</title>" if shape.tip else ""
        yield (
            f'<rect x="{shape.left:.1f}" y="{shape.top:.1f}" width="{shape.width:.1f}" '
            f'height="{shape.height:.1f}" rx="3" {_paint(shape)} '
            f'stroke-width="{shape.line_width:g}"{dashes}>{tip}</rect>'
        )
    elif isinstance(shape, Edge):
        yield f'<path class="edge" stroke-width="1.4" d="{_path(shape)}"/>'
        x, y = shape.points[-1]
        yield f'<path class="arrow" d="M{x:.1f} {y:.1f}l-4-7h8z"/>'
    elif isinstance(shape, Label):
        anchor = ' text-anchor="middle"' if shape.middle else ""
        weight = ' font-weight="bold"' if shape.bold else ""
        color = f'fill="{shape.color}"' if shape.color else 'class="words"'
        yield (
            f'<text x="{shape.x:.1f}" y="{shape.y:.1f}" dy="0.35em" font-size="{shape.size:g}" '
            f"{color}{anchor}{weight}>{escape(shape.words)}</text>"
        )


def _paint(shape: Rectangle) -> str:
    """The colours of a rectangle: classes where they follow the page."""
    classes = [_FILLS[shape.fill]] if shape.fill in _FILLS else []
    if shape.outline == LINE_COLOR:
        classes.append("outline")
    parts = [f'class="{" ".join(classes)}"'] if classes else []
    if shape.fill not in _FILLS:
        parts.append(f'fill="{shape.fill}"')
    if shape.outline != LINE_COLOR:
        parts.append(f'stroke="{shape.outline}"')
    return " ".join(parts)


def _path(line: Edge) -> str:
    points = line.points
    words = [f"M{points[0][0]:.1f} {points[0][1]:.1f}"]
    for (x, y), (to_x, to_y) in itertools.pairwise(points):
        if x == to_x or y == to_y or to_y < y:
            words.append(f"L{to_x:.1f} {to_y:.1f}")
        else:
            half = (y + to_y) / 2
            words.append(f"C{x:.1f} {half:.1f} {to_x:.1f} {half:.1f} {to_x:.1f} {to_y:.1f}")
    return "".join(words)


_SCALE = 2
_LINE, _INK, _GROUND = "#5c6370", "#1c1f23", "#ffffff"
_CURVE = 12
# Larger pictures are drawn smaller: few programs open them.
_LARGEST_PIXELS = 120_000_000


def png_image(drawing: Drawing) -> "Image":
    """The drawing, two pixels for each of its units, fewer if it would be too large."""
    from PIL import Image, ImageDraw

    area = drawing.width * drawing.height
    scale = min(float(_SCALE), (_LARGEST_PIXELS / area) ** 0.5)
    size = (int(drawing.width * scale), int(drawing.height * scale))
    image = Image.new("RGB", size, _GROUND)
    pen = ImageDraw.Draw(image)
    for shape in drawing.shapes:
        if isinstance(shape, Rectangle):
            _rectangle(pen, shape, scale)
        elif isinstance(shape, Edge):
            _line(pen, shape, scale)
        elif isinstance(shape, Label):
            font = _font(round(shape.size * scale), shape.bold)
            where = (shape.x * scale, shape.y * scale)
            anchor = "mm" if shape.middle else "lm"
            pen.text(where, shape.words, fill=shape.color or _INK, font=font, anchor=anchor)
    return image


def write_png(drawing: Drawing, path: pathlib.Path) -> None:
    """Writes the drawing as a file."""
    png_image(drawing).save(path, format="PNG", optimize=True)


def _rectangle(pen: Any, shape: Rectangle, scale: float) -> None:
    left, top = shape.left * scale, shape.top * scale
    right, bottom = left + shape.width * scale, top + shape.height * scale
    width = max(1, round(shape.line_width * scale))
    outline = None if shape.dashed else shape.outline
    fill = None if shape.fill == NO_COLOR else shape.fill
    pen.rounded_rectangle(
        (left, top, right, bottom), radius=3 * scale, fill=fill, outline=outline, width=width
    )
    if shape.dashed:
        corners = [(left, top), (right, top), (right, bottom), (left, bottom), (left, top)]
        for start, end in itertools.pairwise(corners):
            _dashes(pen, start, end, shape.outline, width, 4 * scale)


def _dashes(pen: Any, start: Any, end: Any, color: str, width: int, dash: float) -> None:
    length = abs(end[0] - start[0]) + abs(end[1] - start[1])
    count = max(1, int(length / dash))
    for index in range(0, count, 2):
        pieces = [index / count, min(index + 1, count) / count]
        ends = [
            tuple(a + share * (b - a) for a, b in zip(start, end, strict=True)) for share in pieces
        ]
        pen.line(ends, fill=color, width=width)


def _line(pen: Any, shape: Edge, scale: float) -> None:
    points = [shape.points[0]]
    for (x, y), (to_x, to_y) in zip(shape.points, shape.points[1:], strict=False):
        if x == to_x or y == to_y or to_y < y:
            points.append((to_x, to_y))
            continue
        for index in range(1, _CURVE + 1):  # the curve of SVG's C with its handles half way down
            t = index / _CURVE
            bend = 3 * t**2 - 2 * t**3
            down = 1.5 * t * (1 - t) + t**3 if t < 1 else 1.0
            points.append((x + bend * (to_x - x), y + down * (to_y - y)))
    scaled = [(x * scale, y * scale) for x, y in points]
    pen.line(scaled, fill=_LINE, width=max(1, round(1.4 * scale)), joint="curve")
    x, y = scaled[-1]
    pen.polygon(
        [(x, y), (x - 4 * scale, y - 7 * scale), (x + 4 * scale, y - 7 * scale)], fill=_LINE
    )


@functools.cache
def _font(size: int, bold: bool) -> Any:
    import matplotlib
    from PIL import ImageFont

    # The only font that every machine has, because matplotlib brings it.
    name = "DejaVuSans-Bold.ttf" if bold else "DejaVuSans.ttf"
    folder = pathlib.Path(matplotlib.get_data_path()) / "fonts" / "ttf"
    return ImageFont.truetype(str(folder / name), size)


SUFFIXES = (".svg", ".png")


def check_diagram_path(path: str | os.PathLike[str]) -> None:
    """Raises ValueError unless a diagram can have this name."""
    suffix = expect_path(path).suffix.lower()
    if suffix not in SUFFIXES:
        raise ValueError(
            f"{path}: received a diagram with {suffix or 'no suffix'}, expected "
            f"{' or '.join(SUFFIXES)}; give the name one of these."
        )


def write_diagram(plan: PlannedModel, path: str | os.PathLike[str]) -> None:
    """Draws the plan; the file appears whole, or not at all.

    Raises:
        ValueError: the path has another suffix, or cannot be written.
    """
    check_diagram_path(path)
    drawing = draw(plan)
    with written_whole(path) as temporary:
        if temporary.suffix.lower() == ".svg":
            temporary.write_text(svg_file(drawing), encoding="utf-8")
        else:
            write_png(drawing, temporary)
