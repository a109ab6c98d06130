"""Pictures of a folder, or images in an .npy file: listed, divided, sampled, decoded by Pillow.

Calibration, measurements and verification all take their pixels from here: the decoders and filters
of two libraries differ by one, which is enough for another class.
"""

import contextlib
import dataclasses
import hashlib
import io
import os
import pathlib
import warnings
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import PIL
from PIL import Image, ImageOps, TiffImagePlugin, features

from sat_tf.exact.tflite.preprocessing import COVERING, Preprocessing
from sat_tf.files import read_bytes
from sat_tf.messages import first_ones, in_one_line, reason_of

# The usual number of images that a model is calibrated on.
CALIBRATION_IMAGES = 512
# One picture in so many is held out where a folder is not divided; notes and guides say a fifth.
_HELD_OUT_EVERY = 5
TRAIN = "train"
# The first one that exists is held out: "test" is last, because it often has no labels.
HELD_OUT = ("val", "validation", "test")
_KINDS = ".bmp, .gif, .jfif, .jpe, .jpeg, .jpg, .pgm, .png, .pnm, .ppm, .tif, .tiff, .webp"
_SUFFIXES = frozenset(_KINDS.split(", "))
# Pillow tells a format by the content of a file, not by its name; for an EPS file it would start
# Ghostscript, which runs the file.
_FORMATS = ("JPEG", "PNG", "BMP", "GIF", "WEBP", "TIFF", "PPM")
_JPEG, _SCAN_OF_JPEG, _END_OF_JPEG = b"\xff\xd8\xff", b"\xff\xda", b"\xff\xd9"
# Pillow's modes by the number of channels, and those of 16-bit integers; PGM files have "I".
MODES = {1: "L", 3: "RGB"}
_SIXTEEN_BITS = ("I;16", "I;16L", "I;16B", "I;16N", "I")
# Pixels depend on the decoder, so that certificates and reports name it.
DECODER = f"decoded and resized by Pillow {PIL.__version__}"
if _JPEG_LIBRARY := features.version_feature("libjpeg_turbo"):
    DECODER += f" with libjpeg-turbo {_JPEG_LIBRARY}"


def spread_evenly(count: int, limit: int | None) -> npt.NDArray[np.int64]:
    """Returns indices of at most `limit` of `count` images, spread evenly; None chooses all."""
    num_indices = count if limit is None else min(limit, count)
    return np.unique(np.linspace(0, max(count - 1, 0), num_indices).round().astype(np.int64))


