"""The diagram of a plan, for its page and as a file: boxes that matplotlib draws."""

import dataclasses
import os
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING

from markupsafe import Markup

from sat_tf.atomic_file import written_whole
from sat_tf.messages import printable
from sat_tf.planning.layer_plan import Export, Fate, LayerPlan, shape_text
from sat_tf.planning.layered import Point, lay_out
from sat_tf.presentation.charts import STAND_INS, canvas, drawn_for_a_page, svg_element, tip
from sat_tf.presentation.palette import check_picture_path

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure as Picture


@dataclasses.dataclass(frozen=True)
class Box:
    """Layers that are drawn as one box.

    Attributes:
        rows: its layers, in order; the last makes its tensor.
        reads: indices of the boxes that it reads.
    """

    rows: tuple[LayerPlan, ...]
    reads: tuple[int, ...]

    @property
    def main(self) -> LayerPlan:
        """The layer it is coloured by: the linear one, or else the first."""
        return next((row for row in self.rows if row.multiply_adds or row.weights), self.rows[0])

    @property
    def made(self) -> LayerPlan:
        """The layer with the quantizer of its tensor, or else the last one."""
        rows = [row for row in self.rows if row.activation is not None]
        return rows[-1] if rows else self.rows[-1]

    @property
    def is_problem(self) -> bool:
        """Whether a layer in it cannot be quantized or exported."""
        return any(row.problems or row.export is Export.REFUSED for row in self.rows)

    @property
    def is_float(self) -> bool:
        """Whether it is left float: neither weights nor what it makes have codes."""
        has_codes = self.main.weights is not None or self.made.activation is not None
        is_float = any(row.fate in (Fate.FLOAT, Fate.PROBLEM) for row in self.rows)
        return is_float and not has_codes

    @property
    def makes_float(self) -> bool:
        """Whether its tensor is float in training: without codes, and not absorbed by a reader."""
        made = self.made
        moves = made.fate in (Fate.MOVES, Fate.INPUT)
        return made.activation is None and not made.absorbed_by and not moves

    @property
    def is_small(self) -> bool:
        """Whether it is a quantizer that was inserted, and nothing else."""
        return all(row.inserted for row in self.rows)

    @property
    def color_bits(self) -> int | None:
        """Bits of its weights, or else of its codes; None if it has neither."""
        if self.is_float:
            return None
        if self.main.weights is not None:
            return self.main.weights.bits
        return self.made.activation.bits if self.made.activation else None

    def title(self) -> str:
        """The kinds of its layers."""
        words = []
        for row in self.rows:
            kind = "quantize" if row.inserted else row.short_kind or row.kind
            if row.kind == "Activation":
                words.append(row.detail)
            elif kind != "quantize" or self.is_small:
                words.append(f"{kind} {row.detail}".strip())
        return " + ".join(words)

    def names(self) -> str:
        """The names of its layers."""
        first, *others = [row.name for row in self.rows if not row.inserted] or [self.rows[0].name]
        return ", ".join([first, *others])

    def bits(self) -> str:
        """Bits of its weights and codes, in words: "codes s8" are signed ones of 8 bits."""
        words = []
        if self.main.weights is not None:
            bits = self.main.weights.bits
            words.append("weights not rounded" if bits is None else f"weights {bits}")
        elif self.is_float:
            words.append("problem" if any(row.problems for row in self.rows) else "float")
        activation = self.made.activation
        if activation is not None:
            words.append(f"codes {'s' if activation.signed else 'u'}{activation.bits}")
        elif self.makes_float and not self.is_float:
            words.append("float")
        return ", ".join(words)


def boxes_of(plan: Sequence[LayerPlan]) -> list[Box]:
    """The boxes of a plan's rows, producers before consumers."""
    named = {row.name: row for row in plan}
    readers: dict[str, list[str]] = {}
    for row in plan:
        for name in row.reads:
            readers.setdefault(name, []).append(row.name)
    joined: dict[str, str] = {}  # the box of each row, by the name of its last row
    for row in reversed(plan):
        reader = _fused_reader(row, readers.get(row.name, []), named)
        joined[row.name] = joined[reader] if reader else row.name
    for row in plan:
        if row.export is Export.NOTHING and not row.fused_into and len(row.reads) == 1:
            box = joined[row.reads[0]]
            joined = {name: box if to == row.name else to for name, to in joined.items()}
    members: dict[str, list[LayerPlan]] = {}
    for row in plan:
        members.setdefault(joined[row.name], []).append(row)
    index = {name: i for i, name in enumerate(members)}
    boxes = []
    for name, rows in members.items():
        reads = [index[joined[read]] for row in rows for read in row.reads]
        others = tuple(i for i in dict.fromkeys(reads) if i != index[name])
        boxes.append(Box(tuple(rows), others))
    return boxes


