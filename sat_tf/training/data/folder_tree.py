"""A folder of pictures as a data set: those to train on, and those to measure with."""

import os
from typing import NamedTuple

from sat_tf.messages import first_ones
from sat_tf.pictures import Pictures, open_pictures


class FolderTree(NamedTuple):
    """The pictures of a folder."""

    class_names: tuple[str, ...]  # Of the classes, sorted; their indices are the labels.
    train: Pictures  # The pictures to train on.
    held_out: Pictures  # Those to measure with.
    notes: tuple[str, ...] = ()  # What to tell those who train on it, such as how it was divided.


def read_tree(data_dir: str | os.PathLike[str]) -> FolderTree:
    """Lists the pictures of a folder, and divides them; see `Pictures.split`.

    Args:
        data_dir: the folder.

    Raises:
        ValueError: it is no such folder; lists everything that is wrong.
    """
    pictures = open_pictures(data_dir)
    if pictures.array is not None:
        raise ValueError(f"data_dir: received {data_dir}, a file; expected a folder of pictures.")
    if pictures.labels is None:
        raise ValueError(
            f"{data_dir}: received {len(pictures)} pictures and no folders "
            f"({first_ones(pictures.names)}); expected a folder for each class; move each picture "
            "into the folder of its class, such as cat/1.jpg and dog/1.jpg."
        )
    parts = pictures.split()
    notes = tuple(note for part in parts for note in part.notes)
    return FolderTree(pictures.class_names, *parts, notes)
