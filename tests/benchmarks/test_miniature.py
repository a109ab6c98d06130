import collections
import dataclasses
import io

import pytest
import tensorflow as tf
from rich.console import Console

from benchmarks.paper.claims import CLAIMS, Claim, Verdict, by_row, judge
from benchmarks.paper.miniature import GROUPS, SHORT, curves, draw, jobs, page, run
from benchmarks.paper.reproduction import read_outcomes
from sat_tf.messages import RunError
from sat_tf.training.loop import runner
from sat_tf.training.run_folder import EpochMetrics, RunFolder
from tests.benchmarks.paper.fake import FakeRunner, outcome
from tests.benchmarks.paper.test_run import TWO_STEPS
from tests.training.report_folder import write_rows

BETTER = Claim("a is better", "", "", plus="a", minus="b", low=2.0)
ALIKE = dataclasses.replace(BETTER, low=-2.0, high=2.0)
ABOVE = dataclasses.replace(BETTER, low=0.0)


@pytest.mark.parametrize(
    ("claim", "top1", "verdict"),
    [
        (BETTER, {"a": {0: 52.0}, "b": {0: 50.0}}, Verdict.SHOWS),
        (BETTER, {"a": {0: 51.9}, "b": {0: 50.0}}, Verdict.DOES_NOT_SHOW),
        (BETTER, {"a": {0: 47.0}, "b": {0: 50.0}}, Verdict.DOES_NOT_SHOW),
        (BETTER, {"a": {0: 60.0, 1: 53.0}, "b": {0: 50.0, 1: 50.0}}, Verdict.SHOWS),
        # The margin is asked of the mean, the sign of every seed.
        (BETTER, {"a": {0: 60.0, 1: 51.0}, "b": {0: 50.0, 1: 50.0}}, Verdict.SHOWS),
        (BETTER, {"a": {0: 90.0, 1: 49.0}, "b": {0: 50.0, 1: 50.0}}, Verdict.DOES_NOT_SHOW),
        (BETTER, {"a": {0: 52.5, 1: 51.0}, "b": {0: 50.0, 1: 50.0}}, Verdict.DOES_NOT_SHOW),
        (ALIKE, {"a": {0: 52.0, 1: 48.0}, "b": {0: 50.0, 1: 50.0}}, Verdict.SHOWS),
        (ALIKE, {"a": {0: 52.1}, "b": {0: 50.0}}, Verdict.DOES_NOT_SHOW),
        (ALIKE, {"a": {0: 55.0, 1: 45.0}, "b": {0: 50.0, 1: 50.0}}, Verdict.DOES_NOT_SHOW),
        (ABOVE, {"a": {0: 50.1}, "b": {0: 50.0}}, Verdict.SHOWS),
        (ABOVE, {"a": {0: 50.0}, "b": {0: 50.0}}, Verdict.DOES_NOT_SHOW),
        # No seed has all rows.
        (BETTER, {}, Verdict.NOT_RUN),
        (BETTER, {"a": {0: 52.0}}, Verdict.NOT_RUN),
        (BETTER, {"a": {0: 52.0}, "b": {}}, Verdict.NOT_RUN),
        (BETTER, {"a": {0: 52.0}, "b": {1: 50.0}}, Verdict.NOT_RUN),
    ],
)
def test_what_is_better_is_so_on_average_and_what_is_alike_is_so_for_every_seed(
    claim, top1, verdict
):
    judged = judge(claim, top1)
    assert judged.verdict is verdict
    assert (judged.measured == "") == (verdict is Verdict.NOT_RUN)


def test_seeds_are_compared_with_themselves_and_a_difference_can_be_one_of_differences():
    judged = judge(BETTER, {"a": {0: 60.0, 1: 70.0, 2: 99.0}, "b": {0: 50.0, 1: 65.0, 7: 0.0}})
    assert judged.differences == {0: 10.0, 1: 5.0}
    # The deviation of two values is their distance over the square root of 2.
    assert judged.measured == "+7.5 ± 3.5 (2 seeds)"
    claim = dataclasses.replace(BETTER, plus="a d", minus="b c")
    top1 = {"a": {0: 40.0}, "b": {0: 30.0}, "c": {0: 72.0}, "d": {0: 71.0}}
    assert judge(claim, top1).differences == {0: 9.0}


def test_outcomes_of_other_data_and_other_settings_do_not_count():
    outcomes = [
        outcome(row="a", seed=0, top1=50.0),
        outcome(row="a", seed=1, top1=60.0),
        outcome(row="a", data="digits", seed=2),
        outcome(row="a", seed=3, changes="seed=3", top1=1.0),
    ]
    assert by_row(outcomes) == {"a": {0: 50.0, 1: 60.0}}
    assert by_row(outcomes, "seed=3") == {"a": {3: 1.0}}


