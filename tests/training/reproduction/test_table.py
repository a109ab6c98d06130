import io
import pathlib

from rich.console import Console

from sat_tf.training.paper_rows import find
from sat_tf.training.reproduction import markdown, read_outcomes, show, summary
from tests.training.reproduction.fake import outcome

ROW = "table1/mobilenet_v2/4bits"


def _rows(*patterns):
    rows, problems = find(patterns)
    assert not problems
    return rows


def test_one_seed_is_a_number_and_several_are_mean_and_deviation():
    one = [outcome(top1=70.0)]
    assert summary(ROW, "glyphs", one) == "70.0"
    # Deviations from 71 of -1, 0, 1: the sample's variance is 2 / 2.
    three = [outcome(seed=seed, top1=70.0 + seed) for seed in range(3)]
    assert summary(ROW, "glyphs", three) == "71.0 ± 1.0 (3)"


def test_runs_of_other_rows_data_or_settings_do_not_count():
    others = [outcome(row="table1/mobilenet_v2/5bits"), outcome(changes="stages.float.steps=2")]
    assert summary(ROW, "glyphs", others) == ""
    assert summary(ROW, "digits", [outcome()]) == ""


def test_the_papers_figure_stands_beside_ours_and_what_was_not_run_is_blank():
    outcomes = [outcome(top1=70.0), outcome(row="table4/mobilenet_v1/4bits/pact", data="digits")]
    assert markdown(_rows("table1/mobilenet_v2/[45]bits"), outcomes) == (
        "| row | method | paper, top-1 / top-5 | glyphs, top-1 |\n"
        "| --- | --- | ---: | ---: |\n"
        "| `table1/mobilenet_v2/4bits` | SAT | 71.1 / 90.0 | 70.0 |\n"
        "| `table1/mobilenet_v2/5bits` | SAT | 72.0 / 90.4 |  |\n"
    )


def test_rows_that_are_not_in_the_paper_have_no_column_for_it():
    text = markdown(_rows("glyphs/float/clamp"), [outcome(row="glyphs/float/clamp", top1=69.5)])
    assert text.splitlines()[0] == "| row | method | glyphs, top-1 |"
    assert text.splitlines()[2] == "| `glyphs/float/clamp` | clamp | 69.5 |"


def test_the_terminal_shows_a_table_for_each_of_the_paper_and_whole_names():
    console = Console(file=io.StringIO(), width=120)
    tables = list(show(_rows("table_s*"), [outcome(row="table_s1/resnet18/clamp", top1=12.0)]))
    for table in tables:
        console.print(table)
    text = console.file.getvalue()
    assert len(tables) == 2
    assert "supplement, Table 1: logit variance" in text
    assert "κ₀ 0.5" in text
    assert "12.0" in text
    assert "table_s2/mobilenet_v1/6bits/first_last_8bits" in text
    narrow = Console(file=io.StringIO(), width=80)
    narrow.print(*tables)
    assert "…" not in narrow.file.getvalue()


RESULTS = pathlib.Path(__file__).parents[2] / "benchmarks" / "results" / "paper.csv"


def test_recorded_outcomes_have_a_commit_and_no_code_that_differs():
    for one in read_outcomes(RESULTS):
        assert one.commit
        assert not one.codes_differing
