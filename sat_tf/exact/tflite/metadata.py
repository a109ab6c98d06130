"""TFLite Metadata: a file's description for Android's libraries and for people.

It has two parts, as TensorFlow Lite Support and MediaPipe read them: a flatbuffer of the public
schema `metadata_schema.fbs` in an entry of the file, and a zip archive after the file's own
flatbuffer, so that `unzip -l model.tflite` lists its contents. The archive holds the labels as a
text file, and the preprocessing, for which the schema only has fields of the pixels' range.
"""

import collections
import dataclasses
import io
import zipfile
from collections.abc import Iterable, Mapping, Set
from typing import Any

import flatbuffers
import numpy as np

from sat_tf.exact.tflite.input_range import can_be_pictures
from sat_tf.exact.tflite.preprocessing import Preprocessing
from sat_tf.exact.tflite.tensors import Image, Tensor
from sat_tf.files import NO_TIME, is_archive, opened_archive, read_member
from sat_tf.messages import first_ones

# The names that TFLite's libraries look for.
METADATA_NAME = "TFLITE_METADATA"
LABELS_NAME = "labels.txt"
PREPROCESSING_NAME = "preprocessing.json"

_FILE_IDENTIFIER = b"M001"
# No field that is written here needs a later version of the schema.
_PARSER_VERSION = "1.0.0"
_TENSOR_AXIS_LABELS = 2
_COLOR_SPACES = {3: 1, 1: 2}  # channels: RGB, grayscale
_IMAGE_PROPERTIES = 2  # number in the union ContentProperties
_NORMALIZATION_OPTIONS = 1  # number in the union ProcessUnitOptions
# Room for a million labels of 16 letters.
_MOST_TEXT_BYTES = 2**24


@dataclasses.dataclass(frozen=True)
class Metadata:
    """The user's description of a model."""

    description: str | None = None  # The model's purpose; None where not given.
    labels: tuple[str, ...] | None = None  # Names of classes, in order; None where unknown.
    # The way from a picture to the input; None where it is unknown.
    preprocessing: Preprocessing | None = None

    def __bool__(self) -> bool:
        return self != Metadata()

    @property
    def files(self) -> dict[str, str]:
        """The texts of the archive, by name."""
        files = {}
        if self.labels is not None:
            files[LABELS_NAME] = label_text(self.labels)
        if self.preprocessing is not None:
            files[PREPROCESSING_NAME] = self.preprocessing.to_json()
        return files


def label_text(labels: Iterable[str]) -> str:
    """Returns the text of a file of labels: the name of a class on each line."""
    return "".join(f"{label}\n" for label in labels)


def lines_of(text: str) -> list[str]:
    """Returns the names in the text of a file of labels, whatever characters they have."""
    return text.replace("\r\n", "\n").removesuffix("\n").split("\n") if text else []


def checked_metadata(
    description: Any, labels: Any, preprocessing: Any = None
) -> tuple[Metadata, list[str]]:
    """Returns the user's words as `Metadata`, and the problems with them."""
    problems = []
    if preprocessing is not None and not isinstance(preprocessing, Preprocessing):
        problems.append(
            f"preprocessing: received {preprocessing!r}, expected a "
            "sat_tf.exact.tflite.preprocessing.Preprocessing; leave it out if it is unknown."
        )
        preprocessing = None
    if description is not None and not _is_text(description):
        problems.append(
            f"description: received {description!r}, expected a text; leave it out if there is "
            "nothing to say."
        )
    # A set has no order, so its names do not say which class is which.
    is_list = isinstance(labels, Iterable) and not isinstance(labels, str | bytes | Set)
    if labels is not None and not is_list:
        problems.append(
            f"labels: received {type(labels).__name__}, expected a list of class names; read a "
            "file of labels with open(path).read().splitlines()."
        )
    if labels is None or not is_list:
        return Metadata(description, None, preprocessing), problems
    labels = tuple(labels)
    if not labels:
        problems.append(
            "labels: received none, expected one a class; leave them out if there are none."
        )
    odd = [
        f"{label!r} for class {i}"
        for i, label in enumerate(labels)
        if not _is_text(label) or label.splitlines() != [label]
    ]
    if odd:
        problems.append(
            f"labels: received {first_ones(odd)}, expected texts of one line, none empty."
        )
    texts = [label for label in labels if isinstance(label, str)]
    if twice := sorted(text for text, count in collections.Counter(texts).items() if count > 1):
        shown = first_ones(map(repr, twice))
        problems.append(f"labels: received {shown} more than once, expected each name once.")
    return Metadata(description, labels, preprocessing), problems


def _is_text(value: Any) -> bool:
    """Returns whether a value is a text, not blank, that UTF-8 can hold."""
    is_text = isinstance(value, str) and bool(value.strip())
    return is_text and value.encode("utf-8", "ignore").decode() == value


def misfits(metadata: Metadata, image: Image, shape: tuple[int, ...]) -> list[str]:
    """Lists why labels and preprocessing do not fit an input, and an output of this shape."""
    problems = []
    labels = metadata.labels
    if labels is not None and (len(labels),) != shape:
        problems.append(
            f"labels: received {len(labels)} for an output of shape {shape}, expected one for each "
            "class, in order, of a single axis."
        )
    is_picture = image.type == "uint8" and not image.is_kept and can_be_pictures(image.shape)
    if metadata.preprocessing is not None and not is_picture:
        problems.append(
            f"preprocessing: received some for an input of {image.type} {image.shape}, expected "
            "uint8 pictures of 1 or 3 channels; leave it out."
        )
    return problems


