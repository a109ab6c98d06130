import dataclasses

from sat_tf.reproduction.miniature.charts import LEVELS, figure
from sat_tf.training.state.history import StepMetrics, steps_to_csv
from tests.reproduction.paper.fake import outcome


def _record(folder, run, first, last):
    """A run of two recorded steps, whose two clipping levels have these means."""
    rows = [
        StepMetrics(
            stage="quantized",
            step=step,
            step_of_run=step,
            learning_rate=0.1,
            loss=1.0,
            top1=0.5,
            clipping_levels={"a": level - 0.5, "b": level + 0.5},
        )
        for step, level in ((10, first), (20, last))
    ]
    (folder / run).mkdir()
    (folder / run / "steps.csv").write_text(steps_to_csv(rows))


def _outcomes(folder):
    _record(folder, "one", 2.5, 6.0)
    _record(folder, "two", 2.5, 5.0)
    _record(folder, "three", 2.5, 3.0)
    return [
        outcome(row="glyphs/2bits/pact", seed=0, run="one"),
        outcome(row="glyphs/2bits/pact", seed=1, run="two"),
        outcome(row="glyphs/2bits/pact_cg", seed=0, run="three"),
        outcome(row="glyphs/4bits/pact", seed=0, run="four"),
    ]


def test_each_seed_has_a_line_and_each_method_a_name_with_its_means(tmp_path):
    drawn = figure(LEVELS[0], _outcomes(tmp_path), tmp_path)
    assert "PACT, original gradient, seed 0" in drawn
    assert "PACT, original gradient, seed 1" in drawn
    assert "PACT, original gradient: 2.5 to 5.5<" in drawn
    assert "PACT+CG, calibrated gradient: 2.5 to 3<" in drawn
    assert "PACT+SAT+CG" not in drawn


def test_runs_without_a_folder_are_left_out(tmp_path):
    assert figure(LEVELS[1], _outcomes(tmp_path), tmp_path) is None


def test_lines_of_one_gradient_have_one_colour_and_differ_in_their_dashes():
    for picture in LEVELS:
        looks = {(method.colour, method.dashed) for method in picture.methods}
        assert len(looks) == len(picture.methods) == 4
        assert {dataclasses.astuple(method)[2] for method in picture.methods} == {
            "var(--other)",
            "var(--curve)",
        }
