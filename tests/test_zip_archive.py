import io
import struct
import tracemalloc
import zipfile

import pytest

from sat_tf.files import expect_honest, opened_archive, read_member

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


def test_folders_may_be_members_too():
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w") as written:
        for name in ("a/", "a/b", "../c"):
            written.writestr(name, b"")
    with opened_archive(stream) as opened:
        expect_honest(opened)
