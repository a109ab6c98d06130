"""The usual trees of an image data set, <class>/<picture> and train/<class>/<picture>.

Or pictures without classes.
"""

import dataclasses
import hashlib
import os
import pathlib
from typing import NamedTuple

from sat_tf import messages
from sat_tf.messages import ProblemsError, first_ones

TRAIN = "train"
# In this order, because a folder "test" often has no labels.
HELD_OUT = ("val", "validation", "test")
SUFFIXES = frozenset(
    {".jpeg", ".jpg", ".png", ".bmp", ".gif", ".webp", ".tif", ".tiff", ".jpe", ".jfif"}
)
# This share of each class is held out where the folder does not say which pictures are.
HELD_OUT_SHARE = 0.2
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


@dataclasses.dataclass(frozen=True)
class FolderTree:
    """The pictures of a folder.

    Attributes:
        class_names: names of the classes, sorted; their indices are the labels.
        train: the split to train on.
        held_out: the split to measure with.
        notes: what to tell those who train on it, such as how it was divided.
    """

    class_names: list[str]
    train: Split
    held_out: Split
    notes: tuple[str, ...] = ()


def read_tree(data_dir: str | os.PathLike[str]) -> FolderTree:
    """Lists the pictures of a folder; opens none.

    Its folders are train and val, validation or test, each with a folder for each class; or train
    alone; or the classes themselves. Where nothing is held out, a fifth of each class is, at least
    one picture of two or more: the first ones by a hash of class and name, which neither the
    place of the folder nor the machine changes.

    Hidden files and other kinds of files are skipped; subfolders of the classes and links to
    folders are not. A pipe, a socket or a device with the name of a picture is an error, because
    reading it would block forever.

    Args:
        data_dir: the folder.

    Raises:
        ValueError: it is not such a folder; lists everything that is wrong.
    """
    root = _root(data_dir, "a folder with a folder of pictures for each class, such as cat/1.jpg")
    unreadable: list[OSError] = []
    names = set(_classes(root, unreadable))
    held_out = next((name for name in HELD_OUT if name in names), None)
    if unreadable:
        raise ProblemsError(str(root), _refused(unreadable))
    if TRAIN not in names and held_out is not None:
        found = ", ".join(sorted(names)[:_MOST_NAMED])
        raise ValueError(
            f"{root}: received the folders {found} and none to train on; expected {TRAIN} with a "
            "folder for each class beside them, or folders of classes alone; add or rename one."
        )
    if held_out is None:
        return _divided(root, names)
    classes, others = (_classes(root / name, unreadable) for name in (TRAIN, held_out))
    splits = {name: _split(root / name, classes, unreadable) for name in (TRAIN, held_out)}
    if unreadable:  # they may hold what is missing
        raise ProblemsError(str(root), _refused(unreadable))
    problems = _endless([path for split in splits.values() for path in split.endless])
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
        raise ProblemsError(str(root), problems)
    return FolderTree(classes, splits[TRAIN], splits[held_out])


def read_pictures(data_dir: str | os.PathLike[str]) -> FolderTree:
    """Lists the pictures of a folder and of its folders, which have no labels; opens none.

    Of a folder with train and val, validation or test those are the two parts. Of another a fifth
    is held out: the first ones by a hash of their names.

    Args:
        data_dir: the folder; see `read_tree`.

    Returns:
        A tree without classes, in which every label is 0.

    Raises:
        ValueError: it is not such a folder; lists everything that is wrong.
    """
    root = _root(data_dir, "a folder of pictures")
    unreadable: list[OSError] = []
    names = set(_classes(root, unreadable))
    held_out = next((name for name in HELD_OUT if {name, TRAIN} <= names), None)
    parts = [root] if held_out is None else [root / TRAIN, root / held_out]
    splits = [_split(part, ["."], unreadable) for part in parts]
    problems = _refused(unreadable)
    problems += _endless([path for split in splits for path in split.endless])
    fewest = 2 // len(parts)
    problems += [
        f"{part}: received {len(split.paths)} pictures, expected {fewest} or more ({_kinds()}); "
        "name the folder that they are in."
        for part, split in zip(parts, splits, strict=True)
        if len(split.paths) < fewest
    ]
    if problems:
        raise ProblemsError(str(root), problems)
    if held_out is not None:
        return FolderTree([], splits[0], splits[1])
    (every,) = splits
    chosen = _chosen(root, ["."], every)
    train, apart = (_part(every, chosen, part) for part in (False, True))
    return FolderTree([], train, apart, ("a fifth is held out, by a hash of the names",))


def _root(data_dir: str | os.PathLike[str], expected: str) -> pathlib.Path:
    """Returns the path of a folder; ValueError says what was expected where it is none."""
    if not isinstance(data_dir, str | os.PathLike):
        raise ValueError(f"data_dir: received {data_dir!r}; expected the path of a folder.")
    root = pathlib.Path(data_dir).expanduser()
    if not root.is_dir():
        found = "which is not a folder" if root.exists() else "which does not exist"
        raise ValueError(f"data_dir: received {root}, {found}; expected {expected}.")
    return root


