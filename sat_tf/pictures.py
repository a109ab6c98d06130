"""Pictures of a folder, or images in an .npy file: listed, divided, sampled, decoded by Pillow.

Calibration, measurements and verification all take their pixels from here: the decoders and filters
of two libraries differ by one, which is enough for another class.
"""

import contextlib
import dataclasses
import functools
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
from PIL import ExifTags, Image, ImageOps, TiffImagePlugin, features

from sat_tf import messages
from sat_tf.exact.tflite.preprocessing import COVERING, Preprocessing
from sat_tf.files import read_bytes
from sat_tf.messages import ProblemsError, first_ones

TRAIN = "train"
# The first one that exists is held out: "test" is last, because it often has no labels.
HELD_OUT = ("val", "validation", "test")
_SUFFIXES = {
    *(".jpeg", ".jpg", ".jpe", ".jfif", ".png", ".bmp", ".gif", ".webp", ".tif", ".tiff"),
    *(".pgm", ".pnm", ".ppm"),
}
_KINDS = ", ".join(sorted(_SUFFIXES))
# Pillow tells a format by the content of a file, not by its name; for an EPS file it would start
# Ghostscript, which runs the file.
_FORMATS = ("JPEG", "PNG", "BMP", "GIF", "WEBP", "TIFF", "PPM")
_JPEG, _END_OF_JPEG = b"\xff\xd8\xff", b"\xff\xd9"
# Pillow's modes by the number of channels, and those of 16-bit integers; PGM files have "I".
MODES = {1: "L", 3: "RGB"}
_SIXTEEN_BITS = ("I;16", "I;16L", "I;16B", "I;16N", "I")
_JPEG_LIBRARY = features.version_feature("libjpeg_turbo")
# Pixels depend on the decoder, so that certificates and reports name it.
DECODER = f"decoded and resized by Pillow {PIL.__version__}" + (
    f" with libjpeg-turbo {_JPEG_LIBRARY}" if _JPEG_LIBRARY else ""
)


def spread_evenly(count: int, most: int | None) -> npt.NDArray[np.int64]:
    """Returns indices of at most `most` of `count` images, spread evenly; None chooses all."""
    num_indices = count if most is None else min(most, count)
    return np.unique(np.linspace(0, max(count - 1, 0), num_indices).round().astype(np.int64))


