"""The labels of images in an .npy file, which have no folders of classes to tell them."""

import csv
import os
import pathlib

import numpy as np

from sat_tf.files import read_text
from sat_tf.messages import RunError, first_ones

_MOST_BYTES = 2**28
_ENDINGS = (".npy", ".txt", ".csv")
_HEADS = ("label", "labels", "class")


def expect_labels(path: str, images: str | None) -> None:
    """Refuses labels in a file unless it is there, and images in an .npy file beside it."""
    if images is None or os.path.isdir(images):
        received = "no --images" if images is None else f"--images {images}, a folder"
        raise RunError(
            f"--labels: {path}: received {received}, expected them for images in an .npy file; "
            "pictures in folders of classes have their labels by these; leave it out."
        )
    ending = pathlib.Path(path).suffix.lower()
    if ending not in _ENDINGS:
        raise RunError(
            f"--labels: {path}: received {ending or 'no ending'}, expected one of "
            f"{', '.join(_ENDINGS)}; give it such a name."
        )
    if not os.path.isfile(path):
        raise RunError(f"--labels: {path}: not found; expected a file of class numbers.")


def read_labels(path: str, count: int, num_classes: int) -> np.ndarray:
    """The labels of images, int32 (n,)."""
    labels = _of_array(path) if path.lower().endswith(".npy") else _of_text(path)
    problems = []
    if len(labels) != count:
        problems.append(
            f"received {len(labels):,} labels for {count:,} images, expected one for each"
        )
    outside = np.flatnonzero((labels < 0) | (labels >= num_classes))
    if len(outside):
        named = [f"{labels[place]} of image {place}" for place in outside[:3]]
        more = f" and {len(outside) - 3:,} more" if len(outside) > 3 else ""
        counted = " they are counted from 0;" if labels.min() == 1 else ""
        problems.append(
            f"received {', '.join(named)}{more}, expected class numbers from 0 to "
            f"{num_classes - 1}, as the model has {num_classes:,} outputs;{counted} check whose "
            "labels these are"
        )
    if problems:
        raise RunError(f"--labels: {path}: {'; '.join(problems)}.")
    return labels.astype(np.int32)


def _of_array(path: str) -> np.ndarray:
    try:
        labels = np.load(path, allow_pickle=False)
    except Exception as error:  # NumPy parses the header as Python, and raises what that raises.
        raise RunError(
            f"--labels: {path}: received a file that np.save has not written, expected integers "
            "(n,); write them with np.save."
        ) from error
    if not isinstance(labels, np.ndarray):
        raise RunError(f"--labels: {path}: received an archive, expected an array; use np.save.")
    if labels.ndim == 2 and labels.shape[1] == 1:
        labels = labels[:, 0]
    if labels.ndim != 1 or not np.issubdtype(labels.dtype, np.integer):
        fix = "np.argmax(labels, axis=-1)" if labels.ndim == 2 else "labels.astype(int)"
        raise RunError(
            f"--labels: {path}: received {labels.dtype} {labels.shape}, expected integers (n,); "
            f"save {fix}."
        )
    return labels.astype(np.int64)


def _of_text(path: str) -> np.ndarray:
    """The numbers in the lines of a file, or in a column of a table."""
    try:
        text = read_text(pathlib.Path(path), _MOST_BYTES)
        lines = text.strip().splitlines()
        is_table = path.lower().endswith(".csv")
        rows = list(csv.reader(lines)) if is_table else [[line] for line in lines]
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise RunError(
            f"--labels: {path}: cannot be read ({error}), expected text with class numbers."
        ) from error
    column, first = -1, 1
    if rows and is_table and not _is_number(rows[0][-1:]):
        heads = [head.strip().lower() for head in rows.pop(0)]
        column = next((place for place, head in enumerate(heads) if head in _HEADS), -1)
        first = 2
    cells = [row[column:][:1] if column < 0 else row[column : column + 1] for row in rows]
    wrong = [
        f"{(cell or [''])[0].strip()!r} in line {line}"
        for line, cell in enumerate(cells, first)
        if not _is_number(cell)
    ]
    if wrong:
        raise RunError(
            f"--labels: {path}: received {first_ones(wrong)}, expected a class number, an integer "
            "from 0 on; names of classes are told by their folders."
        )
    return np.array([int(cell[0]) for cell in cells], np.int64)


def _is_number(cell: list[str]) -> bool:
    text = cell[0].strip() if cell else ""
    return text.removeprefix("-").isdecimal() and len(text) < 19
