"""Folders as data sets: pictures by class, TFRecord files, and sets of TensorFlow Datasets."""

import contextlib
import functools
import hashlib
import json
import math
import operator
import os
import pathlib
import re
import statistics
from typing import TYPE_CHECKING, Annotated, Any

import numpy as np
from pydantic import Field

from sat_tf.exact.tflite import preprocessing
from sat_tf.files import MOST_BYTES
from sat_tf.messages import ProblemsError, first_ones
from sat_tf.messages.validation import Positive, checked
from sat_tf.pictures import HELD_OUT, TRAIN, Pictures, open_pictures, opened, spread_evenly
from sat_tf.training.data.source import (
    Area,
    BufferSize,
    Feature,
    FirstLabel,
    Folder,
    ImageSize,
    ImageSource,
    NumClasses,
    cache_folder,
    load_or_make,
)

# The number of pictures that are opened to learn the size of those in a set.
_OPENED = 32


def read_tree(data_dir: str | os.PathLike[str]) -> tuple[Pictures, Pictures]:
    """The pictures of a folder to train on, and those held out; see `Pictures.split`."""
    pictures = open_pictures(data_dir)
    if pictures.array is not None:
        raise ValueError(f"data_dir: received {data_dir}, a file; expected a folder of pictures.")
    if pictures.labels is None:
        raise ValueError(
            f"{data_dir}: received {len(pictures)} pictures and no folders "
            f"({first_ones(pictures.names)}); expected a folder for each class; move each picture "
            "into the folder of its class, such as cat/1.jpg and dog/1.jpg."
        )
    return pictures.split()


@checked
def load_folder_tree(
    data_dir: Folder,
    *,
    image_size: ImageSize = 224,
    deterministic: bool = True,
    resize_ratio: preprocessing.Ratio = preprocessing.RESIZED_AND_CROPPED.resize_ratio,
    smallest_area: Area = 0.08,
    mirrored: bool = True,
) -> ImageSource:
    """A folder of pictures: train/<class>/<picture>, and the same under val, validation or test.

    In a folder with train alone, or with the classes alone, a fifth of each class is held out; see
    `sat_tf.pictures.Pictures.split`.

    Training takes random crops of `smallest_area` to all of a picture's area with aspects from 3/4
    to 4/3, and mirrors every other one. Held-out pictures are resized so that their shorter side is
    `resize_ratio` times `image_size`, and cropped to their centre. All are turned by their EXIF
    orientation. The defaults are ImageNet's.

    JPEG, PNG, GIF, BMP, WebP, TIFF and PNM are read, whatever their suffix. A picture that cannot
    be decoded, or has more than 178,956,970 pixels, is an error that names it.

    Args:
        data_dir: the folder.
        image_size: height and width of what training and measuring see, in pixels.
        deterministic: whether batches hold the same pictures in the same order every time;
            otherwise the fastest come first.
        resize_ratio: see above, 1 or more; 1 keeps all of a square picture.
        smallest_area: see above, above 0, to 1.
        mirrored: whether training mirrors; not for letters, and what has a left and a right.

    Raises:
        ValueError: an argument is out of its range, or the folder is not laid out like this; lists
            everything.
    """
    train, held_out = read_tree(data_dir)
    # Imported here: naming a data set needs no TensorFlow.
    from sat_tf.training.data.decoding import PictureFiles, PictureSource, TrainingCrops

    return PictureSource(
        train=PictureFiles(train),
        held_out=PictureFiles(held_out),
        num_classes=len(train.class_names),
        class_names=train.class_names,
        notes=(*train.notes, *held_out.notes),
        name=pathlib.Path(data_dir).resolve().name,
        image_size=image_size,
        deterministic=deterministic,
        preprocessing=preprocessing.Preprocessing(resize_ratio=resize_ratio),
        crops=TrainingCrops(smallest_area, mirrored),
    )


def median_side(pictures: Pictures) -> int | None:
    """The median of the shorter sides of pictures, of some spread evenly, in pixels."""
    sides = []
    for place in spread_evenly(len(pictures), _OPENED):
        with contextlib.suppress(OSError, ValueError), opened(pictures.encoded(place)) as picture:
            sides.append(min(picture.size))
    return int(statistics.median_low(sides)) if sides else None


# A record is the length of its data and a checksum, the data, and another checksum.
_HEADER, _FOOTER = 12, 4


