"""A diagram as rectangles, lines and words, for whatever draws them."""

import dataclasses
from collections.abc import Iterator

from sat_tf.planning.boxes import Box, boxes_of
from sat_tf.planning.layered import Layout, Point, lay_out
from sat_tf.planning.plan import Plan, shape_text
from sat_tf.planning.plan_table import summary

# viridis, which the colour-blind and grey prints keep in order: 1 bit is the lightest.
BIT_COLORS = {
    1: "#fde725",
    2: "#a0da39",
    3: "#5ec962",
    4: "#1fa187",
    5: "#277f8e",
    6: "#365c8d",
    7: "#46327e",
    8: "#440154",
}
_FIRST_DARK = 5
FLOAT_COLOR, PLAIN_COLOR, PROBLEM_COLOR = "#c9cdd3", "#ffffff", "#d0021b"
_LINE_COLOR, _INK, _WHITE = "#5c6370", "#1c1f23", "#ffffff"

_WIDTH = 212.0
_LARGE, _SMALL = 52.0, 22.0
_STRIP = 8.0
_MARGIN = 20.0
_HEAD = 64.0
_FONT, _SMALL_FONT = 12.0, 10.5
# Width of a letter over the size of its font, on the average, a little more than it is.
_LETTER = 0.56


@dataclasses.dataclass(frozen=True)
class Rectangle:
    """A box; `dashed` where it is no layer of the model."""

    left: float
    top: float
    width: float
    height: float
    fill: str
    outline: str = _LINE_COLOR
    line_width: float = 1.0
    dashed: bool = False
    tip: str = ""


@dataclasses.dataclass(frozen=True)
class Line:
    """An edge, with an arrow at its end."""

    points: tuple[Point, ...]


@dataclasses.dataclass(frozen=True)
class Words:
    """A line of text, from its left end or around its middle.

    Attributes:
        color: None: that of text outside boxes.
    """

    x: float
    y: float
    words: str
    size: float = _FONT
    bold: bool = False
    middle: bool = False
    color: str | None = None


Shape = Rectangle | Line | Words


@dataclasses.dataclass(frozen=True)
class Drawing:
    """All that is drawn, in order, and how large it is."""

    width: float
    height: float
    shapes: tuple[Shape, ...]
    title: str


def draw(plan: Plan) -> Drawing:
    """The diagram of a plan."""
    boxes = boxes_of(plan)
    sizes = [(_WIDTH, _SMALL if box.is_small else _LARGE) for box in boxes]
    layout = lay_out(sizes, [box.reads for box in boxes])
    legend = list(_legend(boxes))
    width = max(layout.width, 560.0) + 2 * _MARGIN
    shapes: list[Shape] = [Words(_MARGIN, _MARGIN, plan.model, 15.0, bold=True)]
    lines = [*summary(plan)[1:]]
    if plan.problems:
        lines.append(f"cannot be quantized as asked: {len(plan.problems)} problems, outlined red")
    top = _MARGIN + 18.0
    for line in lines:
        shapes.append(
            Words(_MARGIN, top, _fit(line, width - 2 * _MARGIN, _SMALL_FONT), _SMALL_FONT)
        )
        top += 15.0
    shapes += _moved(legend, _MARGIN, top + 4.0)
    top += _HEAD
    shapes += [Line(tuple((x + _MARGIN, y + top) for x, y in way)) for way in layout.edges]
    for box, center in zip(boxes, layout.centers, strict=True):
        shapes += _box(box, center[0] + _MARGIN, center[1] + top)
    return Drawing(width, layout.height + top + _MARGIN, tuple(shapes), plan.model)


