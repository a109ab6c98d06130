"""Writing files whole or not at all, and reading files and zip archives within a bound."""

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
from typing import IO, TYPE_CHECKING, Any

from sat_tf.messages import reason_of

if TYPE_CHECKING:
    import numpy as np

# The most bytes that a file of weights has besides them: heads of arrays, and a few other values.
BYTES_BESIDE_WEIGHTS = 2**26


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
    """Returns the path of a file that can be written; raises ValueError, with the fix."""
    path = expect_path(path)
    folder = f"a file in the folder {path.parent}, which"
    try:
        if path.is_dir():
            problem = "a folder, expected the name of a file; add a name"
        elif path.exists() and not path.is_file():
            problem = "a device or a pipe, expected a regular file; choose another name"
        elif not path.parent.is_dir():
            problem = f"{folder} does not exist, expected one that does; create it first"
        elif not os.access(path.parent, os.W_OK | os.X_OK):
            problem = f"{folder} is not writable, expected one that is; choose another folder"
        else:
            path.lstat()
            return path
    except FileNotFoundError:
        return path
    except OSError as error:
        problem = f"a name that the file system does not take ({error.strerror}); choose another"
    raise ValueError(f"{path}: received {problem}.")


@contextlib.contextmanager
def written_whole(path: str | os.PathLike[str]) -> Iterator[pathlib.Path]:
    """Yields a temporary name next to `path`: renamed to it if the block succeeds, else removed."""
    path = check_writable(path)
    with refusals_explained(path), renamed_when_done(path) as temporary:
        yield temporary


@contextlib.contextmanager
def refusals_explained(path: pathlib.Path) -> Iterator[None]:
    """Raises an OSError from writing a file as a ValueError with the fix."""
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
    _remove_left_files(path.parent)
    temporary = path.with_name(f".{_own_prefix()}{uuid.uuid4().hex}{path.suffix}")
    try:
        yield temporary
        _on_disk(temporary)
        temporary.replace(path)
        _on_disk(path.parent)
    finally:
        with contextlib.suppress(OSError):
            temporary.unlink(missing_ok=True)


def remove_folder(path: pathlib.Path) -> None:
    """Removes a folder, which is gone as a whole even if the process is killed."""
    with contextlib.suppress(OSError):
        removed = path.rename(path.with_name(f".{_own_prefix()}{uuid.uuid4().hex}"))
        shutil.rmtree(removed, ignore_errors=True)


def temporary_folder() -> "tempfile.TemporaryDirectory[str]":
    """Makes a folder for temporary files, and removes those that killed processes have left."""
    _remove_left_files(pathlib.Path(tempfile.gettempdir()))
    # An error of the folder's removal would hide the one that the block has ended with.
    return _TemporaryFolder(prefix=_own_prefix(), ignore_cleanup_errors=True)


class _TemporaryFolder(tempfile.TemporaryDirectory[str]):
    """A folder that is gone after its block, also where a signal ends its removal."""

    def __exit__(self, *error: Any) -> None:
        try:
            super().__exit__(*error)
        finally:
            shutil.rmtree(self.name, ignore_errors=True)


_LEFT = re.compile(r"\.?sat_tf-(?P<machine>[0-9a-f]{8})-(?P<process>\d{1,9})-")
_A_DAY = 24 * 60 * 60


def _remove_left_files(folder: pathlib.Path) -> None:
    """Removes temporary files whose process has ended; files of another machine after a day."""
    with contextlib.suppress(OSError), os.scandir(folder) as entries:
        for entry in entries:
            name = _LEFT.match(entry.name)
            if name is None:
                continue
            is_left = time.time() - entry.stat(follow_symlinks=False).st_mtime > _A_DAY
            if name["machine"] == _machine():
                is_left = not _is_running(int(name["process"]))
            if is_left and entry.is_dir(follow_symlinks=False):
                shutil.rmtree(entry.path, ignore_errors=True)
            elif is_left:
                with contextlib.suppress(OSError):
                    os.unlink(entry.path)


def _own_prefix() -> str:
    """The beginning of the names of this process's temporary files."""
    return f"sat_tf-{_machine()}-{os.getpid()}-"


@functools.cache
def _machine() -> str:
    """The name of a scope of processes: a machine since its start, or a container."""
    facts = [socket.gethostname()]
    with contextlib.suppress(OSError):
        facts.append(pathlib.Path("/proc/sys/kernel/random/boot_id").read_text())
        facts.append(os.readlink("/proc/self/ns/pid"))
    return hashlib.sha256("\n".join(facts).encode()).hexdigest()[:8]


def _is_running(process: int) -> bool:
    if os.name == "nt":  # there, asking for a process would end it
        return True
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    except OSError:  # another user's process
        pass
    return True


def _on_disk(path: pathlib.Path) -> None:
    """Returns once the contents of a file, or the names in a folder, would survive a power cut."""
    if os.name == "nt":  # Windows opens no folders, and flushes only writable files
        return
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    except OSError as error:
        if error.errno not in (errno.EINVAL, errno.ENOTSUP):  # the file system cannot
            raise
    finally:
        os.close(handle)


# -- read within a bound ------------------------------------------------------------------------

