import collections
import concurrent.futures
import io
import multiprocessing
import pathlib

import pytest
from rich.console import Console

from benchmarks.paper import reproduction as paper
from sat_tf.training.config import SHIPPED
from tests.benchmarks.paper.fake import outcome

# -- rows of the paper -----------------------------------------------------------------------------

# How many trainings each table and figure has. Table 1: four bit widths and float, by PACT and by
# SAT, for two networks. Table 2: three widths and float, SAT alone. Table 3: three widths both
# ways, and float.
COUNTS = (
    "table1 20, table2 8, table3 7, table4 8, figure2b 3, figure3 4, table_s1 8, table_s2 6, "
    "figure_s2 1, figure_s4 2, figure_s5 2, glyphs 21, glyphs_common_start 4, glyphs_gap_head 9, "
    "glyphs_grids 8, glyphs_recipes 7, glyphs_starts 12, glyphs_streams 2, glyphs_through_max 11, "
    "methods 14"
)


def _printed(row):
    printed = paper.entries()[row].row.printed
    return printed.top1, printed.top5


def _rows(*patterns):
    rows, problems = paper.find(patterns)
    assert not problems
    return rows


def test_every_table_and_figure_has_all_its_rows_in_the_order_of_the_paper():
    counts = collections.Counter(row.split("/")[0] for row in paper.entries())
    assert ", ".join(f"{name} {count}" for name, count in counts.items()) == COUNTS


# A few of each table, as printed: top-1 and top-5.
PRINTED = """
table1/mobilenet_v1/4bits 71.3 89.9
table1/mobilenet_v2/4bits 71.1 90.0
table1/mobilenet_v2/8bits_pact 71.7 89.9
table1/mobilenet_v1/float 71.7 90.2
table1/mobilenet_v2/float_pact 72.1 90.5
table2/mobilenet_v1/2bits 66.3 86.8
table2/mobilenet_v2/4bits 72.1 90.6
table3/preresnet50/2bits 74.1 91.7
table3/preresnet50/3bits_weights 76.3 93.0
table3/preresnet50/float 75.9 92.5
table4/mobilenet_v1/4bits/pact_sat 70.9 89.5
table4/mobilenet_v1/8bits/pact_cg 71.0 89.5
table_s2/mobilenet_v1/6bits/uniform 72.5 90.5
figure3/mobilenet_v2/2bits/pact_sat_cg None None
"""


@pytest.mark.parametrize("line", PRINTED.split("\n")[1:-1])
def test_printed_figures_are_those_of_the_paper(line):
    row, *printed = line.split()
    assert [*map(str, _printed(row))] == printed


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("table1/mobilenet_v1/{}bits", "table4/mobilenet_v1/{}bits/pact_sat_cg"),
        ("table1/mobilenet_v1/{}bits_pact", "table4/mobilenet_v1/{}bits/pact"),
        ("table1/mobilenet_v1/{}bits", "table_s2/mobilenet_v1/{}bits/first_last_8bits"),
    ],
)
def test_what_the_paper_prints_twice_is_the_same(one, other):
    for bits in (4, 5, 6) if "s2" in other else (4, 8):
        assert _printed(one.format(bits)) == _printed(other.format(bits))


def test_every_network_has_a_recipe_and_every_data_set_changes_known_ones():
    for row, entry in paper.entries().items():
        assert entry.data == ("glyphs" if row.startswith("glyphs") else "imagenet2012")
    recipes = {path.stem for path in (SHIPPED / "imagenet").glob("*.yaml")}
    assert {entry.row.base for entry in paper.entries().values()} == recipes
    for data in paper.data_sets().values():
        assert set(data.models) in (set(), recipes)


def test_a_pattern_finds_rows_once_and_in_order():
    found = _rows("table4/*/4bits/*", "table4/mobilenet_v1/*/pact")
    expected = "4bits/pact 4bits/pact_sat 4bits/pact_cg 4bits/pact_sat_cg 8bits/pact"
    assert [row.id.removeprefix("table4/mobilenet_v1/") for row in found] == expected.split()


# -- outcomes --------------------------------------------------------------------------------------


def test_outcomes_read_back_as_they_were(tmp_path):
    file = tmp_path / "results" / "paper.csv"
    some = [
        outcome(),
        outcome(seed=1, top5=None, tflite_top1=None, codes_differing=None, commit=None),
        outcome(seed=2, changes="stages.float.steps=3; policy.overrides={a: {weight_bits: 8}}"),
        *(outcome(data="digits"), outcome(row="a"), outcome(changes="b=1")),
    ]
    paper.add_outcomes(file, some)
    assert paper.read_outcomes(file) == some
    # The same row, data, seed and changes take the place of the former.
    paper.add_outcomes(file, [outcome(top1=70.0)])
    assert paper.read_outcomes(file) == [outcome(top1=70.0), *some[1:]]