def _box(box: Box, x: float, y: float) -> Iterator[Shape]:
    height = _SMALL if box.is_small else _LARGE
    left, top = x - _WIDTH / 2, y - height / 2
    fill, ink = _fill(box)
    problem = box.is_problem
    outline = PROBLEM_COLOR if problem else _LINE_COLOR
    tip = "\n".join(dict.fromkeys(text for row in box.rows for text in row.problems))
    described = "\n".join(
        part for part in (box.title(), box.names(), box.bits(), tip or box.main.reason) if part
    )
    yield Rectangle(
        left,
        top,
        _WIDTH,
        height,
        fill,
        outline,
        3.0 if problem else 1.0,
        dashed=box.is_small,
        tip=described,
    )
    activation = box.made.activation
    if not box.is_small and (activation is not None or (box.main.weights and box.makes_float)):
        strip = FLOAT_COLOR if activation is None else BIT_COLORS[activation.bits]
        yield Rectangle(left + 3, top + height - _STRIP - 3, _WIDTH - 6, _STRIP, strip, _WHITE)
    room = _WIDTH - 14.0
    if box.is_small:
        words = _fit(f"quantize: {box.bits()}", room, _SMALL_FONT)
        yield Words(x, y, words, _SMALL_FONT, middle=True, color=ink)
        return
    made = f"[{shape_text(box.rows[-1].shape)}]"
    title = f"! {box.title()}" if problem else box.title()
    yield Words(x, top + 9, _fit(title, room, _FONT), _FONT, bold=True, middle=True, color=ink)
    names = _fit(box.names(), room, _SMALL_FONT)
    yield Words(x, top + 22, names, _SMALL_FONT, middle=True, color=ink)
    bits = _fit(" ".join(filter(None, (box.bits(), made))), room, _SMALL_FONT)
    yield Words(x, top + 34, bits, _SMALL_FONT, middle=True, color=ink)


def _fill(box: Box) -> tuple[str, str]:
    """Colours of a box and of what is written in it."""
    if box.is_float:
        return FLOAT_COLOR, _INK
    bits = box.color_bits
    if bits is None:
        return (FLOAT_COLOR if box.main.weights else PLAIN_COLOR), _INK
    return BIT_COLORS[bits], _WHITE if bits >= _FIRST_DARK else _INK


def _legend(boxes: list[Box]) -> Iterator[Shape]:
    """The colours that occur, and what boxes look like."""
    used = {box.color_bits for box in boxes} | {
        box.made.activation.bits for box in boxes if box.made.activation
    }
    entries = [
        (f"{bits} bit{'s' if bits > 1 else ''}", color, _LINE_COLOR, False)
        for bits, color in BIT_COLORS.items()
        if bits in used
    ]
    if any(box.is_float for box in boxes):
        entries.append(("float", FLOAT_COLOR, _LINE_COLOR, False))
    if any(box.is_problem for box in boxes):
        entries.append(("problem", FLOAT_COLOR, PROBLEM_COLOR, False))
    if any(box.is_small for box in boxes):
        entries.append(("inserted quantizer", PLAIN_COLOR, _LINE_COLOR, True))
    if any(_fill(box)[0] == PLAIN_COLOR for box in boxes):
        entries.append(("moves codes", PLAIN_COLOR, _LINE_COLOR, False))
    x = 0.0
    for words, color, outline, dashed in entries:
        wide = 3.0 if outline == PROBLEM_COLOR else 1.0
        yield Rectangle(x, 0, 18, 12, color, outline, wide, dashed)
        yield Words(x + 24, 6, words, _SMALL_FONT)
        x += 36 + len(words) * _SMALL_FONT * _LETTER
    about = "box: bits of the weights, or else of the codes; strip: bits of the codes it makes, "
    yield Words(0, 24, f"{about}u unsigned, s signed", _SMALL_FONT)


def _moved(shapes: list[Shape], x: float, y: float) -> Iterator[Shape]:
    for shape in shapes:
        if isinstance(shape, Rectangle):
            yield dataclasses.replace(shape, left=shape.left + x, top=shape.top + y)
        elif isinstance(shape, Words):
            yield dataclasses.replace(shape, x=shape.x + x, y=shape.y + y)


def _fit(words: str, width: float, size: float) -> str:
    """The words, or as many of them as the width holds: names differ at both ends."""
    room = int(width / (size * _LETTER))
    if len(words) <= room:
        return words
    end = (room - 1) // 3
    return f"{words[: room - 1 - end]}…{words[-end:]}"


__all__ = ["Drawing", "Layout", "Line", "Rectangle", "Words", "draw"]
