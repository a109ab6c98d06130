"""Places of the boxes of a graph, top to bottom, and the routes of the lines between them.

The layers of the graph are ranks; what reads what is sorted by the mean of its neighbours, and long
graphs are wrapped into columns.
"""

import dataclasses
import itertools
import math
from collections.abc import Sequence

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