def test_files_that_do_not_say_how_many_images_a_file_was_measured_on_are_read(tmp_path):
    file = tmp_path / "paper.csv"
    paper.add_outcomes(file, [outcome(seed=1)])
    lines = [line.split(",") for line in file.read_text().splitlines()]
    place = lines[0].index("tflite_images")
    file.write_text("".join(",".join(x[:place] + x[place + 1 :]) + "\n" for x in lines))
    assert paper.read_outcomes(file) == [outcome(seed=1, tflite_images=None)]
    paper.add_outcomes(file, [outcome(seed=2)])
    assert paper.read_outcomes(file) == [outcome(seed=1, tflite_images=None), outcome(seed=2)]


def test_processes_that_add_at_the_same_time_lose_nothing(tmp_path):
    file = tmp_path / "paper.csv"
    context = multiprocessing.get_context("fork")
    with concurrent.futures.ProcessPoolExecutor(4, mp_context=context) as pool:
        outcomes = ([outcome(seed=seed)] for seed in range(40))
        list(pool.map(paper.add_outcomes, [file] * 40, outcomes))
    assert sorted(found.seed for found in paper.read_outcomes(file)) == list(range(40))


# -- tables of outcomes ----------------------------------------------------------------------------


# Deviations from 71 of -1, 0, 1: the sample's variance is 2 / 2.
THREE = [outcome(seed=seed, top1=70.0 + seed) for seed in range(3)]
OTHERS = [outcome(row="table1/mobilenet_v2/5bits"), outcome(changes="stages.float.steps=2")]


@pytest.mark.parametrize(
    ("outcomes", "data", "words"),
    [
        ([outcome(top1=70.0)], "glyphs", "70.0"),
        (THREE, "glyphs", "71.0 ± 1.0 (3)"),
        (OTHERS, "glyphs", ""),
        ([outcome()], "digits", ""),
    ],
    ids=["one seed", "mean and deviation", "other rows and settings", "other data"],
)
def test_a_summary_is_of_the_runs_of_a_row_on_its_data(outcomes, data, words):
    assert paper.summary("table1/mobilenet_v2/4bits", data, outcomes) == words


def test_the_papers_figure_stands_beside_ours_where_it_has_one_and_what_was_not_run_is_blank():
    outcomes = [outcome(top1=70.0), outcome(row="table4/mobilenet_v1/4bits/pact", data="digits")]
    assert paper.markdown(_rows("table1/mobilenet_v2/[45]bits"), outcomes) == (
        "| row | method | paper, top-1 / top-5 | glyphs, top-1 |\n"
        "| --- | --- | ---: | ---: |\n"
        "| `table1/mobilenet_v2/4bits` | SAT | 71.1 / 90.0 | 70.0 |\n"
        "| `table1/mobilenet_v2/5bits` | SAT | 72.0 / 90.4 |  |\n"
    )
    outcomes = [outcome(row="glyphs/float/clamp", top1=69.5)]
    head, _, row = paper.markdown(_rows("glyphs/float/clamp"), outcomes).splitlines()
    assert head == "| row | method | glyphs, top-1 |"
    assert row == "| `glyphs/float/clamp` | clamp | 69.5 |"


def test_the_terminal_shows_a_table_for_each_of_the_paper_and_whole_names():
    console = Console(file=io.StringIO(), width=120)
    tables = list(
        paper.show(_rows("table_s*"), [outcome(row="table_s1/resnet18/clamp", top1=12.0)])
    )
    for table in tables:
        console.print(table)
    text = console.file.getvalue()
    assert len(tables) == 2
    last = "table_s2/mobilenet_v1/6bits/first_last_8bits"
    for words in ("supplement, Table 1: logit variance", "κ₀ 0.5", "12.0", last):
        assert words in text
    narrow = Console(file=io.StringIO(), width=80)
    narrow.print(*tables)
    assert "…" not in narrow.file.getvalue()


def test_recorded_outcomes_have_a_commit_and_no_code_that_differs():
    results = pathlib.Path(__file__).parents[3] / "benchmarks" / "results" / "paper.csv"
    outcomes = paper.read_outcomes(results)
    assert outcomes
    assert all(one.commit and not one.codes_differing for one in outcomes)
