"""Image classification sets of TensorFlow Datasets, read in encoded form."""

import difflib
import os
import pathlib
from typing import TYPE_CHECKING, Annotated, Any

from pydantic import Field

from sat_tf.messages import ProblemsError
from sat_tf.training.data.cache import cache_folder
from sat_tf.training.data.record_folders import RECORD_FRAME, count_records
from sat_tf.training.data.source import BufferSize, Folder, ImageSize, ImageSource, Share
from sat_tf.validation import checked

if TYPE_CHECKING:
    from sat_tf.training.data.records import RecordFiles

# In this order, because the test split of ImageNet has no labels.
_HELD_OUT = ("validation", "test")
_MOST_NAMED = 5
_OTHER_SPLIT = "choose another split, or build the set again"
_IMAGENET_FILES = "ILSVRC2012_img_train.tar and ILSVRC2012_img_val.tar"


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
    max_corrupt: Share = 0.001,
    deterministic: bool = True,
) -> ImageSource:
    """A prepared image classification set of TensorFlow Datasets; nothing is downloaded.

    Pictures are prepared as in `load_folder_tree`, but EXIF orientation is ignored, as in the usual
    ImageNet pipelines. Each worker reads its own files.

    Args:
        builder: its name, with a configuration and a version if there are several:
            "imagenet2012", "imagenet_resized/64x64:0.1.0".
        data_dir: where it has been prepared; by default the environment variable TFDS_DATA_DIR, or
            ~/tensorflow_datasets.
        image_size: height and width of what training and measuring see, in pixels.
        train_split: what to train on, also a part such as "train[:90%]".
        held_out_split: what to measure with; by default validation, or else test.
        shuffle_buffer: size of the shuffle buffer, in encoded pictures; 10,000 of ImageNet take
            1.1 GB.
        max_corrupt: more corrupt pictures than this share of all (but 5 at least, unless it is 0)
            are an error.
        deterministic: whether batches hold the same pictures in the same order every time;
            otherwise the fastest files and pictures come first.

    Raises:
        ValueError: an argument is out of its range, there is no such builder, it is not for
            image classification, or it has not been prepared.
        ImportError: tensorflow-datasets is not installed.
    """
    made = _make(builder, data_dir)
    image_key, label_key = _image_and_label(made)
    held_out = held_out_split or _held_out(made)
    # Imported here: naming a data set needs no TensorFlow.
    from sat_tf.training.data.records import RecordSource

    return RecordSource(
        name=made.name,
        train=_part(made, train_split, image_key, label_key),
        held_out=_part(made, held_out, image_key, label_key),
        image_size=image_size,
        shuffle_buffer=shuffle_buffer,
        max_corrupt=max_corrupt,
        deterministic=deterministic,
        class_names=tuple(made.info.features[label_key].names),
    )


def _make(name: str, data_dir: str | os.PathLike[str] | None) -> Any:
    try:
        import tensorflow_datasets as tfds
    except ImportError as error:
        raise ImportError(
            "tfds: the module tensorflow_datasets is required, and not installed; run "
            "`pip install tensorflow-datasets`."
        ) from error
    try:
        folder = None if data_dir is None else os.path.expanduser(os.fspath(data_dir))
        return tfds.builder(name, data_dir=folder)
    except tfds.core.registered.DatasetNotFoundError as error:
        known = tfds.list_builders(with_community_datasets=False)
        nearest = difflib.get_close_matches(name.split("/")[0].split(":")[0], known, n=1)
        hint = f"did you mean {nearest[0]!r}?" if nearest else "see tfds.list_builders()."
        raise ValueError(
            f"builder: received {name!r}; expected one of TensorFlow Datasets {tfds.__version__}; "
            f"{hint}"
        ) from error
    except (AssertionError, ValueError, RuntimeError) as error:  # no such configuration or version
        raise ValueError(f"builder: received {name!r}; {error}") from error


