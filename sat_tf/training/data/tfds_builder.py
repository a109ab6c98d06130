"""Image classification sets of TensorFlow Datasets, read in encoded form."""

import functools
import math
import operator
import os
import re
from typing import TYPE_CHECKING, Annotated, Any

from pydantic import Field

from sat_tf.exact.tflite.preprocessing import AS_IN_IMAGENET
from sat_tf.messages.validation import checked
from sat_tf.training.data.source import BufferSize, Folder, ImageSize, ImageSource

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
        deterministic: as in `load_tfrecords`.

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
        preprocessing=AS_IN_IMAGENET,
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