def _fused_reader(row: LayerPlan, readers: list[str], plan: Mapping[str, LayerPlan]) -> str:
    """The only reader of a layer, if both are drawn as one box."""
    if len(readers) != 1:
        return ""
    reader = plan[readers[0]]
    made = reader.activation
    # The mark of pixels has codes that are never clipped.
    marks_pixels = made is not None and made.clipping_level is None and not made.signed
    if row.kind == "InputLayer" and reader.inserted and marks_pixels:
        return reader.name
    if row.export in (Export.UNKNOWN, Export.REFUSED):
        concatenates = row.absorbed_by and plan[row.absorbed_by].kind == "Concatenate"
        return "" if concatenates else row.absorbed_by
    return readers[0] if len(row.fused_into) == 1 else ""


# viridis, whose order survives colour blindness and greyscale prints: 1 bit is the lightest.
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
PROBLEM_COLOR = "#d0021b"
_ON_DARK, _ON_LIGHT = "#ffffff", "#1c1f24"
# The colours that depend on whether a page is dark, in a file.
_IN_A_FILE = {
    "var(--soft)": "#5c6370",
    "var(--ink)": "#1c1f23",
    "var(--float)": "#c9cdd3",
    "var(--plain)": "#ffffff",
}
_LINE, _INK, _FLOAT, _PLAIN = _IN_A_FILE
_NO_FILL = "none"

_WIDTH = 212.0
_LARGE, _SMALL = 52.0, 22.0
_STRIP = 8.0
_MARGIN = 20.0
_HEAD = 64.0
_LEAST_WIDTH = 560.0  # which the legend needs
_FONT, _SMALL_FONT = 12.0, 10.5
# Average width of a letter over the font size, rounded up a little.
_LETTER = 0.56


class _Pen:
    """Draws on a picture whose units are those of its SVG, from the top left."""

    def __init__(self, width: float, height: float, colors: Mapping[str, str]) -> None:
        self.picture = canvas(width, height)
        self._axes: Axes = self.picture.add_axes((0.0, 0.0, 1.0, 1.0), frameon=False)
        self._axes.set(xlim=(0.0, width), ylim=(height, 0.0), xticks=[], yticks=[])
        self._colors = colors

    def rectangle(
        self,
        left: float,
        top: float,
        width: float,
        height: float,
        fill: str,
        *,
        outline: str = _LINE,
        dashed: bool = False,
        described: str = "",
    ) -> None:
        """Draws a rectangle with round corners; `described` is its tooltip."""
        from matplotlib.patches import FancyBboxPatch

        self._axes.add_patch(
            FancyBboxPatch(
                (left, top),
                width,
                height,
                boxstyle="round,pad=0,rounding_size=3",
                facecolor=self._colors.get(fill, fill),
                edgecolor=self._colors.get(outline, outline),
                linewidth=3.0 if outline == PROBLEM_COLOR else 1.0,
                linestyle=(0, (4, 3)) if dashed else "-",
                gid=tip(described) if described else None,
            )
        )

    def edge(self, points: list[Point]) -> None:
        """Draws a line with an arrow at its end, straight across and upwards, bent downwards."""
        from matplotlib.patches import PathPatch, Polygon
        from matplotlib.path import Path

        vertices, codes = [points[0]], [Path.MOVETO]
        for x, y in points[1:]:
            from_x, from_y = vertices[-1]
            if from_x == x or from_y == y or y < from_y:
                vertices.append((x, y))
                codes.append(Path.LINETO)
            else:
                half = (from_y + y) / 2
                vertices += [(from_x, half), (x, half), (x, y)]
                codes += [Path.CURVE4] * 3
        color = self._colors[_LINE]
        line = Path(vertices, codes)
        self._axes.add_patch(PathPatch(line, fill=False, edgecolor=color, linewidth=1.4))
        x, y = points[-1]
        head = [(x, y), (x - 4, y - 7), (x + 4, y - 7)]
        self._axes.add_patch(Polygon(head, facecolor=color, linewidth=0.0))

    def words(
        self,
        x: float,
        y: float,
        words: str,
        size: float = _SMALL_FONT,
        *,
        color: str = _INK,
        bold: bool = False,
        middle: bool = False,
    ) -> None:
        """Writes a line of text, from its left end or around its middle."""
        self._axes.text(
            x,
            y,
            printable(words),
            fontsize=size,
            fontweight="bold" if bold else "normal",
            color=self._colors.get(color, color),
            horizontalalignment="center" if middle else "left",
            verticalalignment="center_baseline",
        )


