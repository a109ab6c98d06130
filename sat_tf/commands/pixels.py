"""The images that a command runs a file on."""

import argparse
import dataclasses
import inspect
import os
import pathlib
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
from rich.console import Console

from sat_tf.commands.label_file import add_labels, expect_labels, read_labels
from sat_tf.commands.options import nonempty
from sat_tf.commands.parser import Parser, name_values
from sat_tf.export.certificate.certificate import ImagesFrom
from sat_tf.export.certificate.inputs import image_problems, random_images
from sat_tf.export.tflite.metadata import Metadata
from sat_tf.export.tflite.tensors import Image
from sat_tf.messages import (
    ProblemsError,
    RunError,
    did_you_mean,
    first_ones,
    say,
    value_errors_as_run_errors,
)
from sat_tf.pictures.picture_folder import load_files, load_folder, resized
from sat_tf.pictures.pictures import DECODER
from sat_tf.pictures.sampling import spread_evenly
from sat_tf.preprocessing import COVERING
from sat_tf.quantizers.input_range import INPUT_TYPES
from sat_tf.training.data import DATA_SETS, source
from sat_tf.validation import Positive, arguments_of, option

_RANDOM_IMAGES = 64
_RANDOM_SEED = 0
# The default number from a folder or a data set.
USUAL_IMAGES = 256
_NOTHING = Metadata()


@dataclasses.dataclass(frozen=True)
class Pixels:
    """Images to run a file on.

    Attributes:
        images: uint8 (n, ...); for inputs of other types real values, or their codes.
        labels: integers (n,); None without labels.
        source: where they come from.
        notes: remarks to print.
    """

    images: np.ndarray
    labels: np.ndarray | None
    source: ImagesFrom
    notes: tuple[str, ...] = ()

    def sample(self, most: int) -> tuple[np.ndarray, np.ndarray | None]:
        """Takes so many of them at most, spread evenly, with their labels."""
        chosen = spread_evenly(len(self.images), most)
        return self.images[chosen], None if self.labels is None else self.labels[chosen]

    def of_input(self, image: Image) -> "Pixels":
        """The same for an input of a file: random ones over its range, pictures as its values.

        Raises:
            ValueError: random ones, for an input that is kept as it is.
        """
        if self.source.seed is not None and (image.is_kept or image.type != "uint8"):
            return dataclasses.replace(self, images=image.drawn(self.images))
        if image.is_kept or image.type == "uint8" or self.images.dtype != np.uint8:
            return self
        return dataclasses.replace(self, images=self.images.astype(np.float32))


