"""The pictures of `sat-tf quantize`, or arrays in their place, and what a model is fed of them."""

import dataclasses
import pathlib
from typing import TYPE_CHECKING, Any

import numpy as np
from rich.console import Console

from sat_tf.commands.label_file import read_labels
from sat_tf.commands.models import is_built_by_name
from sat_tf.commands.pixels import ImageOptions, say_notes
from sat_tf.commands.quantization.policy import Sample, feed_of, with_input_range
from sat_tf.export.certificate.inputs import ImagesFrom, image_problems
from sat_tf.messages import ProblemsError, RunError, say
from sat_tf.pictures import DECODER, Pictures, open_pictures, spread_evenly
from sat_tf.qat.policy import BitPolicy
from sat_tf.quantizers.input_range import INPUT_TYPES

if TYPE_CHECKING:
    import tf_keras as keras

CALIBRATION_IMAGES, HELD_OUT_IMAGES = 512, 1024
# Fewer arrays are not divided.
_FEWEST = 5


@dataclasses.dataclass(frozen=True, kw_only=True)
class QuantizationImages:
    """The pictures of a folder, or arrays, for the input of a model."""

    images: np.ndarray  # Uint8, or real values where an input takes those, to calibrate on.
    # Likewise, to verify and measure on; those that it was calibrated on where none are held out.
    held_out: np.ndarray
    # Where these come from. Their labels are for the only output with as many classes; None where
    # they are not the model's classes.
    measured: Pictures
    num_classes: int  # Of the output that has the labels; 0 without labels.
    images_from: ImagesFrom  # Where those held out come from.
    training: Pictures  # To train on, read when they are asked for, and of any size.

    @property
    def labels(self) -> np.ndarray | None:
        """Of those held out."""
        return self.measured.labels

    def held_out_sample(self, most: int) -> tuple[np.ndarray, np.ndarray | None]:
        """Takes so many of those held out, with their labels if any."""
        chosen = spread_evenly(len(self.held_out), most)
        return self.held_out[chosen], None if self.labels is None else self.labels[chosen]


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
    # The codes of real values are known to a file alone.
    kind = input_type if input_type == INPUT_TYPES[0] else "float32"
    if problems := image_problems(images, shape, kind):
        if input_type == INPUT_TYPES[0] and images.dtype != np.uint8:
            problems.append(
                "If they are no pixels, give --policy input_type=int8, which keeps the file of "
                "integers, or input_type=float32."
            )
        raise ProblemsError(subject, problems)


def images_as_fed(
    model: Any, subject: str, wanted: ImageOptions, policy: BitPolicy, console: Console
) -> tuple[tuple[np.ndarray, np.ndarray | None], BitPolicy]:
    """Reads images as a float model reads them, and their labels; finds and prints their range."""
    from sat_tf.graph.network import Network, check_model, check_one_of_each
    from sat_tf.qat.layout import is_quantized

    check_model(model)
    check_one_of_each(model)
    shape = fixed_input_shape(model)
    pixels = wanted.load(shape, model.output_shape[-1])
    (name,) = model.input_names
    input_type = policy.type_of(name)
    expect_fitting("--images", pixels.images, shape, input_type)
    say_notes(pixels.notes, console)
    knows_a_range = not (is_quantized(Network(model)) or is_built_by_name(subject))
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
    few = apart.sample(HELD_OUT_IMAGES)

    def sample(most: int) -> tuple[np.ndarray, np.ndarray | None]:
        images, kept = few.sample(most).images()
        return images, kept.labels

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
    chosen = spread_evenly(len(train), CALIBRATION_IMAGES)
    if is_divided and not are_arrays:
        # RandomState, because NumPy guarantees that its streams never change.
        chosen = np.random.RandomState(0).permutation(len(train))[:CALIBRATION_IMAGES]
    images, sample = train.take(chosen).images()
    held_out, measured = images, sample
    if is_divided:
        held_out, measured = apart.sample(HELD_OUT_IMAGES).images()
    what = f"arrays of {sample.shape}" if are_arrays else "pictures"
    count = len(train) + len(apart) * is_divided
    of_classes = f" of {num_classes:,} classes" if num_classes else ""
    use = f"{len(train):,} to train" if to_train else f"{len(images):,} to calibrate"
    parts = f", {use} on and {len(held_out):,} held out" if is_divided else ""
    say(console, f"{path}: {count:,} {what}{of_classes}{parts}")
    say_notes(dict.fromkeys((*sample.notes, *measured.notes)), console)
    words = f"held-out pictures of {path.resolve().name}"
    if not is_divided:
        words = "pictures of a folder, scaled and cropped to the input"
    return QuantizationImages(
        images=images,
        held_out=held_out,
        measured=measured,
        num_classes=num_classes,
        images_from=ImagesFrom(f"from {path.name}")
        if are_arrays
        else ImagesFrom(words, files=measured.hashes(), decoder=DECODER),
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
    """The images to calibrate and train on, those held out, and of how many classes they are.

    They are the same where none are held out. Labels are left out unless they are those of an
    output.
    """
    shape, outputs = fixed_input_shape(model), [tuple(one.shape[1:]) for one in model.outputs]
    shapes = f"shape{'s' if len(outputs) > 1 else ''} {', '.join(map(str, outputs))}"
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
            not_measured = "the accuracy of the others" if fits else "accuracy"
            learned = "; the folders are passed over" if to_train and not fits else ""
            why = f"received {num_classes:,} classes for a model with outputs of {shapes}"
            say_notes([f"{why}: {not_measured} is not measured{learned}."], console)
        num_classes = num_classes * fits
    unlabelled: dict[str, Any] = {} if num_classes else {"labels": None, "class_names": ()}
    if to_train:
        every = dataclasses.replace(every, **unlabelled)
    if not is_divided:
        return every, every, num_classes
    train, apart = (dataclasses.replace(part, **unlabelled) for part in every.split())
    return train, apart, num_classes
