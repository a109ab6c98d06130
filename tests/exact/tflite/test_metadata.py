import dataclasses
import importlib.util
import io
import json
import os
import subprocess
import sys
import zipfile

import numpy as np
import pytest
import tf_keras as keras
from ai_edge_litert import schema_py_generated as tfl
from flatbuffers import number_types
from flatbuffers.table import Table

import sat_tf
from sat_tf.exact.litert.runtime import Runtime
from sat_tf.exact.tflite import metadata as written
from sat_tf.exact.tflite.contents import _separated, read_contents, unpacked
from sat_tf.exact.tflite.metadata import Metadata, encode, misfits, read_metadata
from sat_tf.exact.tflite.preprocessing import RESIZED_AND_CROPPED
from sat_tf.export.lowering.outputs import with_output_type
from sat_tf.export.lowering.pipeline import deployed_graph
from sat_tf.graph.network import Network
from tests.export.damage import changed
from tests.export.zoo import images_for, quantized

LABELS = ["zero", "one", "two and a half", "träffar"]
DESCRIPTION = "Tells four things apart."


def _labels(content: bytes) -> list[str] | None:
    labels = read_metadata(content, "model.tflite").labels
    return None if labels is None else list(labels)


@pytest.fixture(scope="module")
def model() -> keras.Model:
    return quantized("bottleneck")


@pytest.fixture(scope="module")
def content(model, tmp_path_factory) -> bytes:
    path = tmp_path_factory.mktemp("metadata") / "model.tflite"
    sat_tf.export_tflite(model, path, labels=LABELS, description=DESCRIPTION)
    return path.read_bytes()


class Reader:
    """A table of a flatbuffer, read by the places of its fields in the schema."""

    def __init__(self, data: bytes, position: int | None = None) -> None:
        data = bytearray(data)
        root = Table(data, 0).Get(number_types.UOffsetTFlags, 0)
        self.table = Table(data, root if position is None else position)

    def _field(self, place: int) -> int:
        return self.table.Offset(4 + 2 * place) + self.table.Pos

    def has(self, place: int) -> bool:
        return bool(self.table.Offset(4 + 2 * place))

    def text(self, place: int) -> str:
        return self.table.String(self._field(place)).decode()

    def number(self, place: int) -> int:
        return self.table.Get(number_types.Int8Flags, self._field(place))

    def child(self, place: int) -> "Reader":
        return Reader(self.table.Bytes, self.table.Indirect(self._field(place)))

    def children(self, place: int) -> list["Reader"]:
        offset = self.table.Offset(4 + 2 * place)
        starts = (self.table.Vector(offset) + 4 * i for i in range(self.table.VectorLen(offset)))
        return [Reader(self.table.Bytes, self.table.Indirect(start)) for start in starts]

    def floats(self, place: int) -> list[float]:
        offset = self.table.Offset(4 + 2 * place)
        return self.table.GetVectorAsNumpy(number_types.Float32Flags, offset).tolist()


def _metadata(content: bytes) -> bytes:
    model = tfl.ModelT.InitFromPackedBuf(content, 0)
    (entry,) = [entry for entry in model.metadata if entry.name == b"TFLITE_METADATA"]
    return bytes(model.buffers[entry.buffer].data)


def test_the_metadata_follow_the_public_schema(model, content):
    metadata = _metadata(content)
    assert metadata[4:8] == b"M001"
    root = Reader(metadata)
    assert (root.text(0), root.text(1), root.text(7)) == (model.name, DESCRIPTION, "1.0.0")
    (subgraph,) = root.children(3)
    (image,), (output,) = subgraph.children(2), subgraph.children(3)
    properties = image.child(3)
    assert properties.number(0) == 2  # ImageProperties
    assert properties.child(1).number(0) == 1  # RGB
    (unit,) = image.children(4)
    assert unit.number(0) == 1  # NormalizationOptions
    normalization, stats = unit.child(1), image.child(5)
    assert (normalization.floats(0), normalization.floats(1)) == ([0.0], [1.0])
    assert (stats.floats(0), stats.floats(1)) == ([255.0], [0.0])
    (labels,) = output.children(6)
    assert labels.text(0) == "labels.txt"
    assert labels.number(2) == 2  # TENSOR_AXIS_LABELS


