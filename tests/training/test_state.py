import contextlib
import dataclasses
import errno
import os
import warnings

import pytest

from sat_tf import output_folder
from sat_tf.messages import RunError
from sat_tf.training import run_folder
from sat_tf.training.config import config_text, parse_config
from sat_tf.training.recipes import OscillationCount
from sat_tf.training.run_folder import EpochMetrics, RunFolder, RunState, expect_same_run

# -- the folder of a run ---------------------------------------------------------------------------


@pytest.mark.parametrize("below", ["", "runs/one"])
def test_checking_a_folder_leaves_no_trace_whether_it_is_there_or_not(tmp_path, below):
    with RunFolder(tmp_path / below).opened():
        pass
    assert list(tmp_path.iterdir()) == []


def test_a_second_run_keeps_the_files_of_the_first(tmp_path):
    folder = RunFolder(tmp_path / "run")
    for text in ("first", "second", "third"):
        folder.start()
        folder.write_text(output_folder.CONFIG, text)
        if text == "first":
            folder.write_text(run_folder.METRICS, text)
            (folder.path / "curves.png").write_bytes(b"")  # of an earlier version
    (folder.path / "notes.txt").write_text("mine")
    assert folder.file(output_folder.CONFIG).read_text() == "third"
    assert (folder.path / "earlier-1" / output_folder.CONFIG).read_text() == "first"
    assert (folder.path / "earlier-1" / run_folder.METRICS).read_text() == "first"
    assert (folder.path / "earlier-2" / output_folder.CONFIG).read_text() == "second"
    assert (folder.path / "earlier-1" / "curves.png").is_file()
    assert not folder.file(run_folder.METRICS).exists()
    assert not (folder.path / "curves.png").exists()


def test_what_cannot_be_written_leaves_the_old_text_and_a_full_disk_says_how_to_go_on(tmp_path):
    folder = RunFolder(tmp_path)
    folder.write_text(run_folder.STATE, "old")
    with pytest.raises(UnicodeEncodeError):
        folder.write_text(run_folder.STATE, "new \ud800")
    with (
        pytest.raises(RunError, match=r"(?s)No space left.* the same command resumes"),
        folder.written(run_folder.STATE),
    ):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
    assert folder.file(run_folder.STATE).read_text() == "old"
    assert len(list(tmp_path.iterdir())) == 1


def test_a_folder_is_held_by_one_process_at_a_time(tmp_path):
    folder = RunFolder(tmp_path / "run")
    with (
        folder.held(),
        pytest.raises(RunError, match="another process trains in it, expected one that is free"),
        folder.held(),
    ):
        pass
    with folder.held(), pytest.raises(RunError):
        # A second one that does not wait is told at once, and leaves the first its hold.
        folder.held().__enter__()
    with folder.held(wait=True):
        assert folder.path.is_dir()


def test_a_run_is_finished_when_its_last_file_is_there(tmp_path):
    folder = RunFolder(tmp_path)
    for name in (output_folder.CONFIG, output_folder.RESULTS, output_folder.REPORT):
        assert not folder.is_finished
        folder.write_text(name, "")
    assert folder.is_finished


TABLES = (EpochMetrics, OscillationCount)


@pytest.mark.parametrize("kind", TABLES)
def test_a_table_of_an_earlier_version_lacks_fields_that_have_a_default(tmp_path, kind):
    folder = RunFolder(tmp_path)
    fields = {field.name: field for field in dataclasses.fields(kind)}
    needed = [name for name in kind.columns() if fields[name].default is dataclasses.MISSING]
    folder.write_text(kind.file, f"{','.join(needed)}\n{','.join('1' * len(needed))}\n")
    (row,) = kind.read(folder)
    assert {getattr(row, name) for name in kind.columns() if name not in needed} <= {None}
    folder.write_text(kind.file, f"{','.join(needed[1:])}\n{','.join('1' * (len(needed) - 1))}\n")
    with pytest.raises(RunError, match=f"{needed[0]} is missing"):
        kind.read(folder)


# -- what is done ----------------------------------------------------------------------------------

SMALLEST = "{name: small, data: {name: digits}, model: {name: mobilenet_v2}}"


def started(path, *overrides):
    folder = RunFolder(path)
    folder.write_text(output_folder.CONFIG, config_text(parse_config(SMALLEST, overrides)))
    return folder


def test_a_folder_takes_any_configuration_without_a_run_and_that_of_its_run(tmp_path):
    expect_same_run(RunFolder(tmp_path / "new"), parse_config(SMALLEST))
    expect_same_run(RunFolder(tmp_path), parse_config(SMALLEST))
    # However it was said, and a run may trust its model when it goes on.
    for same in (["stages.float.epochs=150", "seed=0"], ["training.trust_model=true"]):
        expect_same_run(started(tmp_path), parse_config(SMALLEST, same))


def test_what_is_done_reads_back_in_order(tmp_path):
    folder = RunFolder(tmp_path)
    state = RunState.read(folder)
    assert state.stages == {}
    of_float, of_quantized = ({"loss": 1.0, "top1": top1, "top5": 0.9} for top1 in (0.5, 0.25))
    state.finish("float", of_float)
    state.finish("quantized", of_quantized)
    assert list(RunState.read(folder).stages.items()) == [
        ("float", of_float),
        ("quantized", of_quantized),
    ]


STAGES = ("float", "quantized")
METRICS = {"loss": 1.0, "top1": 0.5, "top5": 0.9}


def left(folder, name):
    """Puts an empty file into the folder of a run, and those above it."""
    file = folder.path / name
    file.parent.mkdir(parents=True, exist_ok=True)
    file.touch()


def test_a_saved_model_of_a_stage_that_is_not_done_is_told(tmp_path):
    folder = RunFolder(tmp_path)
    left(folder, "float.keras")
    with pytest.warns(
        UserWarning, match=r"state\.json: received no file beside float\.keras.*again"
    ):
        RunState.read(folder).expect_whole(STAGES)


@pytest.mark.parametrize(
    ("done", "names"),
    [
        ((), ()),
        ((), ("checkpoints/float/chief",)),  # killed in the first stage
        (("float",), ("float.keras", "checkpoints/quantized/chief")),
        (("float",), ("float.keras", "checkpoints/float/chief")),
        (STAGES, ("float.keras", "quantized.keras")),
    ],
)
def test_what_runs_leave_when_they_are_killed_is_whole(tmp_path, done, names):
    folder = RunFolder(tmp_path)
    if done:
        folder.write_json(run_folder.STATE, {"stages": dict.fromkeys(done, METRICS)})
    for name in names:
        left(folder, name)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        RunState.read(folder).expect_whole(STAGES)


def test_the_folder_of_an_earlier_version_goes_on(tmp_path):
    folder = started(tmp_path)
    text = folder.read_text(output_folder.CONFIG)
    former = "  checkpoint_minutes: 10\n  checkpoint_steps: null\n  keep_checkpoints: 2\n"
    assert "\ntraining:\n" in text
    folder.write_text(output_folder.CONFIG, text.replace("\ntraining:\n", f"\ntraining:\n{former}"))
    expect_same_run(folder, parse_config(SMALLEST))


def test_the_seconds_of_all_processes_of_a_run_count(tmp_path):
    folder = RunFolder(tmp_path)
    folder.write_json(run_folder.STATE, {"stages": {}, "seconds": 100.0})
    state = RunState.read(folder)
    with contextlib.suppress(KeyError), state.timed():
        raise KeyError
    assert 100.0 <= RunState.read(folder).seconds == pytest.approx(state.seconds_so_far(), abs=5.0)
