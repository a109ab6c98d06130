"""A drawing as PNG."""

import functools
import itertools
import pathlib
from typing import TYPE_CHECKING, Any

from sat_tf.planning.drawing import Drawing, Line, Rectangle, Words

if TYPE_CHECKING:
    from PIL.Image import Image

_SCALE = 2
_LINE, _INK, _GROUND = "#5c6370", "#1c1f23", "#ffffff"
_CURVE = 12
# Larger pictures are drawn smaller: few programs open them.
_LARGEST_PIXELS = 120_000_000


def png_image(drawing: Drawing) -> "Image":
    """The drawing, two pixels for each of its units, fewer where it would be too large."""
    from PIL import Image, ImageDraw

    area = drawing.width * drawing.height
    scale = min(float(_SCALE), (_LARGEST_PIXELS / area) ** 0.5)
    size = (int(drawing.width * scale), int(drawing.height * scale))
    image = Image.new("RGB", size, _GROUND)
    pen = ImageDraw.Draw(image)
    for shape in drawing.shapes:
        if isinstance(shape, Rectangle):
            _rectangle(pen, shape, scale)
        elif isinstance(shape, Line):
            _line(pen, shape, scale)
        elif isinstance(shape, Words):
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
    pen.rounded_rectangle(
        (left, top, right, bottom), radius=3 * scale, fill=shape.fill, outline=outline, width=width
    )
    if shape.dashed:
        corners = [(left, top), (right, top), (right, bottom), (left, bottom), (left, top)]
        for start, end in itertools.pairwise(corners):
            _dashes(pen, start, end, shape.outline, width, 4 * scale)


def _dashes(pen: Any, start: Any, end: Any, color: str, width: int, dash: float) -> None:
    length = abs(end[0] - start[0]) + abs(end[1] - start[1])
    steps = max(1, int(length / dash))
    for step in range(0, steps, 2):
        pieces = [step / steps, min(step + 1, steps) / steps]
        ends = [
            tuple(a + share * (b - a) for a, b in zip(start, end, strict=True)) for share in pieces
        ]
        pen.line(ends, fill=color, width=width)


def _line(pen: Any, shape: Line, scale: float) -> None:
    points = [shape.points[0]]
    for (x, y), (to_x, to_y) in zip(shape.points, shape.points[1:], strict=False):
        if x == to_x or y == to_y or to_y < y:
            points.append((to_x, to_y))
            continue
        for step in range(1, _CURVE + 1):  # the curve of SVG's C with its handles half way down
            t = step / _CURVE
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

    # The only font that is there on every machine, because matplotlib brings it.
    name = "DejaVuSans-Bold.ttf" if bold else "DejaVuSans.ttf"
    folder = pathlib.Path(matplotlib.get_data_path()) / "fonts" / "ttf"
    return ImageFont.truetype(str(folder / name), size)
