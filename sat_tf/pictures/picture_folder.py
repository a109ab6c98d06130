"""Pictures in a folder, as pixels for a model."""

import dataclasses
import hashlib
import pathlib
from collections.abc import Mapping, Sequence

import numpy as np
import numpy.typing as npt
from PIL import Image

from sat_tf.messages import ProblemsError, first_ones
from sat_tf.pictures.folder_tree import HELD_OUT, TRAIN, is_picture, printable
from sat_tf.pictures.pictures import MODES, pixels_of, prepared
from sat_tf.pictures.sampling import spread_evenly
from sat_tf.preprocessing import COVERING, Preprocessing


@dataclasses.dataclass(frozen=True, eq=False)
class FolderImages:
    """The pictures of a folder.

    Attributes:
        images: uint8 (n, rows, columns, channels).
        labels: int32 (n,); None if the folder has no folders of classes.
        class_names: names of the folders of classes, by label.
        part: which of the folders train, val, validation and test was read, of a folder that holds
            those; "" of another.
        unreadable: everything else: other files, pipes, sockets, devices, broken links.
        files: the SHA-256 of the file of each picture, by its path in the folder, in their order.
    """

    images: npt.NDArray[np.uint8]
    labels: npt.NDArray[np.int32] | None
    class_names: tuple[str, ...]
    unreadable: tuple[str, ...]
    files: dict[str, str]
    part: str = ""

    @property
    def notes(self) -> tuple[str, ...]:
        """Names the first files that were left out, if any were."""
        if not self.unreadable:
            return ()
        count = len(self.unreadable)
        what = "1 file is no picture" if count == 1 else f"{count} files are no pictures"
        return (f"{what}, or not whole, or too large: {first_ones(self.unreadable)}",)


def load_folder(
    path: str | pathlib.Path,
    shape: tuple[int, ...],
    *,
    most: int | None = None,
    preprocessing: Preprocessing = COVERING,
    among: Sequence[str] | None = None,
) -> FolderImages:
    """Reads the pictures of a folder, sorted by name.

    Each subfolder is a class, numbered from 0 in the order of their names. A folder without
    subfolders has no labels. Hidden files are left out. Of a folder that holds train and val,
    validation or test, the latter is read.

    16-bit values keep their upper 8 bits, as in TensorFlow.

    Args:
        path: of the folder.
        shape: rows, columns and channels (1 or 3) of the input.
        most: how many pictures at most, spread evenly; None reads all.
        preprocessing: how they become images of the input; by default they are resized until they
            just cover it, and one that has its size keeps its pixels.
        among: the paths of the only files to take, in their order and without labels; None for all.

    Raises:
        ValueError: there is no such folder, it holds no pictures, or pictures beside folders, or
            the input does not take pictures.
    """
    path = pathlib.Path(path)
    _expect_pictures(str(path), shape)
    part = _held_out(path) if among is None else ""
    files, labels, class_names = (
        _files(path / part) if among is None else (list(map(pathlib.Path, among)), None, ())
    )
    chosen = spread_evenly(len(files), most)
    # Filled one by one: a list that is stacked in the end would take twice the memory.
    images = np.empty((len(chosen), *shape), np.uint8)
    kept: list[int] = []
    unreadable: list[str] = []
    hashes: dict[str, str] = {}
    for index in chosen:
        pixels = _read(files[index], shape, preprocessing)
        if pixels is None:
            unreadable.append(str(files[index]))
        else:
            images[len(kept)] = pixels
            kept.append(index)
            hashes[files[index].relative_to(path).as_posix()] = _sha256(files[index])
    if not kept:
        found = f"{len(unreadable)} unreadable files" if unreadable else "none"
        raise ValueError(
            f"{path}: received a folder of pictures with {found}, expected at least one JPEG, PNG "
            "or other file that Pillow reads, in it or in its folders."
        )
    return FolderImages(
        images=images[: len(kept)],
        labels=None if labels is None else labels[kept],
        class_names=class_names,
        unreadable=tuple(unreadable),
        files=hashes,
        part=part,
    )