@dataclasses.dataclass(frozen=True, eq=False)
class Pictures(Sequence[Any]):
    """Pictures of a folder, read and turned when they are asked for; or the images of an array."""

    folder: pathlib.Path  # The folder that names are relative to; or the .npy file.
    names: Sequence[str] = ()  # Paths in it, class by class, sorted; with slashes on every system.
    labels: npt.NDArray[np.int32] | None = None  # Class numbers, int32 (n,); None without classes.
    class_names: tuple[str, ...] = ()  # The names of classes, by label; empty without classes.
    part: str = ""  # The subfolder of all pictures in a divided folder; else "".
    # The pictures in val, validation or test, if these are the ones in train.
    held_out: "Pictures | None" = None
    shape: tuple[int, ...] = ()  # The input's rows, columns and channels (1 or 3).
    preprocessing: Preprocessing = COVERING  # How a picture becomes an image of that shape.
    notes: tuple[str, ...] = ()  # Notes for the user, such as the files that were passed over.
    array: npt.NDArray[Any] | None = None  # The images of an .npy file; None for pictures.

    def __len__(self) -> int:
        return len(self.names if self.array is None else self.array)

    def __getitem__(self, place: Any) -> Any:
        if self.array is not None:
            return self.array[place]
        turns = self.preprocessing.exif_orientation
        pixels = np.asarray(image_of(self.encoded(place), MODES[self.shape[2]], turns=turns))
        return pixels.reshape(*pixels.shape[:2], -1)

    @functools.cached_property
    def paths(self) -> list[str]:
        """The paths of the pictures."""
        return [os.path.join(self.folder, name) for name in self.names]

    def take(self, places: Iterable[int]) -> "Pictures":
        """Takes the pictures at some indices, in that order."""
        indices = np.fromiter(places, np.int64)
        return dataclasses.replace(
            self,
            names=[self.names[place] for place in indices] if self.names else (),
            labels=None if self.labels is None else self.labels[indices],
            array=None if self.array is None else self.array[indices],
        )

    def sample(self, most: int | None) -> "Pictures":
        """Takes at most `most` pictures, spread evenly; None takes all."""
        return self.take(spread_evenly(len(self), most))

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
        problems = []
        for subset in (self, self.held_out) if self.held_out is not None else (self,):
            filled = np.unique([] if subset.labels is None else subset.labels)
            if empty := [n for label, n in enumerate(subset.class_names) if label not in filled]:
                problems.append(
                    f"{subset.part or subset.folder.name}: received {len(empty)} classes without "
                    f"pictures ({first_ones(empty)}); expected at least one each ({_KINDS})."
                )
        if not (problems or len(apart)):
            problems.append(
                "received one picture of each class; expected two or more of at least one, of "
                "which one is held out; add pictures."
            )
        if problems:
            raise ProblemsError(str(self.folder), problems)
        return train, apart

    def _is_held_out(self) -> npt.NDArray[np.bool_]:
        if self.array is not None:
            return np.arange(len(self)) % 5 == 2
        is_held_out = np.zeros(len(self), bool)
        relative_names = [name.removeprefix(f"{self.part}/") for name in self.names]
        keys = [hashlib.sha256(os.fsencode(name)).digest() for name in relative_names]
        labels = np.zeros(len(self), np.int32) if self.labels is None else self.labels
        for label in np.unique(labels):
            members = sorted(np.flatnonzero(labels == label), key=keys.__getitem__)
            count = min(max(1, round(0.2 * len(members))), len(members) - 1)
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
        for place, path in enumerate(self.paths):
            try:
                images[len(places)] = pixels_of(read_bytes(path), self.shape, self.preprocessing)
                places.append(place)
            except (ValueError, OSError):
                corrupt.append(path)
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
    Hidden files, files of other names, pipes, sockets and devices are passed over; subfolders of
    the classes, and links to folders, are not.
    """
    root = pathlib.Path(path).expanduser()
    if root.is_file():
        try:  # Values stay on the disk until they are asked for.
            array = np.load(root, mmap_mode="r", allow_pickle=False)
            return Pictures(root, shape=shape, array=array[:])
        except Exception as error:  # NumPy parses the header as Python, which raises many types
            raise ValueError(
                f"{root}: received a file without an array that np.save has written, expected a "
                "folder of pictures, or an .npy file of uint8 images (n, rows, columns, channels)."
            ) from error
    if not root.is_dir():
        raise ValueError(f"{root}: not found; expected a folder of pictures, or an .npy file.")
    problems: list[str] = []
    folders = [entry.name for entry in _entries(root, problems) if _is_folder(entry)]
    train = TRAIN if TRAIN in folders else ""
    held_out = next((name for name in HELD_OUT if name in folders), "")
    beside = [name for name in folders if train and name not in (train, *HELD_OUT)]
    entries = _entries(root / train, []) if train else []
    is_flat = any(_is_picture(entry.name) for entry in entries) and not any(
        map(_is_folder, entries)
    )
    if is_flat and (classes := [name for name in beside if _walked(root, name, [])[0]]):
        problems.append(
            f"received pictures in {train} itself and in {first_ones(classes)} beside it, so it "
            "may be a class or all there is to train on; expected one of both: if a class, move "
            f"all of them into {train}, this one as {train}/{train}; if not, move the others away."
        )
    if held_out and not train and any(map(_is_folder, _entries(root / held_out, problems))):
        problems.append(
            f"received the folders {first_ones(folders)} and none to train on; expected {TRAIN} "
            "with a folder for each class beside them, or folders of classes alone; add or rename "
            "one, or name the one to measure with."
        )
    names = (train, held_out) if train and held_out else (train,)
    listed = [_listed(root, name, problems, alone=len(names) == 1) for name in names]
    for pictures, counterpart in zip(listed, listed[::-1], strict=True):
        if strange := sorted(set(pictures.class_names) - set(counterpart.class_names)):
            problems.append(
                f"{pictures.part}: received {len(strange)} classes that {counterpart.part} does "
                f"not have ({first_ones(strange)}); expected the same in both; move or rename them."
            )
    for pictures in listed:
        if not (problems or len(pictures)):
            problems.append(
                f"{root / pictures.part}: received no pictures, expected at least one ({_KINDS}), "
                f"in it or in its folders{''.join(f'; {note}' for note in pictures.notes)}."
            )
    if problems:
        raise ProblemsError(str(root), problems)
    whole, *apart = (
        dataclasses.replace(subset, shape=shape, preprocessing=preprocessing) for subset in listed
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
        leaves = place.is_absolute() or ".." in place.parts or "\0" in name
        return not leaves and (root / name).is_file()

    present_names = list(filter(is_there, hashes))
    pictures = Pictures(root, present_names, shape=shape, preprocessing=preprocessing)
    current_hashes = pictures.hashes()
    missing = [name for name in hashes if name not in current_hashes]
    changed = [name for name in current_hashes if current_hashes[name] != hashes[name]]
    problems = [
        f"{len(names):,} of {len(hashes):,} pictures {what}: {first_ones(names)}"
        for names, what in ((missing, "are not there"), (changed, "have changed"))
        if names
    ]
    if problems:
        fix = "Expected the files that were taken; put them back, or name their folder."
        raise ProblemsError(str(root), problems, fix)
    return pictures


def _listed(root: pathlib.Path, subfolder: str, problems: list[str], *, alone: bool) -> Pictures:
    """Lists a part of a folder, or the whole, and adds what is wrong with it to the problems."""
    entries = _entries(root / subfolder, problems)
    folders = [entry for entry in entries if _is_folder(entry)]
    beside = [entry.name for entry in entries if _is_picture(entry.name) and entry not in folders]
    if folders and beside:
        problems.append(
            f"{root / subfolder}: received {len(beside)} pictures beside the folders of classes "
            f"({first_ones(beside)}); expected each in the folder of its class; move them."
        )
    # Archives are often unpacked like this.
    if alone and len(folders) == 1 and any(map(_is_folder, _entries(folders[0].path, problems))):
        problems.append(
            f"{root / subfolder}: received a folder that holds nothing but {folders[0].name}; "
            f"expected folders of classes; name {folders[0].path} instead."
        )
    names: list[str] = []
    labels: list[int] = []
    skipped: list[str] = []
    starts = [f"{subfolder}/{entry.name}".lstrip("/") for entry in folders]
    for label, start in enumerate(starts or [subfolder]):
        picture_names, passed_over = _walked(root, start, problems)
        names += picture_names
        labels += [label] * len(picture_names)
        skipped += passed_over
    note = f"{len(skipped):,} files passed over, no pictures by their names: {first_ones(skipped)}"
    return Pictures(
        root,
        names,
        np.array(labels, np.int32) if folders else None,
        tuple(printable_name(entry.name) for entry in folders),
        subfolder,
        notes=(note,) if skipped else (),
    )


def _walked(root: pathlib.Path, start: str, problems: list[str]) -> tuple[list[str], list[str]]:
    """Names of the pictures in a folder and its subfolders, sorted, and those of other files."""
    names: list[str] = []
    skipped: list[str] = []
    waiting, seen = [start], {os.path.realpath(root / start)}  # links may form cycles
    while waiting:
        subfolder = waiting.pop()
        for entry in _entries(root / subfolder, problems):
            name = f"{subfolder}/{entry.name}".lstrip("/")
            if _is_folder(entry):
                target = os.path.realpath(entry.path)
                if target not in seen:
                    seen.add(target)
                    waiting.append(name)
                continue
            # Opening a pipe would wait for its writer; a broken link is a corrupt picture.
            is_file = entry.is_file(follow_symlinks=False) or os.path.isfile(entry.path)
            is_readable = is_file or not os.path.exists(entry.path)
            (names if is_readable and _is_picture(name) else skipped).append(name)
    return sorted(names), sorted(skipped)


def _entries(place: str | os.PathLike[str], problems: list[str]) -> "list[os.DirEntry[str]]":
    """Returns a folder's entries that are not hidden, by name; adds an error to the problems."""
    try:
        with os.scandir(place) as entries:
            return sorted((e for e in entries if e.name[0] != "."), key=lambda entry: entry.name)
    except OSError as error:
        problems.append(
            f"{place}: received a folder that cannot be read ({error.strerror}); expected to read "
            "all of them; allow it, or remove the folder."
        )
        return []


