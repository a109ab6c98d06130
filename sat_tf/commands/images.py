"""The images that commands run on: those of a folder or an .npy file, or random ones."""

import argparse
import dataclasses
import os
import pathlib
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
from rich.console import Console

from sat_tf.commands.models import is_built_by_name
from sat_tf.commands.options import nonempty
from sat_tf.commands.parser import Parser
from sat_tf.commands.policy import Sample, feed_of, with_input_range
from sat_tf.exact.certificate.proof_images import ImagesFrom, image_problems, random_images
from sat_tf.exact.tflite.input_range import INPUT_TYPES
from sat_tf.exact.tflite.metadata import Metadata
from sat_tf.exact.tflite.preprocessing import COVERING
from sat_tf.exact.tflite.tensors import Image
from sat_tf.messages import ProblemsError, RunError, first_ones, say, value_errors_as_run_errors
from sat_tf.messages.validation import Positive, option
from sat_tf.pictures import (
    CALIBRATION_IMAGES,
    DECODER,
    Pictures,
    open_again,
    open_pictures,
    spread_evenly,
)
from sat_tf.qat.policy import BitPolicy

if TYPE_CHECKING:
    import tf_keras as keras

_RANDOM_IMAGES, _RANDOM_SEED = 64, 0
USUAL_IMAGES = 256  # The number of a folder that files and layers are measured with.
_NOTHING = Metadata()


@dataclasses.dataclass(frozen=True)
class Pixels:
    """Images to run a file on."""

    images: np.ndarray  # Uint8 (n, ...); for inputs of other types real values, or their codes.
    labels: np.ndarray | None  # Integers (n,); None without labels.
    source: ImagesFrom  # The origin of the images.
    notes: tuple[str, ...] = ()  # Remarks to print.

    def sample(self, most: int) -> tuple[np.ndarray, np.ndarray | None]:
        """Takes at most `most` images, spread evenly, with their labels."""
        indices = spread_evenly(len(self.images), most)
        return self.images[indices], None if self.labels is None else self.labels[indices]

    def of_input(self, image: Image) -> "Pixels":
        """The images for an input of a file: random ones over its range, pictures as its values."""
        images = self.images
        if self.source.seed is not None and (image.is_kept or image.type != "uint8"):
            images = image.drawn(images)
        elif not image.is_kept and image.type != "uint8" and images.dtype == np.uint8:
            images = images.astype(np.float32)
        return dataclasses.replace(self, images=images)


@dataclasses.dataclass(frozen=True)
class ImageOptions:
    """The images that the arguments of a command name."""

    images: str | None = None  # A folder of pictures or an .npy file; None for random ones.
    num_images: int | None = None  # The most images, spread evenly; None takes the usual number.
    usual: int | None = USUAL_IMAGES  # The usual number from a folder; None takes all.
    # The names and hashes of the only files to take; all may be taken where it is empty.
    files: Mapping[str, str] = dataclasses.field(default_factory=dict)
    labels: str | None = None  # A file with the class numbers of an .npy file's images.
    are_frames: bool = False  # Whether they are a sequence, of which the first ones are taken.

    def again(self, images_from: ImagesFrom, count: int) -> "ImageOptions":
        """The options that take the `count` images with which a certificate or a kit was made."""
        num_images = self.num_images or images_from.asked or count
        return dataclasses.replace(self, num_images=num_images, files=images_from.files)

    @property
    def most(self) -> int | None:
        """The most images to take from a folder."""
        return self.num_images or self.usual

    @value_errors_as_run_errors()
    def load(self, shape: tuple[int, ...], num_classes: int, said: Metadata = _NOTHING) -> Pixels:
        """The images for an input, with an output's labels, by the metadata `said` of the file."""
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
            count = self.num_images
            frames = pictures.take(range(len(pictures))[:count])
            pictures = frames if self.are_frames else pictures.sample(count)
            source = ImagesFrom(f"from {pathlib.Path(self.images).name}")
            return Pixels(pictures.images()[0], pictures.labels, source)
        images, pictures = (pictures.held_out or pictures).sample(self.most).images()
        numbers, notes = _numbered_as_in_file(pictures, said.labels)
        name = pathlib.Path(self.images).resolve().name
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
) -> tuple[np.ndarray | None, tuple[str, ...]]:
    """The labels of pictures as a file numbers its classes, and notes on both."""
    labels, names, notes = pictures.labels, pictures.class_names, pictures.notes
    if labels is None:
        return None, notes
    if of_file is None or not set(names) & set(of_file):
        remark = "" if of_file is None else f"; those of the file are others, such as {of_file[0]}"
        return labels, (*notes, f"{len(names)} classes, in the order of their folders{remark}")
    if strange := [name for name in names if name not in of_file]:
        raise RunError(
            f"{pictures.folder}: received the classes {first_ones(strange)}, expected those of the "
            f"file ({first_ones(of_file)}); rename or remove them."
        )
    numbers = np.array([of_file.index(name) for name in names], labels.dtype)
    return numbers[labels], (*notes, f"{len(names)} classes, numbered by the names in the file")


