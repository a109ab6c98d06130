"""The diagram of a plan: rectangles, lines and words, for any format."""

import dataclasses
import itertools
import math
from collections.abc import Iterator, Sequence

from sat_tf.planning.plan_table import summary
from sat_tf.planning.planned_model import Export, Fate, LayerPlan, PlannedModel, shape_text


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


def boxes_of(plan: PlannedModel) -> list[Box]:
    """The boxes of a plan, producers before consumers."""
    readers: dict[str, list[str]] = {}
    for row in plan.rows:
        for name in row.reads:
            readers.setdefault(name, []).append(row.name)
    joined: dict[str, str] = {}  # the box of each row, by the name of its last row
    for row in reversed(plan.rows):
        reader = _fused_reader(row, readers.get(row.name, []), plan)
        joined[row.name] = joined[reader] if reader else row.name
    for row in plan.rows:
        if row.export is Export.NOTHING and not row.fused_into and len(row.reads) == 1:
            box = joined[row.reads[0]]
            joined = {name: box if to == row.name else to for name, to in joined.items()}
    members: dict[str, list[LayerPlan]] = {}
    for row in plan.rows:
        members.setdefault(joined[row.name], []).append(row)
    index = {name: i for i, name in enumerate(members)}
    boxes = []
    for name, rows in members.items():
        reads = [index[joined[read]] for row in rows for read in row.reads]
        others = tuple(i for i in dict.fromkeys(reads) if i != index[name])
        boxes.append(Box(tuple(rows), others))
    return boxes


def _is_image(row: LayerPlan) -> bool:
    """Whether a quantizer marks the pixels of an image: 8 bits, never clipped."""
    made = row.activation
    return row.inserted and made is not None and made.clipping_level is None and not made.signed


def _fused_reader(row: LayerPlan, readers: list[str], plan: PlannedModel) -> str:
    """The only reader of a layer, if both are drawn as one box."""
    if len(readers) != 1:
        return ""
    if row.kind == "InputLayer" and _is_image(plan[readers[0]]):
        return readers[0]
    if row.export in (Export.UNKNOWN, Export.REFUSED):
        concatenates = row.absorbed_by and plan[row.absorbed_by].kind == "Concatenate"
        return "" if concatenates else row.absorbed_by
    return readers[0] if len(row.fused_into) == 1 else ""


_SWEEPS = 8
_GAP_X, _GAP_Y = 22.0, 26.0
_LANE = 12.0
_WIRE = 10.0
_COLUMN_GAP = 70.0
# Width over height that a long graph is wrapped to.
_ASPECT = 1.5
_TALLEST_COLUMN = 1100.0

Point = tuple[float, float]


@dataclasses.dataclass(frozen=True)
class Layout:
    """Places of boxes and routes of edges.

    Attributes:
        centers: of the boxes.
        edges: for each edge, the points it goes through, top to bottom.
        width: of all.
        height: of all.
    """

    centers: list[Point]
    edges: list[list[Point]]
    width: float
    height: float


@dataclasses.dataclass
class _PlacedBox:
    """A box, or where an edge passes a rank."""

    width: float
    height: float
    above: list[int]
    below: list[int]
    x: float = 0.0


def lay_out(
    sizes: Sequence[Point], reads: Sequence[Sequence[int]], *, width: float | None = None
) -> Layout:
    """Places boxes.

    Args:
        sizes: width and height of each.
        reads: for each box, those that it reads, all of which come before it.
        width: that a long graph is wrapped to, unless a rank of it is wider; by default as wide as
            makes a picture of about 3 by 2.
    """
    rank_of: list[int] = []
    for sources in reads:
        rank_of.append(1 + max((rank_of[source] for source in sources), default=-1))
    # A box without producers goes right above its first reader.
    for index in reversed(range(len(reads))):
        below = [rank_of[reader] for reader, read in enumerate(reads) if index in read]
        if below and not reads[index]:
            rank_of[index] = min(below) - 1
    places = [_PlacedBox(width, height, [], []) for width, height in sizes]
    ranks: list[list[int]] = [[] for _ in range(1 + max(rank_of, default=0))]
    for index, rank in enumerate(rank_of):
        ranks[rank].append(index)
    ways = _ways(reads, rank_of, places, ranks)
    _sort_ranks(places, ranks)
    _settle(places, ranks)
    return _in_columns(places, ranks, len(sizes), ways, width)


