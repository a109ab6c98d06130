"""The images that a command runs a file or a model on."""

import argparse
import dataclasses
import os
import pathlib
from collections.abc import Iterable, Mapping

import numpy as np
from rich.console import Console

from sat_tf.commands.label_file import expect_labels, read_labels
from sat_tf.commands.options import nonempty
from sat_tf.commands.parser import Parser
from sat_tf.export.certificate.inputs import ImagesFrom, random_images
from sat_tf.export.tflite.metadata import Metadata
from sat_tf.export.tflite.tensors import Image
from sat_tf.messages import RunError, first_ones, say, value_errors_as_run_errors
from sat_tf.pictures import DECODER, Pictures, open_again, open_pictures, spread_evenly
from sat_tf.preprocessing import COVERING
from sat_tf.validation import Positive, option

_RANDOM_IMAGES, _RANDOM_SEED = 64, 0
# The default number from a folder.
USUAL_IMAGES = 256
_NOTHING = Metadata()


@dataclasses.dataclass(frozen=True)
class Pixels:
    """Images to run a file on."""

    images: np.ndarray  # Uint8 (n, ...); for inputs of other types real values, or their codes.
    labels: np.ndarray | None  # Integers (n,); None without labels.
    source: ImagesFrom  # Where they come from.
    notes: tuple[str, ...] = ()  # Remarks to print.

    def sample(self, most: int) -> tuple[np.ndarray, np.ndarray | None]:
        """Takes so many of them at most, spread evenly, with their labels."""
        chosen = spread_evenly(len(self.images), most)
        return self.images[chosen], None if self.labels is None else self.labels[chosen]

    def of_input(self, image: Image) -> "Pixels":
        """The same for an input of a file: random ones over its range, pictures as its values."""
        if self.source.seed is not None and (image.is_kept or image.type != "uint8"):
            return dataclasses.replace(self, images=image.drawn(self.images))
        if image.is_kept or image.type == "uint8" or self.images.dtype != np.uint8:
            return self
        return dataclasses.replace(self, images=self.images.astype(np.float32))


@dataclasses.dataclass(frozen=True)
class ImageOptions:
    """The images that the arguments of a command name."""

    images: str | None = None  # A folder of pictures or an .npy file; None for random ones.
    num_images: int | None = None  # How many at most, spread evenly; None takes the usual number.
    usual: int | None = USUAL_IMAGES  # Of a folder; None takes all.
    # Of the folder, the very ones to take; see `ImagesFrom`.
    files: Mapping[str, str] = dataclasses.field(default_factory=dict)
    labels: str | None = None  # A file with the class numbers of an .npy file's images.

    def again(self, images_from: ImagesFrom, count: int) -> "ImageOptions":
        """The same, to take what a certificate or a kit of so many images was made with."""
        most = self.num_images or images_from.asked or count
        return dataclasses.replace(self, num_images=most, files=images_from.files)

    @property
    def most(self) -> int | None:
        """How many at most, of a folder."""
        return self.num_images or self.usual

    @value_errors_as_run_errors()
    def load(self, shape: tuple[int, ...], num_classes: int, said: Metadata = _NOTHING) -> Pixels:
        """The images, for an input of this shape and number of classes.

        Args:
            shape: of the input.
            num_classes: of the output.
            said: what the file says of its classes and of its preprocessing: pictures of a folder
                are prepared like this, and labels are those of the classes with the same names.
        """
        if self.images is None:
            images = random_images(shape, self.num_images or _RANDOM_IMAGES, _RANDOM_SEED)
            source = ImagesFrom(f"random pixels, seed {_RANDOM_SEED}", _RANDOM_SEED)
            return Pixels(images, None, source)
        preprocessing = said.preprocessing or COVERING
        if self.files and os.path.isdir(self.images):
            images, pictures = open_again(self.images, self.files, shape, preprocessing).images()
            source = ImagesFrom(f"{len(images):,} pictures of {self.images}", decoder=DECODER)
            return Pixels(images, None, source, pictures.notes)
        pictures = open_pictures(self.images, shape, preprocessing)
        if pictures.array is not None:
            if self.labels is not None:
                labels = read_labels(self.labels, len(pictures), num_classes)
                pictures = dataclasses.replace(pictures, labels=labels)
            pictures = pictures.sample(self.num_images)
            source = ImagesFrom(f"from {pathlib.Path(self.images).name}")
            return Pixels(pictures.images()[0], pictures.labels, source)
        images, pictures = (pictures.held_out or pictures).sample(self.most).images()
        numbers, note = _numbered_as_in_file(pictures, said.labels)
        name = pathlib.Path(self.images).resolve().name
        notes = (*pictures.notes, *filter(None, [note]))
        if pictures.part:
            name += f"/{pictures.part}"
            notes += (f"{self.images} is divided: the pictures are those of {pictures.part}",)
        source = ImagesFrom(
            f"pictures of the folder {name}, scaled and cropped to the input",
            files=pictures.hashes(),
            decoder=DECODER,
        )
        return Pixels(images, numbers, source, notes)


