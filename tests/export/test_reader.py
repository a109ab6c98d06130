import dataclasses

import numpy as np
import pytest

from sat_tf.export.flatbuffer import serialize
from sat_tf.export.pipeline import deployed_graph
from sat_tf.export.reader import read_graph
from sat_tf.export.simulator import simulate
from tests.export.zoo import ZOO, images_for

METADATA = {"version": "1"}


@dataclasses.dataclass(frozen=True)
class Written:
    graph: object
    content: bytes
    images: np.ndarray


@pytest.fixture(scope="module", params=ZOO)
def written(request) -> Written:
    specimen = ZOO[request.param]
    model = specimen.quantized()
    graph = deployed_graph(model, float_head=specimen.float_head)
    return Written(graph, serialize(graph, METADATA), images_for(model)[:4])


def test_a_file_computes_what_its_model_does(written):
    expected = simulate(written.graph, written.images)
    found = simulate(read_graph(written.content, "file"), written.images)
    assert list(found) == list(expected)
    for name, values in expected.items():
        np.testing.assert_array_equal(found[name], values)


def test_a_file_that_is_read_and_written_again_is_the_same(written):
    assert serialize(read_graph(written.content, "file"), METADATA) == written.content


def test_a_file_says_which_codes_its_tensors_have(written):
    graph = read_graph(written.content, "file")
    for name, tensor in written.graph.tensors.items():
        if tensor.codes is not None:
            found, codes = graph.codes(name), tensor.codes
            assert (found.lowest, found.highest) == (codes.lowest, codes.highest), name
