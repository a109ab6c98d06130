import io
import re
import struct
import tracemalloc
import zipfile

import pytest

from sat_tf.zip_archive import expect_honest, is_archive, opened_archive, read_member

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


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        (archive(b"\0" * 2**21, zipfile.ZIP_DEFLATED), "has 2,097,152 bytes, expected at most"),
        (archive(method=zipfile.ZIP_BZIP2), "by method 12, expected stored or DEFLATE"),
        (archive(method=zipfile.ZIP_LZMA), "by method 14, expected stored or DEFLATE"),
        (changed(archive(), 10, struct.pack("<H", 99)), "by method 99, expected stored or DEFLATE"),
        (changed(archive(), 8, struct.pack("<H", 1)), "is encrypted, expected a member without"),
        (archive().replace(b"cat", b"cow"), "is damaged (Bad CRC-32"),
        (archive()[:-20] + b"PK\5\6" + b"\xff" * 18, "its zip archive is damaged"),
    ],
)
def test_what_cannot_be_read_is_one_error_that_says_why(content, problem):
    assert is_archive(io.BytesIO(content))
    with pytest.raises(ValueError, match=re.escape(problem)):
        read(content)


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


@pytest.mark.parametrize(
    ("names", "problem"),
    [
        (["x" * 256], "cannot be unpacked, expected names of 1 to 255 bytes"),
        (["é" * 128], "cannot be unpacked, expected names of 1 to 255 bytes"),
        (["/".join(["x" * 250] * 5)], "cannot be unpacked"),
        (["./.."], "its ./.. cannot be unpacked"),
        (["a", "a/b"], "its a is a file and a folder, expected one of them"),
    ],
)
def test_names_that_cannot_be_files_of_one_folder_are_refused(names, problem):
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w") as written:
        for name in names:
            written.writestr(name, b"")
    with opened_archive(stream) as opened, pytest.raises(ValueError, match=re.escape(problem)):
        expect_honest(opened)


def test_folders_may_be_members_too():
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w") as written:
        for name in ("a/", "a/b", "../c"):
            written.writestr(name, b"")
    with opened_archive(stream) as opened:
        expect_honest(opened)