# -- arguments ----------------------------------------------------------------------------------


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
        "integers (n,)",
    )


def expect_pictures(path: str | None, labels: str | None) -> None:
    """Refuses images in no folder or .npy file, and labels except in a file for an .npy file."""
    is_array = path is not None and not os.path.isdir(path)
    if labels is not None and not (
        is_array and pathlib.Path(labels).suffix.lower() == ".npy" and os.path.isfile(labels)
    ):
        raise RunError(
            f"--labels: {labels}: expected an .npy file of class numbers, with --images in an .npy "
            "file; pictures in folders of classes have their labels by these."
        )
    if path is not None and is_array:
        try:
            open_pictures(path)
        except ValueError as error:
            raise RunError(f"--images: {error}") from error


def add_image_arguments(parser: Parser, *, usual: str, default: str = "") -> None:
    """Adds --images, which are required without a default, --labels and --num_images."""
    what = f" where they are taken; default: {default}" if default else ""
    add_pictures(parser, what, required=not default)
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


# -- labels of an .npy file, whose images are in no folders of classes --------------------------


def read_labels(path: str, count: int, num_classes: int) -> np.ndarray:
    """The labels of images, int32 (n,)."""
    try:
        labels = np.load(path, mmap_mode="r", allow_pickle=False)  # a small file may hold many
        labels = labels[:, 0] if labels.shape[1:] == (1,) else labels
    # NumPy parses the header as Python, and raises any error of the parser.
    except Exception as error:
        raise RunError(
            f"--labels: {path}: received a file that np.save has not written, expected integers "
            "(n,); write them with np.save."
        ) from error
    if labels.ndim != 1 or not np.issubdtype(labels.dtype, np.integer):
        raise RunError(
            f"--labels: {path}: received {labels.dtype} {labels.shape}, expected integers (n,); "
            "save np.argmax(scores, axis=-1), or labels.astype(int)."
        )
    problems = []
    if len(labels) != count:
        problems.append(
            f"received {len(labels):,} labels for {count:,} images, expected one for each"
        )
    labels = np.asarray(labels[:count])
    outside = np.flatnonzero((labels < 0) | (labels >= num_classes))
    if len(outside):
        named = [f"{labels[place]} of image {place}" for place in outside]
        problems.append(
            f"received {first_ones(named, 3)}, expected class numbers from 0 to {num_classes - 1}, "
            f"as the model has {num_classes:,} outputs; check whose labels these are, and that "
            "they are counted from 0"
        )
    if problems:
        raise RunError(f"--labels: {path}: {'; '.join(problems)}.")
    return labels.astype(np.int32)


# -- images for a float model -------------------------------------------------------------------

HELD_OUT_IMAGES = 1024
# An .npy file of fewer images is not divided.
_FEWEST = 5


@dataclasses.dataclass(frozen=True, kw_only=True)
class QuantizationImages:
    """The pictures of a folder, or arrays, for the input of a model."""

    images: np.ndarray  # Images to calibrate on: uint8, or real values where an input takes those.
    # Images to verify and measure on; the calibration images where none are held out. Their labels
    # are for the only output with as many classes; None where they are not the model's classes.
    held_out: Pixels
    num_classes: int  # Classes of the output that has the labels; 0 without labels.
    training: Pictures  # Pictures to train on, read on demand, and of any size.


def fixed_input_shape(model: Any, subject: str | None = None) -> tuple[int, ...]:
    """The shape of the images that a model with one input takes."""
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
    is_pixels = input_type == INPUT_TYPES[0]
    # The codes of real values are known to a file alone.
    if problems := image_problems(images, shape, input_type if is_pixels else "float32"):
        if is_pixels and images.dtype != np.uint8:
            problems.append(
                "If they are no pixels, give --policy input_type=int8, which keeps the file of "
                "integers, or input_type=float32."
            )
        raise ProblemsError(subject, problems)


def images_as_fed(
    model: Any, subject: str, wanted: ImageOptions, policy: BitPolicy, console: Console
) -> tuple[tuple[np.ndarray, np.ndarray | None], BitPolicy]:
    """Reads images as a float model reads them, and their labels; finds and prints their range."""
    from sat_tf.graph.network import Network, check_one_of_each
    from sat_tf.qat.layout import is_quantized

    network = Network(model)
    check_one_of_each(model)
    shape = fixed_input_shape(model)
    pixels = wanted.load(shape, model.output_shape[-1])
    (name,) = model.input_names
    input_type = policy.type_of(name)
    expect_fitting("--images", pixels.images, shape, input_type)
    say_notes(pixels.notes, console)
    knows_a_range = not (is_quantized(network) or is_built_by_name(subject))
    if knows_a_range and wanted.images is not None:
        sample = range_sample(model, wanted.images, policy, wanted.labels)
        policy = with_input_range(policy, model, subject, sample, console)
    if input_type == INPUT_TYPES[0]:
        say(console, f"Images are fed as input_range={policy.range_of(name)}.")
    return (feed_of(policy, model)(pixels.images), pixels.labels), policy