def test_the_labels_are_a_text_file_behind_the_model(content):
    with zipfile.ZipFile(io.BytesIO(content)) as archive:
        (entry,) = archive.infolist()
        assert entry.filename == "labels.txt"
        # Android maps it into memory as it is.
        assert entry.compress_type == zipfile.ZIP_STORED
        assert archive.read(entry).decode() == "zero\none\ntwo and a half\nträffar\n"
    assert _labels(content) == LABELS


def test_lines_of_a_file_of_labels_end_at_line_breaks_alone():
    assert written.lines_of("cat\r\na\x0cb\nc\u2028d\n") == ["cat", "a\x0cb", "c\u2028d"]
    assert written.lines_of("cat") == ["cat"]
    assert written.lines_of("") == []
    labels = Metadata(labels=("a",)).files
    assert _labels(written.append_archive(b"any file", labels)) == ["a"]


def test_the_same_words_give_the_same_file(model, content, path):
    sat_tf.export_tflite(model, path, labels=iter(LABELS), description=DESCRIPTION)
    assert path.read_bytes() == content


def test_words_change_nothing_that_is_computed(model, content, tmp_path):
    plain, named = tmp_path / "plain.tflite", tmp_path / "named.tflite"
    sat_tf.export_tflite(model, plain)
    named.write_bytes(content)
    images = images_for(model, 3)
    outputs = (
        Runtime(path.read_bytes(), keep_tensors=False).run(images) for path in (plain, named)
    )
    np.testing.assert_array_equal(*outputs)
    found = sat_tf.verify_tflite(model, named, images)
    assert (found.codes_differing, found.bytes) == (0, len(content))


@pytest.mark.parametrize("words", [{}, {"description": DESCRIPTION}])
def test_a_description_alone_needs_no_archive(model, path, words):
    sat_tf.export_tflite(model, path, **words)
    assert (b"TFLITE_METADATA" in path.read_bytes()) == bool(words)
    assert _labels(path.read_bytes()) is None


def test_preprocessing_stands_in_words_and_in_a_file_beside_the_labels(model, path):
    sat_tf.export_tflite(model, path, labels=LABELS, preprocessing=RESIZED_AND_CROPPED)
    content = path.read_bytes()
    assert read_metadata(content, "model.tflite") == Metadata(
        labels=tuple(LABELS), preprocessing=RESIZED_AND_CROPPED
    )
    with zipfile.ZipFile(io.BytesIO(content)) as archive:
        assert archive.namelist() == ["labels.txt", "preprocessing.json"]
    root = Reader(_metadata(content))
    (file,) = root.children(6)
    assert file.text(0) == "preprocessing.json"
    (subgraph,) = root.children(3)
    (image,) = subgraph.children(2)
    assert image.text(1) == RESIZED_AND_CROPPED.describe(model.input_shape[1:3])
    # The file has the other entries that libraries read all the same.
    assert image.children(4)[0].child(1).floats(1) == [1.0]
    assert subgraph.children(3)[0].children(6)[0].text(0) == "labels.txt"


def test_preprocessing_is_that_of_pictures(model, tmp_path):
    (image,) = deployed_graph(Network(model)).images
    said = Metadata(preprocessing=RESIZED_AND_CROPPED)
    assert misfits(said, image, (10,)) == []
    for changes in ({"shape": (8,)}, {"shape": (8, 8, 4)}, {"type": "float32"}):
        (problem,) = misfits(said, dataclasses.replace(image, **changes), (10,))
        assert "expected uint8 pictures of 1 or 3 channels" in problem


def test_only_pictures_have_a_color_space_and_codes_are_described_by_what_they_are_worth(model):
    graph = deployed_graph(Network(model))
    for shape, space in (((8, 8, 1), 2), ((8, 8, 3), 1), ((8, 8, 4), None), ((8,), None)):
        changed = dataclasses.replace(graph.images[0], shape=shape)
        content = encode(Metadata("Text."), graph.name, changed, graph.tensors[graph.output])
        (subgraph,) = Reader(content).children(3)
        (image,) = subgraph.children(2)
        assert image.has(3) == (space is not None)
        if space:
            assert image.child(3).child(1).number(0) == space
    graph = with_output_type(graph, "uint8")
    codes = graph.codes(graph.output)
    content = encode(Metadata("Text."), graph.name, graph.images[0], graph.tensors[graph.output])
    (subgraph,) = Reader(content).children(3)
    (output,) = subgraph.children(3)
    scale = f"{float(codes.scale):.9g}"
    assert output.text(1) == f"uint8 codes: real value = {scale} x (code - {codes.zero_point})."