def _is_folder(entry: "os.DirEntry[str]") -> bool:
    # os.path does not fail on a link that points to itself.
    return os.path.isdir(entry.path) if entry.is_symlink() else entry.is_dir()


def _is_picture(name: str) -> bool:
    return os.path.splitext(name)[1].lower() in _SUFFIXES


def printable_name(name: str | os.PathLike[str]) -> str:
    """Returns a file name as one line of text; names need not be UTF-8, nor free of line breaks."""
    text = os.fsencode(name).decode("utf-8", "backslashreplace")
    text = " ".join(text.split()) if len(text.splitlines()) > 1 else text
    return messages.printable(text)


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
    if not encoded:
        raise ValueError("it is empty")
    # Copies that broke off are often filled with zeros, which Pillow decodes.
    if encoded.startswith(_JPEG) and _END_OF_JPEG not in encoded[_first_scan(encoded) :]:
        raise ValueError("it is truncated")
    try:
        with warnings.catch_warnings():
            # Pillow warns of odd metadata and very large pictures; it refuses still larger ones.
            warnings.simplefilter("ignore")
            with Image.open(io.BytesIO(encoded), formats=_FORMATS) as image:
                yield image
    except Image.DecompressionBombError as error:
        raise ValueError("it has more pixels than Pillow decodes") from error
    except Exception as error:  # Pillow's readers raise many types on damaged files.
        is_truncated = "truncated" in str(error).lower()
        why = "is truncated" if is_truncated else f"cannot be decoded ({type(error).__name__})"
        raise ValueError(f"it {why}") from error


