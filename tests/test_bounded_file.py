import os

import pytest

from sat_tf.bounded_file import open_regular, read_text


def test_a_text_is_read_without_its_mark_and_with_plain_line_breaks(tmp_path):
    (tmp_path / "a.txt").write_bytes(b"\xef\xbb\xbfone\r\ntwo\n")
    assert read_text(tmp_path / "a.txt") == "one\ntwo\n"


def test_a_longer_file_is_refused_before_it_is_read(tmp_path):
    path = tmp_path / "a.txt"
    path.touch()
    os.truncate(path, 2**40)
    with pytest.raises(OSError, match="it has 1,099,511,627,776 bytes, at most 67,108,864 are"):
        read_text(path)
    path.write_text("12345")
    assert read_text(path, 5) == "12345"
    with pytest.raises(OSError, match="at most 4"):
        read_text(path, 4)


@pytest.mark.parametrize("kind", ["pipe", "device"])
def test_what_is_no_regular_file_is_not_waited_for(kind, tmp_path):
    path = tmp_path / "a"
    os.mkfifo(path) if kind == "pipe" else path.symlink_to("/dev/zero")
    with pytest.raises(OSError, match="not a regular file") as refused:
        read_text(path)
    assert refused.value.filename == str(path)


def test_a_folder_and_a_missing_file_are_refused(tmp_path):
    with pytest.raises(IsADirectoryError):
        open_regular(tmp_path)
    with pytest.raises(FileNotFoundError):
        open_regular(tmp_path / "none")