def draw(
    plan: Sequence[LayerPlan],
    heading: Sequence[str] = (),
    *,
    width: float | None = None,
    colors: Mapping[str, str] = _IN_A_FILE,
) -> "Picture":
    """The diagram of a plan, drawn inside `drawn_for_a_page`.

    Args:
        plan: its rows.
        heading: the model's name, and lines below it; nothing on a page, which has them itself.
        width: that a long graph is wrapped to; see `lay_out`.
        colors: for the names that lines, letters and boxes without bits have on a page.
    """
    boxes = boxes_of(plan)
    sizes = [(_WIDTH, _SMALL if box.is_small else _LARGE) for box in boxes]
    room = None if width is None else width - 2 * _MARGIN
    layout = lay_out(sizes, [box.reads for box in boxes], width=room)
    whole = max(layout.width, _LEAST_WIDTH) + 2 * _MARGIN
    name, *lines = heading or [""]
    below = _MARGIN + 18.0 + 15.0 * len(lines) if heading else 0.0
    top = below + _HEAD
    pen = _Pen(whole, layout.height + top + _MARGIN, colors)
    if heading:
        pen.words(_MARGIN, _MARGIN, name, 15.0, bold=True)
    for index, line in enumerate(lines):
        shown = _fit(line, whole - 2 * _MARGIN, _SMALL_FONT)
        pen.words(_MARGIN, _MARGIN + 18.0 + 15.0 * index, shown)
    _draw_legend(pen, boxes, below + 4.0)
    for way in layout.edges:
        pen.edge([(x + _MARGIN, y + top) for x, y in way])
    for box, (x, y) in zip(boxes, layout.centers, strict=True):
        _draw_box(pen, box, x + _MARGIN, y + top)
    return pen.picture


def _draw_box(pen: _Pen, box: Box, x: float, y: float) -> None:
    height = _SMALL if box.is_small else _LARGE
    left, top = x - _WIDTH / 2, y - height / 2
    fill, ink = _fill(box)
    problems = dict.fromkeys(text for row in box.rows for text in row.problems)
    about = (box.title(), box.names(), box.bits(), *(problems or [box.main.reason]))
    pen.rectangle(
        left,
        top,
        _WIDTH,
        height,
        fill,
        outline=PROBLEM_COLOR if box.is_problem else _LINE,
        dashed=box.is_small,
        described="; ".join(filter(None, about)),
    )
    activation = box.made.activation
    if not box.is_small and (activation is not None or (box.main.weights and box.makes_float)):
        strip = _FLOAT if activation is None else BIT_COLORS[activation.bits]
        strip_top = top + height - _STRIP - 3
        pen.rectangle(left + 3, strip_top, _WIDTH - 6, _STRIP, strip, outline=_ON_DARK)
    room = _WIDTH - 14.0
    if box.is_small:
        shown = _fit(f"quantize: {box.bits()}", room, _SMALL_FONT)
        pen.words(x, y, shown, middle=True, color=ink)
        return
    title = f"! {box.title()}" if box.is_problem else box.title()
    pen.words(x, top + 8.5, _fit(title, room, _FONT), _FONT, bold=True, middle=True, color=ink)
    made = f"[{shape_text(box.rows[-1].shape)}]"
    for down, line in ((20.5, box.names()), (32.0, " ".join(filter(None, (box.bits(), made))))):
        pen.words(x, top + down, _fit(line, room, _SMALL_FONT), middle=True, color=ink)


