"""The size of a file as it is sent to phones."""

import gzip


def gzip_size(content: bytes) -> int:
    """Bytes after gzip at its strongest, with no time stamp."""
    return len(gzip.compress(content, compresslevel=9, mtime=0))
