import dataclasses

import numpy as np
import pytest

import sat_tf
from sat_tf.export import export as file
from sat_tf.export.litert.runtime import check_loading
from sat_tf.export.lowering.pipeline import deployed_graph
from sat_tf.export.operations.graph import Graph
from sat_tf.export.operations.graph_file import serialize
from sat_tf.export.operations.pointwise import Pointwise, WithConstant
from sat_tf.export.tflite.tensors import Tensor
from tests.export.zoo import quantized


@pytest.fixture(scope="module")
def model():
    return quantized("bottleneck")


@pytest.fixture(scope="module")
def graph(model) -> Graph:
    return deployed_graph(model)


def _with_nan_output(graph: Graph) -> Graph:
    shape = graph.tensors[graph.output].shape
    product = WithConstant(
        (graph.output,), "nan", kind=Pointwise.PRODUCT, constant=np.float32([np.nan])
    )
    return dataclasses.replace(
        graph,
        tensors={**graph.tensors, "nan": Tensor("nan", shape, None)},
        operations=(*graph.operations, product),
        output="nan",
    )


def test_a_file_that_runs_everywhere_passes(graph):
    check_loading(serialize(graph, {}), graph.images[0].shape)


def test_a_file_that_does_not_load_names_the_runtime(graph):
    with pytest.raises(ValueError, match=r"xnnpack: received a model whose file LiteRT does not"):
        check_loading(serialize(graph, {})[:64], graph.images[0].shape)


def test_a_file_whose_output_is_not_finite_is_named(graph):
    with pytest.raises(ValueError, match=r"output for a black image is not finite"):
        check_loading(serialize(_with_nan_output(graph), {}), graph.images[0].shape)


def test_a_file_that_does_not_run_is_not_handed_over(model, graph, tmp_path, monkeypatch):
    monkeypatch.setattr(file, "file_graph", lambda *_: _with_nan_output(graph))
    (tmp_path / "model.tflite").write_bytes(b"older")
    with pytest.raises(ValueError, match=r"not finite"):
        sat_tf.export_tflite(model, tmp_path / "model.tflite")
    assert [path.read_bytes() for path in tmp_path.iterdir()] == [b"older"]
