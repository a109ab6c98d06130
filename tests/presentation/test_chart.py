import math
import re
import xml.etree.ElementTree as ET

import pytest

from sat_tf.presentation.charts import Line, LineChart, legend


def chart(*points, stages=((0.0, "float"),), **options):
    lines = [Line(label="loss", points=list(points), colour="red", dots=True)]
    return LineChart(title="Loss", lines=lines, stages=stages, summary="It falls.", **options)


def places(svg):
    """The centres of all dots."""
    root = ET.fromstring(svg)
    return [(float(dot.get("cx")), float(dot.get("cy"))) for dot in root.iter("circle")]


def marks(svg):
    return [element.text for element in ET.fromstring(svg).iter("text")]


def test_larger_values_are_further_right_and_higher_up():
    (x0, y0), (x1, y1) = places(chart((0.0, 1.0), (10.0, 3.0)).to_svg())
    assert x0 < x1
    assert y0 > y1


def test_marks_are_round_numbers_that_hold_all_values():
    found = marks(chart((0.0, 0.13), (703.0, 0.97)).to_svg())
    assert found[:6] == ["0", "0.2", "0.4", "0.6", "0.8", "1"]
    # Steps end with the last one.
    assert found[6:11] == ["0", "200", "400", "600", "step of the run"]


def test_the_last_step_is_at_the_right_end_and_no_mark_is_beyond_it():
    svg = chart((0.0, 0.13), (703.0, 0.97)).to_svg()
    assert places(svg)[-1][0] == 460.0
    across = {element.text: float(element.get("x")) for element in ET.fromstring(svg).iter("text")}
    assert across["600"] < 460.0


@pytest.mark.parametrize("values", [(100.0, 100.0), (97.3, 100.0), (0.0, 100.0), (0.0, 0.0)])
def test_no_mark_is_where_no_value_can_be(values):
    svg = chart((0.0, values[0]), (1.0, values[1]), least=0.0, most=100.0).to_svg()
    found = [float(mark) for mark in marks(svg)[: marks(svg).index("step of the run") - 3]]
    assert min(found) >= 0.0
    assert max(found) <= 100.0
    assert all(34.0 <= y <= 248.0 for _, y in places(svg))


@pytest.mark.parametrize("value", [0.0, 1.0, -3.0, 1e-9, 1e9])
def test_one_value_is_drawn_too(value):
    ((_, y),) = places(chart((5.0, value)).to_svg())
    assert 0 < y < 284


def test_logarithmic_decades_are_equally_high():
    svg = chart((0.0, 0.01), (1.0, 0.1), (2.0, 1.0), (3.0, 100.0), logarithmic=True).to_svg()
    heights = [y for _, y in places(svg)]
    assert heights[0] - heights[1] == pytest.approx(heights[1] - heights[2], abs=0.2)
    assert heights[2] - heights[3] == pytest.approx(2 * (heights[0] - heights[1]), abs=0.2)
    assert {"0.01", "0.1", "1", "10", "100"} <= set(marks(svg))


@pytest.mark.parametrize("value", [1.0, 2.0, 3.0, 0.7])
def test_one_value_has_a_logarithmic_axis_around_it(value):
    ((_, y),) = places(chart((5.0, value), logarithmic=True).to_svg())
    assert 0 < y < 284


def test_values_that_are_not_finite_leave_a_gap():
    svg = chart((0.0, 1.0), (1.0, math.nan), (2.0, 2.0), (3.0, math.inf), (4.0, 1.0)).to_svg()
    assert len(places(svg)) == 3
    assert "nan" not in svg
    assert "inf" not in svg
    only_zero = chart((0.0, 0.0), (1.0, -1.0), logarithmic=True).to_svg()
    assert only_zero == chart().to_svg() == "<p>Nothing was recorded.</p>"


def test_many_points_are_thinned_and_both_ends_stay():
    dots = places(chart(*((float(i), float(i % 7)) for i in range(5000))).to_svg())
    assert len(dots) == 400
    whole = chart(*((float(i), float(i % 7)) for i in range(5000)), most_points=9999).to_svg()
    assert len(places(whole)) == 5000
    first, last = places(chart((0.0, 0.0), (4999.0, 6.0)).to_svg())
    assert (dots[0][0], dots[-1][0]) == (first[0], last[0])


def test_names_of_stages_stand_inside_the_drawing_and_not_on_each_other():
    stages = [(0.0, "float"), (900.0, "quantized"), (980.0, "deploy tail")]
    svg = chart((1.0, 1.0), (1000.0, 2.0), stages=stages).to_svg()
    root = ET.fromstring(svg)
    names = [element for element in root.iter("text") if not re.match(r"[\d.]|step", element.text)]
    assert [name.text for name in names] == ["float", "quantized", "deploy tail"]
    assert all(float(name.get("x")) + 6 * len(name.text) <= 480 for name in names)
    assert names[1].get("y") != names[2].get("y")


def test_hostile_names_are_text():
    line = Line(label="<script>&", points=[(0.0, 1.0)], colour="red")
    drawn = LineChart(
        title="<b>", lines=[line], stages=[(0.0, "<i>")], summary='"<u>"', logarithmic=False
    ).to_svg()
    for html in (drawn, legend([line])):
        assert "<script" not in html
        assert "&lt;script&gt;&amp;" in html
    assert ET.fromstring(drawn).find("title").text == "<b>"
    assert ET.fromstring(drawn).find("desc").text == '"<u>"'
