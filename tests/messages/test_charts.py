import base64
import math
import re
import xml.etree.ElementTree as ET

import pytest

from sat_tf.messages import charts
from sat_tf.messages.charts import dot_chart, histogram


def svg(figure):
    """The elements of the drawing in a figure of a page."""
    data = re.search(r'src="data:image/svg\+xml;base64,([\w+/=]+)"', figure)[1]
    return list(ET.fromstring(base64.b64decode(data)).iter())


def texts(figure):
    return [element.text for element in svg(figure) if element.tag.endswith("}text")]


def test_a_chart_of_dots_leaves_out_what_was_not_measured():
    dots = {"κ₁": [0.5, None, math.nan, 2.0], "none": [None] * 4}
    drawn = dot_chart("<κ>", "layer", "κ₁", dots, wanted=(0.5, 2.0))
    assert '<figcaption>&lt;κ&gt;</figcaption>\n<img alt="&lt;κ&gt;"' in drawn
    assert {"layer", "κ₁", "1", "4"} < set(texts(drawn))
    assert "none" not in texts(drawn)
    marks = [element for element in svg(drawn) if element.tag.endswith("}use")]
    assert sum(charts.BLUE.lower() in mark.get("style") for mark in marks) == 2
    assert drawn == dot_chart("<κ>", "layer", "κ₁", dots, wanted=(0.5, 2.0))
    assert dot_chart("", "", "", {"": [None]}) == dot_chart("", "", "", {"": []}) == ""


def test_a_logarithmic_chart_of_zeros_is_none():
    assert dot_chart("", "", "", {"": [0.0, None]}) == ""
    assert dot_chart("", "", "", {"": [0.0, None]}, share=True) != ""


@pytest.mark.parametrize("count", [1, 2, 16, 32, 33, 256])
def test_every_code_that_occurs_has_a_bar_beside_the_axis(count):
    for counts, bars in (([1] + [0] * (count - 1), 1), ([3] * count, count), ([0] * count, 0)):
        assert histogram(counts, "x").count("M") == 1 + bars


def test_a_code_that_hardly_occurs_can_be_seen():
    heights = re.findall(r"v-([\d.]+)", histogram([1, 10**9], "x"))
    assert list(map(float, heights)) == [1.5, 22.0]


def test_lines_differ_in_colour_dashes_and_dots():
    colours = {charts.BLUE, charts.ORANGE, charts.GREEN, charts.PURPLE}
    assert {style["color"] for style in charts.SERIES} == colours
    for property_ in ("color", "linestyle", "marker"):
        assert len({style[property_] for style in charts.SERIES}) == len(charts.SERIES)
