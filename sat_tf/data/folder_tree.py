"""The usual tree of an image data set: train/<class>/<picture> and val/<class>/<picture>."""

import os
import pathlib
from typing import NamedTuple

from sat_tf.messages import first_ones, list_problems

TRAIN = "train"
# In this order, because a folder "test" often has no labels.
HELD_OUT = ("val", "validation", "test")
SUFFIXES = frozenset(
    {".jpeg", ".jpg", ".png", ".bmp", ".gif", ".webp", ".tif", ".tiff", ".jpe", ".jfif"}
)
_MOST_NAMED = 5


class Split(NamedTuple):
    """One split of the set.

    Attributes:
        paths: of all pictures, class by class, sorted by name.
        labels: number of the class of each.
        endless: pipes, sockets and devices with the names of pictures.
    """

    paths: list[str]
    labels: list[int]
    endless: list[str]


class FolderTree(NamedTuple):
    """The pictures of a folder.

    Attributes:
        class_names: names of the classes, sorted; their indices are the labels.
        train: the split to train on.
        held_out: the split to measure with.
    """

    class_names: list[str]
    train: Split
    held_out: Split


def read_tree(data_dir: str | os.PathLike[str]) -> FolderTree:
    """Lists the pictures of a folder; opens none.

    Hidden files and other kinds of files are skipped; subfolders of the classes and links to
    folders are not. A pipe, a socket or a device with the name of a picture is an error, because
    reading it would block forever.

    Args:
        data_dir: the folder.

    Raises:
        ValueError: it is not such a folder; lists everything that is wrong.
    """
    if not isinstance(data_dir, str | os.PathLike):
        raise ValueError(f"data_dir: received {data_dir!r}; expected the path of a folder.")
    root = pathlib.Path(data_dir).expanduser()
    if not root.is_dir():
        raise ValueError(
            f"data_dir: received {root}, which is not a folder; expected one that holds "
            f"{TRAIN}/<class>/*.JPEG and {HELD_OUT[0]}/<class>/*.JPEG."
        )
    names = {entry.name for entry in root.iterdir() if entry.is_dir()}
    held_out = next((name for name in HELD_OUT if name in names), None)
    problems = []
    if TRAIN not in names:
        problems.append(_missing(TRAIN, names))
    if held_out is None:
        problems.append(_missing(" or ".join(HELD_OUT), names))
    if held_out is None or problems:
        raise ValueError(list_problems(str(root), problems))
    unreadable: list[OSError] = []
    classes, others = (_classes(root / name, unreadable) for name in (TRAIN, held_out))
    splits = {name: _split(root / name, classes, unreadable) for name in (TRAIN, held_out)}
    if unreadable:  # they may hold what is missing
        raise ValueError(list_problems(str(root), _refused(unreadable)))
    problems += _endless([path for split in splits.values() for path in split.endless])
    problems += _differences(held_out, classes, others)
    if not classes:
        problems.append(f"{TRAIN}: received no folders in it; expected one for each class.")
    problems += _empty(TRAIN, classes, splits[TRAIN])
    if classes and not splits[held_out].paths:
        problems.append(
            f"{held_out}: received no pictures; expected at least one ({_kinds()}) in a folder of "
            "a class."
        )
    elif others:
        both = [name for name in classes if name in set(others)]
        problems += _empty(held_out, classes, splits[held_out], among=both)
    if problems:
        raise ValueError(list_problems(str(root), problems))
    return FolderTree(classes, splits[TRAIN], splits[held_out])


def _missing(expected: str, names: set[str]) -> str:
    found = ", ".join(sorted(names)[:_MOST_NAMED]) or "none"
    return f"received the folders {found}; expected {expected} with a folder for each class."


def _classes(folder: pathlib.Path, unreadable: list[OSError]) -> list[str]:
    try:
        return sorted(e.name for e in os.scandir(folder) if e.is_dir() and e.name[0] != ".")
    except OSError as error:
        unreadable.append(error)
        return []


def _refused(errors: list[OSError]) -> list[str]:
    problems = [
        f"{error.filename}: received a folder that cannot be read ({error.strerror}); expected to "
        "read all of them; allow it, or remove the folder."
        for error in errors[:_MOST_NAMED]
    ]
    if len(errors) > _MOST_NAMED:
        problems.append(f"{len(errors) - _MOST_NAMED} more folders cannot be read.")
    return problems


def _endless(paths: list[str]) -> list[str]:
    if not paths:
        return []
    return [
        f"received {len(paths)} pipes, sockets or devices with the names of pictures "
        f"({first_ones(paths)}); expected files; remove them."
    ]


def _differences(held_out: str, train: list[str], others: list[str]) -> list[str]:
    """Classes that only one of the splits has; a split without folders has no classes at all."""
    if train and not others:
        return [
            f"{held_out}: received no folders of classes; expected those of {TRAIN}; move each "
            "picture into the folder of its class."
        ]
    problems = []
    for name, mine, other, split in (
        (TRAIN, train, others, held_out),
        (held_out, others, train, TRAIN),
    ):
        only = sorted(set(mine) - set(other))
        if train and only:
            problems.append(
                f"{name}: received {len(only)} classes that {split} does not have "
                f"({first_ones(only)}); expected the same in both; move or rename them."
            )
    return problems


def _empty(
    name: str, classes: list[str], split: Split, *, among: list[str] | None = None
) -> list[str]:
    """Classes without pictures; those that the split does not have are reported elsewhere."""
    filled = {classes[label] for label in set(split.labels)}
    empty = [found for found in (classes if among is None else among) if found not in filled]
    if not empty:
        return []
    return [
        f"{name}: received {len(empty)} classes without pictures "
        f"({first_ones(empty)}); expected at least one each ({_kinds()})."
    ]


def _kinds() -> str:
    return ", ".join(sorted(SUFFIXES))


def _split(folder: pathlib.Path, classes: list[str], unreadable: list[OSError]) -> Split:
    split = Split([], [], [])
    for label, name in enumerate(classes):
        if not (folder / name).is_dir():
            continue
        found = sorted(_pictures(folder / name, unreadable, split.endless))
        split.paths.extend(found)
        split.labels.extend([label] * len(found))
    return split


def _pictures(folder: pathlib.Path, unreadable: list[OSError], endless: list[str]) -> list[str]:
    """The pictures in a folder and its subfolders; what cannot be read is added to the lists."""
    found: list[str] = []
    waiting = [str(folder)]
    # Links may form cycles.
    seen = {os.path.realpath(folder)}
    while waiting:
        try:
            with os.scandir(waiting.pop()) as entries:
                inside = [entry for entry in entries if entry.name[0] != "."]
        except OSError as error:
            unreadable.append(error)
            continue
        for entry in sorted(inside, key=lambda entry: entry.name):
            # os.path follows links, and does not fail on one that points to itself.
            linked = entry.is_symlink()
            if os.path.isdir(entry.path) if linked else entry.is_dir():
                target = os.path.realpath(entry.path)
                if target not in seen:
                    seen.add(target)
                    waiting.append(entry.path)
            elif os.path.splitext(entry.name)[1].lower() in SUFFIXES:
                # A broken link fails at once, and counts as a corrupt picture.
                is_file = os.path.isfile(entry.path) if linked else entry.is_file()
                is_endless = not is_file and os.path.exists(entry.path)
                (endless.append if is_endless else found.append)(entry.path)
    return found