def load_files(
    path: str | pathlib.Path,
    files: Mapping[str, str],
    shape: tuple[int, ...],
    *,
    preprocessing: Preprocessing = COVERING,
) -> npt.NDArray[np.uint8]:
    """Reads the very pictures that `load_folder` has read, whatever else the folder holds now.

    Args:
        path: of the folder.
        files: `FolderImages.files`.
        shape: see `load_folder`.
        preprocessing: likewise.

    Returns:
        uint8 (n, rows, columns, channels).

    Raises:
        ValueError: some are missing, or not what they were; names them.
    """
    path = pathlib.Path(path)
    _expect_pictures(str(path), shape)
    missing = [name for name in files if not (path / name).is_file()]
    there = [name for name in files if name not in set(missing)]
    changed = [name for name in there if _sha256(path / name) != files[name]]
    problems = [
        f"{len(names):,} of {len(files):,} pictures {what}: {first_ones(names)}"
        for names, what in ((missing, "are not there"), (changed, "have changed"))
        if names
    ]
    pixels = [_read(path / name, shape, preprocessing) for name in ([] if problems else there)]
    if broken := [name for name, image in zip(there, pixels, strict=False) if image is None]:
        problems.append(f"{len(broken):,} pictures can no longer be read: {first_ones(broken)}")
    if problems:
        fix = "Expected the files that were taken; put them back, or name their folder."
        raise ProblemsError(str(path), problems, fix)
    return np.stack([image for image in pixels if image is not None])


def _sha256(path: pathlib.Path) -> str:
    with path.open("rb") as opened:
        return hashlib.file_digest(opened, "sha256").hexdigest()


def _held_out(path: pathlib.Path) -> str:
    """The folder of held-out pictures in a folder that is divided into some to train on and these.

    Otherwise they would be taken for two classes.
    """
    if not (path / TRAIN).is_dir():
        return ""
    return next((name for name in HELD_OUT if (path / name).is_dir()), "")


def _files(
    path: pathlib.Path,
) -> tuple[list[pathlib.Path], npt.NDArray[np.int32] | None, tuple[str, ...]]:
    """The files that should be pictures, their labels, and the names of the classes."""
    if not path.is_dir():
        raise ValueError(f"{path}: not a folder, expected one of pictures.")
    folders = [entry for entry in _entries(path) if entry.is_dir()]
    beside = [entry for entry in _entries(path) if not entry.is_dir()]
    if not folders:
        return beside, None, ()
    # Other files, such as Thumbs.db, are passed over as in training.
    if beside := [entry for entry in beside if is_picture(entry.name)]:
        raise ValueError(
            f"{path}: received {len(folders)} folders and {len(beside)} files ({beside[0].name}), "
            "expected folders of classes or pictures, not both; move one of them."
        )
    files, labels = [], []
    for label, folder in enumerate(folders):
        inside = [entry for entry in _entries(folder) if not entry.is_dir()]
        files += inside
        labels += [label] * len(inside)
    names = tuple(printable(folder.name) for folder in folders)
    return files, np.array(labels, np.int32), names


def _entries(path: pathlib.Path) -> list[pathlib.Path]:
    return sorted(entry for entry in path.iterdir() if not entry.name.startswith("."))


def _read(
    path: pathlib.Path, shape: tuple[int, ...], preprocessing: Preprocessing
) -> npt.NDArray[np.uint8] | None:
    """The pixels of a picture; None if it cannot be decoded."""
    if not path.is_file():  # opening a pipe waits for its writer
        return None
    try:
        return pixels_of(path.read_bytes(), shape, preprocessing)
    except (ValueError, OSError):
        return None


def resized(images: npt.NDArray[np.uint8], shape: tuple[int, ...]) -> npt.NDArray[np.uint8]:
    """Colour images that just cover an input shape, cropped to their centre.

    Args:
        images: uint8 (n, rows, columns, 3).
        shape: rows, columns and channels (1 or 3) of the input.

    Raises:
        ValueError: the input does not take pictures.
    """
    _expect_pictures("the data set", shape)
    if images.shape[1:] == shape:
        return images
    return np.stack([prepared(Image.fromarray(image), shape, COVERING) for image in images])


def _expect_pictures(subject: str, shape: tuple[int, ...]) -> None:
    if len(shape) != 3 or shape[2] not in MODES:
        raise ValueError(
            f"{subject}: received pictures for an input of shape {shape}, expected one of rows, "
            "columns and 1 or 3 channels; pass an .npy file of arrays."
        )
