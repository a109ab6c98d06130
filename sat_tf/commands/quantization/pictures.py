"""The pictures of `sat-tf quantize`, or arrays in their place, and what a model is fed of them."""

import dataclasses
import itertools
import pathlib
import types
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, cast

import numpy as np
from rich.console import Console

from sat_tf.commands.label_file import read_labels
from sat_tf.commands.models import is_built_by_name
from sat_tf.commands.pixels import (
    ImageOptions,
    Pixels,
    expect_fitting,
    fixed_input_shape,
    read_array,
    say_notes,
)
from sat_tf.commands.quantization.policy import Sample, feed_of, with_input_range
from sat_tf.export.certificate.certificate import ImagesFrom
from sat_tf.messages import RunError, say
from sat_tf.pictures.folder_tree import HELD_OUT_SHARE, TRAIN
from sat_tf.pictures.picture_folder import FolderImages, load_folder
from sat_tf.pictures.pictures import DECODER
from sat_tf.pictures.sampling import spread_evenly
from sat_tf.preprocessing import COVERING, Preprocessing
from sat_tf.qat.policy import BitPolicy
from sat_tf.quantizers.input_range import INPUT_TYPES
from sat_tf.training.data import source as data_source
from sat_tf.training.data.source import ImageSource

if TYPE_CHECKING:
    import tf_keras as keras

    from sat_tf.training.data.folder_source import FolderSource

CALIBRATION_IMAGES = 512
# One of so many is held out, where folders of classes are not divided.
_PARTS = round(1 / HELD_OUT_SHARE)
HELD_OUT_IMAGES = 1024
# Nothing is cut off, and what has a left and a right, as letters have, is not mirrored: how the
# model was trained is not known.
CROPS: Mapping[str, Any] = types.MappingProxyType(
    {"resize_ratio": 1.0, "smallest_area": 0.6, "mirrored": False}
)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Pictures:
    """The pictures of a folder, or arrays, for the input of a model that is not trained on them.

    Attributes:
        images: uint8, or real values where an input takes those, to calibrate on.
        held_out: likewise, to verify and measure on; those that it was calibrated on where there
            are no classes.
        labels: of those held out, for the only output with as many classes; None where they are
            not the model's classes.
        class_names: in the order of the labels; None where there are none.
        num_classes: of the output that has the labels; 0 without labels.
        images_from: where those held out come from.
        why_not: why they cannot be trained on, in words; empty where they can, without labels.
        preprocessing: how they have been prepared; None for arrays.
    """

    images: np.ndarray
    held_out: np.ndarray
    labels: np.ndarray | None = None
    class_names: tuple[str, ...] | None = None
    num_classes: int = 0
    images_from: ImagesFrom
    why_not: str
    preprocessing: Preprocessing | None = COVERING

    def held_out_sample(self, most: int) -> tuple[np.ndarray, np.ndarray | None]:
        """Takes images as a source does, without labels where there are none."""
        chosen = spread_evenly(len(self.held_out), most)
        return self.held_out[chosen], None if self.labels is None else self.labels[chosen]


@dataclasses.dataclass(frozen=True)
class Fed:
    """Images as a float model reads them, their labels, and the policy with their range."""

    images: np.ndarray
    labels: np.ndarray | None
    policy: BitPolicy


def images_as_fed(
    model: Any, subject: str, wanted: ImageOptions, policy: BitPolicy, console: Console
) -> Fed:
    """The images that were asked for, in the range in which a float model reads them.

    Prints the range; see `with_input_range`.

    Args:
        model: float; one that is not is refused by what measures it.
        subject: the file or the name of the model. One that is built by its name knows nothing, and
            is fed pixels.
        wanted: which images.
        policy: that was asked for.
        console: where to print.

    Raises:
        ValueError: the model has several inputs or outputs, or images of open sizes, or the images
            do not fit it, or the range cannot be found.
    """
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
    if not (is_quantized(Network(model)) or is_built_by_name(subject)):
        sample = range_sample(model, wanted, policy, pixels)
        policy = with_input_range(policy, model, subject, sample, console)
    if input_type == INPUT_TYPES[0]:
        say(console, f"Images are fed as input_range={policy.range_of(name)}.")
    return Fed(feed_of(policy, model)(pixels.images), pixels.labels, policy)


