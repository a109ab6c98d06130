"""Files appear whole or not at all, and are read within bounds."""

import errno
import io
import os
import pathlib
import re
import struct
import subprocess
import sys
import tempfile
import tracemalloc
import zipfile
from unittest import mock

import numpy as np
import pytest

from sat_tf.files import (
    check_writable,
    expect_honest,
    opened_archive,
    read_arrays,
    read_member,
    read_text,
    remove_folder,
    temporary_folder,
    write_text,
    written_whole,
)

# -- written whole ---------------------------------------------------------------------------------


def test_a_file_appears_when_the_block_ends_well(tmp_path):
    with written_whole(tmp_path / "a.json") as temporary:
        assert temporary.suffix == ".json"
        temporary.write_text("new")
        assert not (tmp_path / "a.json").exists()
    assert (tmp_path / "a.json").read_text() == "new"
    names = ["a" * 240, "a" * 250]  # any that the file system takes
    for name in names:
        _write(tmp_path / name)
    assert sorted(os.listdir(tmp_path)) == ["a.json", *names]


def _write(path, error=None):
    with written_whole(path) as temporary:
        temporary.write_text("new" if error is None else "half")
        if error is not None:
            raise error


_refuse = mock.Mock(side_effect=OSError(errno.EROFS, os.strerror(errno.EROFS)))


@pytest.mark.parametrize(
    ("error", "in_the_end", "expected", "words"),
    [
        (RuntimeError(), os.fsync, RuntimeError, ""),
        (OSError(28, "full"), os.fsync, ValueError, "a.json: cannot be written (full)"),
        (None, _refuse, ValueError, "a.json: cannot be written (Read-only file system)"),
    ],
)
def test_an_older_file_stays_when_the_block_or_the_disk_fails(
    error, in_the_end, expected, words, tmp_path, monkeypatch
):
    (tmp_path / "a.json").write_text("old")
    monkeypatch.setattr(os, "fsync", in_the_end)
    with pytest.raises(expected, match=re.escape(words)):
        _write(tmp_path / "a.json", error)
    assert (tmp_path / "a.json").read_text() == "old"
    assert os.listdir(tmp_path) == ["a.json"]


WRITER = """
import pathlib, sys, time
from sat_tf.files import temporary_folder, written_whole
folder = temporary_folder()
with written_whole(pathlib.Path(sys.argv[1], "b.json")) as temporary:
    temporary.write_text("half")
    print(temporary.name, folder.name, flush=True)
    time.sleep(600)
"""


@pytest.mark.skipif(os.name == "nt", reason="Windows cannot tell which processes have ended")
def test_what_killed_writers_left_is_removed_and_nothing_of_a_living_one(tmp_path, monkeypatch):
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    words, settings = [sys.executable, "-c", WRITER, tmp_path], {"stdout": subprocess.PIPE}
    writers = [subprocess.Popen(words, text=True, **settings) for _ in range(2)]
    (left, left_folder), (kept, kept_folder) = (one.stdout.readline().split() for one in writers)
    elsewhere = [tmp_path / left.replace(left[8:16], machine) for machine in ("0" * 8, "1" * 8)]
    for path in elsewhere:
        path.write_text("of another machine")
    os.utime(elsewhere[1], (0, 0))
    (tmp_path / ".sat_tf-notes").write_text("of the user")
    writers[0].kill()
    writers[0].wait()
    try:
        _write(tmp_path / "a.json")
        expected = {"a.json", ".sat_tf-notes", kept, os.path.basename(kept_folder)}
        expected.add(elsewhere[0].name)
        assert set(os.listdir(tmp_path)) == expected
        assert not os.path.exists(left_folder)
    finally:
        for one in writers:
            one.kill()
            one.communicate()


@pytest.mark.skipif(not os.path.exists("/proc/self/fd"), reason="asks Linux")
def test_a_folder_that_is_removed_is_gone_whole_even_if_the_process_ends(tmp_path):
    folder = tmp_path / "backup"
    folder.mkdir()
    (folder / "checkpoint").touch()
    removal = mock.patch("shutil.rmtree", side_effect=KeyboardInterrupt)
    with removal, pytest.raises(KeyboardInterrupt):
        remove_folder(folder)
    assert not folder.exists()
    (left,) = tmp_path.iterdir()
    left.rename(left.with_name(left.name.replace(f"-{os.getpid()}-", "-999999999-")))
    write_text(tmp_path / "text", "")  # the next writer removes what a killed one has left
    assert [path.name for path in tmp_path.iterdir()] == ["text"]
    remove_folder(folder)  # which is gone


def test_a_file_is_on_the_disk_before_it_gets_its_name(tmp_path, monkeypatch):
    synced = []

    def recorded(handle):
        what = os.readlink(f"/proc/self/fd/{handle}")
        synced.append((os.path.isdir(what), (tmp_path / "a.json").exists()))
        real(handle)

    real = os.fsync
    monkeypatch.setattr(os, "fsync", recorded)
    with written_whole(tmp_path / "a.json") as temporary:
        temporary.write_text("new")
    # The file, not named yet; then the folder, with its name.
    assert synced == [(False, False), (True, True)]


