import itertools

import hypothesis
import hypothesis.strategies as st
import pytest

from sat_tf.planning.layered import lay_out


@st.composite
def graphs(draw):
    """For each box, those before it that it reads."""
    count = draw(st.integers(1, 40))
    reads = [[]]
    for index in range(1, count):
        sources = st.lists(st.integers(max(0, index - 6), index - 1), max_size=3, unique=True)
        reads.append(draw(sources))
    return reads


def overlap(one, other, sizes):
    (x, y, (w, h)), (u, v, (s, t)) = (*one[0], sizes[one[1]]), (*other[0], sizes[other[1]])
    return abs(x - u) < (w + s) / 2 and abs(y - v) < (h + t) / 2


@hypothesis.given(graphs())
def test_no_box_covers_another_and_all_are_inside(reads):
    sizes = [(200.0, 50.0 if i % 3 else 20.0) for i in range(len(reads))]
    layout = lay_out(sizes, reads)
    placed = [(center, i) for i, center in enumerate(layout.centers)]
    assert not [pair for pair in itertools.combinations(placed, 2) if overlap(*pair, sizes)]
    for (x, y), (width, height) in zip(layout.centers, sizes, strict=True):
        assert -1e-6 <= x - width / 2 <= x + width / 2 <= layout.width + 1e-6
        assert -1e-6 <= y - height / 2 <= y + height / 2 <= layout.height + 1e-6


@hypothesis.given(graphs())
def test_edges_go_from_the_bottom_of_one_box_to_the_top_of_the_other(reads):
    sizes = [(200.0, 50.0)] * len(reads)
    layout = lay_out(sizes, reads)
    ends = [(source, reader) for reader, sources in enumerate(reads) for source in sources]
    for (source, reader), way in zip(ends, layout.edges, strict=True):
        (x, y), (u, v) = layout.centers[source], layout.centers[reader]
        assert way[0] == pytest.approx((x, y + 25.0))
        assert way[-1] == pytest.approx((u, v - 25.0))


def test_a_chain_is_straight_and_a_long_one_is_wrapped():
    short = lay_out([(200.0, 50.0)] * 5, [[], [0], [1], [2], [3]])
    assert len({x for x, _ in short.centers}) == 1
    long = lay_out([(200.0, 50.0)] * 200, [[], *([i] for i in range(199))])
    assert 0.5 < long.width / long.height < 3.0


@pytest.mark.parametrize("width", [300.0, 800.0, 1050.0])
def test_a_long_graph_is_wrapped_to_a_width(width):
    chain = [[], *([i] for i in range(199))]
    layout = lay_out([(200.0, 50.0)] * 200, chain, width=width)
    assert 0.5 * width < layout.width <= width
