"""`python -m benchmarks.paper`."""

import pytest

from benchmarks.paper import __main__ as command
from benchmarks.paper.reproduction import read_outcomes
from sat_tf.commands import main
from sat_tf.training.config import parse_config
from sat_tf.training.loop import runner
from tests.benchmarks.paper.fake import FakeRunner


@pytest.fixture
def told(capsys):
    """Runs words; returns what they print."""

    def run(words, *, is_green=True):
        capsys.readouterr()
        assert command.main(words.split()) == is_green
        return capsys.readouterr().out

    return run


@pytest.mark.parametrize(
    ("words", "text"),
    [("list table1/*", "71.1 / 90.0"), ("table table4/*/4bits/pact", "| PACT | 70.3 / 89.2 |")],
)
def test_rows_are_listed_with_the_figures_of_the_paper(words, text, told):
    assert text in told(words)


def test_what_is_shown_is_a_whole_configuration(told):
    words = "show table1/mobilenet_v1/4bits --data digits --set policy.clipping_gradient=pact"
    config = parse_config(told(words))
    assert config.data.name == "digits"
    assert (config.policy.weight_bits, config.model.name) == (4, "mobilenet_v1")
    assert config.policy.clipping_gradient == "pact"


def test_rows_are_run_and_recorded_in_the_working_directory(tmp_path, monkeypatch, told):
    monkeypatch.chdir(tmp_path)  # where files go without --out and --results
    runs = FakeRunner()
    monkeypatch.setattr(runner, "train", runs.train)
    said = told("run glyphs/float/clamp* --seeds 0,1,1")
    assert "6/6 glyphs/float/clamp_stddev on glyphs, seed 1" in said
    assert len(runs.configs) == 6
    found = read_outcomes(tmp_path / "runs" / "paper" / "results.csv")
    assert [outcome.seed for outcome in found] == [0, 0, 0, 1, 1, 1]
    # 50 % and 53 %: mean 51.5, deviation 3 / sqrt(2).
    assert "| `glyphs/float/clamp` | clamp | 51.5 ± 2.1 (2) |" in told("table glyphs/float/clamp")
    # A red headline is exit status 1, though all codes are equal.
    monkeypatch.setattr(runner, "train", FakeRunner(lost=0.1).train)
    said = told("run glyphs/4bits/pact glyphs/4bits/pact_sat_cg", is_green=False)
    assert (
        said.count("model.tflite: red: -10.00 points of top-1 compared with the float model") == 2
    )


def test_the_former_command_warns_and_works_in_a_clone_and_says_elsewhere_where_it_is(
    monkeypatch, capsys
):
    assert main.main(["paper", "list", "table1/*"]) == 0
    told = capsys.readouterr()
    assert "71.1 / 90.0" in told.out
    assert "warning: sat-tf paper will be removed; run python -m benchmarks.paper" in told.err
    monkeypatch.setattr(main, "_MOVED", {"paper": "benchmarks.not_in_the_wheel"})
    assert main.main(["paper", "list"]) == 2
    assert "clone the repository" in capsys.readouterr().err
