import pytest

from sat_tf.commands import main
from sat_tf.training.config import parse_config
from sat_tf.training.loop import runner
from sat_tf.training.reproduction import read_outcomes
from tests.commands.light import told_without_tensorflow
from tests.training.reproduction.fake import FakeRunner


@pytest.fixture(autouse=True)
def _elsewhere(tmp_path, monkeypatch):
    # Files go to the working directory without --out and --results.
    monkeypatch.chdir(tmp_path)


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (["paper", "--help"], "sat-tf paper run "),
        (["paper", "list", "table1/*"], "71.1 / 90.0"),
        (["paper", "show", "glyphs/4bits/pact"], "clipping_gradient: pact"),
        (["paper", "table", "table4/*/4bits/pact"], "| PACT | 70.3 / 89.2 |"),
    ],
)
def test_what_needs_no_training_loads_no_tensorflow(arguments, text):
    assert text in told_without_tensorflow(*arguments, status=0, plots=True)


def test_rows_are_run_and_recorded_in_the_working_directory(tmp_path, monkeypatch, sat):
    runs = FakeRunner()
    monkeypatch.setattr(runner, "train", runs.train)
    said = sat("paper run glyphs/float/clamp* --seeds 0,1,1")
    assert "6/6 glyphs/float/clamp_stddev on glyphs, seed 1" in said
    assert len(runs.configs) == 6
    found = read_outcomes(tmp_path / "runs" / "paper" / "results.csv")
    assert [outcome.seed for outcome in found] == [0, 0, 0, 1, 1, 1]
    # 50 % and 53 %: mean 51.5, deviation 3 / sqrt(2).
    table = sat("paper table glyphs/float/clamp")
    assert "| `glyphs/float/clamp` | clamp | 51.5 ± 2.1 (2) |" in table


def test_a_red_headline_of_a_row_is_exit_status_1_though_all_codes_are_equal(monkeypatch, sat):
    monkeypatch.setattr(runner, "train", FakeRunner(lost=0.1).train)
    said = sat("paper run glyphs/4bits/pact glyphs/4bits/pact_sat_cg", status=1)
    assert said.count("model.tflite: red: -10.00 points of top-1 beside the float model") == 2


def test_what_is_shown_is_a_whole_configuration(capsys):
    assert main.main(["paper", "show", "table1/mobilenet_v1/4bits", "--data", "digits"]) == 0
    config = parse_config(capsys.readouterr().out)
    assert config.data.name == "digits"
    assert (config.policy.weight_bits, config.model.name) == (4, "mobilenet_v1")
