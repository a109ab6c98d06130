import numpy as np
import pytest
import tf_keras as keras

import sat_tf
from sat_tf.exact.operations.graph import Graph, simulate
from sat_tf.exact.operations.native import Lookup
from sat_tf.exact.operations.operation import Constant
from sat_tf.exact.operations.pairs import Pair, Pointwise
from sat_tf.exact.operations.tabled import Moved, Reshape, joined
from sat_tf.exact.tflite.tensors import Codes, Image, Tensor
from sat_tf.export.lowering import trace
from sat_tf.export.lowering.shapes import without_copies
from sat_tf.qat.policy import BitPolicy
from tests.export.proofs import calibrated, deployed

L = keras.layers
GRID = Codes(np.float32(0.5), 0)
SHAPES = {"row": (1, 4, 3), "steps": (4, 3), "longer_row": (1, 8, 3), "more_steps": (8, 3)}
HALF = Lookup(("",), "", np.repeat(np.arange(-64, 64), 2).astype(np.int8))


def _graph(*operations, output=None, **shapes):
    """A graph of an image of four steps of three channels, with tensors of these shapes."""
    sizes = {name: SHAPES[shape] for name, shape in shapes.items()}
    return Graph(
        name="net",
        tensors={name: Tensor(name, size, GRID) for name, size in sizes.items()},
        operations=operations,
        images=(Image("image", (4, 3), np.float32(0.5), type="int8"),),
        output=output or operations[-1].output,
        layer_outputs={name: name for name in shapes},
    )


def _function(source, output):
    return Lookup((source,), output, HALF.table)


def _same(before, after):
    images = np.random.default_rng(0).integers(-128, 128, (5, 4, 3)).astype(np.int32)
    expected, found = (simulate(graph, images)[graph.output] for graph in (before, after))
    assert expected.shape == found.shape
    np.testing.assert_array_equal(found, expected)


def test_reshapes_that_cancel_are_left_out_and_an_image_gets_the_name_of_its_layer():
    before = _graph(
        Reshape(("image",), "a_input"),
        _function("a_input", "a_image"),
        Reshape(("a_image",), "a"),
        Reshape(("a",), "b_input"),
        _function("b_input", "b_image"),
        Reshape(("b_image",), "b"),
        **dict.fromkeys(("a_input", "a_image", "b_input", "b_image"), "row"),
        **dict.fromkeys("ab", "steps"),
    )
    after = without_copies(before, {"image", "a", "b"})
    kinds = [type(operation) for operation in after.operations]
    assert kinds == [Reshape, Lookup, Lookup, Reshape]
    assert (after.tensors["a"].shape, after.tensors["b"].shape) == ((1, 4, 3), (4, 3))
    assert (after.layer_outputs["a"], after.output) == ("a", "b")
    _same(before, after)


def test_sums_and_concatenations_of_sequences_are_those_of_images_between_others():
    before = _graph(
        Reshape(("image",), "x"),
        _function("x", "a_image"),
        _function("x", "b_image"),
        Reshape(("a_image",), "a"),
        Reshape(("b_image",), "b"),
        Pair(("a", "b"), "sum", Pointwise.MAXIMUM),
        joined(("sum", "a"), "both", 0),
        Reshape(("both",), "both_image"),
        _function("both_image", "c_image"),
        Reshape(("c_image",), "c"),
        **dict.fromkeys(("x", "a_image", "b_image"), "row"),
        **dict.fromkeys(("a", "b", "sum"), "steps"),
        **dict.fromkeys(("both", "c"), "more_steps"),
        **dict.fromkeys(("both_image", "c_image"), "longer_row"),
    )
    after = without_copies(before, {"x", "a", "b", "sum", "both", "c"})
    kinds = [type(operation) for operation in after.operations]
    assert kinds == [Reshape, Lookup, Lookup, Pair, Moved, Lookup, Reshape]
    shapes = [after.tensors[name].shape for name in ("sum", "both", "c")]
    assert shapes == [(1, 4, 3), (1, 8, 3), (8, 3)]
    assert after.output == "c"
    _same(before, after)


def test_nothing_is_lifted_where_that_takes_more_reshapes():
    before = _graph(
        Reshape(("image",), "i_image"),
        _function("i_image", "a_image"),
        Reshape(("a_image",), "a"),
        Moved(("a",), "part", "TRANSPOSE", (None, Constant(np.array([0, 1, 2], np.int32)))),
        _function("a", "f"),
        Pair(("part", "f"), "sum", Pointwise.MAXIMUM),
        i_image="row",
        a_image="row",
        **dict.fromkeys(("a", "part", "f", "sum"), "steps"),
    )
    after = without_copies(before, {"a", "part", "f", "sum"})
    assert len(after.operations) == len(before.operations)
    _same(before, after)


# -- whole networks --------------------------------------------------------------------------------


def _step(x, kind):
    if kind == "separable":
        return L.ReLU()(L.SeparableConv1D(6, 3, padding="same")(x))
    if kind == "causal":
        return L.Conv1D(6, 3, padding="causal", dilation_rate=2, activation="relu")(x)
    if kind == "residual":
        return L.Add()([x, L.Conv1D(6, 3, padding="same", activation="relu")(x)])
    if kind == "gated":
        halves = [L.Conv1D(6, 1, activation=name)(x) for name in ("tanh", "sigmoid")]
        return L.Multiply()(halves)
    if kind == "concatenated":
        halves = [L.Conv1D(3, size, padding="same", activation="relu")(x) for size in (1, 3)]
        return L.Concatenate()(halves)
    return L.AveragePooling1D(2)(L.MaxPooling1D(2)(L.Conv1D(6, 3, activation="relu")(x)))


@pytest.mark.thorough
@pytest.mark.parametrize("target", ["litert", "int8"])
@pytest.mark.parametrize(
    "kind", ["separable", "causal", "residual", "gated", "concatenated", "pooled"]
)
def test_networks_of_sequences_have_one_reshape_and_the_same_codes(kind, target, path, monkeypatch):
    keras.utils.set_random_seed(0)
    steps = x = L.Input((48, 3))
    for _ in range(2):
        x = _step(L.Conv1D(6, 3, padding="same", activation="relu")(x), kind)
    model = keras.Model(steps, L.Dense(4)(L.GlobalAveragePooling1D()(x)))
    images = np.random.default_rng(0).normal(size=(24, 48, 3)).astype(np.float32)
    policy = BitPolicy.mobile(4, input_type="float32", target=target)
    quantized = calibrated(model, policy, images)
    graph = deployed(quantized)
    report = sat_tf.export_tflite(quantized, path)
    assert report.operators["RESHAPE"] == 1
    found = sat_tf.verify_tflite(quantized, path, images, progress=False)
    assert found.codes_differing == 0
    monkeypatch.setattr(trace, "without_copies", lambda graph, names: graph)
    plain = deployed(quantized)
    assert sum(isinstance(op, Reshape) for op in plain.operations) > 6
    expected, made = (simulate(each, images)[each.output] for each in (plain, graph))
    np.testing.assert_array_equal(made, expected)
