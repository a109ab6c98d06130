import contextlib
import dataclasses
import errno
import os

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
    texts = {
        str(file.relative_to(folder.path)): file.read_text()
        for file in folder.path.rglob("*")
        if file.is_file()
    }
    first = {"config.yaml": "first", "metrics.csv": "first", "curves.png": ""}
    assert texts == {
        **{f"earlier-1/{name}": text for name, text in first.items()},
        "earlier-2/config.yaml": "second",
        "config.yaml": "third",
        "notes.txt": "mine",
    }


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


@pytest.mark.parametrize("kind", [EpochMetrics, OscillationCount])
def test_a_table_of_an_earlier_version_lacks_fields_that_have_a_default(tmp_path, kind):
    folder, fields = RunFolder(tmp_path), dataclasses.fields(kind)
    needed = [field.name for field in fields if field.default is dataclasses.MISSING]
    folder.write_text(kind.file, f"{','.join(needed)}\n{','.join('1' * len(needed))}\n")
    (row,) = kind.read(folder)
    assert {getattr(row, name) for name in kind.columns() if name not in needed} <= {None}
    folder.write_text(kind.file, f"{','.join(needed[1:])}\n{','.join('1' * (len(needed) - 1))}\n")
    with pytest.raises(RunError, match=f"{needed[0]} is missing"):
        kind.read(folder)


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
    state = RunState.read(RunFolder(tmp_path))
    assert state.stages == {}
    done = [
        (name, {**METRICS, "top1": top1}) for name, top1 in zip(STAGES, (0.5, 0.25), strict=True)
    ]
    for stage in done:
        state.finish(*stage)
    assert list(RunState.read(RunFolder(tmp_path)).stages.items()) == done


STAGES = ("float", "quantized")
METRICS = {"loss": 1.0, "top1": 0.5, "top5": 0.9}


@pytest.mark.filterwarnings("error::UserWarning")
@pytest.mark.parametrize(
    ("done", "names", "told"),
    [
        ((), (), None),
        ((), ("checkpoints/float/chief",), None),  # killed in the first stage
        (("float",), ("float.keras", "checkpoints/quantized/chief"), None),
        (("float",), ("float.keras", "checkpoints/float/chief"), None),
        (STAGES, ("float.keras", "quantized.keras"), None),
        ((), ("float.keras",), r"state\.json: received no file beside float\.keras.*again"),
    ],
)
def test_what_runs_leave_when_they_are_killed_is_whole_but_for_models_of_no_stage(
    tmp_path, done, names, told
):
    folder = RunFolder(tmp_path)
    if done:
        folder.write_json(run_folder.STATE, {"stages": dict.fromkeys(done, METRICS)})
    for name in names:
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).touch()
    with pytest.warns(UserWarning, match=told) if told else contextlib.nullcontext():
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
