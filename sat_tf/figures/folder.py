"""The files of figures: each whole, or not there."""

import contextlib
import os
import pathlib
from collections.abc import Iterator
from typing import TYPE_CHECKING

from sat_tf import palette
from sat_tf.figures.figure import Figure
from sat_tf.figures.table import Table
from sat_tf.training.errors import RunError
from sat_tf.wholefile import written_whole

if TYPE_CHECKING:
    from matplotlib.figure import Figure as Picture

PICTURES = (".png", ".svg")
INDEX = "index.html"


@contextlib.contextmanager
def open_folder(path: str | os.PathLike[str]) -> Iterator[pathlib.Path]:
    """The folder, made where it is not there; one that was made and stays empty goes again.

    Raises:
        RunError: it is a file, or cannot be made or written.
    """
    folder = pathlib.Path(path)
    is_new = not folder.exists()
    if folder.exists() and not folder.is_dir():
        raise RunError(f"--out: received {folder}, which is a file; expected a folder; name one.")
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise RunError(
            f"--out: received {folder}, which cannot be made ({error.strerror}); expected a folder "
            "that can be written; choose another."
        ) from error
    if not os.access(folder, os.W_OK | os.X_OK):
        raise RunError(
            f"--out: received {folder}, which is not writable; expected a folder that is; choose "
            "another, or change its permissions."
        )
    try:
        yield folder
    finally:
        if is_new:
            with contextlib.suppress(OSError):
                folder.rmdir()


def write_figure(folder: pathlib.Path, figure: Figure, table: Table) -> None:
    """Writes the numbers of a figure, and its pictures beside them.

    Raises:
        RunError: a file cannot be written.
    """
    with palette.styled():
        picture = figure.draw(table)
        for suffix in PICTURES:
            _write_picture(folder / f"{figure.name}{suffix}", picture)
    write_text(folder / f"{figure.name}.csv", table.to_csv())


def read_table(folder: pathlib.Path, figure: Figure) -> Table | None:
    """The numbers of a figure in a folder; None where it lacks any of its files.

    Raises:
        RunError: they are not such numbers.
    """
    files = [folder / f"{figure.name}{suffix}" for suffix in (".csv", *PICTURES)]
    if not all(file.is_file() for file in files):
        return None
    try:
        return Table.from_csv(files[0].read_text(encoding="utf-8"), figure.columns)
    except ValueError as error:
        raise RunError(
            f"{files[0]}: received a file that cannot be read ({error}); it comes from another "
            f"version, or was changed by hand: remove it, or make it anew with `sat-tf figures "
            f"{figure.name} --out {folder}`."
        ) from error


def write_text(path: pathlib.Path, text: str) -> None:
    """Writes a file.

    Raises:
        RunError: it cannot be written.
    """
    try:
        with written_whole(path) as temporary:
            temporary.write_text(text, encoding="utf-8")
    except ValueError as error:
        raise RunError(str(error)) from error


def _write_picture(path: pathlib.Path, picture: "Picture") -> None:
    try:
        with written_whole(path) as temporary:
            palette.save(picture, temporary)
    except ValueError as error:
        raise RunError(str(error)) from error