def range_sample(model: Any, wanted: ImageOptions, policy: BitPolicy, pixels: Pixels) -> Sample:
    """The images that show the range of a model: of a folder, those of `sat-tf quantize`.

    Args:
        model: float, of one input.
        wanted: the images that were asked for.
        policy: that was asked for.
        pixels: what was read of them, where they are no folder of pictures or file.
    """
    if wanted.images is None:
        return pixels.sample
    quiet = Console(quiet=True)
    found = find_pictures(
        pathlib.Path(wanted.images), model, policy, quiet, to_train=False, labels=wanted.labels
    )
    return found.held_out_sample


def find_pictures(
    folder: pathlib.Path,
    model: "keras.Model",
    policy: BitPolicy,
    console: Console,
    *,
    to_train: bool,
    labels: str | None = None,
) -> ImageSource | Pictures:
    """The pictures of a folder: a source of batches where a model can be trained on them.

    Args:
        folder: of pictures, or an .npy file.
        model: the float model.
        policy: that was asked for.
        console: where to tell of them.
        to_train: whether pictures are a source also where they have no labels of the model's.
        labels: a file with those of an .npy file.

    Raises:
        ValueError: there are none, or the model takes no such.
    """
    shape, outputs = fixed_input_shape(model), [tuple(one.shape[1:]) for one in model.outputs]
    if not folder.is_dir():
        input_type = policy.type_of(model.input_names[0])
        return _of_file(folder, shape, outputs, input_type, labels, console)
    has_folders = any(entry.is_dir() for entry in folder.iterdir())
    why_not = _why_not(model, shape)
    if to_train and not has_folders and not why_not:
        return _without_labels(folder, shape)
    if not has_folders or not _is_square_and_coloured(shape):
        images, found = _parted(folder, shape, console)
        apart = (
            "" if images is found.images else f" to calibrate on, {len(found.images):,} held out"
        )
        console.print(f"{folder}: {len(images):,} pictures{apart}", highlight=False, markup=False)
        fits = found.labels is not None and outputs.count((len(found.class_names),)) == 1
        return Pictures(
            images=images,
            held_out=found.images,
            labels=found.labels if fits else None,
            class_names=found.class_names if fits else None,
            num_classes=len(found.class_names) if fits else 0,
            images_from=ImagesFrom(
                "pictures of a folder, scaled and cropped to the input",
                files=found.files,
                decoder=DECODER,
            ),
            why_not=why_not,
        )
    source = cast(
        "FolderSource",
        data_source("folder", data_dir=str(folder), image_size=shape[0], **CROPS),
    )
    fits = outputs.count((source.num_classes,)) == 1
    if fits and len(outputs) == 1:
        return source  # of which its run tells
    console.print(
        f"{folder}: {source.num_classes:,} classes, {source.num_train:,} pictures to calibrate on "
        f"and {source.num_test:,} held out",
        highlight=False,
        markup=False,
    )
    shapes = f"shape{'s' if len(outputs) > 1 else ''} {', '.join(map(str, outputs))}"
    why = f"{source.num_classes:,} classes for a model with outputs of {shapes}"
    not_measured = "the accuracy of the others" if fits else "accuracy"
    is_taught = to_train and not why_not
    learned = "; the folders are passed over" if is_taught else ""
    notes = () if is_taught else source.notes
    say_notes((f"received {why}: {not_measured} is not measured{learned}.", *notes), console)
    if is_taught:
        return _without_labels(folder, shape)
    own_labels = source.held_out_files
    held_out = load_folder(
        folder,
        shape,
        most=HELD_OUT_IMAGES,
        preprocessing=source.preprocessing,
        among=list(own_labels),
    )
    say_notes(held_out.notes, console)
    return Pictures(
        images=source.training_sample(min(CALIBRATION_IMAGES, source.num_train), seed=0),
        held_out=held_out.images,
        labels=np.array([own_labels[str(folder / name)] for name in held_out.files], np.int32)
        if fits
        else None,
        class_names=source.class_names if fits else None,
        num_classes=source.num_classes if fits else 0,
        images_from=ImagesFrom(
            f"held-out pictures of {source.name}", files=held_out.files, decoder=DECODER
        ),
        why_not=why_not,
        preprocessing=source.preprocessing,
    )