@dataclasses.dataclass(frozen=True)
class ImageOptions:
    """The images that the arguments of a command name.

    Attributes:
        images: a folder of pictures or an .npy file.
        dataset: a name of `DATA_SETS`.
        num_images: how many at most, spread evenly; None takes the usual number.
        usual: of a folder or a data set; None takes all.
        data_dir: where the data set is, for those that are not made here.
        files: of the folder, the very ones to take; see `ImagesFrom`.
        labels: a file with the class numbers of an .npy file's images.
    """

    images: str | None = None
    dataset: str | None = None
    num_images: int | None = None
    usual: int | None = USUAL_IMAGES
    data_dir: str | None = None
    files: Mapping[str, str] = dataclasses.field(default_factory=dict)
    labels: str | None = None

    def again(self, images_from: ImagesFrom, count: int) -> "ImageOptions":
        """The same, to take what a certificate or a kit of so many images was made with."""
        most = self.num_images or images_from.asked or count
        return dataclasses.replace(self, num_images=most, files=images_from.files)

    @property
    def most(self) -> int | None:
        """How many at most, of a folder or a data set."""
        return self.num_images or self.usual

    @property
    def is_given(self) -> bool:
        """Whether they name any; otherwise images are random."""
        return self.images is not None or self.dataset is not None

    def check(self) -> None:
        """Checks what can be checked without reading anything.

        Raises:
            RunError: two sources are given, or one that does not exist.
        """
        if self.images is not None and self.dataset is not None:
            raise RunError("received --images and --dataset, expected one of them; leave one out.")
        if self.images is not None:
            expect_pictures(self.images)
        if self.labels is not None:
            expect_labels(self.labels, self.images)
        if self.dataset is not None and self.dataset not in DATA_SETS:
            raise RunError(
                f"--dataset: received {self.dataset!r}, expected the name of a data set. "
                f"{did_you_mean(self.dataset, DATA_SETS)}"
            )
        made = DATA_SETS.get(self.dataset or "")
        takes = arguments_of(made).model_fields if made else {}
        is_read = "data_dir" in takes
        if self.data_dir is None and is_read and takes["data_dir"].is_required():
            raise RunError(
                f"--dataset {self.dataset}: received no --data_dir, expected the folder of its "
                "images; add it."
            )
        if self.data_dir is not None and not is_read:
            raise RunError(
                f"--data_dir: received {self.data_dir!r} for {self.dataset or 'no data set'}, "
                "expected it with a --dataset that is read from disk; leave it out."
            )

    @value_errors_as_run_errors()
    def load(self, shape: tuple[int, ...], num_classes: int, said: Metadata = _NOTHING) -> Pixels:
        """The images, for an input of this shape and number of classes.

        Args:
            shape: of the input.
            num_classes: of the output.
            said: what the file says of its classes and of its preprocessing: pictures of a folder
                are prepared like this, and labels are those of the classes with the same names.

        Raises:
            RunError: they cannot be read, or do not fit.
        """
        if self.dataset is not None:
            return self._of_dataset(self.dataset, shape, num_classes, said)
        if self.images is None:
            images = random_images(shape, self.num_images or _RANDOM_IMAGES, _RANDOM_SEED)
            source = ImagesFrom(f"random pixels, seed {_RANDOM_SEED}", _RANDOM_SEED)
            return Pixels(images, None, source)
        if os.path.isdir(self.images):
            return self._of_folder(self.images, shape, said)
        array = read_array(self.images)
        labels = None
        if self.labels is not None and array.ndim:
            labels = read_labels(self.labels, len(array), num_classes)
        pixels = Pixels(array, labels, ImagesFrom(f"from {pathlib.Path(self.images).name}"))
        if self.num_images is not None and array.ndim:
            images, labels = pixels.sample(self.num_images)
            pixels = dataclasses.replace(pixels, images=images, labels=labels)
        return pixels

    def _of_folder(self, path: str, shape: tuple[int, ...], said: Metadata) -> Pixels:
        preprocessing = said.preprocessing or COVERING
        if self.files:
            images = load_files(path, self.files, shape, preprocessing=preprocessing)
            source = ImagesFrom(f"{len(images):,} pictures of {path}", decoder=DECODER)
            return Pixels(images, None, source)
        found = load_folder(path, shape, most=self.most, preprocessing=preprocessing)
        notes = list(found.notes)
        labels = found.labels
        if labels is not None:
            labels, note = _labels_of_file(labels, found.class_names, said.labels, path)
            notes.append(note)
        name = pathlib.Path(path).resolve().name + (f"/{found.part}" if found.part else "")
        if found.part:
            notes.append(f"{path} is divided: the pictures are those of {found.part}")
        source = ImagesFrom(
            f"pictures of the folder {name}, scaled and cropped to the input",
            files=found.files,
            decoder=DECODER,
        )
        return Pixels(found.images, labels, source, tuple(notes))

    def _of_dataset(
        self, name: str, shape: tuple[int, ...], num_classes: int, said: Metadata
    ) -> Pixels:
        known = inspect.signature(DATA_SETS[name]).parameters
        place: dict[str, Any] = {} if self.data_dir is None else {"data_dir": self.data_dir}
        options = {"image_size": shape[0] if shape else 0, "num_classes": num_classes}
        try:
            found = source(
                name, **place, **{key: value for key, value in options.items() if key in known}
            )
        except ValueError:  # of another size than the set is made in: it is resized
            found = source(name, **place)
        asked = self.most or found.num_test
        images, labels = found.held_out_sample(asked)
        notes = list(found.notes)
        if labels is not None and found.class_names is not None:
            labels, note = _labels_of_file(labels, found.class_names, said.labels, name)
            notes += [] if said.labels in (None, found.class_names) else [note]
        held_out = ImagesFrom.held_out(name, asked, found.decoder)
        return Pixels(resized(images, shape), labels, held_out, tuple(notes))


def _labels_of_file(
    labels: np.ndarray, names: tuple[str, ...], of_file: tuple[str, ...] | None, subject: str
) -> tuple[np.ndarray, str]:
    """The labels of images as a file numbers its classes, and a note on how they were found.

    Args:
        labels: as the images' own classes are numbered.
        names: of these.
        of_file: those in the file; None where it has none.
        subject: of messages.

    Raises:
        RunError: some of the names are in the file and others not.
    """
    if of_file is None or not set(names) & set(of_file):
        other = "" if of_file is None else f", none of which is one of the file's ({of_file[0]}...)"
        return labels, f"{len(names)} classes, in the order of their folders' names{other}"
    if missing := [name for name in names if name not in of_file]:
        raise RunError(
            f"{subject}: received the classes {first_ones(missing)}, expected those of the file "
            f"({first_ones(of_file)}); rename or remove them."
        )
    numbers = np.array([of_file.index(name) for name in names], labels.dtype)
    return numbers[labels], f"{len(names)} classes, numbered by the names in the file"


