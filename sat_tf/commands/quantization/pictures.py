"""The pictures of `sat-tf quantize`, or arrays in their place, and what a model is fed of them."""

import dataclasses
import pathlib
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

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
from sat_tf.pictures.folder_tree import (
    HELD_OUT_SHARE,
    FolderTree,
    printable,
    read_pictures,
    read_tree,
)
from sat_tf.pictures.picture_folder import load_folder
from sat_tf.pictures.pictures import DECODER, MODES, image_of
from sat_tf.pictures.sampling import spread_evenly
from sat_tf.preprocessing import COVERING, Preprocessing
from sat_tf.qat.policy import BitPolicy
from sat_tf.quantizers.input_range import INPUT_TYPES

if TYPE_CHECKING:
    import tf_keras as keras

CALIBRATION_IMAGES = 512
# One of so many is held out, where folders of classes are not divided.
_PARTS = round(1 / HELD_OUT_SHARE)
HELD_OUT_IMAGES = 1024


@dataclasses.dataclass(frozen=True, kw_only=True)
class Pictures:
    """The pictures of a folder, or arrays, for the input of a model.

    Attributes:
        images: uint8, or real values where an input takes those, to calibrate on.
        held_out: likewise, to verify and measure on; those that it was calibrated on where there
            are no classes.
        labels: of those held out, for the only output with as many classes; None where they are
            not the model's classes.
        class_names: in the order of the labels; None where there are none.
        num_classes: of the output that has the labels; 0 without labels.
        images_from: where those held out come from.
        preprocessing: how they have been prepared; None for arrays.
        training: to train on; pictures are read when they are asked for, and have any size.
        training_labels: of these, class numbers; None without labels.
    """

    images: np.ndarray
    held_out: np.ndarray
    labels: np.ndarray | None = None
    class_names: tuple[str, ...] | None = None
    num_classes: int = 0
    images_from: ImagesFrom
    preprocessing: Preprocessing | None = COVERING
    training: Sequence[np.ndarray] | np.ndarray = ()
    training_labels: np.ndarray | None = None

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
) -> Pictures:
    """The pictures of a folder, or the arrays of a file.

    Args:
        folder: of pictures, or an .npy file.
        model: the float model.
        policy: that was asked for.
        console: where to tell of them.
        to_train: whether the model is trained on them: some are then held out in any case.
        labels: a file with those of an .npy file.

    Raises:
        ValueError: there are none, or the model takes no such.
    """
    shape, outputs = fixed_input_shape(model), [tuple(one.shape[1:]) for one in model.outputs]
    if not folder.is_dir():
        input_type = policy.type_of(model.input_names[0])
        return _of_file(folder, shape, outputs, input_type, labels, console, to_train=to_train)
    has_folders = any(entry.is_dir() for entry in folder.iterdir())
    if not (has_folders or to_train):
        every = load_folder(folder, shape, most=CALIBRATION_IMAGES)
        say_notes(every.notes, console)
        say(console, f"{folder}: {len(every.images):,} pictures")
        words = "pictures of a folder, scaled and cropped to the input"
        images_from = ImagesFrom(words, files=every.files, decoder=DECODER)
        return Pictures(images=every.images, held_out=every.images, images_from=images_from)
    tree = read_tree(folder) if has_folders else read_pictures(folder)
    classes = len(tree.class_names)
    fits = has_folders and outputs.count((classes,)) == 1
    if has_folders and not (fits and len(outputs) == 1):
        shapes = f"shape{'s' if len(outputs) > 1 else ''} {', '.join(map(str, outputs))}"
        why = f"{classes:,} classes for a model with outputs of {shapes}"
        not_measured = "the accuracy of the others" if fits else "accuracy"
        learned = "; the folders are passed over" if to_train and not fits else ""
        say_notes([f"received {why}: {not_measured} is not measured{learned}."], console)
    if to_train and not fits:
        tree = read_pictures(folder)
    return _of_tree(folder, tree, shape, console, fits=fits, to_train=to_train)


