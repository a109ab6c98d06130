"""Files: written whole or not at all, and read within a bound, zip archives of others too."""

import contextlib
import errno
import functools
import hashlib
import io
import os
import pathlib
import re
import shutil
import socket
import stat
import tempfile
import time
import uuid
import zipfile
from collections.abc import Iterator
from typing import IO, Any

from sat_tf.messages import reason_of


def expect_path(path: Any) -> pathlib.Path:
    """Returns `path` as a pathlib.Path; raises ValueError, with the fix, unless it is a path."""
    if isinstance(path, str | os.PathLike) and isinstance(name := os.fspath(path), str):
        if "\0" in name:
            raise ValueError(f"path: received {name!r}, expected a name without zero characters.")
        return pathlib.Path(path)
    raise ValueError(
        f"path: received {type(path).__name__}, expected the name of a file; pass a string or a "
        "pathlib.Path."
    )


def check_writable(path: str | os.PathLike[str]) -> pathlib.Path:
    """The path of a file that can be written."""
    path = expect_path(path)
    folder = f"a file in the folder {path.parent}, which"
    is_too_long = False
    try:
        path.lstat()
    except OSError as error:
        is_too_long = error.errno == errno.ENAMETOOLONG
    if is_too_long:
        problem = (
            f"a name that the file system does not take, as it has {len(str(path))} characters; "
            "choose a shorter one"
        )
    elif os.path.isdir(path):
        problem = "a folder, expected the name of a file; add a name"
    elif os.path.exists(path) and not os.path.isfile(path):
        problem = (
            "a device or a pipe, expected a regular file, which can be replaced; choose another "
            "name"
        )
    elif not os.path.isdir(path.parent):
        problem = f"{folder} does not exist, expected one that does; create it first"
    elif not os.access(path.parent, os.W_OK | os.X_OK):
        problem = (
            f"{folder} is not writable, expected one that is; choose another folder, or change its "
            "permissions"
        )
    else:
        return path
    raise ValueError(f"{path}: received {problem}.")


@contextlib.contextmanager
def written_whole(path: str | os.PathLike[str]) -> Iterator[pathlib.Path]:
    """A temporary name beside `path`, with its suffix, which becomes `path` if the block succeeds.

    If the block raises, nothing is left and an older file of that name stays as it was.
    """
    path = check_writable(path)
    with refusals_explained(path), renamed_when_done(path) as temporary:
        yield temporary


@contextlib.contextmanager
def refusals_explained(path: pathlib.Path) -> Iterator[None]:
    """Raises what the file system refuses while a file is written as ValueError, with the fix."""
    try:
        yield
    except OSError as error:
        raise ValueError(
            f"{path}: cannot be written ({error.strerror or error}), expected a writable file; "
            "choose another name or folder, or free some space."
        ) from error


def write_text(path: str | os.PathLike[str], text: str) -> None:
    """Writes a text in UTF-8; the file appears whole, or not at all."""
    with written_whole(path) as temporary:
        temporary.write_text(text, encoding="utf-8", newline="")


@contextlib.contextmanager
def renamed_when_done(path: pathlib.Path) -> Iterator[pathlib.Path]:
    """Does what `written_whole` does, with the file system's own errors.

    Renaming is atomic: nobody ever sees half a file, even if the writer is killed; a unique
    temporary name separates two writers of the same file. The contents are on the disk before the
    file is renamed: otherwise a power cut could leave an empty file of that name.
    """
    remove_left_files(path.parent)
    temporary = path.with_name(f".{_own_prefix()}{uuid.uuid4().hex}{path.suffix}")
    try:
        yield temporary
        on_disk(temporary)
        temporary.replace(path)
        on_disk(path.parent)
    finally:
        with contextlib.suppress(OSError):
            temporary.unlink(missing_ok=True)


def temporary_folder() -> "tempfile.TemporaryDirectory[str]":
    """A new folder for temporary files, once what killed processes have left is removed.

    Where the system refuses to remove it, it stays for the next process to remove.
    """
    remove_left_files(pathlib.Path(tempfile.gettempdir()))
    # An error of its removal would hide the one that the block has ended with.
    return tempfile.TemporaryDirectory(prefix=_own_prefix(), ignore_cleanup_errors=True)


