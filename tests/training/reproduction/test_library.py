import pytest
from pydantic import ValidationError

from sat_tf.training.config import SHIPPED
from sat_tf.training.paper_rows import (
    Data,
    Row,
    data_sets,
    entries,
    find,
)

# How many trainings each table and figure has. Table 1: four bit widths and float, by PACT and by
# SAT, for two networks. Table 2: three widths and float, SAT alone. Table 3: three widths both
# ways, and float.
COUNTS = {
    "table1": 20,
    "table2": 8,
    "table3": 7,
    "table4": 8,
    "figure2b": 3,
    "figure3": 4,
    "table_s1": 8,
    "table_s2": 6,
    "figure_s2": 1,
    "figure_s4": 2,
    "figure_s5": 2,
    "glyphs": 21,
    "glyphs_common_start": 4,
    "glyphs_gap_head": 9,
    "glyphs_grids": 8,
    "glyphs_recipes": 7,
    "glyphs_starts": 12,
    "glyphs_streams": 2,
    "glyphs_through_max": 11,
    "methods": 14,
}


def _printed(row):
    printed = entries()[row].row.printed
    return printed.top1, printed.top5


def test_every_table_and_figure_has_all_its_rows_in_the_order_of_the_paper():
    found = {}
    for row in entries():
        name = row.split("/")[0]
        found[name] = found.get(name, 0) + 1
    assert found == COUNTS
    assert list(found) == list(COUNTS)


# A few of each table, as printed.
@pytest.mark.parametrize(
    ("row", "top1", "top5"),
    [
        ("table1/mobilenet_v1/4bits", 71.3, 89.9),
        ("table1/mobilenet_v2/4bits", 71.1, 90.0),
        ("table1/mobilenet_v2/8bits_pact", 71.7, 89.9),
        ("table1/mobilenet_v1/float", 71.7, 90.2),
        ("table1/mobilenet_v2/float_pact", 72.1, 90.5),
        ("table2/mobilenet_v1/2bits", 66.3, 86.8),
        ("table2/mobilenet_v2/4bits", 72.1, 90.6),
        ("table3/preresnet50/2bits", 74.1, 91.7),
        ("table3/preresnet50/3bits_weights", 76.3, 93.0),
        ("table3/preresnet50/float", 75.9, 92.5),
        ("table4/mobilenet_v1/4bits/pact_sat", 70.9, 89.5),
        ("table4/mobilenet_v1/8bits/pact_cg", 71.0, 89.5),
        ("table_s2/mobilenet_v1/6bits/uniform", 72.5, 90.5),
        ("figure3/mobilenet_v2/2bits/pact_sat_cg", None, None),
    ],
)
def test_printed_figures_are_those_of_the_paper(row, top1, top5):
    assert _printed(row) == (top1, top5)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("table1/mobilenet_v1/{}bits", "table4/mobilenet_v1/{}bits/pact_sat_cg"),
        ("table1/mobilenet_v1/{}bits_pact", "table4/mobilenet_v1/{}bits/pact"),
    ],
)
def test_what_the_paper_prints_twice_is_the_same(one, other):
    for bits in (4, 8):
        assert _printed(one.format(bits)) == _printed(other.format(bits))
    for bits in (4, 5, 6):
        both = (
            f"table1/mobilenet_v1/{bits}bits",
            f"table_s2/mobilenet_v1/{bits}bits/first_last_8bits",
        )
        assert _printed(both[0]) == _printed(both[1])


def test_rows_run_on_imagenet_unless_they_are_about_glyphs():
    assert {entry.data for row, entry in entries().items() if not row.startswith("glyphs")} == {
        "imagenet2012"
    }
    assert {entry.data for row, entry in entries().items() if row.startswith("glyphs")} == {
        "glyphs"
    }


def test_every_network_has_a_recipe_and_every_data_set_changes_known_ones():
    recipes = {path.stem for path in (SHIPPED / "imagenet").glob("*.yaml")}
    assert {entry.row.base for entry in entries().values()} == recipes
    for data in data_sets().values():
        assert set(data.models) in (set(), recipes)


def test_a_pattern_finds_rows_once_and_in_order():
    rows, problems = find(["table4/*/4bits/*", "table4/mobilenet_v1/*/pact"])
    assert [row.id.removeprefix("table4/mobilenet_v1/") for row in rows] == [
        "4bits/pact",
        "4bits/pact_sat",
        "4bits/pact_cg",
        "4bits/pact_sat_cg",
        "8bits/pact",
    ]
    assert problems == []


ROW = {"base": "mobilenet_v1", "method": "SAT"}


def test_a_row_is_quantized_and_prints_nothing_unless_it_says_so():
    row = Row.model_validate(ROW)
    assert (row.measures, row.set) == ("quantized", {})
    assert (row.printed.top1, row.printed.top5, row.printed.kappa_0) == (None, None, None)


@pytest.mark.parametrize(
    "wrong",
    [
        {"measures": "both"},
        {"printed": {"top1": 0.713, "top2": 1.0}},
        {"printed": {"top1": 171.3}},
        {"sets": {}},
    ],
)
def test_what_a_row_does_not_know_is_refused(wrong):
    with pytest.raises(ValidationError):
        Row.model_validate({**ROW, **wrong})


def test_a_data_set_says_whether_it_needs_a_folder():
    data = Data.model_validate({"about": "digits", "data": {"name": "digits"}})
    assert data.data_dir == "none"
    with pytest.raises(ValidationError):
        Data.model_validate({"about": "digits", "data": {"name": "digits"}, "data_dir": True})
