"""Regular files of at most so many bytes: reading one waits for nobody, and fills no memory."""

import errno
import io
import os
import stat
from typing import BinaryIO


def open_regular(path: str | os.PathLike[str]) -> BinaryIO:
    """Opens a file, to read its bytes."""
    # A pipe would be waited for until somebody writes into it.
    at_once = getattr(os, "O_NONBLOCK", 0)
    file = open(  # noqa: SIM115 - the caller closes it
        path, "rb", opener=lambda name, flags: os.open(name, flags | at_once)
    )
    if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
        file.close()
        raise OSError(errno.EINVAL, "not a regular file", os.fspath(path))
    return file


def read_text(path: str | os.PathLike[str], most_bytes: int = 2**26) -> str:
    """The text of a file in UTF-8, without the mark that some editors write in front of it."""
    with open_regular(path) as file:
        size = os.fstat(file.fileno()).st_size
        if size > most_bytes:
            reason = f"it has {size:,} bytes, at most {most_bytes:,} are read"
            raise OSError(errno.EFBIG, reason, os.fspath(path))
        return io.TextIOWrapper(io.BytesIO(file.read(size)), encoding="utf-8-sig").read()
