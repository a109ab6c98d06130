import flatbuffers
import numpy as np
import pytest
from ai_edge_litert import schema_py_generated as tfl

from sat_tf.export.operations.graph_file import read_graph
from sat_tf.export.tflite.contents import _separated, names_of, read_contents, unpacked
from tests.export.damage import changed


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


def _shared(tensors, graphs, name=b"x", sizes=(1, 2)):
    """A file whose graphs are all the same one, and whose tensors are all the same one."""
    builder = flatbuffers.Builder(1024)
    text = builder.CreateString(name.decode())
    shape = builder.CreateNumpyVector(np.asarray(sizes, np.int32))
    tfl.TensorStart(builder)
    tfl.TensorAddName(builder, text)
    tfl.TensorAddShape(builder, shape)
    tensor = tfl.TensorEnd(builder)
    vector = _offsets(builder, [tensor] * tensors)
    tfl.SubGraphStart(builder)
    tfl.SubGraphAddTensors(builder, vector)
    graph = tfl.SubGraphEnd(builder)
    vector = _offsets(builder, [graph] * graphs)
    tfl.ModelStart(builder)
    tfl.ModelAddSubgraphs(builder, vector)
    builder.Finish(tfl.ModelEnd(builder), file_identifier=b"TFL3")
    return bytes(builder.Output())


def _offsets(builder, offsets):
    builder.StartVector(4, len(offsets), 4)
    for offset in offsets:
        builder.PrependUOffsetTRelative(offset)
    return builder.EndVector()


def _shared_entries(entries, signatures, name):
    """A file whose signatures are all the same one, and their inputs too."""
    builder = flatbuffers.Builder(1024)
    text = builder.CreateString(name)
    tfl.TensorMapStart(builder)
    tfl.TensorMapAddName(builder, text)
    entry = tfl.TensorMapEnd(builder)
    inputs = _offsets(builder, [entry] * entries)
    tfl.SignatureDefStart(builder)
    tfl.SignatureDefAddInputs(builder, inputs)
    signature = tfl.SignatureDefEnd(builder)
    vector = _offsets(builder, [signature] * signatures)
    tfl.ModelStart(builder)
    tfl.ModelAddSignatureDefs(builder, vector)
    builder.Finish(tfl.ModelEnd(builder), file_identifier=b"TFL3")
    return bytes(builder.Output())


@pytest.mark.parametrize("read", [read_graph, read_contents])
@pytest.mark.parametrize(
    "content",
    [
        _shared(280, 280),
        _shared(20_000, 20_000),
        _shared(5_000, 1, name=b"x" * 50_000),
        _shared(5_000, 1, sizes=[1] * 10_000),
        _shared_entries(20_000, 1, "x" * 80_000),
        _shared_entries(20_000, 20_000, "x"),
    ],
    ids=["2.5 KB", "160 KB", "names", "shapes", "entries", "signatures"],
)
def test_files_whose_tables_share_others_are_refused_at_once(content, read):
    # Unpacked whole, the first takes 17 seconds and the second takes minutes.
    with pytest.raises(
        ValueError, match=r"file: received a .* unpacks to more than 4 times as many"
    ):
        read(content, "file")


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


def test_tensors_of_absurd_sizes_are_refused(small_file):
    def grow(model, graph):
        graph.tensors[graph.inputs[0]].shape = np.array([1, 30_000, 30_000, 3], np.int32)

    with pytest.raises(ValueError, match=r"shape \(1, 30000, 30000, 3\), expected fewer values"):
        read_graph(changed(small_file.read_bytes(), grow), "file")