def _fill(box: Box) -> tuple[str, str]:
    """Colours of a box and of its text."""
    if box.is_float:
        return _FLOAT, _INK
    bits = box.color_bits
    if bits is None:
        return (_FLOAT if box.main.weights else _PLAIN), _INK
    return BIT_COLORS[bits], _ON_DARK if bits >= _FIRST_DARK else _ON_LIGHT


def legend(boxes: Iterable[Box]) -> list[tuple[str, str, str, bool]]:
    """The swatches of what occurs: words, fill, outline, and whether it is dashed."""
    boxes = list(boxes)
    used = {box.color_bits for box in boxes} | {
        box.made.activation.bits for box in boxes if box.made.activation
    }
    entries = [
        (f"{bits} bit{'s' if bits > 1 else ''}", color, _LINE, False)
        for bits, color in BIT_COLORS.items()
        if bits in used
    ]
    if any(box.is_float for box in boxes):
        entries.append(("float", _FLOAT, _LINE, False))
    if any(box.is_problem for box in boxes):
        entries.append(("problem", _FLOAT, PROBLEM_COLOR, False))
    if any(box.is_small for box in boxes):
        entries.append(("inserted quantizer", _NO_FILL, _LINE, True))
    if any(_fill(box)[0] == _PLAIN for box in boxes):
        entries.append(("moves codes", _PLAIN, _LINE, False))
    return entries


def _draw_legend(pen: _Pen, boxes: Iterable[Box], top: float) -> None:
    x = _MARGIN
    for words, color, outline, dashed in legend(boxes):
        pen.rectangle(x, top, 18.0, 12.0, color, outline=outline, dashed=dashed)
        pen.words(x + 24, top + 6, words)
        x += 36 + len(words) * _SMALL_FONT * _LETTER
    about = "box: bits of the weights, or else of the codes; strip: bits of the codes it makes, "
    pen.words(_MARGIN, top + 24, f"{about}u unsigned, s signed")


def _fit(words: str, width: float, size: float) -> str:
    """The words, cut in the middle to fit the width: names differ at both ends."""
    room = int(width / (size * _LETTER))
    if len(words) <= room:
        return words
    end = (room - 1) // 3
    return f"{words[: room - 1 - end]}…{words[-end:]}"


def diagram_element(plan: Sequence[LayerPlan], model: str, width: float) -> Markup:
    """The diagram as an element of a page, in the page's colours.

    Args:
        plan: its rows.
        model: the name of the model.
        width: that a long graph is wrapped to, in pixels.
    """
    with drawn_for_a_page():
        return _element(draw(plan, width=width, colors=STAND_INS), model)


def _element(picture: "Picture", model: str) -> Markup:
    width = picture.bbox.width
    return svg_element(picture, kind="plan", title=model, style=f"width: {width:.0f}px")


# Two pixels for each unit; fewer in pictures so large that few programs would open them.
_MOST_DOTS, _LARGEST_PIXELS, _LONGEST_PIXELS = 2.0, 120_000_000, 60_000


def write_diagram(
    plan: Sequence[LayerPlan], model: str, lines: Sequence[str], path: str | os.PathLike[str]
) -> None:
    """Draws the plan; the file appears whole, or not at all.

    Args:
        plan: its rows.
        model: the name of the model.
        lines: what stands below the name.
        path: of the file.

    Raises:
        ValueError: the path has another suffix, or cannot be written.
    """
    path = check_picture_path(path)
    with drawn_for_a_page(), written_whole(path) as temporary:
        picture = draw(plan, [model, *lines])
        picture.set(frameon=True, facecolor=_ON_DARK)
        if temporary.suffix.lower() == ".svg":
            drawn = str(_element(picture, model)).replace("<svg", f'<svg xmlns="{_SVG}"', 1)
            temporary.write_text(f'<?xml version="1.0" encoding="UTF-8"?>\n{drawn}\n', "utf-8")
            return
        width, height = picture.bbox.size
        most = (_LARGEST_PIXELS / (width * height)) ** 0.5, _LONGEST_PIXELS / max(width, height)
        dots = picture.dpi * min(_MOST_DOTS, *most)
        picture.savefig(temporary, format="png", dpi=dots, metadata={"Software": "sat-tf"})


_SVG = "http://www.w3.org/2000/svg"