def _ways(
    reads: Sequence[Sequence[int]],
    rank_of: list[int],
    places: list[_PlacedBox],
    ranks: list[list[int]],
) -> list[list[int]]:
    """The places that each edge goes through; adds those between its ends."""
    ways = []
    for reader, sources in enumerate(reads):
        for source in sources:
            way = [source]
            for rank in range(rank_of[source] + 1, rank_of[reader]):
                places.append(_PlacedBox(_WIRE, 0.0, [], []))
                ranks[rank].append(len(places) - 1)
                way.append(len(places) - 1)
            way.append(reader)
            for upper, lower in itertools.pairwise(way):
                places[upper].below.append(lower)
                places[lower].above.append(upper)
            ways.append(way)
    return ways


def _sort_ranks(places: list[_PlacedBox], ranks: list[list[int]]) -> None:
    """Orders each rank by the mean position of the neighbours in the one before, down and up."""
    for sweep in range(_SWEEPS):
        down = sweep % 2 == 0
        position = {index: i for rank in ranks for i, index in enumerate(rank)}
        for rank in ranks if down else reversed(ranks):
            keys = {}
            for index in rank:
                near = places[index].above if down else places[index].below
                keys[index] = _mean([position[other] for other in near], position[index])
            rank.sort(key=lambda index: keys[index])
            position.update({index: i for i, index in enumerate(rank)})


def _settle(places: list[_PlacedBox], ranks: list[list[int]]) -> None:
    """Moves places towards their neighbours, as far as the order and their widths let them."""
    for rank in ranks:
        _pack(places, rank, [0.0] * len(rank))
    for sweep in range(_SWEEPS):
        down = sweep % 2 == 0
        for rank in ranks if down else reversed(ranks):
            wanted = []
            for index in rank:
                place = places[index]
                near = (place.above if down else place.below) or place.above or place.below
                wanted.append(_mean([places[other].x for other in near], place.x))
            _pack(places, rank, wanted)


def _pack(places: list[_PlacedBox], rank: list[int], wanted: list[float]) -> None:
    """The positions nearest to the wanted ones, by least squares, that overlap nowhere.

    With the widths before it subtracted, each position must only be no less than the last one,
    which is isotonic regression: neighbours that overlap share their mean.
    """
    offsets, offset = [], 0.0
    for i, index in enumerate(rank):
        if i:
            before = places[rank[i - 1]]
            offset += (before.width + places[index].width) / 2 + _GAP_X
        offsets.append(offset)
    blocks: list[list[float]] = []  # sum, count
    for want, shift in zip(wanted, offsets, strict=True):
        blocks.append([want - shift, 1.0])
        while len(blocks) > 1 and blocks[-2][0] / blocks[-2][1] >= blocks[-1][0] / blocks[-1][1]:
            total, count = blocks.pop()
            blocks[-1][0] += total
            blocks[-1][1] += count
    means = [total / count for total, count in blocks for _ in range(int(count))]
    for index, mean, shift in zip(rank, means, offsets, strict=True):
        places[index].x = mean + shift


def _mean(values: list[float] | list[int], default: float) -> float:
    return sum(values) / len(values) if values else default


def _in_columns(
    places: list[_PlacedBox],
    ranks: list[list[int]],
    num_boxes: int,
    ways: list[list[int]],
    width: float | None,
) -> Layout:
    heights = [max((places[index].height for index in rank), default=0.0) for rank in ranks]
    columns = _cut(places, ranks, heights, width)
    column_of = {index: c for c, rows in enumerate(columns) for r in rows for index in ranks[r]}
    at: dict[int, Point] = {}
    left, tallest, rights = 0.0, 0.0, []
    for rows in columns:
        held = [index for r in rows for index in ranks[r]]
        low = min(places[index].x - places[index].width / 2 for index in held)
        high = max(places[index].x + places[index].width / 2 for index in held)
        y = 0.0
        for r in rows:
            for index in ranks[r]:
                at[index] = (left + places[index].x - low, y + heights[r] / 2)
            y += heights[r] + _GAP_Y
        tallest = max(tallest, y - _GAP_Y)
        rights.append(left + high - low)
        left = rights[-1] + _COLUMN_GAP
    edges, lanes = [], [0] * len(columns)
    for way in ways:
        points: list[Point] = []
        for upper, lower in itertools.pairwise(way):
            if not points:
                points.append((at[upper][0], at[upper][1] + places[upper].height / 2))
            end = (at[lower][0], at[lower][1] - places[lower].height / 2)
            column = column_of[upper]
            if column_of[lower] != column:
                # Through the gap between the columns, each edge on a lane of its own.
                lane = lanes[column] = lanes[column] + 1
                gutter = rights[column] + min(_LANE * lane, _COLUMN_GAP - _LANE)
                bottom = tallest + 6.0 * lane
                points += [(points[-1][0], bottom), (gutter, bottom)]
                points += [(gutter, -6.0 * lane), (end[0], -6.0 * lane)]
            points.append(end)
        edges.append(points)
    most = max(lanes, default=0)
    margin = 6.0 * most
    centers = [(at[index][0], at[index][1] + margin) for index in range(num_boxes)]
    moved = [[(x, y + margin) for x, y in points] for points in edges]
    return Layout(centers, moved, max(rights, default=0.0), tallest + 2 * margin)