def test_every_row_of_a_claim_is_run_and_the_short_run_measures_all_that_is_checked():
    checked = [claim for claim in CLAIMS if claim.checked]
    for claims, rows in (CLAIMS, {row for group in GROUPS for row in group.rows}), (checked, SHORT):
        assert set(" ".join(f"{claim.plus} {claim.minus}" for claim in claims).split()) == set(rows)
    assert {(claim.plus, claim.minus): claim.low for claim in checked} == {
        ("glyphs/float/clamp_constant", "glyphs/float/clamp"): 2.0,
        ("glyphs/2bits/pact_sat_cg", "glyphs/2bits/pact"): 8.0,
        ("glyphs/2bits/pact_cg", "glyphs/2bits/pact"): 3.0,
        ("glyphs/2bits/pact_sat_cg", "glyphs/2bits/pact_sat"): 3.0,
    }


# -- trainings and their page ----------------------------------------------------------------------


def test_the_short_run_is_two_float_models_and_the_ablation_at_2_bits():
    planned = jobs(full=False)
    assert [job.row for job in planned] == list(SHORT)
    assert {job.config.seed for job in planned} == {0}
    names = {job.config.name for job in planned}
    assert {job.float_config.name for job in planned if job.float_config} < names
    assert [job.config.seed for job in jobs(full=False, seeds=(4, 7))] == [4] * 6 + [7] * 6


def test_the_full_run_repeats_what_the_seeds_are_asked_of_and_changes_hold_for_all_rows():
    # Three seeds of 4 float models, of 8 quantized ones and of 4 from the other start; once 6
    # grids, 2 with streams, 9 with the other head and 4 with gradients through the maximum.
    changed = "stages.float.steps=7"
    planned = jobs(full=True, changes=[changed])
    assert {(job.config.stages.float.steps, job.changes) for job in planned} == {(7, (changed,))}
    count = collections.Counter(job.row for job in planned)
    assert collections.Counter(count.values()) == {3: 16, 1: 21}
    assert len({job.config.name for job in planned}) == len(planned)
    seeds = {row: [job.config.seed for job in planned if job.row == row] for row in count}
    assert seeds["glyphs/2bits/pact"] == seeds["glyphs_common_start/2bits/pact_from_sat"]
    assert seeds["glyphs/2bits/pact"] == [0, 1, 2]
    assert seeds["glyphs_gap_head/float/clamp"] == [0]


def test_grids_differ_from_the_papers_in_the_inner_layers_alone():
    by_row = {job.row: job.config.policy for job in jobs(full=True, seeds=(0,))}
    rounded = by_row["glyphs_grids/2bits/rounded"]
    assert (rounded.at("block_1_depthwise").weight_grid, rounded.weight_bits) == ("rounded", 2)
    for layer in ("stem_conv", "classifier"):
        assert rounded.at(layer).weight_grid == "auto"
        assert rounded.at(layer).weight_bits == 8


def test_the_other_head_is_the_same_task_but_for_what_its_name_says():
    by_row = {job.row: job.config for job in jobs(full=True, seeds=(0,))}
    plain, other = (by_row[f"{group}/float/clamp"] for group in ("glyphs", "glyphs_gap_head"))
    assert other.model.options == {**plain.model.options, "head": "gap"}
    rates = [config.stages.float.peak_learning_rate for config in (plain, other)]
    assert rates == pytest.approx([0.3, 0.1])
    assert (plain.policy, plain.data) == (other.policy, other.data)
    through = by_row["glyphs_gap_head/float_through_max/clamp"].policy
    assert (through.detach_max, other.policy.detach_max) == (False, True)


def _run(folder, planned=None):
    output = io.StringIO()
    same = run(planned or jobs(full=False), folder, Console(file=output, width=200))
    return same, output.getvalue()


def test_everything_is_trained_once_recorded_and_shown(monkeypatch, tmp_path):
    runs = FakeRunner()
    monkeypatch.setattr(runner, "train", runs.train)
    same, output = _run(tmp_path)
    assert same
    assert len(runs.configs) == len(SHORT)
    assert [one.row for one in read_outcomes(tmp_path / "results.csv")] == list(SHORT)
    assert "6 of 6: glyphs/2bits/pact_sat_cg, seed 0" in output
    assert "| 2 bits | PACT+SAT+CG | 55.0 |" in (tmp_path / "miniature.md").read_text()


