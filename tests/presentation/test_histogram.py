import re

import pytest

from sat_tf.presentation.charts import histogram


@pytest.mark.parametrize("places", [1, 2, 16, 32, 33, 256])
def test_every_code_that_occurs_has_a_bar(places):
    counts = [1] + [0] * (places - 1)
    assert histogram(counts, "x").count("M") == 2  # the axis, and one bar
    assert histogram([3] * places, "x").count("M") == 1 + places


def test_a_code_that_hardly_occurs_can_be_seen():
    heights = [float(h) for h in re.findall(r"v-([\d.]+)", histogram([1, 10**9], "x"))]
    assert heights == [1.5, 22.0]


def test_codes_that_never_occur_leave_the_axis():
    assert histogram([0, 0], "x").count("M") == 1