def _cut(
    places: list[_PlacedBox],
    ranks: list[list[int]],
    heights: list[float],
    width: float | None,
) -> list[list[int]]:
    """The ranks of each column: of about equal height, cut where few edges are."""
    total = sum(heights) + _GAP_Y * len(heights)
    widths = [sum(places[i].width + _GAP_X for i in rank) for rank in ranks]
    usual = sorted(widths)[len(widths) * 9 // 10] + _COLUMN_GAP if widths else 1.0
    if width is None:
        wanted = max(1, round(math.sqrt(_ASPECT * total / usual)))
    else:
        wanted = max(1, int((width + _COLUMN_GAP) / usual))
    count = 1 if total <= _TALLEST_COLUMN else wanted
    columns: list[list[int]] = [[]]
    tall, goal = 0.0, total / count
    for rank in range(len(ranks)):
        columns[-1].append(rank)
        tall += heights[rank] + _GAP_Y
        rest = rank + 1 < len(ranks)
        edges = sum(len(places[index].below) for index in ranks[rank])
        if rest and len(columns) < count and tall >= goal * (0.85 if edges <= 1 else 1.05):
            columns.append([])
            tall = 0.0
    return columns


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
FLOAT_COLOR, PLAIN_COLOR, PROBLEM_COLOR = "#c9cdd3", "#ffffff", "#d0021b"
LINE_COLOR, NO_COLOR = "#5c6370", "none"
_INK, _WHITE = "#1c1f23", "#ffffff"

_WIDTH = 212.0
_LARGE, _SMALL = 52.0, 22.0
_STRIP = 8.0
_MARGIN = 20.0
_HEAD = 64.0
_FONT, _SMALL_FONT = 12.0, 10.5
# Average width of a letter over the font size, rounded up a little.
_LETTER = 0.56


@dataclasses.dataclass(frozen=True)
class Rectangle:
    """A box; `dashed` if it is not a layer of the model."""

    left: float
    top: float
    width: float
    height: float
    fill: str
    outline: str = LINE_COLOR
    line_width: float = 1.0
    dashed: bool = False
    tip: str = ""


@dataclasses.dataclass(frozen=True)
class Edge:
    """An edge, with an arrow at its end."""

    points: tuple[Point, ...]


@dataclasses.dataclass(frozen=True)
class Label:
    """A line of text, from its left end or around its middle.

    Attributes:
        color: None: that of text outside boxes and in those without codes.
    """

    x: float
    y: float
    words: str
    size: float = _FONT
    bold: bool = False
    middle: bool = False
    color: str | None = None


Shape = Rectangle | Edge | Label


@dataclasses.dataclass(frozen=True)
class Drawing:
    """The shapes in drawing order, and the size of the picture."""

    width: float
    height: float
    shapes: tuple[Shape, ...]
    title: str


def draw(plan: PlannedModel, *, width: float | None = None, headed: bool = True) -> Drawing:
    """The diagram of a plan.

    Args:
        plan: what to draw.
        width: that a long graph is wrapped to; see `lay_out`.
        headed: whether the model's name and sums stand above it.
    """
    boxes = boxes_of(plan)
    sizes = [(_WIDTH, _SMALL if box.is_small else _LARGE) for box in boxes]
    room = None if width is None else width - 2 * _MARGIN
    layout = lay_out(sizes, [box.reads for box in boxes], width=room)
    whole = max(layout.width, 560.0) + 2 * _MARGIN
    shapes: list[Shape] = []
    top = 0.0
    if headed:
        shapes.append(Label(_MARGIN, _MARGIN, plan.model, 15.0, bold=True))
        lines = [*summary(plan)[1:]]
        if plan.problems:
            problems = f"{len(plan.problems)} problems, outlined red"
            lines.append(f"cannot be quantized as asked: {problems}")
        top = _MARGIN + 18.0
        for line in lines:
            words = _fit(line, whole - 2 * _MARGIN, _SMALL_FONT)
            shapes.append(Label(_MARGIN, top, words, _SMALL_FONT))
            top += 15.0
    shapes += _moved(list(_legend(boxes)), _MARGIN, top + 4.0)
    top += _HEAD
    shapes += [Edge(tuple((x + _MARGIN, y + top) for x, y in way)) for way in layout.edges]
    for box, center in zip(boxes, layout.centers, strict=True):
        shapes += _box(box, center[0] + _MARGIN, center[1] + top)
    return Drawing(whole, layout.height + top + _MARGIN, tuple(shapes), plan.model)


def _box(box: Box, x: float, y: float) -> Iterator[Shape]:
    height = _SMALL if box.is_small else _LARGE
    left, top = x - _WIDTH / 2, y - height / 2
    fill, ink = _fill(box)
    problem = box.is_problem
    outline = PROBLEM_COLOR if problem else LINE_COLOR
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
        yield Label(x, y, words, _SMALL_FONT, middle=True, color=ink)
        return
    made = f"[{shape_text(box.rows[-1].shape)}]"
    title = f"! {box.title()}" if problem else box.title()
    yield Label(x, top + 9, _fit(title, room, _FONT), _FONT, bold=True, middle=True, color=ink)
    names = _fit(box.names(), room, _SMALL_FONT)
    yield Label(x, top + 22, names, _SMALL_FONT, middle=True, color=ink)
    bits = _fit(" ".join(filter(None, (box.bits(), made))), room, _SMALL_FONT)
    yield Label(x, top + 34, bits, _SMALL_FONT, middle=True, color=ink)


def _fill(box: Box) -> tuple[str, str | None]:
    """Colours of a box and of its text."""
    if box.is_float:
        return FLOAT_COLOR, None
    bits = box.color_bits
    if bits is None:
        return (FLOAT_COLOR if box.main.weights else PLAIN_COLOR), None
    return BIT_COLORS[bits], _WHITE if bits >= _FIRST_DARK else _INK


def _legend(boxes: list[Box]) -> Iterator[Shape]:
    """The colours that occur, and what boxes look like."""
    used = {box.color_bits for box in boxes} | {
        box.made.activation.bits for box in boxes if box.made.activation
    }
    entries = [
        (f"{bits} bit{'s' if bits > 1 else ''}", color, LINE_COLOR, False)
        for bits, color in BIT_COLORS.items()
        if bits in used
    ]
    if any(box.is_float for box in boxes):
        entries.append(("float", FLOAT_COLOR, LINE_COLOR, False))
    if any(box.is_problem for box in boxes):
        entries.append(("problem", FLOAT_COLOR, PROBLEM_COLOR, False))
    if any(box.is_small for box in boxes):
        entries.append(("inserted quantizer", NO_COLOR, LINE_COLOR, True))
    if any(_fill(box)[0] == PLAIN_COLOR for box in boxes):
        entries.append(("moves codes", PLAIN_COLOR, LINE_COLOR, False))
    x = 0.0
    for words, color, outline, dashed in entries:
        wide = 3.0 if outline == PROBLEM_COLOR else 1.0
        yield Rectangle(x, 0, 18, 12, color, outline, wide, dashed)
        yield Label(x + 24, 6, words, _SMALL_FONT)
        x += 36 + len(words) * _SMALL_FONT * _LETTER
    about = "box: bits of the weights, or else of the codes; strip: bits of the codes it makes, "
    yield Label(0, 24, f"{about}u unsigned, s signed", _SMALL_FONT)


def _moved(shapes: list[Shape], x: float, y: float) -> Iterator[Shape]:
    for shape in shapes:
        if isinstance(shape, Rectangle):
            yield dataclasses.replace(shape, left=shape.left + x, top=shape.top + y)
        elif isinstance(shape, Label):
            yield dataclasses.replace(shape, x=shape.x + x, y=shape.y + y)


def _fit(words: str, width: float, size: float) -> str:
    """The words, cut in the middle to fit the width: names differ at both ends."""
    room = int(width / (size * _LETTER))
    if len(words) <= room:
        return words
    end = (room - 1) // 3
    return f"{words[: room - 1 - end]}…{words[-end:]}"