@pytest.mark.skipif(os.geteuid() == 0, reason="root can write everywhere")
def test_a_folder_that_is_not_writable_is_named(tmp_path):
    tmp_path.chmod(0o500)
    with pytest.raises(ValueError, match="which is not writable"):
        check_writable(tmp_path / "a.json")


def test_a_temporary_folder_that_stays_hides_no_error(tmp_path, monkeypatch):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    monkeypatch.setattr(os, "rmdir", _refuse)
    with pytest.raises(OSError, match="of the block"), temporary_folder():
        raise OSError("of the block")
    with temporary_folder():
        pass
    assert len(list(tmp_path.iterdir())) == 2
    # A signal that ends the removal leaves none.
    interrupted = mock.Mock(side_effect=KeyboardInterrupt)
    monkeypatch.undo()
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "again"))
    (tmp_path / "again").mkdir()
    monkeypatch.setattr(tempfile.TemporaryDirectory, "cleanup", interrupted)
    with pytest.raises(KeyboardInterrupt), temporary_folder() as folder:
        pathlib.Path(folder, "left").touch()
    assert list((tmp_path / "again").iterdir()) == []


# -- members of archives ---------------------------------------------------------------------------

LABELS = b"cat\ndog\n" * 400


def archive(content=LABELS, method=zipfile.ZIP_STORED):
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w", method) as written:
        written.writestr("labels.txt", content)
    return stream.getvalue()


def changed(content, offset, packed):
    """The same archive with a field of both headers of its member changed.

    `offset` is that of the central header; of the local one it is two bytes less.
    """
    found = bytearray(content)
    for signature, shift in ((b"PK\1\2", 0), (b"PK\3\4", -2)):
        place = found.index(signature) + offset + shift
        found[place : place + len(packed)] = packed
    return bytes(found)


def read(content, most=2**20):
    with opened_archive(io.BytesIO(content)) as opened:
        expect_honest(opened)
        return read_member(opened, "labels.txt", most)


def test_members_are_read_as_they_were_written():
    for method in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
        assert read(archive(method=method)) == LABELS
    with opened_archive(io.BytesIO(archive())) as opened:
        assert read_member(opened, "other.txt", 1) is None


@pytest.mark.parametrize("method", [zipfile.ZIP_DEFLATED, zipfile.ZIP_BZIP2])
def test_a_member_that_hides_its_size_is_not_unpacked(method):
    lying = changed(archive(b"\0" * 2**24, method), 24, struct.pack("<I", 8))
    tracemalloc.start()
    try:
        with pytest.raises(ValueError, match=r"labels.txt"):
            read(lying)
        assert tracemalloc.get_traced_memory()[1] < 2**22
    finally:
        tracemalloc.stop()


def test_arrays_and_texts_come_back_as_they_were_written(tmp_path):
    (tmp_path / "a.txt").write_bytes(b"\xef\xbb\xbfone\r\ntwo\n")
    assert read_text(tmp_path / "a.txt") == "one\ntwo\n"  # without the mark
    arrays = [np.array("key"), np.arange(6.0).reshape(2, 3), np.zeros((0, 4)), np.float32(7)]
    np.savez(tmp_path / "a.npz", *arrays)
    found = read_arrays(tmp_path / "a.npz", 2**20)
    np.testing.assert_equal(found, arrays)
    assert [array.dtype for array in found] == [array.dtype for array in arrays]


def _overlapping(path):
    """Many members that are one array."""
    with zipfile.ZipFile(path, "w") as written:
        with written.open("arr_0.npy", "w") as member:
            np.save(member, np.zeros(2**16))
        written.filelist *= 2**5


@pytest.mark.parametrize(
    ("write", "words"),
    [
        (os.mkfifo, "not a regular file"),
        (
            lambda path: path.write_bytes(bytes(2**24 + 1)),
            "it has 16,777,217 bytes, at most 16,777,216 are read",
        ),
        (
            lambda path: np.savez_compressed(path, np.zeros(2**21)),
            "its arr_0.npy has 16,777,344 bytes, expected at most",
        ),
        (_overlapping, "its arr_0.npy has 524,416 bytes, expected at most"),
        (lambda path: np.savez(path, np.array([{}])), "its arr_0.npy is no array"),
        (lambda path: path.write_bytes(b"damaged"), "its zip archive is damaged"),
    ],
)
def test_arrays_take_no_more_memory_than_their_file(write, words, tmp_path):
    write(tmp_path / "a.npz")
    tracemalloc.start()
    try:
        with pytest.raises((OSError, ValueError), match=re.escape(words)):
            read_arrays(tmp_path / "a.npz", 2**24)
        assert tracemalloc.get_traced_memory()[1] < 2**22
    finally:
        tracemalloc.stop()