def test_a_training_that_breaks_does_not_stop_the_others_and_a_red_headline_is_reported(
    monkeypatch, tmp_path
):
    runs = FakeRunner()

    def broken_without_rescale(config, *arguments, **keywords):
        if config.policy.clipping_gradient == "pact" and config.stages.quantized:
            raise RunError("the loss is not finite")
        return runs.train(config, *arguments, **keywords)

    monkeypatch.setattr(runner, "train", broken_without_rescale)
    words = "miniature: 2 problems\n  - glyphs/2bits/pact, seed 0: the loss is not finite\n"
    with pytest.raises(RunError, match=f"^{words}"):
        _run(tmp_path)
    assert len(read_outcomes(tmp_path / "results.csv")) == 4
    monkeypatch.setattr(runner, "train", FakeRunner(lost=0.1).train)
    assert not _run(tmp_path / "red")[0]


def test_the_page_has_every_seed_and_says_what_does_not_show(tmp_path):
    top1 = {"glyphs/float/clamp": 70.0, "glyphs/float/clamp_constant": 60.0}
    outcomes = [outcome(row=row, top1=value) for row, value in top1.items()]
    told = page(outcomes, tmp_path)
    assert "0 of 1 claims of the paper show, 14 not run" in told
    assert (
        "| **Rescaling the clamped weights recovers it** | ✗ does not show | -10.0 (1 seed)" in told
    )
    outcomes += [outcome(row=row, top1=value + 1, seed=1) for row, value in top1.items()]
    assert "| Float models | clamp | 70.5 ± 0.7 |" in page(outcomes, tmp_path)


def test_runs_with_other_settings_are_shown_alone_and_said_to_be_so(tmp_path):
    plain = outcome(row="glyphs/float/clamp", top1=12.25)
    tiny = outcome(row="glyphs/float/clamp", top1=33.5, changes="stages.float.steps=2")
    told = page([plain, tiny], tmp_path, "stages.float.steps=2")
    assert "33.5" in told
    assert "12.2" not in told
    assert "other settings than the rows: stages.float.steps=2" in told
    assert "33.5" not in page([plain, tiny], tmp_path)


def test_the_first_and_the_last_kappa_stand_beside_the_accuracy(tmp_path):
    writer = tf.summary.create_file_writer(str(tmp_path / "one" / "tensorboard"))
    with writer.as_default():
        for step, value in {0: 25.5, 500: 9.0, 1000: 4.0}.items():
            tf.summary.scalar("train/loss", 1.0, step=step)
            tf.summary.scalar("kappa_0", value, step=step)
    writer.close()
    rows = [
        outcome(row="glyphs/float/clamp", run=run, seed=2, top1=58.25) for run in ("one", "two")
    ]
    assert "| glyphs/float/clamp | 2 | 25.5 | 4 | 58.2 |" in page(rows, tmp_path)
    assert page(rows, tmp_path).count("glyphs/float/clamp | 2 |") == 1


def test_each_run_has_a_curve_of_its_mean_level_and_each_method_a_name(tmp_path):
    runs = {"one": ("pact", 6.0), "two": ("pact", 5.0), "three": ("pact_cg", 3.0)}
    rows = [outcome(row=f"glyphs/2bits/{method}", run=name) for name, (method, _) in runs.items()]
    for name, (_, last) in runs.items():
        (tmp_path / name).mkdir()
        same = {"stage": "quantized", "train_top1": 0.5}
        levels = {1: 2.5, 2: last}.items()
        write_rows(
            RunFolder(tmp_path / name),
            [EpochMetrics(**same, epoch=at, step=10 * at, clipping_level=x) for at, x in levels],
        )
    found = curves([*rows, outcome(row="glyphs/4bits/pact", run="none")], tmp_path)
    assert [curve.level for curve in found] == [[2.5, 6.0], [2.5, 5.0], [2.5, 3.0]]
    accuracy, level = draw(found).axes
    assert (accuracy.get_title(), level.get_title()) == ("2 bits", "2 bits")
    assert len(level.lines) == 3
    assert [text.get_text() for text in level.get_legend().get_texts()] == ["PACT", "PACT+CG"]
    assert draw([]) is None


@pytest.mark.slow
def test_the_short_run_trains_for_two_steps_each(tmp_path):
    assert _run(tmp_path, jobs(full=False, changes=TWO_STEPS))[0]
    assert "These runs have other settings" in (tmp_path / "miniature.md").read_text()
    assert len(read_outcomes(tmp_path / "results.csv")) == 6
