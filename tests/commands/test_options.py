import os

import pytest

from sat_tf.commands.options import open_folder
from sat_tf.messages import RunError


def test_a_folder_is_created_with_its_parents(tmp_path):
    with open_folder(str(tmp_path / "a" / "b")) as folder:
        assert folder == tmp_path / "a" / "b"
        (folder / "index.html").write_text("")
    assert (tmp_path / "a" / "b" / "index.html").is_file()


def test_a_new_folder_that_stays_empty_is_removed(tmp_path):
    (tmp_path / "old").mkdir()
    for name in ("old", "new"):
        with pytest.raises(KeyboardInterrupt), open_folder(tmp_path / name):
            raise KeyboardInterrupt
    assert os.listdir(tmp_path) == ["old"]


@pytest.mark.parametrize("name", ["file", "file/inside"])
def test_a_file_is_not_a_folder(tmp_path, name):
    (tmp_path / "file").write_text("")
    with pytest.raises(RunError, match=r"--out: received .*file"):
        open_folder(tmp_path / name).__enter__()


def test_a_folder_that_cannot_be_written_is_refused(tmp_path, monkeypatch):
    monkeypatch.setattr(os, "access", lambda *_: False)
    with pytest.raises(RunError, match="not writable; expected a folder that is"):
        open_folder(tmp_path).__enter__()