@checked
def load_tfrecords(
    data_dir: Folder,
    *,
    image_size: ImageSize = 224,
    num_classes: NumClasses = 1000,
    first_label: FirstLabel = 1,
    image_key: Feature = "image/encoded",
    label_key: Feature = "image/class/label",
    num_train: Positive | None = None,
    num_test: Positive | None = None,
    shuffle_buffer: BufferSize = 10_000,
    deterministic: bool = True,
    cache_dir: Folder | None = None,
) -> ImageSource:
    """Pictures in TFRecord files `train-*` and `val-*` (or `validation-*`, `test-*`) of a folder.

    Pictures are prepared as in `load_folder_tree`, but EXIF orientation is ignored, as in the usual
    ImageNet pipelines. Each worker reads a share of its own. Class names are unknown.

    Args:
        data_dir: the folder.
        image_size: height and width of what training and measuring see, in pixels.
        num_classes: number of classes.
        first_label: the label of the first class in the files: 1 in the usual conversion of
            ImageNet, which keeps 0 for a background.
        image_key: feature that holds the bytes of the picture.
        label_key: feature that holds the class, an integer.
        num_train: expected number of training images: the records are counted, once, and another
            number is an error.
        num_test: number of held-out images, likewise.
        shuffle_buffer: size of the shuffle buffer, in encoded pictures; 10,000 of ImageNet take
            1.1 GB.
        deterministic: as in `load_folder_tree`.
        cache_dir: where counts are kept; by default the environment variable SAT_TF_CACHE, or
            ~/.cache/sat_tf.

    Raises:
        ValueError: an argument is out of its range, or there are no such files; lists everything.
    """
    if label_key == image_key:
        raise ValueError(
            f"load_tfrecords: label_key={label_key!r}: expected another feature than image_key; "
            "name the feature that holds the class."
        )
    files = find_files(data_dir)
    # Imported here: naming a data set needs no TensorFlow.
    import tensorflow as tf

    from sat_tf.training.data.decoding import PictureSource, RecordFiles, rows_of_files

    counts = [count_records(paths, cache_folder(cache_dir)) for paths in files]
    problems = [
        f"received {sum(of_each)} records to {verb} with, expected {number or 'at least one'}; "
        "write missing files again, or correct num_train or num_test."
        for verb, number, of_each in zip(
            ("train", "test"), (num_train, num_test), counts, strict=True
        )
        if not sum(of_each) or number not in (None, sum(of_each))
    ]
    if problems:
        raise ProblemsError(str(data_dir), problems)
    keys = {
        image_key: tf.io.FixedLenFeature((), tf.string),
        label_key: tf.io.FixedLenFeature((), tf.int64),
    }

    def parse(serialized: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        features = tf.io.parse_single_example(serialized, keys)
        return features[image_key], features[label_key] - first_label

    train, held_out = (
        RecordFiles(
            count=sum(of_each),
            rows=rows_of_files(paths, of_each),
            parse=parse,
            num_classes=num_classes,
            shuffle_buffer=shuffle_buffer,
        )
        for paths, of_each in zip(files, counts, strict=True)
    )
    return PictureSource(
        train=train,
        held_out=held_out,
        name=pathlib.Path(data_dir).resolve().name,
        image_size=image_size,
        num_classes=num_classes,
        class_names=None,
        deterministic=deterministic,
        preprocessing=preprocessing.AS_IN_IMAGENET,
    )


def find_files(data_dir: str | os.PathLike[str]) -> tuple[list[pathlib.Path], list[pathlib.Path]]:
    """The files of both splits, such as train-00000-of-01024, in the folder or in its subfolder."""
    root = pathlib.Path(data_dir).expanduser()
    train, *candidates = (
        sorted(
            path
            for place in (root, root / name)
            for path in place.glob(f"{name}-*")
            if path.is_file()
        )
        for name in (TRAIN, *HELD_OUT)
    )
    held_out = next(filter(None, candidates), [])
    if not (train and held_out):
        raise ValueError(
            f"data_dir: received {root}, which has {len(train)} files {TRAIN}-* and "
            f"{len(held_out)} files {'-*, '.join(HELD_OUT)}-*, expected TFRecord files of both, in "
            "it or in folders of these names."
        )
    return train, held_out


def count_records(files: list[pathlib.Path], cache: pathlib.Path) -> list[int]:
    """The number of records in each file; counted again only when a file has changed."""
    facts = [(str(path.resolve()), path.stat().st_size, path.stat().st_mtime_ns) for path in files]
    key = hashlib.sha256(json.dumps(facts).encode()).hexdigest()[:16]
    arrays = load_or_make(
        cache / f"records-{key}.npz",
        lambda: {"counts": np.array([_count(path) for path in files])},
        names=("counts",),
    )
    return [int(count) for count in arrays["counts"]]


def _count(path: pathlib.Path) -> int:
    """The number of records in a file, by skipping from length to length."""
    size = path.stat().st_size
    count = place = length = 0
    with path.open("rb") as file:
        while place < size and length <= MOST_BYTES:  # TensorFlow would make room for more
            file.seek(place)
            header = file.read(_HEADER)
            if len(header) < _HEADER:
                break
            length = int.from_bytes(header[:8], "little")
            place += _HEADER + length + _FOOTER
            count += 1
    if place != size or length > MOST_BYTES:
        raise ValueError(
            f"{path}: received a file that is truncated in record {max(count - 1, 0)} or holds no "
            "TFRecords; expected a whole, uncompressed TFRecord file; write it again."
        )
    return count


# -- sets of TensorFlow Datasets -------------------------------------------------------------------


if TYPE_CHECKING:
    from sat_tf.training.data.decoding import RecordFiles, Share

# The order matters, because the test split of ImageNet has no labels.
_HELD_OUT = ("validation", "test")
# A name, a configuration and a version, but no hub or project in front.
_OF_TFDS = re.compile(r"[^:]*(:[\d.*]+)?")

_Name = Annotated[str, Field(description="a name")]


@checked
def load_tfds(
    builder: _Name = "imagenet2012",
    *,
    data_dir: Folder | None = None,
    image_size: ImageSize = 224,
    train_split: _Name = "train",
    held_out_split: _Name | None = None,
    shuffle_buffer: BufferSize = 10_000,
    deterministic: bool = True,
) -> ImageSource:
    """A prepared image classification set of TensorFlow Datasets; nothing is downloaded.

    Pictures are prepared as in `load_folder_tree`, but EXIF orientation is ignored, as in the usual
    ImageNet pipelines. Each worker reads a share of its own.

    Args:
        builder: its name, with a configuration and a version if there are several:
            "imagenet2012", "imagenet_resized/64x64:0.1.0".
        data_dir: where it has been prepared; by default the environment variable TFDS_DATA_DIR, or
            ~/tensorflow_datasets.
        image_size: height and width of what training and measuring see, in pixels.
        train_split: what to train on, also a part such as "train[:90%]".
        held_out_split: what to measure with; by default validation, or else test.
        shuffle_buffer: as in `load_tfrecords`.
        deterministic: as in `load_folder_tree`.

    Raises:
        ValueError: an argument is out of its range, there is no such builder, it is not for
            image classification, or it has not been prepared.
        ImportError: tensorflow-datasets is not installed.
    """
    if not _OF_TFDS.fullmatch(builder):
        raise ValueError(
            f"builder: received {builder!r}, a set of others, whose code would be downloaded and "
            "run; expected one that comes with TensorFlow Datasets, or that you have built."
        )
    import tensorflow_datasets as tfds

    folder = None if data_dir is None else os.path.expanduser(os.fspath(data_dir))
    try:
        prepared = tfds.builder(builder, data_dir=folder)
    except tfds.core.registered.DatasetNotFoundError as error:
        lines = str(error).splitlines()  # most of them list all sets
        hint = next((line for line in lines if line.startswith("Did you mean")), "see its catalog")
        expected = "expected one of TensorFlow Datasets"
        raise ValueError(f"builder: received {builder!r}; {expected}; {hint}") from error
    except (AssertionError, ValueError, RuntimeError) as error:  # no such configuration or version
        raise ValueError(f"builder: received {builder!r}; {error}") from error
    keys = _image_and_label(prepared)
    splits = list(prepared.info.splits or {})
    # If nothing has been prepared, the usual name is taken: reading it reports what is missing.
    held_out = held_out_split or next(
        (name for name in _HELD_OUT if name in splits or not splits), None
    )
    if held_out is None:
        raise ValueError(
            f"held_out_split: received none, and {prepared.name!r} has the splits "
            f"{', '.join(splits)}; expected {' or '.join(_HELD_OUT)}; name another split, or a "
            "part of one such as held_out_split='train[90%:]' with train_split='train[:90%]'."
        )
    labels = prepared.info.features[keys[1]]
    # Imported here: naming a data set needs no TensorFlow.
    from sat_tf.training.data.decoding import PictureSource

    return PictureSource(
        train=_part(prepared, train_split, keys, shuffle_buffer),
        held_out=_part(prepared, held_out, keys, shuffle_buffer),
        name=prepared.name,
        image_size=image_size,
        num_classes=labels.num_classes,
        class_names=tuple(labels.names),
        deterministic=deterministic,
        preprocessing=preprocessing.AS_IN_IMAGENET,
    )


def _image_and_label(builder: Any) -> tuple[str, str]:
    """Returns the names of the features that hold the picture and the class."""
    import tensorflow_datasets as tfds

    features, supervised = builder.info.features, builder.info.supervised_keys
    items = dict(features.items()) if isinstance(features, tfds.features.FeaturesDict) else {}
    images = [name for name, item in items.items() if isinstance(item, tfds.features.Image)]
    labels = [name for name, item in items.items() if isinstance(item, tfds.features.ClassLabel)]
    if supervised and supervised[0] in images and supervised[-1] in labels:
        return supervised[0], supervised[-1]
    if len(images) != 1 or len(labels) != 1:
        received = ", ".join(f"{name} ({type(item).__name__})" for name, item in items.items())
        raise ValueError(
            f"builder: received {builder.name!r} with the features {received or features}; "
            "expected an image classification with one Image and one ClassLabel; choose another."
        )
    return images[0], labels[0]


def _part(builder: Any, split: str, keys: tuple[str, str], shuffle_buffer: int) -> "RecordFiles":
    import tensorflow as tf
    import tensorflow_datasets as tfds

    from sat_tf.training.data.decoding import FILES_AT_ONCE, RecordFiles

    image_key, label_key = keys
    decoders = tfds.decode.PartialDecoding(
        {image_key: True, label_key: True}, decoders={image_key: tfds.decode.SkipDecoding()}
    )

    def read(subsplit: Any, seed: Any) -> tf.data.Dataset:
        dataset = builder.as_dataset(
            split=subsplit,
            decoders=decoders,
            shuffle_files=seed is not None,
            read_config=tfds.ReadConfig(
                try_autocache=False,
                add_tfds_id=True,
                shuffle_seed=seed,
                shuffle_reshuffle_each_iteration=False,
                interleave_cycle_length=1 if seed is None else FILES_AT_ONCE,
                enable_ordering_guard=False,
            ),
        )
        return dataset.map(
            lambda row: (row["tfds_id"], row[image_key], tf.cast(row[label_key], tf.int64))
        )

    try:
        count = int(read(split, None).cardinality())
    except AssertionError as error:
        raise ValueError(
            f"tfds: received {builder.name!r}, which is not in {builder.data_dir}; expected a "
            f"prepared data set; run `tfds build {builder.name} "
            f"--data_dir={builder.data_dir_root}`, which says what to download by hand, or name "
            f"the folder that holds {builder.name}/ in data_dir."
        ) from error
    except ValueError as error:
        split_names = ", ".join(builder.info.splits or {})
        raise ValueError(
            f"split: received {split!r}; expected one of {split_names}, or a part of one; {error}"
        ) from error
    if count < 1:
        raise ValueError(
            f"split: received {split!r} of {builder.name!r} with no images; expected at least one."
        )

    @tf.autograph.experimental.do_not_convert
    def rows(share: "Share", seed: Any) -> tf.data.Dataset:
        even = math.gcd(*share)
        number, start = share.of // even, share.first // even
        if number == 1:
            return read(split, seed)
        # An empty part is an error of TensorFlow Datasets; each part of a sum would be cut alone.
        if number > count or "+" in split:
            start, end = share.bounds(count)
            return read(split, seed).skip(start).take(end - start)
        subsplits = tfds.even_splits(split, number)[start : start + share.size // even]
        return read(functools.reduce(operator.add, subsplits), seed)

    return RecordFiles(
        count=count,
        rows=rows,
        parse=lambda encoded, label: (encoded, label),
        num_classes=builder.info.features[label_key].num_classes,
        shuffle_buffer=shuffle_buffer,
    )