def _first_scan(encoded: bytes) -> int:
    """Returns where the pixels of a JPEG begin: after a preview, which has its own end marker."""
    place = 2
    while encoded[place : place + 1] == b"\xff" and encoded[place + 1 : place + 2] != b"\xda":
        is_fill = encoded[place + 1 : place + 2] == b"\xff"
        place += 1 if is_fill else 2 + int.from_bytes(encoded[place + 2 : place + 4], "big")
    return place


def _eight_bits(image: Image.Image) -> Image.Image:
    """Returns a picture with 8 bits a channel: the upper half of 16, v >> 8, as in TensorFlow.

    Pillow itself would clip 16-bit values at 255, to white. 12-bit values of TIFF files keep their
    upper 8 bits.
    """
    if image.mode == "F" or (image.mode == "I" and image.format != "PPM"):
        raise ValueError(f"its values are of 32 bits (mode {image.mode}), expected 8 or 16")
    if image.mode not in _SIXTEEN_BITS:
        return image
    bits = 16
    if isinstance(image, TiffImagePlugin.TiffImageFile):
        bits = int(image.tag_v2.get(TiffImagePlugin.BITSPERSAMPLE, (16,))[0])
    values = np.asarray(image) >> (bits - 8)
    upper = Image.fromarray(values.clip(0, 255, out=values).astype(np.uint8))
    if orientation := image.getexif().get(ExifTags.Base.Orientation):
        upper.getexif()[ExifTags.Base.Orientation] = orientation
    return upper
