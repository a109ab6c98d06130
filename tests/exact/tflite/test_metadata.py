import dataclasses
import io
import zipfile

import numpy as np
import pytest
import tf_keras as keras
from ai_edge_litert import schema_py_generated as tfl
from flatbuffers import number_types
from flatbuffers.table import Table

import sat_tf
from sat_tf.exact.litert.runtime import Runtime
from sat_tf.exact.tflite.contents import _separated, names_of, read_contents, unpacked
from sat_tf.exact.tflite.metadata import (
    Metadata,
    append_archive,
    encode,
    lines_of,
    misfits,
    read_metadata,
)
from sat_tf.exact.tflite.preprocessing import RESIZED_AND_CROPPED
from sat_tf.export.lowering.packing import with_output_type
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

    def __init__(self, data: bytes, position: int) -> None:
        self.table = Table(bytearray(data), position)

    @classmethod
    def root(cls, data: bytes) -> "Reader":
        return cls(data, Table(bytearray(data), 0).Get(number_types.UOffsetTFlags, 0))

    def _field(self, place: int) -> int:
        return self.table.Offset(4 + 2 * place) + self.table.Pos

    def has(self, place: int) -> bool:
        return bool(self.table.Offset(4 + 2 * place))

    def text(self, place: int) -> str:
        return self.table.String(self._field(place)).decode()

    def number(self, place: int) -> int:
        return self.table.Get(number_types.Int8Flags, self._field(place))

    def child(self, place: int) -> "Reader":
        return Reader(bytes(self.table.Bytes), self.table.Indirect(self._field(place)))

    def children(self, place: int) -> list["Reader"]:
        offset = self.table.Offset(4 + 2 * place)
        start = self.table.Vector(offset)
        return [
            Reader(bytes(self.table.Bytes), self.table.Indirect(start + 4 * index))
            for index in range(self.table.VectorLen(offset))
        ]

    def floats(self, place: int) -> list[float]:
        offset = self.table.Offset(4 + 2 * place)
        return self.table.GetVectorAsNumpy(number_types.Float32Flags, offset).tolist()


@pytest.fixture(scope="module")
def metadata(content) -> bytes:
    return _metadata(content)


def _metadata(content: bytes) -> bytes:
    model = tfl.ModelT.InitFromPackedBuf(content, 0)
    (entry,) = [entry for entry in model.metadata if entry.name == b"TFLITE_METADATA"]
    return bytes(model.buffers[entry.buffer].data)


def test_the_metadata_follow_the_public_schema(model, metadata):
    assert metadata[4:8] == b"M001"
    root = Reader.root(metadata)
    assert (root.text(0), root.text(1), root.text(7)) == (model.name, DESCRIPTION, "1.0.0")
    (subgraph,) = root.children(3)
    (image,), (output,) = subgraph.children(2), subgraph.children(3)
    content = image.child(3)
    assert content.number(0) == 2  # ImageProperties
    assert content.child(1).number(0) == 1  # RGB
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
    assert lines_of("cat\r\na\x0cb\nc\u2028d\n") == ["cat", "a\x0cb", "c\u2028d"]
    assert lines_of("cat") == ["cat"]
    assert lines_of("") == []


def test_the_same_words_give_the_same_file(model, content, path):
    sat_tf.export_tflite(model, path, labels=iter(LABELS), description=DESCRIPTION)
    assert path.read_bytes() == content


def test_words_change_nothing_that_is_computed(model, content, tmp_path):
    plain, named = tmp_path / "plain.tflite", tmp_path / "named.tflite"
    sat_tf.export_tflite(model, plain)
    named.write_bytes(content)
    images = images_for(model, 3)
    outputs = [
        Runtime(path.read_bytes(), keep_tensors=False).run(images) for path in (plain, named)
    ]
    np.testing.assert_array_equal(*outputs)
    found = sat_tf.verify_tflite(model, named, images)
    assert found.codes_differing == 0
    assert found.bytes == len(content)


def test_a_file_without_words_has_neither_metadata_nor_archive(model, path):
    sat_tf.export_tflite(model, path)
    assert _labels(path.read_bytes()) is None
    assert b"TFLITE_METADATA" not in path.read_bytes()


def test_a_description_alone_needs_no_archive(model, path):
    sat_tf.export_tflite(model, path, description=DESCRIPTION)
    assert b"TFLITE_METADATA" in path.read_bytes()
    assert _labels(path.read_bytes()) is None


