"""Arrays that are costly to create, kept in a file between runs."""

import os
import pathlib
import warnings
from collections.abc import Callable, Collection
from typing import Any

import numpy as np
import numpy.typing as npt

from sat_tf.files import renamed_when_done

ENVIRONMENT_VARIABLE = "SAT_TF_CACHE"

Arrays = dict[str, npt.NDArray[Any]]


def cache_folder(folder: str | os.PathLike[str] | None = None) -> pathlib.Path:
    """The folder that cached files go to; it need not exist."""
    chosen = folder or os.environ.get(ENVIRONMENT_VARIABLE) or "~/.cache/sat_tf"
    return pathlib.Path(chosen).expanduser()


def load_or_make(
    path: pathlib.Path, make: Callable[[], Arrays], *, names: Collection[str]
) -> Arrays:
    """Reads arrays from a file; creates and writes them if that is not possible.

    A damaged file is created again, with a warning. If the file cannot be written, the arrays are
    returned all the same, with a warning that the next run has to create them again.

    The name of the file has to change with everything that the arrays depend on.
    """
    if path.is_file():
        try:
            # The archive's checksums turn any changed byte of an array into an error here.
            with np.load(path, allow_pickle=False) as archive:
                return {name: archive[name] for name in names}
        except Exception as error:  # A damaged archive raises from many places, with many types.
            warnings.warn(
                f"cached file {path}: received a damaged file ({type(error).__name__}: {error}); "
                "expected arrays; it is created again",
                stacklevel=2,
            )
    arrays = make()
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with renamed_when_done(path) as temporary, temporary.open("xb") as file:
            # mypy takes every keyword for the only option of savez.
            np.savez(file, **arrays)  # type: ignore[arg-type]
    except OSError as error:
        warnings.warn(
            f"cached file {path}: could not be written ({error}); the data is complete, but the "
            f"next run creates it again; pass a writable cache_dir or set {ENVIRONMENT_VARIABLE}",
            stacklevel=2,
        )
    return arrays