@dataclasses.dataclass(frozen=True, eq=False)
class Pictures(Sequence[Any]):
    """Pictures of a folder, read and turned when they are asked for; or the images of an array."""

    folder: pathlib.Path  # The folder that names are relative to; or the .npy file.
    names: Sequence[str] = ()  # Paths in it, class by class, sorted; with slashes on every system.
    labels: npt.NDArray[np.int32] | None = None  # Class numbers, int32 (n,); None without classes.
    class_names: tuple[str, ...] = ()  # The names of classes, by label; empty without classes.
    part: str = ""  # The subfolder of all pictures in a divided folder; else "".
    held_out: "Pictures | None" = None  # The held-out pictures that belong to those of `train`.
    shape: tuple[int, ...] = ()  # The input's rows, columns and channels (1 or 3).
    preprocessing: Preprocessing = COVERING  # How a picture becomes an image of that shape.
    notes: tuple[str, ...] = ()  # Notes for the user, such as the files that were passed over.
    array: npt.NDArray[Any] | None = None  # The images of an .npy file; None for pictures.

    def __len__(self) -> int:
        return len(self.names if self.array is None else self.array)

    def __getitem__(self, place: Any) -> Any:
        if self.array is not None:
            return self.array[place]
        mode, turns = MODES[self.shape[2]], self.preprocessing.exif_orientation
        return np.atleast_3d(np.asarray(image_of(self.encoded(place), mode, turns=turns)))

    def take(self, places: Iterable[int]) -> "Pictures":
        """Takes the pictures at some indices, in that order."""
        indices = np.fromiter(places, np.int64)
        return dataclasses.replace(
            self,
            names=[self.names[place] for place in indices] if self.names else (),
            labels=None if self.labels is None else self.labels[indices],
            array=None if self.array is None else self.array[indices],
        )

    def sample(self, limit: int | None) -> "Pictures":
        """Takes at most `limit` pictures, spread evenly; None takes all."""
        return self.take(spread_evenly(len(self), limit))

    def split(self) -> tuple["Pictures", "Pictures"]:
        """Returns the pictures to train on, and those held out.

        Where the folder is not divided, a fifth of each class is held out, at least one picture of
        two or more: the first by a hash of class and name, which neither the place of the folder
        nor the machine changes. In an array, one image in five is held out.
        """
        if self.held_out is not None:
            train, apart = dataclasses.replace(self, held_out=None), self.held_out
        else:
            is_apart = self._is_held_out()
            train, apart = (self.take(np.flatnonzero(mask)) for mask in (~is_apart, is_apart))
            if self.array is None:
                of_each = "" if self.labels is None else "of each class "
                note = f"{of_each}a fifth is held out, by a hash of the names"
                train = dataclasses.replace(train, notes=(note, *self.notes))
        empty = {
            f"{subset.part}/{name}".lstrip("/")
            for subset in (self, self.held_out or self)
            for label, name in enumerate(subset.class_names)
            if subset.labels is not None and label not in subset.labels
        }
        if empty or not len(apart):
            received = f"none of {first_ones(sorted(empty))}" if empty else "one of each class"
            raise ValueError(
                f"{self.folder}: received {received}; expected pictures of each class to train on, "
                f"and more to hold out ({_KINDS}); add some."
            )
        return train, apart

    def _is_held_out(self) -> npt.NDArray[np.bool_]:
        if self.array is not None:
            return np.arange(len(self)) % _HELD_OUT_EVERY == 2
        is_held_out = np.zeros(len(self), bool)
        relative_names = (name.removeprefix(f"{self.part}/") for name in self.names)
        keys = [hashlib.sha256(os.fsencode(name)).digest() for name in relative_names]
        labels = np.zeros(len(self), np.int32) if self.labels is None else self.labels
        for label in np.unique(labels):
            members = sorted(np.flatnonzero(labels == label), key=keys.__getitem__)
            count = min(max(1, round(len(members) / _HELD_OUT_EVERY)), len(members) - 1)
            is_held_out[members[:count]] = True
        return is_held_out

    def images(self) -> tuple[npt.NDArray[Any], "Pictures"]:
        """Returns images as the input takes them, uint8, and the pictures that could be read."""
        if self.array is not None:
            return np.asarray(self.array), self
        if len(self.shape) != 3 or self.shape[2] not in MODES:
            raise ValueError(
                f"{self.folder}: received pictures for an input of shape {self.shape}, expected "
                "one of rows, columns and 1 or 3 channels; pass an .npy file of arrays."
            )
        # The array is filled one by one: to stack a list in the end would take twice the memory.
        images = np.empty((len(self), *self.shape), np.uint8)
        places: list[int] = []
        corrupt: list[str] = []
        for place in range(len(self)):
            try:
                images[len(places)] = pixels_of(self.encoded(place), self.shape, self.preprocessing)
                places.append(place)
            except (ValueError, OSError):
                corrupt.append(self.names[place])
        note = (
            f"{len(corrupt)} of {len(self)} files are no pictures, not whole, or too large: "
            f"{first_ones(corrupt)}"
        )
        if not places:
            raise ValueError(
                f"{self.folder}: received no picture that can be read ({note}), expected at least "
                "one JPEG, PNG or other file that Pillow reads."
            )
        notes = (note, *self.notes) if corrupt else self.notes
        return images[: len(places)], dataclasses.replace(self.take(places), notes=notes)

    def encoded(self, place: int) -> bytes:
        """Returns the bytes of a picture's file."""
        return read_bytes(self.folder / self.names[place])

    def hashes(self) -> dict[str, str]:
        """Returns the SHA-256 of the file of each picture that can be read, by its name."""
        hashes = {}
        for place, name in enumerate(self.names):
            with contextlib.suppress(OSError):
                hashes[name] = hashlib.sha256(self.encoded(place)).hexdigest()
        return hashes


