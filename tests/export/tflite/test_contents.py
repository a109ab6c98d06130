import numpy as np
import pytest
from ai_edge_litert import schema_py_generated as tfl

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
