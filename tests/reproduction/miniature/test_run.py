import io

import pytest
from rich.console import Console

from sat_tf.messages import RunError
from sat_tf.reproduction.figures.library import FIGURES
from sat_tf.reproduction.miniature.groups import SHORT, jobs
from sat_tf.reproduction.miniature.page import missing_figures
from sat_tf.reproduction.miniature.run import LOG, judged, not_shown, run
from sat_tf.reproduction.paper.record import read_outcomes
from sat_tf.training.loop import runner
from tests.reproduction.paper.fake import FakeRunner, outcome
from tests.reproduction.paper.test_run import TWO_STEPS


@pytest.fixture
def fake(monkeypatch):
    runs = FakeRunner()
    monkeypatch.setattr(runner, "train", runs.train)
    return runs


def _run(planned, folder, figures=()):
    output = io.StringIO()
    paths = (folder, folder / "results.csv", folder / "index.html")
    same = run(planned, figures, *paths, Console(file=output, width=200))
    return same, output.getvalue()


def test_everything_is_trained_once_recorded_and_shown(fake, tmp_path):
    same, output = _run(jobs(full=False), tmp_path)
    assert same
    assert len(fake.configs) == len(SHORT)
    assert [one.row for one in read_outcomes(tmp_path / "results.csv")] == list(SHORT)
    assert "6/6  glyphs/2bits/pact_sat_cg, seed 0: top-1 55.0 %" in output
    assert "55.0" in (tmp_path / "index.html").read_text()
    assert "glyphs/2bits/pact on glyphs, seed 0" in (tmp_path / LOG).read_text()


def test_what_was_stopped_goes_on_where_it_was(monkeypatch, tmp_path):
    runs = FakeRunner()

    def stop_at_the_fourth(*arguments, **keywords):
        if len(runs.configs) == 3:
            raise KeyboardInterrupt
        return runs.train(*arguments, **keywords)

    monkeypatch.setattr(runner, "train", stop_at_the_fourth)
    with pytest.raises(KeyboardInterrupt):
        _run(jobs(full=False), tmp_path)
    # The page has been written after each row.
    assert "52.0" in (tmp_path / "index.html").read_text()
    first = [config.name for config in runs.configs]
    monkeypatch.setattr(runner, "train", runs.train)
    _run(jobs(full=False), tmp_path)
    assert [config.name for config in runs.configs][:3] == first
    assert len({config.name for config in runs.configs}) == len(runs.configs) == 6
    _run(jobs(full=False), tmp_path)
    assert len(runs.configs) == 6


@pytest.mark.thorough
def test_figures_that_are_missing_are_drawn_and_shown(tmp_path):
    figures = [FIGURES["figure_s1"], FIGURES["equation13"]]
    same, output = _run([], tmp_path, figures)
    assert same
    assert "1/2  Figure S1: " in output
    assert "2/2  Equation 13: " in output
    page = (tmp_path / "index.html").read_text()
    assert page.count('<img src="data:image/svg+xml;base64,') == 2
    assert "✓ agrees" in page
    assert [figure.name for figure in missing_figures(tmp_path)] == [
        name for name in FIGURES if name not in ("figure_s1", "equation13")
    ]


def test_a_training_that_breaks_does_not_stop_the_others(monkeypatch, tmp_path):
    runs = FakeRunner()

    def broken_without_rescale(config, *arguments, **keywords):
        if config.policy.clipping_gradient == "pact" and config.stages.quantized:
            raise RunError("the loss is not finite")
        return runs.train(config, *arguments, **keywords)

    monkeypatch.setattr(runner, "train", broken_without_rescale)
    with pytest.raises(RunError) as error:
        _run(jobs(full=False), tmp_path)
    lines = str(error.value).splitlines()
    assert lines[0] == "sat-tf miniature: 2 problems"
    assert lines[1] == "  - glyphs/2bits/pact, seed 0: the loss is not finite"
    assert len(read_outcomes(tmp_path / "results.csv")) == 4


def test_integers_that_differ_are_reported(monkeypatch, tmp_path):
    monkeypatch.setattr(runner, "train", FakeRunner(codes_differing=1).train)
    assert not _run(jobs(full=False), tmp_path)[0]


def test_a_file_that_holds_something_else_stops_before_the_first_training(fake, tmp_path):
    (tmp_path / "results.csv").write_text("a,b\n1,2\n")
    with pytest.raises(RunError, match="choose another one with --results"):
        _run(jobs(full=False), tmp_path)
    assert fake.configs == []


def test_only_what_is_checked_and_was_measured_can_fail():
    top1 = {"glyphs/float/vanilla": 60.0, "glyphs/float/clamp": 70.0}
    outcomes = [outcome(row=row, top1=value) for row, value in top1.items()]
    assert not_shown(judged(outcomes)) == []
    outcomes.append(outcome(row="glyphs/float/clamp_constant", top1=71.0))
    (failed,) = not_shown(judged(outcomes))
    assert failed.claim.text == "Rescaling the clamped weights recovers it"


@pytest.mark.slow
def test_the_short_run_trains_for_two_steps_each(tmp_path):
    planned = jobs(full=False, changes=TWO_STEPS)
    same, output = _run(planned, tmp_path)
    assert same
    assert "6/6" in output
    page = (tmp_path / "index.html").read_text()
    # Two steps leave nothing in the steps file, which has a row every ten.
    assert "These runs have other settings than the page describes" in page
    assert len(read_outcomes(tmp_path / "results.csv")) == 6