def _numbered_as_in_file(
    pictures: Pictures, of_file: tuple[str, ...] | None
) -> tuple[np.ndarray | None, str]:
    """The labels of pictures as a file numbers its classes, and a note on how they were found."""
    labels, names = pictures.labels, pictures.class_names
    if labels is None:
        return None, ""
    if of_file is None or not set(names) & set(of_file):
        other = "" if of_file is None else f", none of which is one of the file's ({of_file[0]}...)"
        return labels, f"{len(names)} classes, in the order of their folders' names{other}"
    if strange := [name for name in names if name not in of_file]:
        raise RunError(
            f"{pictures.folder}: received the classes {first_ones(strange)}, expected those of the "
            f"file ({first_ones(of_file)}); rename or remove them."
        )
    numbers = np.array([of_file.index(name) for name in names], labels.dtype)
    return numbers[labels], f"{len(names)} classes, numbered by the names in the file"


def add_pictures(parser: Parser, what: str, *, required: bool = False) -> None:
    """Adds --images and --labels; `what` ends the help."""
    parser.add_argument(
        "--images",
        metavar="DIR|FILE",
        type=nonempty,
        required=required,
        help="a folder of pictures, scaled and cropped to the input: in folders of classes, named "
        "so that their order is that of the model's outputs, in train and val or not; or without "
        f"labels; or uint8 images (n, rows, columns, channels) as .npy, or real values{what}",
    )
    parser.add_argument(
        "--labels",
        metavar="FILE",
        type=nonempty,
        help="the class numbers of images in .npy, from 0 on and in their order: an .npy file of "
        "integers (n,), a .txt with one on each line, or a .csv with a column `label`, or with "
        "labels in the last one",
    )


def expect_pictures(path: str | None, labels: str | None) -> None:
    """Refuses what is no folder or .npy file, and labels that are not for it."""
    if labels is not None:
        expect_labels(labels, path)
    if path is not None and not os.path.isdir(path):
        try:
            open_pictures(path)
        except ValueError as error:
            raise RunError(f"--images: {error}") from error


def add_image_arguments(parser: Parser, *, default: str, usual: str) -> None:
    """Adds --images, --labels and --num_images."""
    add_pictures(parser, f" where they are taken; default: {default}")
    parser.advanced.add_argument(
        "--num_images",
        metavar="N",
        type=option(Positive),
        help=f"at most N images, spread evenly; default: {usual}",
    )


def image_options(
    arguments: argparse.Namespace, *, usual: int | None = USUAL_IMAGES
) -> ImageOptions:
    """The values of --images, --labels and --num_images."""
    expect_pictures(arguments.images, arguments.labels)
    return ImageOptions(
        arguments.images, arguments.num_images, usual=usual, labels=arguments.labels
    )


def say_notes(notes: Iterable[str], console: Console) -> None:
    """Prints remarks on images, such as on those that were left out."""
    for note in notes:
        say(console, f"Note: {note}", style="yellow")