def add_pictures(parser: Parser, what: str, *, required: bool = False) -> None:
    """Adds --images, for commands that quantize or plan; `what` ends the help."""
    parser.add_argument(
        "--images",
        metavar="DIR|FILE",
        type=nonempty,
        required=required,
        help="a folder of pictures; in folders of classes, named so that their order is that of "
        "the model's outputs, in train and val or not; or without labels; or uint8 images (n, "
        "rows, columns, channels) as .npy, or real values of any shape with --policy "
        f"input_type=int8, or float32{what}",
    )
    add_labels(parser)


def expect_pictures(path: str, labels: str | None = None) -> None:
    """Raises RunError unless there is such a folder, or an .npy file, and one of its labels."""
    if labels is not None:
        expect_labels(labels, path)
    if not os.path.exists(path):
        raise RunError(
            f"--images: {path}: not found; expected a folder of pictures, or an .npy file."
        )
    if not os.path.isdir(path):
        read_array(path, of_disk=True)


def add_image_arguments(parser: Parser, *, default: str, usual: str) -> None:
    """Adds --images, --dataset, --data_dir and --num_images.

    Args:
        parser: of the command.
        default: which images are taken by default.
        usual: how many are taken by default.
    """
    parser.add_argument(
        "--images",
        metavar="DIR|FILE",
        type=nonempty,
        help="a folder of pictures, in folders of classes or without labels, scaled and cropped to "
        f"the input; or uint8 images (n, rows, columns, channels) as .npy, or real values where a "
        f"file takes those; default: {default}",
    )
    add_labels(parser)
    dataset = parser.add_argument(
        "--dataset", metavar="NAME", help=f"held-out images of {', '.join(DATA_SETS)}"
    )
    name_values(dataset, DATA_SETS)
    parser.advanced.add_argument(
        "--data_dir", metavar="DIR", help="where that data set is: for folder, tfds and tfrecords"
    )
    parser.advanced.add_argument(
        "--num_images",
        metavar="N",
        type=option(Positive),
        help=f"at most N images, spread evenly; default: {usual}",
    )


def image_options(
    arguments: argparse.Namespace, *, usual: int | None = USUAL_IMAGES
) -> ImageOptions:
    """The values of --images, --labels, --dataset, --data_dir and --num_images.

    Raises:
        RunError: see `ImageOptions.check`.
    """
    wanted = ImageOptions(
        arguments.images,
        arguments.dataset,
        arguments.num_images,
        usual=usual,
        data_dir=arguments.data_dir,
        labels=arguments.labels,
    )
    wanted.check()
    return wanted


def fixed_input_shape(model: Any, subject: str | None = None) -> tuple[int, ...]:
    """The shape of the images that a model with one input takes.

    Args:
        model: a Keras model.
        subject: what to call it in an error; by default by its name.

    Raises:
        ValueError: it takes images of any size.
    """
    shape = tuple(model.input_shape[1:])
    if None in shape:
        raise ValueError(
            f"{subject or f'model {model.name!r}'}: received a model for images of any size, "
            f"expected one of a fixed size, not {shape}; build it for one."
        )
    return shape


def expect_fitting(
    subject: str, images: np.ndarray, shape: tuple[int, ...], input_type: str
) -> None:
    """Raises ValueError unless images, or real values in their place, fit a float model."""
    # The codes of real values are known to a file alone.
    kind = input_type if input_type == INPUT_TYPES[0] else "float32"
    if problems := image_problems(images, shape, kind):
        if input_type == INPUT_TYPES[0] and images.dtype != np.uint8:
            problems.append(
                "If they are no pixels, give --policy input_type=int8, which keeps the file of "
                "integers, or input_type=float32."
            )
        raise ProblemsError(subject, problems)


def say_notes(notes: Iterable[str], console: Console) -> None:
    """Prints remarks on images, such as on those that were left out."""
    for note in notes:
        say(console, f"Note: {note}", style="yellow")


def read_array(path: str, *, of_disk: bool = False) -> np.ndarray:
    """The array in an .npy file.

    Args:
        path: of the file.
        of_disk: leave its values there, to see whether it is one.

    Raises:
        RunError: the file is not one.
    """
    problem = (
        f"--images: {path}: received a file that np.save has not written, expected a folder of "
        "pictures, or an .npy file of uint8 images (n, rows, columns, channels)."
    )
    if not os.path.isfile(path):  # a pipe would wait for its writer
        raise RunError(problem)
    try:
        array = np.load(path, mmap_mode="r" if of_disk else None, allow_pickle=False)
    except Exception as error:  # NumPy parses the header as Python, and raises what that raises.
        raise RunError(problem) from error
    if not isinstance(array, np.ndarray):
        raise RunError(
            f"--images: {path}: received an archive, expected a folder of pictures, or an .npy "
            "file of one array; write it with np.save."
        )
    return array