def _of_tree(
    folder: pathlib.Path,
    tree: FolderTree,
    shape: tuple[int, ...],
    console: Console,
    *,
    fits: bool,
    to_train: bool,
) -> Pictures:
    """Pictures to calibrate and train on, and those held out.

    Args:
        folder: of the pictures.
        tree: of it.
        shape: of the input.
        console: where to tell of them.
        fits: whether the folders are the classes of an output.
        to_train: whether the model is trained.
    """
    train, apart = tree.train, tree.held_out
    # RandomState, because NumPy guarantees that its streams never change.
    drawn = np.random.RandomState(0).permutation(len(train.paths))[:CALIBRATION_IMAGES]
    chosen = spread_evenly(len(apart.paths), HELD_OUT_IMAGES)
    sample, held_out = (
        load_folder(folder, shape, among=[split.paths[place] for place in places])
        for split, places in ((train, drawn), (apart, chosen))
    )
    what = f"{len(tree.class_names):,} classes" if tree.class_names else "no labels"
    use = "train" if to_train else "calibrate"
    say(
        console,
        f"{folder}: {what}, {len(train.paths):,} pictures to {use} on, {len(apart.paths):,} held "
        "out",
    )
    say_notes((*tree.notes, *sample.notes, *held_out.notes), console)
    label_of = dict(zip(map(pathlib.Path, apart.paths), apart.labels, strict=True))
    return Pictures(
        images=sample.images,
        held_out=held_out.images,
        labels=np.array([label_of[folder / name] for name in held_out.files], np.int32)
        if fits
        else None,
        class_names=tuple(map(printable, tree.class_names)) if fits else None,
        num_classes=len(tree.class_names) if fits else 0,
        images_from=ImagesFrom(
            f"held-out pictures of {folder.resolve().name}", files=held_out.files, decoder=DECODER
        ),
        training=_Files(train.paths, shape),
        training_labels=np.array(train.labels, np.int32) if fits else None,
    )


class _Files(Sequence[np.ndarray]):
    """Pictures that are read when they are asked for, upright and of their own sizes.

    Args:
        paths: of the files.
        shape: of the input, which says the channels.
    """

    def __init__(self, paths: Sequence[str], shape: tuple[int, ...]) -> None:
        self.paths, self._channels = paths, shape[2]

    def __len__(self) -> int:
        return len(self.paths)

    def __getitem__(self, place: Any) -> Any:
        content = pathlib.Path(self.paths[place]).read_bytes()
        pixels = np.asarray(image_of(content, MODES[self._channels], turns=True), np.uint8)
        return pixels.reshape(*pixels.shape[:2], self._channels)


def _of_file(
    path: pathlib.Path,
    shape: tuple[int, ...],
    outputs: list[tuple[int | None, ...]],
    input_type: str,
    labels_path: str | None,
    console: Console,
    *,
    to_train: bool,
) -> Pictures:
    """The arrays of an .npy file, for an input of this shape and type.

    With labels, and where a model is trained, one in five is held out to measure on.
    """
    found = read_array(str(path))
    expect_fitting(f"--images {path}", found, shape, input_type)
    where: dict[str, Any] = {
        "images_from": ImagesFrom(f"from {path.name}"),
        "preprocessing": None,
    }
    if labels_path is None and not to_train:
        console.print(f"{path}: {len(found):,} arrays of {shape}", highlight=False, markup=False)
        chosen = found[spread_evenly(len(found), CALIBRATION_IMAGES)]
        return Pictures(images=chosen, held_out=chosen, **where)
    sizes = [size for size in outputs if len(size) == 1 and (size[0] or 0) > 1]
    if labels_path is not None and len(sizes) != 1:
        raise RunError(
            f"--labels: received a model with outputs of shapes {', '.join(map(str, outputs))}, "
            "expected one output that is a row of classes; leave it out."
        )
    num_classes, labels = 0, None
    if labels_path is not None:
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
    named = "without labels" if labels is None else "with labels"
    use = f"{len(apart[0]):,} to train" if to_train else f"{len(to_calibrate):,} to calibrate"
    console.print(
        f"{path}: {len(found):,} arrays of {shape} {named}, {use} on and {len(held_out):,} held "
        "out",
        highlight=False,
        markup=False,
    )
    return Pictures(
        images=found[to_calibrate],
        held_out=found[held_out],
        labels=None if labels is None else labels[held_out],
        num_classes=num_classes,
        training=found[apart[0]],
        training_labels=None if labels is None else labels[apart[0]],
        **where,
    )