# The offsets in a FlatBuffer have 32 bits, of which LiteRT uses 31; a picture of the most pixels
# that Pillow takes has fewer bytes.
MOST_BYTES = 2**31


@contextlib.contextmanager
def _opened(path: str | os.PathLike[str], most_bytes: int) -> Iterator[tuple[IO[bytes], int]]:
    """Opens a regular file of at most `most_bytes`, with its length; raises OSError for others."""
    # Opening a pipe would wait until somebody writes into it.
    at_once = getattr(os, "O_NONBLOCK", 0)
    with open(path, "rb", opener=lambda name, flags: os.open(name, flags | at_once)) as file:
        facts = os.fstat(file.fileno())
        if not stat.S_ISREG(facts.st_mode):
            raise OSError(errno.EINVAL, "not a regular file", os.fspath(path))
        if facts.st_size > most_bytes:
            reason = f"it has {facts.st_size:,} bytes, at most {most_bytes:,} are read"
            raise OSError(errno.EFBIG, reason, os.fspath(path))
        yield file, facts.st_size


def read_bytes(path: str | os.PathLike[str], most_bytes: int = MOST_BYTES) -> bytes:
    """Reads a regular file of so many bytes at most; raises OSError for any other."""
    with _opened(path, most_bytes) as (file, size):
        return file.read(size)


def read_text(path: str | os.PathLike[str], most_bytes: int = 2**26) -> str:
    """Reads a text in UTF-8, without the mark that some editors write in front of it."""
    content = io.BytesIO(read_bytes(path, most_bytes))
    return io.TextIOWrapper(content, encoding="utf-8-sig").read()


# -- zip archives -------------------------------------------------------------------------------

# `zipfile` unpacks bzip2 and LZMA without a bound, to a million times their size, and DEFLATE too
# where a whole member is read at once, whatever size the archive states.
_METHODS = {zipfile.ZIP_STORED: "stored", zipfile.ZIP_DEFLATED: "DEFLATE"}
_ENCRYPTED = 0x1
_PIECE = 2**20
# The oldest date that an archive can hold: with it in all files, equal contents are equal bytes.
NO_TIME = (1980, 1, 1, 0, 0, 0)


def is_archive(file: pathlib.Path | IO[bytes]) -> bool:
    """Whether a file ends as a zip archive does, damaged or not."""
    try:
        return zipfile.is_zipfile(file)
    except zipfile.BadZipFile:
        return True


@contextlib.contextmanager
def opened_archive(file: pathlib.Path | IO[bytes]) -> Iterator[zipfile.ZipFile]:
    """Opens a zip archive, to be read with `read_member` and `expect_honest` alone."""
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
    """Raises ValueError unless all members unpack to their stated sizes, and to valid paths."""
    _expect_paths(archive)
    for member in archive.infolist():
        if member.compress_type != zipfile.ZIP_STORED or member.file_size != member.compress_size:
            for _ in _pieces(archive, member):
                pass


def _expect_paths(archive: zipfile.ZipFile) -> None:
    """Raises ValueError for invalid paths: Keras would leave a folder that is half unpacked."""
    files, folders = set[pathlib.PurePosixPath](), set[pathlib.PurePosixPath]()
    for member in archive.infolist():
        path = pathlib.PurePosixPath(member.filename)
        sizes = [len(component.encode(errors="surrogatepass")) for component in path.parts]
        is_inside = not path.is_absolute() and ".." not in path.parts
        if not is_inside or not 0 < max(sizes, default=0) <= 255 or sum(sizes) > 1024:
            raise ValueError(f"its {member.filename} cannot be unpacked, expected another name")
        (folders if member.is_dir() else files).add(path)
        folders.update(path.parents)
    if both := sorted(files & folders):
        raise ValueError(f"its {both[0]} is a file and a folder, expected one of them")


def read_arrays(path: str | os.PathLike[str], most_bytes: int) -> "list[np.ndarray]":
    """Reads the arrays that `numpy.savez` has written, in their order.

    It compresses nothing, so that all members together have fewer bytes than the file.

    Raises:
        OSError: as `read_bytes` does.
        ValueError: the archive is damaged, or unpacks to more bytes than the file has.
    """
    import numpy as np  # here because it is slow to load

    arrays = []
    with _opened(path, most_bytes) as (file, left), opened_archive(file) as archive:
        for name in archive.namelist():
            content = read_member(archive, name, left) or b""
            left -= len(content)
            try:
                arrays.append(np.lib.format.read_array(io.BytesIO(content), allow_pickle=False))
            except Exception as error:  # a damaged head raises many types
                raise ValueError(f"its {name} is no array ({reason_of(error)})") from error
    return arrays


def _pieces(archive: zipfile.ZipFile, member: zipfile.ZipInfo) -> Iterator[bytes]:
    """Yields the bytes of a member, unpacked a piece at a time."""
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
    except Exception as error:  # errors of zipfile, zlib and the file system
        raise ValueError(f"its {name} is damaged ({reason_of(error)})") from error
    if count != member.file_size:
        raise ValueError(f"its {name} has {count:,} bytes and says {member.file_size:,}")