def encode(metadata: Metadata, name: str, image: Image, output: Tensor) -> bytes:
    """Returns the flatbuffer of the file's entry `METADATA_NAME`, for a model called `name`."""
    builder = flatbuffers.Builder(1024)
    labels: list[int] = []
    if metadata.labels is not None:
        file_name = builder.CreateString(LABELS_NAME)
        about = builder.CreateString("Names of the classes, one a line.")
        labels = [_table(builder, {0: file_name, 1: about}, numbers={2: _TENSOR_AXIS_LABELS})]
    inputs = _vector(builder, [_image(builder, image, metadata.preprocessing)])
    of_output = {0: builder.CreateString(output.name)}
    if (codes := output.codes) is not None:
        of_output[1] = builder.CreateString(
            f"{codes.dtype} codes: real value = {float(codes.scale):.9g} x (code - "
            f"{codes.zero_point})."
        )
    if labels:
        of_output[6] = _vector(builder, labels)
    outputs = _vector(builder, [_table(builder, of_output)])
    subgraph = _table(builder, {2: inputs, 3: outputs})
    fields = {0: builder.CreateString(name), 3: _vector(builder, [subgraph])}
    if metadata.description is not None:
        fields[1] = builder.CreateString(metadata.description)
    if metadata.preprocessing is not None:
        file_name = builder.CreateString(PREPROCESSING_NAME)
        about = builder.CreateString("How a picture becomes the input, as JSON.")
        fields[6] = _vector(builder, [_table(builder, {0: file_name, 1: about})])
    fields[7] = builder.CreateString(_PARSER_VERSION)
    builder.Finish(_table(builder, fields), file_identifier=_FILE_IDENTIFIER)
    return bytes(builder.Output())


def append_archive(content: bytes, files: Mapping[str, str]) -> bytes:
    """Appends texts to a file, stored uncompressed: Android maps them into memory."""
    if not files:
        return content
    stream = io.BytesIO(content)
    with zipfile.ZipFile(stream, "a", zipfile.ZIP_STORED) as archive:
        for name, text in files.items():
            archive.writestr(zipfile.ZipInfo(name, NO_TIME), text)
    return stream.getvalue()


def read_metadata(content: bytes, name: str) -> Metadata:
    """Reads the labels and the preprocessing of a file, without its description."""
    stream = io.BytesIO(content)
    if not is_archive(stream):
        return Metadata()
    try:
        with opened_archive(stream) as archive:
            members = (
                read_member(archive, member, _MOST_TEXT_BYTES)
                for member in (LABELS_NAME, PREPROCESSING_NAME)
            )
            labels, json_text = (None if member is None else member.decode() for member in members)
    except ValueError as error:
        raise ValueError(
            f"{name}: received a file whose labels cannot be read ({error}), expected one that "
            "sat_tf.export_tflite wrote; export the model again."
        ) from error
    return Metadata(
        labels=None if labels is None else tuple(lines_of(labels)),
        preprocessing=None if json_text is None else Preprocessing.from_json(json_text),
    )


def _image(builder: Any, image: Image, preprocessing: Preprocessing | None) -> int:
    """Adds the input's TensorMetadata: pixels from 0 to 255, used as they are."""
    name = builder.CreateString(image.name)
    if image.type != "uint8" or image.is_kept:
        text = "Values as the model was trained on"
        about = builder.CreateString(text if image.is_kept else f"{text}; codes of them if int8.")
        return _table(builder, {0: name, 1: about})
    subject = "The image, pixels" if can_be_pictures(image.shape) else "Integers"
    words = f"{subject} from 0 to 255 as they are."
    if preprocessing is not None:
        words = preprocessing.describe((image.shape[0], image.shape[1]))
    about = builder.CreateString(words)
    stats, normalization = (
        _table(builder, {place: _numbers(builder, value) for place, value in enumerate(values)})
        for values in ((255.0, 0.0), (0.0, 1.0))
    )
    unit = _table(builder, {1: normalization}, numbers={0: _NORMALIZATION_OPTIONS})
    fields = {0: name, 1: about, 4: _vector(builder, [unit]), 5: stats}
    if can_be_pictures(image.shape):
        properties = _table(builder, {}, numbers={0: _COLOR_SPACES[image.shape[-1]]})
        fields[3] = _table(builder, {1: properties}, numbers={0: _IMAGE_PROPERTIES})
    return _table(builder, fields)


def _table(builder: Any, offsets: dict[int, int], numbers: dict[int, int] | None = None) -> int:
    """Adds a table of offsets and bytes of fields, by the fields' places in the schema."""
    numbers = numbers or {}
    builder.StartObject(max([*offsets, *numbers], default=-1) + 1)
    for place, offset in offsets.items():
        builder.PrependUOffsetTRelativeSlot(place, offset, 0)
    for place, number in numbers.items():
        builder.PrependInt8Slot(place, number, 0)
    return int(builder.EndObject())


def _vector(builder: Any, offsets: list[int]) -> int:
    builder.StartVector(4, len(offsets), 4)
    for offset in reversed(offsets):
        builder.PrependUOffsetTRelative(offset)
    return int(builder.EndVector())


def _numbers(builder: Any, value: float) -> int:
    return int(builder.CreateNumpyVector(np.array([value], np.float32)))