def test_preprocessing_stands_in_words_and_in_a_file_beside_the_labels(model, path):
    sat_tf.export_tflite(model, path, labels=LABELS, preprocessing=RESIZED_AND_CROPPED)
    content = path.read_bytes()
    assert read_metadata(content, "model.tflite") == Metadata(
        labels=tuple(LABELS), preprocessing=RESIZED_AND_CROPPED
    )
    with zipfile.ZipFile(io.BytesIO(content)) as archive:
        assert archive.namelist() == ["labels.txt", "preprocessing.json"]
    root = Reader.root(_metadata(content))
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


def test_only_pictures_have_a_color_space(model):
    graph = deployed_graph(Network(model))
    for shape, space in (((8, 8, 1), 2), ((8, 8, 3), 1), ((8, 8, 4), None), ((8,), None)):
        changed = dataclasses.replace(graph.images[0], shape=shape)
        content = encode(Metadata("Text."), graph.name, changed, graph.tensors[graph.output])
        (subgraph,) = Reader.root(content).children(3)
        (image,) = subgraph.children(2)
        assert image.has(3) == (space is not None)
        if space:
            assert image.child(3).child(1).number(0) == space


def test_codes_of_an_output_are_described_by_what_they_are_worth(model):
    graph = with_output_type(deployed_graph(Network(model)), "uint8")
    codes = graph.codes(graph.output)
    content = encode(Metadata("Text."), graph.name, graph.images[0], graph.tensors[graph.output])
    (subgraph,) = Reader.root(content).children(3)
    (output,) = subgraph.children(3)
    scale = f"{float(codes.scale):.9g}"
    assert output.text(1) == f"uint8 codes: real value = {scale} x (code - {codes.zero_point})."


def test_damaged_labels_are_named(content):
    position = content.rindex(b"zero\none")
    damaged = content[:position] + b"Z" + content[position + 1 :]
    with pytest.raises(ValueError, match=r"labels.txt is damaged"):
        _labels(damaged)
    assert _labels(append_archive(b"any file", Metadata(labels=("a",)).files)) == ["a"]


@pytest.mark.parametrize(
    ("data", "bits", "expected"),
    [
        # The first integer of a byte is in its lowest bits.
        (b"\x21\x8f", 4, [1, 2, -1, -8]),
        (b"\x21", 4, [1]),
        (b"\xe4", 2, [0, 1, -2, -1]),
    ],
)
def test_integers_that_share_a_byte_are_separated(data, bits, expected):
    found = _separated(data, bits, (len(expected),))
    assert found.dtype == np.int8
    assert found.tolist() == expected


def test_whatever_a_damaged_file_raises_is_one_error(small_file):
    with (
        pytest.raises(ValueError, match=r"file: received a file that is not a TFLite flatbuffer"),
        unpacked(small_file.read_bytes(), "file") as model,
    ):
        model.subgraphs[99]


def test_enumerations_of_the_schema_have_names():
    class Kind:
        NONE = 0
        SOME = 1

    assert names_of(Kind) == {0: "NONE", 1: "SOME"}


@pytest.mark.parametrize("attribute", ["sparsity", "variantTensors"])
def test_what_is_not_read_of_a_tensor_is_not_unpacked(small_file, attribute, monkeypatch):
    def add(model, graph):
        for tensor in graph.tensors:
            tensor.sparsity = tfl.SparsityParametersT(dimMetadata=[tfl.DimensionMetadataT()] * 2)
            tensor.variantTensors = [tfl.VariantSubTypeT()] * 2

    content = changed(small_file.read_bytes(), add)
    # A quarter of a million entries that are one take half a minute to unpack.
    for kind in (tfl.SparsityParametersT, tfl.VariantSubTypeT):
        monkeypatch.setattr(kind, "InitFromObj", None)
    with unpacked(content, "file") as model:
        found = [getattr(tensor, attribute) for tensor in model.subgraphs[0].tensors]
    assert found
    assert not any(found)


def test_tensors_may_share_a_buffer(small_file):
    def share(model, graph):
        for tensor in graph.tensors[1:]:
            tensor.buffer = graph.tensors[0].buffer

    found = read_contents(changed(small_file.read_bytes(), share), "file")
    assert found.operators