def _image_and_label(builder: Any) -> tuple[str, str]:
    """Names of the features that hold the picture and the class."""
    import tensorflow_datasets as tfds

    features = builder.info.features
    items = dict(features.items()) if isinstance(features, tfds.features.FeaturesDict) else {}
    images = [name for name, kind in items.items() if isinstance(kind, tfds.features.Image)]
    labels = [name for name, kind in items.items() if isinstance(kind, tfds.features.ClassLabel)]
    supervised = builder.info.supervised_keys
    if supervised and len(supervised) == 2 and supervised[0] in images and supervised[1] in labels:
        return supervised
    if len(images) != 1 or len(labels) != 1:
        found = ", ".join(f"{name} ({type(kind).__name__})" for name, kind in items.items())
        raise ValueError(
            f"builder: received {builder.name!r} with the features {found or features}; expected "
            "an image classification with one Image and one ClassLabel; choose another."
        )
    return images[0], labels[0]


def _held_out(builder: Any) -> str:
    splits = list(builder.info.splits or {})
    # If nothing has been prepared, the usual name: reading it reports what is missing.
    name = next((name for name in _HELD_OUT if name in splits), None if splits else _HELD_OUT[0])
    if name is None:
        raise ValueError(
            f"held_out_split: received none, and {builder.name!r} has the splits "
            f"{', '.join(splits)}; expected {' or '.join(_HELD_OUT)}; name another split, or a "
            "part of one such as held_out_split='train[90%:]' with train_split='train[:90%]'."
        )
    return name


def _part(builder: Any, split: str, image_key: str, label_key: str) -> "RecordFiles":
    return _of_files(builder, split, image_key, label_key) or _of_dataset(
        builder, split, image_key, label_key
    )