def test_integers_that_share_a_byte_are_separated():
    # The first integer of a byte is in its lowest bits.
    for data, bits, expected in ((b"\x21\x8f", 4, [1, 2, -1, -8]), (b"\xe4", 2, [0, 1, -2, -1])):
        found = _separated(data, bits, (4,))
        assert (found.dtype, found.tolist()) == (np.int8, expected)
    assert _separated(b"\x21", 4, (1,)).tolist() == [1]


def test_what_is_not_read_of_a_tensor_is_not_unpacked(small_file, monkeypatch):
    def add(model, graph):
        for tensor in graph.tensors:
            tensor.sparsity = tfl.SparsityParametersT(dimMetadata=[tfl.DimensionMetadataT()] * 2)
            tensor.variantTensors = [tfl.VariantSubTypeT()] * 2

    content = changed(small_file.read_bytes(), add)
    # A quarter of a million entries that are one take half a minute to unpack.
    for kind in (tfl.SparsityParametersT, tfl.VariantSubTypeT):
        monkeypatch.setattr(kind, "InitFromObj", None)
    with unpacked(content, "file") as model:
        tensors = model.subgraphs[0].tensors
    assert tensors
    assert not any(tensor.sparsity or tensor.variantTensors for tensor in tensors)


def test_tensors_may_share_a_buffer(small_file):
    def share(model, graph):
        for tensor in graph.tensors[1:]:
            tensor.buffer = graph.tensors[0].buffer

    found = read_contents(changed(small_file.read_bytes(), share), "file")
    assert found.operators


# -- MediaPipe's image classifier reads what a file says of itself, and gives LiteRT's scores -----

# MediaPipe and TensorFlow want different releases of what they share: it runs in a Python of its
# own, that the environment variable names, with `pip install mediapipe` in it.
VARIABLE = "SAT_TF_MEDIAPIPE_PYTHON"
PYTHON = os.environ.get(VARIABLE) or (
    sys.executable if importlib.util.find_spec("mediapipe") else None
)
_CLASSIFY = """
import json, sys
import mediapipe
import numpy as np
from mediapipe.tasks.python import BaseOptions, vision

path, images = sys.argv[1:]
options = vision.ImageClassifierOptions(base_options=BaseOptions(model_asset_path=path))
with vision.ImageClassifier.create_from_options(options) as classifier:
    for pixels in np.load(images):
        picture = mediapipe.Image(image_format=mediapipe.ImageFormat.SRGB, data=pixels)
        (found,) = classifier.classify(picture).classifications
        print(json.dumps([[c.index, c.category_name, c.score] for c in found.categories]))
"""


@pytest.mark.thorough
@pytest.mark.skipif(PYTHON is None, reason=f"no mediapipe here: set {VARIABLE} to a Python with it")
@pytest.mark.parametrize(
    "settings",
    [
        {"labels": LABELS},
        {"labels": LABELS, "softmax": True, "description": "Numbers."},
        {"labels": LABELS, "resizable": True},
        {},
    ],
    ids=["labels", "softmax", "resizable", "no words"],
)
def test_mediapipe_gives_the_class_and_the_score_of_litert(model, settings, tmp_path):
    path, images = tmp_path / "model.tflite", images_for(model, 4)
    sat_tf.export_tflite(model, path, **settings)
    np.save(tmp_path / "images.npy", images)
    done = subprocess.run(
        [str(PYTHON), "-c", _CLASSIFY, str(path), str(tmp_path / "images.npy")],
        # Packages of this process are none of that Python's.
        env={name: value for name, value in os.environ.items() if name != "PYTHONPATH"},
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    expected = Runtime(path.read_bytes(), keep_tensors=False).run(images)
    lines = done.stdout.splitlines()
    assert len(lines) == len(images)
    for line, scores in zip(lines, expected, strict=True):
        found = json.loads(line)
        assert found[0][0] == np.argmax(scores)
        for index, name, score in found:
            assert name == (LABELS[index] if "labels" in settings else None)
            assert np.float32(score) == scores[index]
        assert sorted(index for index, _, _ in found) == list(range(len(scores)))
