import contextlib
import copy

import numpy as np
import pytest
import tf_keras as keras
from ai_edge_litert import schema_py_generated as tfl

import sat_tf
from sat_tf.exact.operations.graph_file import read_graph
from sat_tf.export.lowering.pipeline import deployed_graph
from sat_tf.graph.network import Network
from tests.export.damage import changed
from tests.export.zoo import ZOO


def test_random_damage_is_a_value_error_or_a_graph(small_file):
    rng, content = np.random.default_rng(11), small_file.read_bytes()
    for _ in range(300):
        damaged = bytearray(content)
        for position in rng.integers(0, len(content), rng.integers(1, 5)):
            damaged[position] = rng.integers(256)
        with contextlib.suppress(ValueError):
            read_graph(bytes(damaged[: rng.integers(1, 2 * len(content))]), "damaged")


def test_a_graph_prints_every_operation_and_the_sums_of_all():
    graph = deployed_graph(Network(ZOO["bottleneck"].quantized()))
    printed = str(graph)
    for operation in graph.operations:
        assert operation.output in printed
    assert f"{len(graph.operations)} operations, {len(graph.integer_tensors)} integer" in printed
    adds = sum(operation.multiply_adds(graph) for operation in graph.operations)
    assert f"{adds:,} multiply-adds an image" in printed


def _reshape(model, graph):
    kinds = [model.operatorCodes[one.opcodeIndex].builtinCode for one in graph.operators]
    return graph.operators[kinds.index(tfl.BuiltinOperator.RESHAPE)]


def another_shape(model, graph):
    shape = graph.tensors[_reshape(model, graph).inputs[1]]
    model.buffers[shape.buffer].data = np.array([-1, 9, 14], np.int32).view(np.uint8)
    shape.shape = [3]


def backward_in_the_batch(model, graph):
    """Puts a slice behind the RESHAPE that has the images of a batch in reverse."""
    reshape = _reshape(model, graph)
    code = copy.deepcopy(model.operatorCodes[reshape.opcodeIndex])
    code.builtinCode = code.deprecatedBuiltinCode = tfl.BuiltinOperator.STRIDED_SLICE
    model.operatorCodes.append(code)
    bounds = []
    for values in ([0, 0], [0, 0], [-1, 1]):
        model.buffers.append(tfl.BufferT())
        model.buffers[-1].data = np.array(values, np.int32).view(np.uint8)
        tensor = copy.deepcopy(graph.tensors[reshape.inputs[1]])
        tensor.name, tensor.shape = f"bounds {len(graph.tensors)}".encode(), [2]
        tensor.buffer = len(model.buffers) - 1
        bounds.append(len(graph.tensors))
        graph.tensors.append(tensor)
    (source,) = reshape.outputs
    sliced = copy.deepcopy(graph.tensors[source])
    sliced.name = b"sliced"
    reader = graph.operators[graph.operators.index(reshape) + 1]
    reader.inputs = [len(graph.tensors), *list(reader.inputs)[1:]]
    operator = copy.deepcopy(reshape)
    operator.opcodeIndex = len(model.operatorCodes) - 1
    operator.inputs, operator.outputs = [source, *bounds], [len(graph.tensors)]
    operator.builtinOptionsType = tfl.BuiltinOptions.StridedSliceOptions
    operator.builtinOptions = tfl.StridedSliceOptionsT()
    operator.builtinOptions.beginMask = operator.builtinOptions.endMask = 3
    graph.tensors.append(sliced)
    graph.operators.insert(graph.operators.index(reshape) + 1, operator)


def made_shape(model, graph):
    operator = _reshape(model, graph)
    operator.inputs = [operator.inputs[0], graph.inputs[0]]


def shape_of_the_options(model, graph):
    operator = _reshape(model, graph)
    operator.inputs = operator.inputs[:1]


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        (another_shape, r"RESHAPE .*: it is given the shape \[-1, 9, 14\], and makes \(1, 126\)"),
        (made_shape, r"RESHAPE .*: its input \w+ is not a constant of type INT32"),
        (shape_of_the_options, None),
        (backward_in_the_batch, r"STRIDED_SLICE .*: it moves values from one image to another"),
    ],
)
def test_a_shape_has_to_be_what_kernels_are_given(change, expected, tmp_path):
    image = keras.Input((6, 7, 3), name="image")
    model = keras.Model(image, keras.layers.Dense(5)(keras.layers.Flatten()(image)))
    path = tmp_path / "model.tflite"
    sat_tf.export_tflite(sat_tf.quantize_model(model, sat_tf.BitPolicy.mobile(8)), path)
    content = changed(path.read_bytes(), change)
    if expected is None:
        assert str(read_graph(content, "one")) == str(read_graph(path.read_bytes(), "one"))
        return
    with pytest.raises(ValueError, match=expected):
        read_graph(content, "changed.tflite")
