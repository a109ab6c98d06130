import re

from sat_tf.presentation.charts import rows_of_dots


def _circles(drawing):
    return [float(x) for x in re.findall(r'<circle cx="([\d.]+)"', drawing)]


def test_each_seed_has_a_dot_and_each_row_its_mean():
    drawing = rows_of_dots([("PACT", {0: 60.0, 1: 64.0}), ("SAT & CG", {0: 71.0})], title="4 bits")
    assert len(_circles(drawing)) == 3
    assert "seed 1: 64.00 %" in drawing
    assert ">62.0<" in drawing
    assert "SAT &amp; CG" in drawing
    assert "PACT 62.0; SAT &amp; CG 71.0" in drawing


def test_a_higher_accuracy_is_further_right_and_all_are_inside():
    rows = [(str(value), {0: value}) for value in (0.1, 33.3, 50.0, 99.9)]
    places = _circles(rows_of_dots(rows, title=""))
    assert places == sorted(places)
    assert places[0] >= 176
    assert places[-1] <= 432


def test_one_number_can_be_drawn():
    assert len(_circles(rows_of_dots([("PACT", {0: 50.0})], title=""))) == 1


def test_rows_that_were_not_run_say_so():
    assert "not run" in rows_of_dots([("PACT", {0: 50.0}), ("SAT", {})], title="")
    assert rows_of_dots([("PACT", {})], title="") == ""