def open_pictures(
    path: str | os.PathLike[str],
    shape: tuple[int, ...] = (),
    preprocessing: Preprocessing = COVERING,
) -> Pictures:
    """Lists the pictures of a folder, or opens an .npy file, for an input; reads no image.

    Folders are classes, numbered from 0 in the order of their names; without folders there are no
    labels. A divided folder has train, with folders of classes, and maybe val, validation or test.
    A train that holds pictures itself is refused if folders other than these three hold pictures.
    Hidden files and those of other names are passed over; subfolders and linked folders are not.
    """
    root = pathlib.Path(path).expanduser()
    pictures = Pictures(root, shape=shape, preprocessing=preprocessing)
    if root.is_file():
        try:  # Values stay on the disk until they are asked for.
            array = np.load(root, mmap_mode="r", allow_pickle=False)
            return dataclasses.replace(pictures, array=array[:])
        except Exception as error:  # NumPy parses the header as Python, which raises many types
            raise ValueError(
                f"{root}: received a file without an array that np.save has written, expected a "
                "folder of pictures, or an .npy file of uint8 images (n, rows, columns, channels)."
            ) from error
    if not root.is_dir():
        raise ValueError(f"{root}: not found; expected a folder of pictures, or an .npy file.")
    folders, _ = _entries(root)
    train = TRAIN if TRAIN in folders else ""
    held_out = next((name for name in HELD_OUT if name in folders), "")
    others = [name for name in folders if train and name not in (train, *HELD_OUT)]
    beside = [name for name in others if any(map(_is_picture, _walked(root, root / name)))]
    parts = (train, held_out) if train and held_out else (train,)
    top, (classes, _) = root / train, _entries(root / train)
    # Archives are often unpacked into a folder of their own, and parts of a set one by one.
    outer = classes[0] if len(classes) == len(parts) == 1 else "" if train else held_out
    if outer and _entries(top / outer)[0]:
        raise ValueError(
            f"{top}: received {outer}, which holds folders, and nothing to train on beside it; "
            f"expected {TRAIN}/CLASS, or folders of classes; add them, or name {top / outer}."
        )
    whole, *apart = (_listed(pictures, part, beside) for part in parts)
    if apart and (strange := set(whole.class_names) ^ set(apart[0].class_names)):
        raise ValueError(
            f"{root}: received the classes {first_ones(sorted(strange))} in {train} or in "
            f"{held_out} alone; expected the same in both; move or rename them."
        )
    if beside and not held_out:
        note = f"not read: {first_ones(beside)}; {HELD_OUT[0]} is the name of what is held out"
        whole = dataclasses.replace(whole, notes=(*whole.notes, note))
    return dataclasses.replace(whole, held_out=apart[0]) if apart else whole


def open_again(
    path: str | os.PathLike[str],
    hashes: Mapping[str, str],
    shape: tuple[int, ...],
    preprocessing: Preprocessing = COVERING,
) -> Pictures:
    """Lists exactly the pictures that `Pictures.hashes` has named; other files are ignored."""
    root = pathlib.Path(path)

    def is_there(name: str) -> bool:
        place = pathlib.PurePath(name)  # A name may not lead out of the folder.
        return not (place.is_absolute() or ".." in place.parts) and (root / name).is_file()

    present = list(filter(is_there, hashes))
    pictures = Pictures(root, present, shape=shape, preprocessing=preprocessing)
    current = pictures.hashes()
    if different := [name for name in hashes if current.get(name) != hashes[name]]:
        raise ValueError(
            f"{root}: received {len(different):,} of {len(hashes):,} pictures that are not there "
            f"or have changed ({first_ones(different)}); expected the files that were taken; put "
            "them back, or name their folder."
        )
    return pictures


def _listed(pictures: Pictures, part: str, beside: Sequence[str]) -> Pictures:
    """Lists the pictures of a part of a folder, or of the whole."""
    place = pictures.folder / part
    folders, files = _entries(place)
    # A train without folders may be a class beside others, or all there is to train on.
    if any(map(_is_picture, files)) and (classes := folders or beside):
        raise ValueError(
            f"{place}: received pictures in it and the folders {first_ones(classes)} beside them; "
            "expected each picture in the folder of its class, and all classes in one folder; move "
            "the pictures there, or the folders away."
        )
    names: list[str] = []
    labels: list[int] = []
    skipped: list[str] = []
    for label, folder in enumerate(folders or [""]):
        files = _walked(pictures.folder, place / folder)
        names += filter(_is_picture, files)
        labels += [label] * (len(names) - len(labels))
        skipped += (name for name in files if not _is_picture(name))
    note = f"{len(skipped):,} files passed over, no pictures by their names: {first_ones(skipped)}"
    if not names:
        raise ValueError(
            f"{place}: received no pictures, expected at least one ({_KINDS}), in it or in its "
            f"folders{f'; {note}' if skipped else ''}."
        )
    return dataclasses.replace(
        pictures,
        names=names,
        labels=np.array(labels, np.int32) if folders else None,
        class_names=tuple(map(in_one_line, folders)),
        part=part,
        notes=(note,) if skipped else (),
    )


