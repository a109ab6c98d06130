import dataclasses
import errno
import json
import os
import pathlib

import pytest

from sat_tf import output_folder
from sat_tf.messages import RunError
from sat_tf.report.results import Results
from sat_tf.training.recipes.recipes import OscillationCount
from sat_tf.training.state import run_folder
from sat_tf.training.state.history import EpochMetrics
from sat_tf.training.state.run_folder import RunFolder, RunState


@pytest.mark.parametrize("below", ["", "runs/one"])
def test_checking_a_folder_leaves_no_trace_whether_it_is_there_or_not(tmp_path, below):
    RunFolder(tmp_path / below).check_writable()
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("below", ["", "runs/one"])
def test_a_file_in_the_way_is_named(tmp_path, below):
    file = tmp_path / "file"
    file.write_text("")
    with pytest.raises(RunError, match=rf"{file} is a file; expected .*choose another one"):
        RunFolder(file / below).check_writable()


@pytest.mark.parametrize("place", ["/proc/runs", "/dev/null/runs"])
def test_a_place_that_cannot_be_written_to_is_named(place):
    if not pathlib.Path(place).parts[1:] or not pathlib.Path(place).parent.exists():
        pytest.skip("this system has no such place")
    with pytest.raises(RunError, match=f"folder {place}: "):
        RunFolder(pathlib.Path(place)).check_writable()


def test_a_second_run_keeps_the_files_of_the_first(tmp_path):
    folder = RunFolder(tmp_path / "run")
    for text in ("first", "second", "third"):
        folder.start()
        folder.write_text(output_folder.CONFIG, text)
        if text == "first":
            folder.write_text(run_folder.METRICS, text)
    (folder.path / "notes.txt").write_text("mine")
    assert folder.file(output_folder.CONFIG).read_text() == "third"
    assert (folder.path / "earlier-1" / output_folder.CONFIG).read_text() == "first"
    assert (folder.path / "earlier-1" / run_folder.METRICS).read_text() == "first"
    assert (folder.path / "earlier-2" / output_folder.CONFIG).read_text() == "second"
    assert not folder.file(run_folder.METRICS).exists()


def test_files_of_others_stay_where_they_are(tmp_path):
    (tmp_path / "notes.txt").write_text("mine")
    RunFolder(tmp_path).start()
    assert [path.name for path in tmp_path.iterdir()] == ["notes.txt"]


def test_a_text_that_cannot_be_written_leaves_the_old_one_and_nothing_else(tmp_path):
    folder = RunFolder(tmp_path)
    folder.write_text(output_folder.CONFIG, "old")
    with pytest.raises(UnicodeEncodeError):
        folder.write_text(output_folder.CONFIG, "new \ud800")
    assert folder.file(output_folder.CONFIG).read_text() == "old"
    assert len(list(tmp_path.iterdir())) == 1


def test_json_reads_back(tmp_path):
    folder = RunFolder(tmp_path)
    folder.write_json(output_folder.RESULTS, {"top1": 0.5, "name": "ü"})
    assert json.loads(folder.file(output_folder.RESULTS).read_text()) == {"top1": 0.5, "name": "ü"}


def test_all_missing_files_are_named_at_once(tmp_path):
    folder = RunFolder(tmp_path)
    folder.write_text(output_folder.CONFIG, "")
    with pytest.raises(RunError, match=r"has no quantized\.keras, model\.tflite; expected"):
        folder.require(
            output_folder.CONFIG, output_folder.QUANTIZED_MODEL, output_folder.TFLITE_MODEL
        )


def test_a_full_disk_is_an_error_that_says_how_to_go_on(tmp_path):
    folder = RunFolder(tmp_path)
    folder.write_text(run_folder.STATE, "old")
    with (
        pytest.raises(RunError, match=r"(?s)No space left.* the same command resumes"),
        folder.written(run_folder.STATE),
    ):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
    assert folder.file(run_folder.STATE).read_text() == "old"


def test_what_goes_wrong_while_a_file_is_made_is_told_as_it_is(tmp_path):
    with pytest.raises(ValueError, match="of its own"), RunFolder(tmp_path).written("state.json"):
        raise ValueError("of its own")


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


DAMAGED = {
    "empty": b"",
    "bytes": bytes(range(256)),
    "list": b"[]",
    "null": b"null",
    "number": b"9" * 6000,
    "deep": b"[" * 100_000,
    "another encoding": '{"é": 1}'.encode("latin-1"),
    "wrong values": b'{"stages": 3, "float_top1": "x", "seed": "\\ud800"}',
}


def _damage(folder, name, kind):
    file = folder.file(name)
    if kind == "folder":
        file.mkdir()
    elif kind == "pipe":
        os.mkfifo(file)
    else:
        file.write_bytes(DAMAGED[kind])


@pytest.mark.parametrize("kind", ["folder", "pipe", *DAMAGED])
@pytest.mark.parametrize("read", [RunState.read, Results.read])
def test_a_damaged_file_of_values_is_named_with_what_to_do(tmp_path, read, kind):
    folder = RunFolder(tmp_path)
    name = run_folder.STATE if read == RunState.read else output_folder.RESULTS
    _damage(folder, name, kind)
    with pytest.raises(RunError, match=f"{name}.*(--no-resume|expected)"):
        read(folder)


def test_half_a_character_is_named_with_what_to_do(tmp_path):
    folder = RunFolder(tmp_path)
    folder.file(run_folder.ENVIRONMENT).write_text('{"commit": "\\ud800"}')
    with pytest.raises(RunError, match=r"environment\.json: .*surrogates not allowed.*--no-resume"):
        folder.read_json(run_folder.ENVIRONMENT)


@pytest.mark.parametrize("kind", ["folder", "pipe", "bytes", "another encoding"])
@pytest.mark.parametrize("name", [run_folder.METRICS, run_folder.OSCILLATIONS])
def test_a_table_that_is_no_text_is_named_with_what_to_do(tmp_path, name, kind):
    folder = RunFolder(tmp_path)
    _damage(folder, name, kind)
    with pytest.raises(RunError, match=f"{name}: received a damaged file .* --no-resume"):
        folder.read_text(name)


TABLES = (EpochMetrics, OscillationCount)


@pytest.mark.parametrize(
    "content",
    [
        b"a,b\n1,2\n",
        b"COLUMNS,more\n" + b"1," * 30 + b"1\n",
        b"COLUMNS\n1,2\n",
        b"COLUMNS\n" + b"1," * 40 + b"\n",
    ],
    ids=["other", "more", "short", "long"],
)
@pytest.mark.parametrize("kind", TABLES)
def test_what_is_another_table_is_named_with_what_to_do(tmp_path, kind, content):
    folder = RunFolder(tmp_path)
    name, read, columns = kind.file, kind.read, kind.columns()
    assert read(folder) == []
    folder.file(name).write_bytes(content.replace(b"COLUMNS", ",".join(columns).encode()))
    with pytest.raises(
        RunError, match=rf"{name}: received a damaged file \(0\..*{columns[0]}.*--no-resume"
    ) as caught:
        read(folder)
    assert str(caught.value).count("damaged") == 1
    folder.write_text(name, ",".join(columns) + "\n")
    assert read(folder) == []


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