def _of_files(builder: Any, split: str, image_key: str, label_key: str) -> "RecordFiles | None":
    """A split, or parts of several, read directly, so that files can be shuffled every epoch.

    None if it is not in TFRecord files on this machine, or there is no such split.

    Raises:
        ValueError: a file is missing, or truncated.
    """
    import tensorflow as tf
    import tensorflow_datasets as tfds

    from sat_tf.training.data.records import tfrecord_files

    if builder.info.file_format.value != "tfrecord" or not os.path.isdir(builder.data_dir):
        return None
    try:
        spans = builder.info.splits[split].file_instructions
    except (KeyError, ValueError, AssertionError):  # `_of_dataset` reports the problem
        return None
    if not spans:
        return None
    _expect_whole(builder, {str(span.filename): span.examples_in_shard for span in spans})
    features = builder.info.features

    def parse(serialized: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        found = features.deserialize_example(
            serialized, decoders={image_key: tfds.decode.SkipDecoding()}
        )
        return found[image_key], tf.cast(found[label_key], tf.int64)

    return tfrecord_files(
        [str(span.filename) for span in spans],
        [span.examples_in_shard - span.skip if span.take < 0 else span.take for span in spans],
        parse,
        begins=[span.skip for span in spans],
        num_classes=features[label_key].num_classes,
        fix_of_features=_OTHER_SPLIT,
        fix_of_labels=_OTHER_SPLIT,
    )


def _expect_whole(builder: Any, counts: dict[str, int]) -> None:
    """Raises an error if files are missing, or hold another number of records."""
    missing = [path for path in counts if not os.path.exists(path)]
    problems = [f"{path}: received no such file; expected it." for path in missing[:_MOST_NAMED]]
    if len(missing) > _MOST_NAMED:
        problems.append(f"and {len(missing) - _MOST_NAMED} more files are missing.")
    # Counting takes a read for each record; comparing sizes tells the same.
    if not problems and not _has_all_bytes(builder, set(counts)):
        found = count_records([pathlib.Path(path) for path in counts], cache_folder())
        problems = [
            f"{path}: received {number} records, expected {expected}."
            for number, (path, expected) in zip(found, counts.items(), strict=True)
            if number != expected
        ][:_MOST_NAMED]
    if problems:
        problems.append(f"Copy these files again, or delete {builder.data_dir} and build it again.")
        raise ProblemsError(builder.name, problems)


def _has_all_bytes(builder: Any, paths: set[str]) -> bool:
    """Whether the splits of these files have the sizes that they were written with."""
    for split in builder.info.splits.values():
        files = [str(path) for path in split.filepaths]
        if paths.isdisjoint(files):
            continue
        sizes = [os.path.getsize(path) if os.path.exists(path) else 0 for path in files]
        if sum(sizes) != split.num_bytes + RECORD_FRAME * split.num_examples:
            return False
    return True


def _of_dataset(builder: Any, split: str, image_key: str, label_key: str) -> "RecordFiles":
    """A split in another format than TFRecord, or on another machine, in the builder's order."""
    import tensorflow as tf
    import tensorflow_datasets as tfds

    from sat_tf.training.data.records import RecordFiles

    try:
        dataset = builder.as_dataset(
            split=split,
            decoders={image_key: tfds.decode.SkipDecoding()},
            shuffle_files=False,
            read_config=tfds.ReadConfig(try_autocache=False),
        )
    except AssertionError as error:
        raise ValueError(_not_prepared(builder)) from error
    except ValueError as error:
        known = ", ".join(builder.info.splits or {})
        raise ValueError(
            f"split: received {split!r}; expected one of {known}, or a part of one; {error}"
        ) from error
    count = int(dataset.cardinality())
    if count < 1:
        raise ValueError(
            f"split: received {split!r} of {builder.name!r} with no images; expected at least one."
        )
    pairs = dataset.map(lambda row: (row[image_key], tf.cast(row[label_key], tf.int64)))
    return RecordFiles(
        names=[f"{builder.name} {split}"],
        counts=[count],
        read=lambda _: pairs,
        parse=lambda encoded, label: (encoded, label),
        num_classes=builder.info.features[label_key].num_classes,
        fix_of_features=_OTHER_SPLIT,
        fix_of_labels=_OTHER_SPLIT,
        are_jpegs=_are_jpegs(builder, image_key),
    )


def _are_jpegs(builder: Any, image_key: str) -> bool:
    """Whether the pictures are stored as JPEGs; a set that does not say so may hold any kind."""
    # The only public attribute of `tfds.features.Image` that tells is its configuration.
    return bool(builder.info.features[image_key].to_json_content().encoding_format == "jpeg")


def _not_prepared(builder: Any) -> str:
    """The message for a set that has not been prepared."""
    root = pathlib.Path(str(builder.data_dir))
    # The folder of all sets is above those of the version, the configuration and the builder.
    root = next((place.parent for place in root.parents if place.name == builder.name), root)
    found = (
        f"tfds: received {builder.name!r}, which is not in {builder.data_dir}; expected a prepared "
        "data set"
    )
    command = f"tfds build {builder.name} --data_dir={root}"
    if builder.name == "imagenet2012":
        return (
            f"{found}; ImageNet has to be downloaded by hand:\n"
            f"  1. Get {_IMAGENET_FILES} from https://image-net.org/download-images (log in, "
            "ILSVRC2012).\n"
            f"  2. Put both, as they are, into {root / 'downloads' / 'manual'}\n"
            f"  3. Run `{command}` once; it takes hours and 300 GB.\n"
            "Or name the folder that holds imagenet2012/ in data_dir."
        )
    if builder.MANUAL_DOWNLOAD_INSTRUCTIONS:
        manual = " ".join(builder.MANUAL_DOWNLOAD_INSTRUCTIONS.split())
        return (
            f"{found}; it has to be downloaded by hand into {root / 'downloads' / 'manual'}: "
            f"{manual}\nThen run `{command}`."
        )
    return f"{found}; run `{command}`, or name the folder that holds {builder.name}/ in data_dir."
