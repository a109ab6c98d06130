import math
import re
import xml.etree.ElementTree as ET

import pytest

from sat_tf.presentation import charts
from sat_tf.presentation.charts import DotChart, Dots, Line, LineChart, histogram, legend

# The area between the axes of a chart of lines.
LEFT, RIGHT, TOP, BOTTOM = 52.0, 460.0, 34.0, 248.0


def chart(*points, stages=((0.0, "float"),), **options):
    lines = [Line(label="loss", points=list(points), colour="red", dots=True)]
    return LineChart(title="Loss", lines=lines, stages=stages, summary="It falls.", **options)


def places(svg):
    """The centres of all dots."""
    root = ET.fromstring(svg)
    return [(float(dot.get("x")), float(dot.get("y"))) for dot in root.iter("use")]


def texts(svg):
    return list(ET.fromstring(svg).iter("text"))


def marks(svg, anchor):
    """The numbers of an axis: "end" are those beside y, "middle" those below x."""
    return [text.text for text in texts(svg) if f"text-anchor: {anchor}" in text.get("style")]


def tips(svg):
    return [element.text for element in ET.fromstring(svg).iter("title")][1:]


def test_larger_values_are_further_right_and_higher_up():
    (x0, y0), (x1, y1) = places(chart((0.0, 1.0), (10.0, 3.0)).to_svg())
    assert x0 < x1
    assert y0 > y1


def test_marks_are_round_numbers_that_hold_all_values():
    svg = chart((0.0, 0.13), (703.0, 0.97), stages=()).to_svg()
    assert marks(svg, "end") == ["0", "0.2", "0.4", "0.6", "0.8", "1"]
    assert marks(svg, "middle") == ["0", "200", "400", "600", "step of the run"]


def test_the_last_step_is_at_the_right_end():
    svg = chart((0.0, 0.13), (703.0, 0.97)).to_svg()
    assert places(svg)[-1][0] == RIGHT
    across = {text.text: float(text.get("x")) for text in texts(svg)}
    assert across["600"] < RIGHT


@pytest.mark.parametrize("values", [(100.0, 100.0), (97.3, 100.0), (0.0, 100.0), (0.0, 0.0)])
def test_no_mark_is_where_no_value_can_be(values):
    svg = chart((0.0, values[0]), (1.0, values[1]), stages=(), least=0.0, most=100.0).to_svg()
    found = [float(mark) for mark in marks(svg, "end")]
    assert min(found) >= 0.0
    assert max(found) <= 100.0
    assert all(TOP <= y <= BOTTOM for _, y in places(svg))


@pytest.mark.parametrize("logarithmic", [False, True])
@pytest.mark.parametrize("value", [0.0, 1.0, 2.0, 3.0, 0.7, -3.0, 1e-9, 1e9])
def test_one_value_is_drawn_too(value, logarithmic):
    svg = chart((5.0, value), logarithmic=logarithmic).to_svg()
    if logarithmic and value <= 0:
        assert svg == "<p>Nothing was recorded.</p>"
    else:
        ((x, y),) = places(svg)
        assert LEFT <= x <= RIGHT
        assert TOP <= y <= BOTTOM


def test_logarithmic_decades_are_equally_high():
    svg = chart((0.0, 0.01), (1.0, 0.1), (2.0, 1.0), (3.0, 100.0), logarithmic=True).to_svg()
    heights = [y for _, y in places(svg)]
    assert heights[0] - heights[1] == pytest.approx(heights[1] - heights[2], abs=0.2)
    assert heights[2] - heights[3] == pytest.approx(2 * (heights[0] - heights[1]), abs=0.2)
    assert marks(svg, "end") == ["0.01", "0.1", "1", "10", "100"]


def test_values_that_are_not_finite_leave_a_gap():
    svg = chart((0.0, 1.0), (1.0, math.nan), (2.0, 2.0), (3.0, math.inf), (4.0, 1.0)).to_svg()
    assert len(places(svg)) == 3
    assert "nan" not in svg
    assert "inf" not in svg
    only_zero = chart((0.0, 0.0), (1.0, -1.0), logarithmic=True).to_svg()
    assert only_zero == chart().to_svg() == "<p>Nothing was recorded.</p>"


def test_a_point_between_gaps_has_a_dot():
    points = [(0.0, 1.0), (1.0, 2.0), (2.0, math.nan), (3.0, 1.5), (4.0, math.nan), (5.0, 1.0)]
    line = Line(label="loss", points=points, colour="red")
    drawn = LineChart(title="Loss", lines=[line], stages=(), summary="").to_svg()
    assert [x for x, _ in places(drawn)] == [pytest.approx(LEFT + 0.6 * 408), RIGHT]