def range_sample(
    model: "keras.Model", path: str, policy: BitPolicy, labels: str | None = None
) -> Sample:
    """The held-out images of `sat-tf quantize`, by which the input range of a model is found."""
    quiet = Console(quiet=True)
    _, apart, _ = _divided(pathlib.Path(path), model, policy, quiet, to_train=False, labels=labels)

    def sample(limit: int) -> tuple[np.ndarray, np.ndarray | None]:
        images, pictures = apart.sample(HELD_OUT_IMAGES).sample(limit).images()
        return images, pictures.labels

    return sample


def find_pictures(
    path: pathlib.Path,
    model: "keras.Model",
    policy: BitPolicy,
    console: Console,
    *,
    to_train: bool,
    labels: str | None = None,
) -> QuantizationImages:
    """The pictures of a folder, or the arrays of a file."""
    train, apart, num_classes = _divided(
        path, model, policy, console, to_train=to_train, labels=labels
    )
    is_divided, are_arrays = apart is not train, train.array is not None
    indices = spread_evenly(len(train), CALIBRATION_IMAGES)
    if is_divided and not are_arrays:
        # RandomState, because NumPy guarantees that its streams never change.
        indices = np.random.RandomState(0).permutation(len(train))[:CALIBRATION_IMAGES]
    images, sample = train.take(indices).images()
    held_out, measured = images, sample
    if is_divided:
        held_out, measured = apart.sample(HELD_OUT_IMAGES).images()
    what = f"arrays of {sample.shape}" if are_arrays else "pictures"
    count = len(train) + len(apart) * is_divided
    of_classes = f" of {num_classes:,} classes" if num_classes else ""
    use = f"{len(train):,} to train" if to_train else f"{len(images):,} to calibrate"
    division = f", {use} on and {len(held_out):,} held out" if is_divided else ""
    say(console, f"{path}: {count:,} {what}{of_classes}{division}")
    say_notes(dict.fromkeys((*sample.notes, *measured.notes)), console)
    source = ImagesFrom(f"from {path.name}")
    if not are_arrays:
        words = "pictures of a folder, scaled and cropped to the input"
        if is_divided:
            words = f"held-out pictures of {path.resolve().name}"
        source = ImagesFrom(words, files=measured.hashes(), decoder=DECODER)
    return QuantizationImages(
        images=images,
        held_out=Pixels(held_out, measured.labels, source),
        num_classes=num_classes,
        training=train,
    )


def _divided(
    path: pathlib.Path,
    model: "keras.Model",
    policy: BitPolicy,
    console: Console,
    *,
    to_train: bool,
    labels: str | None,
) -> tuple[Pictures, Pictures, int]:
    """The images to calibrate and train on, the held-out ones, and the number of classes.

    Where none are held out, the first two are the same. Labels are left out unless they are those
    of an output.
    """
    shape, outputs = fixed_input_shape(model), [tuple(tensor.shape[1:]) for tensor in model.outputs]
    shapes = f"shapes {', '.join(map(str, outputs))}"
    every = open_pictures(path, shape)
    if every.array is not None:
        input_type = policy.type_of(model.input_names[0])
        expect_fitting(f"--images {path}", every.array, shape, input_type)
        rows = [size[0] or 0 for size in outputs if len(size) == 1 and (size[0] or 0) > 1]
        if labels is not None and len(rows) != 1:
            raise RunError(
                f"--labels: received a model with outputs of {shapes}, expected one output that is "
                "a row of classes; leave it out."
            )
        num_classes = rows[0] if labels is not None else 0
        if labels is not None:
            numbers = read_labels(labels, len(every), num_classes)
            every = dataclasses.replace(every, labels=numbers)
        is_divided = len(every) >= _FEWEST and (to_train or labels is not None)
    else:
        num_classes = len(every.class_names)
        fits = outputs.count((num_classes,)) == 1
        is_divided = to_train or every.labels is not None
        if every.labels is not None and not (fits and len(outputs) == 1):
            note = (
                f"received {num_classes:,} classes for a model with outputs of {shapes}: accuracy "
                "is not measured of outputs of other sizes, nor do they learn these classes."
            )
            say_notes([note], console)
        num_classes = num_classes * fits
    unlabelled: dict[str, Any] = {} if num_classes else {"labels": None, "class_names": ()}
    if to_train:
        every = dataclasses.replace(every, **unlabelled)
    if not is_divided:
        return every, every, num_classes
    train, apart = (dataclasses.replace(subset, **unlabelled) for subset in every.split())
    return train, apart, num_classes
