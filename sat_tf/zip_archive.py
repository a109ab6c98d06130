"""Zip archives of others: members read within a bound, and one error for whatever is wrong.

`zipfile` unpacks bzip2 and LZMA without a bound, a million times what they take, and DEFLATE as
much as it finds where all of a member is asked for at once, whatever its size is said to be.
"""

import contextlib
import pathlib
import zipfile
from collections.abc import Iterator
from typing import IO

from sat_tf.messages import reason_of

_METHODS = {zipfile.ZIP_STORED: "stored", zipfile.ZIP_DEFLATED: "DEFLATE"}
_ENCRYPTED = 0x1
_PIECE = 2**20
# Most file systems take names of so many bytes, and every system takes paths of so many.
_LONGEST_NAME_BYTES, _LONGEST_PATH_BYTES = 255, 1024
# The oldest date that an archive can hold. Equal contents are equal bytes where all files have it.
NO_TIME = (1980, 1, 1, 0, 0, 0)


def is_archive(file: pathlib.Path | IO[bytes]) -> bool:
    """Whether a file ends as a zip archive does, damaged or not."""
    try:
        return zipfile.is_zipfile(file)
    except zipfile.BadZipFile:
        return True


@contextlib.contextmanager
def opened_archive(file: pathlib.Path | IO[bytes]) -> Iterator[zipfile.ZipFile]:
    """The archive in a file, to be read with `read_member` and `expect_honest` alone."""
    try:
        archive = zipfile.ZipFile(file)
    except Exception as error:  # zipfile raises many types on damaged files
        raise ValueError(f"its zip archive is damaged ({reason_of(error)})") from error
    with archive:
        yield archive


def read_member(archive: zipfile.ZipFile, name: str, most: int) -> bytes | None:
    """Reads the bytes of a member; None if the archive has no member of this name."""
    try:
        member = archive.getinfo(name)
    except KeyError:
        return None
    if member.file_size > most:
        raise ValueError(f"its {name} has {member.file_size:,} bytes, expected at most {most:,}")
    return b"".join(_pieces(archive, member))


def expect_honest(archive: zipfile.ZipFile) -> None:
    """Raises ValueError unless every member unpacks to as many bytes as it says, and into a file.

    Members that are stored as they are need not be read for that. Keras unpacks all of them into a
    temporary folder, and leaves it where that fails.
    """
    _expect_paths(archive)
    for member in archive.infolist():
        if member.compress_type != zipfile.ZIP_STORED or member.file_size != member.compress_size:
            for _ in _pieces(archive, member):
                pass


def _expect_paths(archive: zipfile.ZipFile) -> None:
    """Raises ValueError unless the names of all members can be those of files in one folder."""
    files: dict[tuple[str, ...], str] = {}
    folders: set[tuple[str, ...]] = set()
    for member in archive.infolist():
        parts = [part for part in member.filename.split("/") if part not in ("", ".", "..")]
        sizes = [len(part.encode(errors="surrogatepass")) for part in parts]
        if not 0 < max(sizes, default=0) <= _LONGEST_NAME_BYTES or sum(sizes) > _LONGEST_PATH_BYTES:
            raise ValueError(
                f"its {member.filename} cannot be unpacked, expected names of 1 to "
                f"{_LONGEST_NAME_BYTES} bytes, and {_LONGEST_PATH_BYTES:,} with their folders"
            )
        if not member.is_dir():
            files[tuple(parts)] = member.filename
            parts = parts[:-1]
        folders.update(tuple(parts[: count + 1]) for count in range(len(parts)))
    if both := sorted(set(files) & folders):
        raise ValueError(f"its {files[both[0]]} is a file and a folder, expected one of them")


def _pieces(archive: zipfile.ZipFile, member: zipfile.ZipInfo) -> Iterator[bytes]:
    """The bytes of a member, of which never more than a piece is unpacked at a time."""
    name = member.filename
    if member.flag_bits & _ENCRYPTED:
        raise ValueError(f"its {name} is encrypted, expected a member without a password")
    if member.compress_type not in _METHODS:
        raise ValueError(
            f"its {name} is compressed by method {member.compress_type}, expected "
            f"{' or '.join(_METHODS.values())}"
        )
    count = 0
    try:
        with archive.open(member) as opened:
            while piece := opened.read(_PIECE):
                count += len(piece)
                yield piece
    except Exception as error:  # of zipfile, zlib and the file system
        raise ValueError(f"its {name} is damaged ({reason_of(error)})") from error
    if count != member.file_size:
        raise ValueError(f"its {name} has {count:,} bytes and says {member.file_size:,}")