def _walked(root: pathlib.Path, start: pathlib.Path) -> list[str]:
    """Names of the files in a folder and its subfolders that are not hidden, sorted."""

    def refuse(error: OSError) -> None:
        raise ValueError(
            f"{error.filename}: received a folder that cannot be read ({error.strerror}); expected "
            "to read all of them; allow it, or remove the folder."
        ) from error

    names: list[str] = []
    seen = set[str]()
    for place, folders, files in os.walk(start, followlinks=True, onerror=refuse):
        if (target := os.path.realpath(place)) in seen:  # links may form cycles
            folders.clear()
            continue
        seen.add(target)
        folders[:] = sorted(name for name in folders if name[0] != ".")
        folder = os.path.relpath(place, root).replace(os.sep, "/")
        names += (f"{folder}/{name}".removeprefix("./") for name in files if name[0] != ".")
    return sorted(names)


def _entries(place: pathlib.Path) -> list[list[str]]:
    """Names of the folders, and of the files, in a folder that are not hidden, sorted."""
    _, *entries = next(os.walk(place), ("", [], []))
    return [sorted(name for name in names if name[0] != ".") for names in entries]


def _is_picture(name: str) -> bool:
    return os.path.splitext(name)[1].lower() in _SUFFIXES


def pixels_of(
    encoded: bytes, shape: tuple[int, ...], preprocessing: Preprocessing
) -> npt.NDArray[np.uint8]:
    """Returns the pixels of a picture as an input of a model."""
    rows, columns, channels = shape
    image = image_of(encoded, MODES[channels], turns=preprocessing.exif_orientation)
    size = image.height, image.width
    (height, width), (top, left) = preprocessing.geometry(size, (rows, columns))
    down, across = image.height / height, image.width / width
    # Pillow's filter reads beyond the box, as if the whole picture were resized and cropped.
    box = (left * across, top * down, (left + columns) * across, (top + rows) * down)
    fitted = image.resize((columns, rows), Image.Resampling.BILINEAR, box=box)
    return np.asarray(fitted, np.uint8).reshape(shape)


def image_of(encoded: bytes, mode: str, *, turns: bool) -> Image.Image:
    """Decodes a picture, without transparency, later frames and the lower half of 16-bit values."""
    with opened(encoded) as stored:
        image = _eight_bits(stored)
        # `exif_transpose` knows that Pillow has turned the pixels of TIFF files already.
        image = ImageOps.exif_transpose(image) if turns else image
        return image.convert(mode)


@contextlib.contextmanager
def opened(encoded: bytes) -> Iterator[Image.Image]:
    """Opens a picture with Pillow, whose errors become a ValueError that says why."""
    # Copies that broke off are often filled with zeros, which Pillow decodes.
    is_filled = encoded.startswith(_JPEG) and encoded.endswith(b"\0")
    if is_filled and _END_OF_JPEG not in encoded[encoded.rfind(_SCAN_OF_JPEG) :]:
        raise ValueError("it is truncated")
    file = io.BytesIO(encoded)
    try:
        # Pillow warns of odd metadata and very large pictures; it refuses still larger ones.
        with warnings.catch_warnings(action="ignore"), Image.open(file, formats=_FORMATS) as image:
            yield image
    except Exception as error:  # Pillow's readers raise many types on damaged files.
        reason = reason_of(error).partition(" <")[0]  # without the address of the file in memory
        raise ValueError(f"it cannot be decoded ({reason})") from error


def _eight_bits(image: Image.Image) -> Image.Image:
    """Returns a picture with 8 bits a channel: the upper half of 16, v >> 8, as in TensorFlow.

    Pillow itself would clip 16-bit values at 255, to white. 12-bit values of TIFF files keep their
    upper 8 bits.
    """
    if image.mode == "F" or (image.mode == "I" and image.format != "PPM"):
        raise ValueError(f"its values are of 32 bits (mode {image.mode}), expected 8 or 16")
    if image.mode not in _SIXTEEN_BITS:
        return image
    bits = getattr(image, "tag_v2", {}).get(TiffImagePlugin.BITSPERSAMPLE, (16,))[0]
    values = np.asarray(image) >> (bits - 8)
    upper = Image.fromarray(values.clip(0, 255, out=values).astype(np.uint8))
    upper.info = image.info  # its orientation, among others
    return upper
