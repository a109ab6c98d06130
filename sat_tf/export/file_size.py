"""The size of a file as it is sent to phones."""

import gzip
from concurrent.futures import ThreadPoolExecutor

_PIECE = 2**24


def gzip_size(content: bytes) -> int:
    """Bytes after gzip as it compresses by itself (level 6), with no time stamp.

    Large files are compressed in pieces, as many at a time as there are processors. The pieces
    together are a gzip file too, larger by some bytes in a million.
    """
    pieces = (content[start : start + _PIECE] for start in range(0, len(content), _PIECE))
    with ThreadPoolExecutor() as pool:
        return sum(pool.map(_compressed_size, pieces))


def _compressed_size(piece: bytes) -> int:
    return len(gzip.compress(piece, compresslevel=6, mtime=0))