def _of_file(
    path: pathlib.Path,
    shape: tuple[int, ...],
    outputs: list[tuple[int | None, ...]],
    input_type: str,
    labels_path: str | None,
    console: Console,
) -> Pictures:
    """The arrays of an .npy file, for an input of this shape and type.

    With labels, one in five is held out to measure on.
    """
    found = read_array(str(path))
    expect_fitting(f"--images {path}", found, shape, input_type)
    where: dict[str, Any] = {
        "images_from": ImagesFrom(f"from {path.name}"),
        "why_not": f"a model of {shape} with arrays",
        "preprocessing": None,
    }
    if labels_path is None:
        console.print(f"{path}: {len(found):,} arrays of {shape}", highlight=False, markup=False)
        chosen = found[spread_evenly(len(found), CALIBRATION_IMAGES)]
        return Pictures(images=chosen, held_out=chosen, **where)
    sizes = [size for size in outputs if len(size) == 1 and (size[0] or 0) > 1]
    if len(sizes) != 1:
        raise RunError(
            f"--labels: received a model with outputs of shapes {', '.join(map(str, outputs))}, "
            "expected one output that is a row of classes; leave it out."
        )
    num_classes = sizes[0][0] or 0
    labels = read_labels(labels_path, len(found), num_classes)
    places = np.arange(len(found))
    # Too few are not divided.
    is_held_out = (places % _PARTS == _PARTS // 2) | (len(found) < _PARTS)
    apart = places[~is_held_out | (len(found) < _PARTS)], places[is_held_out]
    to_calibrate, held_out = (
        part[spread_evenly(len(part), most)]
        for part, most in zip(apart, (CALIBRATION_IMAGES, HELD_OUT_IMAGES), strict=True)
    )
    console.print(
        f"{path}: {len(found):,} arrays of {shape} with labels, {len(to_calibrate):,} to calibrate "
        f"on and {len(held_out):,} held out",
        highlight=False,
        markup=False,
    )
    return Pictures(
        images=found[to_calibrate],
        held_out=found[held_out],
        labels=labels[held_out],
        num_classes=num_classes,
        **where,
    )


def _without_labels(folder: pathlib.Path, shape: tuple[int, ...]) -> ImageSource:
    return data_source("folder", data_dir=str(folder), image_size=shape[0], labelled=False, **CROPS)


def _is_square_and_coloured(shape: tuple[int, ...]) -> bool:
    return len(shape) == 3 and shape[0] == shape[1] and shape[2] == 3


def _why_not(model: "keras.Model", shape: tuple[int, ...]) -> str:
    """Why a model cannot be trained on pictures; empty where it can, with labels or without."""
    from sat_tf.graph.network import Network
    from sat_tf.graph.rewrite import with_layers_for_operations
    from sat_tf.qat.reconstruction.fit import rows_of_classes

    if not _is_square_and_coloured(shape):
        return f"a model of {shape}"
    if len(model.outputs) > 1:
        return f"a model of {len(model.outputs)} outputs"
    network = Network(with_layers_for_operations(model))
    given = network[network.output].shape
    is_row = len(given) == 1 and rows_of_classes(network, network.output, given)
    return "" if is_row else f"a model with outputs of shape {given} that are no row of classes"


def _parted(
    folder: pathlib.Path, shape: tuple[int, ...], console: Console
) -> tuple[np.ndarray, FolderImages]:
    """Pictures to calibrate on, and held-out ones: the same where there are no classes."""
    found = load_folder(folder, shape, most=CALIBRATION_IMAGES)
    say_notes(found.notes, console)
    train = folder / TRAIN
    if train.is_dir():
        to_calibrate = load_folder(train, shape, most=CALIBRATION_IMAGES)
        say_notes(to_calibrate.notes, console)
        return to_calibrate.images, found
    if found.labels is None or len(found.images) < _PARTS:
        return found.images, found
    # Sorted by class, so that every fifth is a fifth of each.
    is_held_out = np.arange(len(found.images)) % _PARTS == _PARTS // 2
    held_out = dataclasses.replace(
        found,
        images=found.images[is_held_out],
        labels=found.labels[is_held_out],
        files=dict(itertools.compress(found.files.items(), is_held_out)),
    )
    return found.images[~is_held_out], held_out