def test_one_step_of_many_that_stands_out_is_drawn():
    points = [(float(step), 1.0) for step in range(5000)]
    points[2500] = (2500.0, 3.0)
    line = Line(label="loss", points=points, colour="red")
    drawn = LineChart(title="Loss", lines=[line], stages=(), summary="").to_svg()
    path = next(p for p in ET.fromstring(drawn).iter("path") if "stroke: #ff0000" in p.get("style"))
    heights = [float(y) for y in re.findall(r"[ML] [\d.]+ ([\d.]+)", path.get("d"))]
    assert min(heights) == TOP
    assert max(heights) == BOTTOM


def test_names_of_stages_stand_inside_the_drawing_and_not_on_each_other():
    stages = [(0.0, "float"), (900.0, "quantized"), (980.0, "the rest")]
    svg = chart((1.0, 1.0), (1000.0, 2.0), stages=stages).to_svg()
    names = [text for text in texts(svg) if text.text in {name for _, name in stages}]
    assert [name.text for name in names] == ["float", "quantized", "the rest"]
    assert "text-anchor: end" in names[1].get("style")
    assert "text-anchor: end" in names[2].get("style")
    assert all(0 <= float(name.get("x")) <= 480 for name in names)
    assert names[1].get("y") != names[2].get("y")


def test_hostile_names_are_text():
    name = "<script>& $x_\x1b[2J"
    line = Line(label=name, points=[(0.0, 1.0), (1.0, 1.0)], colour="red")
    drawn = LineChart(title="<b>", lines=[line], stages=[(0.0, name)], summary='"<u>"').to_svg()
    shown = "<script>& $x_\\x1b[2J"
    for html in (drawn, legend([line])):
        assert "<script" not in html
        assert "&lt;script&gt;&amp;" in html
    assert shown in [text.text for text in texts(drawn)]
    assert tips(drawn) == [shown]
    assert ET.fromstring(drawn).find("title").text == "<b>"
    assert ET.fromstring(drawn).find("desc").text == '"<u>"'


def test_a_drawing_has_the_colours_of_its_page_no_ids_of_its_own_and_is_the_same_again():
    line = Line(label="loss", points=[(0.0, 1.0), (1.0, 2.0)], colour="var(--curve)", dots=True)
    made = [LineChart(title="Loss", lines=[line], stages=(), summary="").to_svg() for _ in range(2)]
    assert made[0] == made[1]
    assert "stroke: var(--curve)" in made[0]
    assert "fill: var(--soft)" in made[0]
    assert "#fe01" not in made[0]
    assert not re.search(r"<style|<metadata|url\(|xmlns|https?:", made[0])
    # Marks are drawn by reference; the same one on a page has the same id.
    assert set(re.findall(r'id="(\w+)"', made[0])) == set(re.findall(r'href="#(\w+)"', made[0]))


def test_a_chart_of_dots_names_every_layer_and_leaves_out_what_was_not_measured():
    values = [0.5, None, math.nan, 2.0]
    drawn = DotChart(
        title="κ",
        x_label="layer",
        y_label="κ₁",
        names=["a", "b", "c", "<d>"],
        dots=[Dots("κ₁", values), Dots("none", [None] * 4)],
        wanted=(0.5, 2.0),
    ).to_figure()
    svg = re.search("<svg.*?</svg>", drawn, re.DOTALL)[0]
    assert tips(svg) == ["wanted", "1 a: κ₁ 0.5", "4 <d>: κ₁ 2"]
    assert len(places(svg)) == 2
    assert marks(svg, "end") == ["0.1", "1", "10"]
    assert "legend" not in drawn
    empty = DotChart(title="", x_label="", y_label="", names=["a"], dots=[Dots("", [None])])
    assert empty.to_figure() == ""


@pytest.mark.parametrize("count", [1, 2, 16, 32, 33, 256])
def test_every_code_that_occurs_has_a_bar(count):
    counts = [1] + [0] * (count - 1)
    assert histogram(counts, "x").count("M") == 2  # the axis, and one bar
    assert histogram([3] * count, "x").count("M") == 1 + count


def test_a_code_that_hardly_occurs_can_be_seen():
    heights = [float(h) for h in re.findall(r"v-([\d.]+)", histogram([1, 10**9], "x"))]
    assert heights == [1.5, 22.0]


def test_codes_that_never_occur_leave_the_axis():
    assert histogram([0, 0], "x").count("M") == 1


def test_lines_differ_in_colour_dashes_and_dots():
    colours = {charts.BLUE, charts.ORANGE, charts.GREEN, charts.PURPLE}
    assert {style["color"] for style in charts.SERIES} == colours
    for property_ in ("color", "linestyle", "marker"):
        assert len({style[property_] for style in charts.SERIES}) == len(charts.SERIES)