_LEFT = re.compile(r"\.?sat_tf-(?P<machine>[0-9a-f]{8})-(?P<process>\d+)-(?P<start>\d+)-")
_A_DAY = 24 * 60 * 60


def remove_left_files(folder: pathlib.Path) -> None:
    """Removes temporary files of this user whose process has ended.

    Where that cannot be told, because another machine has made them, they have to be a day old.
    """
    with contextlib.suppress(OSError), os.scandir(folder) as entries:
        for entry in entries:
            found = _LEFT.match(entry.name)
            if found is None or not _is_left(entry, **found.groupdict()):
                continue
            if entry.is_dir(follow_symlinks=False):
                shutil.rmtree(entry.path, ignore_errors=True)
            else:
                with contextlib.suppress(OSError):
                    os.unlink(entry.path)


def _is_left(entry: "os.DirEntry[str]", machine: str, process: str, start: str) -> bool:
    facts = entry.stat(follow_symlinks=False)
    if hasattr(os, "getuid") and facts.st_uid != os.getuid():
        return False
    if machine == _machine():
        return _start_of(int(process)) != start
    return time.time() - facts.st_mtime > _A_DAY


def _own_prefix() -> str:
    """The beginning of the names of this process's temporary files."""
    return f"sat_tf-{_machine()}-{os.getpid()}-{_start_of(os.getpid())}-"


@functools.cache
def _machine() -> str:
    """A name for all that sees the same processes: a machine since its start, or a container."""
    facts = [socket.gethostname()]
    with contextlib.suppress(OSError):
        facts.append(pathlib.Path("/proc/sys/kernel/random/boot_id").read_text())
        facts.append(os.readlink("/proc/self/ns/pid"))
    return hashlib.sha256("\n".join(facts).encode()).hexdigest()[:8]


def _start_of(process: int) -> str | None:
    """When a process has started, in a unit of the system, or "0"; None where it has ended."""
    try:
        state, *facts = pathlib.Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
        return None if state == "Z" else facts[18]
    except FileNotFoundError:
        if os.path.exists("/proc/self/stat"):
            return None
    except OSError:
        return "0"
    if os.name == "nt":  # where asking for a process would end it
        return "0"
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return None
    except OSError:  # one of another user
        pass
    return "0"


def on_disk(path: pathlib.Path) -> None:
    """Returns once the contents of a file, or the names in a folder, would survive a power cut.

    Windows keeps names by itself, and cannot open folders.
    """
    if os.name == "nt" and path.is_dir():
        return
    # Windows flushes only what may be written.
    handle = os.open(path, os.O_RDWR if os.name == "nt" else os.O_RDONLY)
    try:
        os.fsync(handle)
    except OSError as error:
        if error.errno not in (errno.EINVAL, errno.ENOTSUP):  # a file system that cannot
            raise
    finally:
        os.close(handle)


# -- read within a bound ------------------------------------------------------------------------

# The offsets in a FlatBuffer have 32 bits, of which LiteRT uses 31; a picture of the most pixels
# that Pillow takes has fewer bytes.
MOST_BYTES = 2**31


def read_bytes(path: str | os.PathLike[str], most_bytes: int = MOST_BYTES) -> bytes:
    """Reads a regular file of so many bytes at most; raises OSError for any other."""
    # A pipe would be waited for until somebody writes into it.
    at_once = getattr(os, "O_NONBLOCK", 0)
    with open(path, "rb", opener=lambda name, flags: os.open(name, flags | at_once)) as file:
        facts = os.fstat(file.fileno())
        if not stat.S_ISREG(facts.st_mode):
            raise OSError(errno.EINVAL, "not a regular file", os.fspath(path))
        if facts.st_size > most_bytes:
            reason = f"it has {facts.st_size:,} bytes, at most {most_bytes:,} are read"
            raise OSError(errno.EFBIG, reason, os.fspath(path))
        return file.read(facts.st_size)


def read_text(path: str | os.PathLike[str], most_bytes: int = 2**26) -> str:
    """Reads a text in UTF-8, without the mark that some editors write in front of it."""
    content = io.BytesIO(read_bytes(path, most_bytes))
    return io.TextIOWrapper(content, encoding="utf-8-sig").read()


# -- zip archives -------------------------------------------------------------------------------

# `zipfile` unpacks bzip2 and LZMA without a bound, a million times what they take, and DEFLATE as
# much as it finds where all of a member is asked for at once, whatever its size is said to be.
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
