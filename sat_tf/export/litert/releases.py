"""Which releases of LiteRT run which files.

Found by running a file of each kind in every release of `ai-edge-litert`; the guide to the export
says how. Older releases refuse files with packed matrices, or leave them to their builtin kernels,
which round otherwise. INT4 convolutions have run since the first release.
"""

from collections.abc import Iterable

from sat_tf.export.tflite.tensors import Storage

# The first release that computes the codes of a file whose matrices are stored like this.
FIRST_RELEASES = {Storage.INT8: "1.0.0", Storage.INT4: "1.3.0", Storage.INT2: "2.1.2"}


def first_release(matrices: Iterable[Storage]) -> str:
    """The first release of the Python package `ai-edge-litert` that computes a file's codes.

    Args:
        matrices: how it stores the kernels of its FULLY_CONNECTED operators.

    >>> first_release([Storage.INT8, Storage.INT4])
    '1.3.0'
    """
    needed = [FIRST_RELEASES[storage] for storage in (Storage.INT8, *matrices)]
    return max(needed, key=lambda release: [int(part) for part in release.split(".")])