def _divided(root: pathlib.Path, names: set[str]) -> FolderTree:
    """The tree of a folder in which nothing is held out."""
    place = root / TRAIN if TRAIN in names else root
    unreadable: list[OSError] = []
    classes = _classes(place, unreadable)
    every = _split(place, classes, unreadable)
    beside = _beside(place, unreadable)
    if unreadable:
        raise ProblemsError(str(root), _refused(unreadable))
    if not classes:
        raise ValueError(f"{place}: {_without_classes(beside)}")
    problems = _endless(every.endless)
    if not problems and (inner := _inner(place, classes)):
        raise ValueError(
            f"{place}: received a folder that holds nothing but {inner.name}; expected folders of "
            f"classes; name {inner} instead."
        )
    problems += _empty(place.name, classes, every)
    if beside:
        problems.append(
            f"received {len(beside)} pictures beside the folders of classes "
            f"({first_ones(beside)}); expected each in the folder of its class; move them."
        )
    if not problems:
        chosen = _chosen(place, classes, every)
        train, held_out = (_part(every, chosen, part) for part in (False, True))
        if held_out.paths:
            return FolderTree(classes, train, held_out, (_note(names, classes, held_out),))
        problems.append(
            "received one picture of each class; expected two or more of at least one, of which "
            "one is held out; add pictures."
        )
    raise ProblemsError(str(root), problems)


def _part(split: Split, chosen: list[bool], part: bool) -> Split:
    kept = [index for index, is_chosen in enumerate(chosen) if is_chosen == part]
    return Split([split.paths[i] for i in kept], [split.labels[i] for i in kept], [])


def _without_classes(beside: list[str]) -> str:
    """The error of a folder that has no folders."""
    if not beside:
        return (
            "received a folder without folders and pictures; expected a folder of pictures for "
            "each class, such as cat/1.jpg and dog/1.jpg; put them there."
        )
    return (
        f"received {len(beside)} pictures and no folders ({first_ones(beside)}); expected a folder "
        f"for each class; move each picture into the folder of its class, such as cat/{beside[0]}."
    )


def _beside(folder: pathlib.Path, unreadable: list[OSError]) -> list[str]:
    """Names of the pictures in a folder itself."""
    try:
        names = sorted(entry.name for entry in os.scandir(folder) if not entry.is_dir())
    except OSError as error:
        unreadable.append(error)
        return []
    return [name for name in names if is_picture(name)]


def _inner(folder: pathlib.Path, classes: list[str]) -> pathlib.Path | None:
    """The only folder in a folder, if it holds folders: archives are often unpacked like this."""
    inner = folder / classes[0]
    return inner if len(classes) == 1 and any(e.is_dir() for e in os.scandir(inner)) else None


def _chosen(folder: pathlib.Path, classes: list[str], split: Split) -> list[bool]:
    """Whether each picture is held out."""
    by_class: list[list[int]] = [[] for _ in classes]
    for index, label in enumerate(split.labels):
        by_class[label].append(index)
    # The name of a picture inside the folder is class/name on every system.
    names = [pathlib.Path(path).relative_to(folder).as_posix() for path in split.paths]
    keys = [hashlib.sha256(os.fsencode(name)).digest() for name in names]
    chosen = [False] * len(keys)
    for members in by_class:
        count = min(max(1, round(HELD_OUT_SHARE * len(members))), len(members) - 1)
        for index in sorted(members, key=lambda index: keys[index])[:count]:
            chosen[index] = True
    return chosen


def _note(names: set[str], classes: list[str], held_out: Split) -> str:
    where = f"{TRAIN} without {HELD_OUT[0]}" if TRAIN in names else "folders of classes"
    alone = len(classes) - len(set(held_out.labels))
    left_out = f"; {alone} with one picture, which is trained on" if alone else ""
    beside = sorted(names - {TRAIN}) if TRAIN in names else []
    unread = (
        f"; not read: {first_ones(beside)}; val is the name of what is held out" if beside else ""
    )
    return f"{where}: of each class a fifth is held out, by a hash of the names{left_out}{unread}"


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


def printable(name: str | os.PathLike[str]) -> str:
    """A file name as one line of text; names need not be UTF-8, nor free of line breaks."""
    text = os.fsencode(name).decode("utf-8", "backslashreplace")
    text = " ".join(text.split()) if len(text.splitlines()) > 1 else text
    return messages.printable(text)


def is_picture(name: str) -> bool:
    """Whether a file is called as pictures are, and not hidden."""
    return name[0] != "." and os.path.splitext(name)[1].lower() in SUFFIXES


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
            elif is_picture(entry.name):
                # A broken link fails at once, and counts as a corrupt picture.
                is_file = os.path.isfile(entry.path) if linked else entry.is_file()
                is_endless = not is_file and os.path.exists(entry.path)
                (endless.append if is_endless else found.append)(entry.path)
    return found
