import pytest

from sat_tf.commands import main
from sat_tf.reproduction.miniature.groups import SHORT
from sat_tf.reproduction.paper.record import add_outcomes
from sat_tf.training.loop import runner
from tests.commands.light import told_without_tensorflow
from tests.reproduction.paper.fake import FakeRunner, outcome

SHOWS = dict(zip(SHORT, (58.0, 74.0, 20.0, 28.0, 36.0, 43.0), strict=True))


@pytest.fixture(autouse=True)
def _elsewhere(tmp_path, monkeypatch):
    # Without --run_dir, files go to the working directory.
    monkeypatch.chdir(tmp_path)


def _record(folder, top1, **fields):
    folder.mkdir(parents=True, exist_ok=True)
    add_outcomes(
        folder / "results.csv",
        [outcome(row=row, top1=value, **fields) for row, value in top1.items()],
    )


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("arguments", "status", "text"),
    [
        (["--help"], 0, "about an hour"),
        (["--set", "stages.float.step=3"], 2, "Did you mean steps?"),
    ],
)
def test_what_needs_no_training_loads_no_tensorflow(arguments, status, text):
    assert text in told_without_tensorflow("miniature", *arguments, status=status, plots=True)


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (["--run_dir", " "], "--run_dir: received an empty name"),
        (["--run_dir", "file"], "--run_dir file: received a file"),
        (["--page", "nowhere/x.html"], "nowhere, which does not exist"),
        (["--page_only"], "leave out --page_only"),
        (["--page_only", "--full"], "expected it alone"),
    ],
)
def test_what_cannot_be_done_is_said_before_anything_is(arguments, text, tmp_path, capsys):
    (tmp_path / "file").touch()
    assert main.main(["miniature", *arguments]) == 2
    assert text in capsys.readouterr().err
    assert [path.name for path in tmp_path.iterdir()] == ["file"]


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (["--seeds", "0,x"], "'x': expected"),
        (["--fulll"], "unrecognized arguments: --fulll"),
    ],
)
def test_words_that_mean_nothing_are_said(arguments, text, capsys):
    with pytest.raises(SystemExit, match="2"):
        main.main(["miniature", *arguments])
    assert text in capsys.readouterr().err


def test_several_problems_are_said_at_once(capsys):
    assert main.main(["miniature", "--page_only", "--full", "--page", "nowhere/x.html"]) == 2
    assert "sat-tf miniature: 2 problems" in capsys.readouterr().err


def test_the_page_is_written_from_what_is_recorded(tmp_path, capsys):
    _record(tmp_path / "runs" / "miniature", SHOWS)
    assert main.main(["miniature", "--page_only"]) == 0
    printed = capsys.readouterr().out
    assert "5 of 5 claims show" in printed
    assert "Page: runs/miniature/index.html" in printed
    assert "+23.0 (1 seed)" in (tmp_path / "runs" / "miniature" / "index.html").read_text()


def test_an_ordering_that_is_checked_and_does_not_show_is_exit_status_1(tmp_path, capsys):
    _record(tmp_path / "other", {**SHOWS, "glyphs/2bits/pact": 39.0})
    arguments = ["miniature", "--page_only", "--run_dir", "other", "--page", "my.html"]
    assert main.main(arguments) == 1
    assert "does not show" in capsys.readouterr().out
    assert (tmp_path / "my.html").is_file()


def test_with_other_settings_nothing_is_checked(tmp_path):
    change = "stages.float.steps=2"
    _record(tmp_path / "runs" / "miniature", dict.fromkeys(SHORT, 1.0), changes=change)
    assert main.main(["miniature", "--page_only", "--set", change]) == 0


def test_the_command_trains_and_reports(tmp_path, monkeypatch, capsys):
    runs = FakeRunner()
    monkeypatch.setattr(runner, "train", runs.train)
    # Each run of the fake is a point better than the one before: too little for 8 points.
    assert main.main(["miniature", "--no_figures", "--results", "mine.csv"]) == 1
    assert len(runs.configs) == 6
    assert "of 5 claims show" in capsys.readouterr().out
    assert (tmp_path / "mine.csv").is_file()
    assert (tmp_path / "runs" / "miniature" / "index.html").is_file()
    assert main.main(["miniature", "--no_figures", "--results", "mine.csv"]) == 1
    assert len(runs.configs) == 6
