"""The graphs of steps hold nothing needless, and live no longer than what they are of."""

import collections
import gc
import operator
import pathlib
import weakref

import numpy as np
import pytest
import tensorflow as tf
import tf_keras as keras

import sat_tf
from sat_tf.qat.policy import BitPolicy
from sat_tf.qat.wrapper import graphs_go_with
from tests.qat import float_models

_HOST = ("PyFunc", "EagerPyFunc", "Send", "Recv", "_Send", "_Recv", "Print", "PrintV2", "Where")


def _compiled(name="mobile_block", **options):
    model = sat_tf.quantize_model(float_models.build(name), BitPolicy.mobile(4))
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(keras.optimizers.SGD(0.002, momentum=0.9), loss, **options)
    return model


def _data(count, batch_size):
    labels = np.random.default_rng(3).integers(0, 3, count)
    data = tf.data.Dataset.from_tensor_slices((float_models.images(count), labels))
    return data.batch(batch_size)


def _operations(graph):
    """All operations of a graph, and of the functions that it calls."""
    definition = graph.as_graph_def()
    functions = [function.node_def for function in definition.library.function]
    return [node for nodes in (definition.node, *functions) for node in nodes]


def _step_graph(model, make):
    step = make()
    return step.get_concrete_function(iter(_data(8, 4))).graph


@pytest.mark.thorough
@pytest.mark.parametrize("options", [{}, {"jit_compile": True}], ids=["plain", "xla"])
def test_fifty_steps_with_a_partial_batch_are_traced_like_one(options):
    model = _compiled(**options)
    data = _data(49 * 4 + 2, 4)
    assert len(data) == 50
    model.fit(data.take(1), verbose=0)
    first = model.train_function.experimental_get_tracing_count()
    model.fit(data, verbose=0)
    assert model.train_function.experimental_get_tracing_count() == first
    model.evaluate(data, verbose=0)
    assert model.test_function.experimental_get_tracing_count() == 1


@pytest.mark.thorough
def test_nothing_in_a_step_is_in_double_precision_or_runs_on_the_host():
    quantized, plain = _compiled(), float_models.build("mobile_block")
    plain.compile("sgd", keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    for kind in ("train", "test"):
        make = operator.attrgetter(f"make_{kind}_function")
        ours, floats = (
            _operations(_step_graph(model, make(model))) for model in (quantized, plain)
        )
        # Only the warning of impossible images, in a branch of the first batches, runs in Python.
        assert [node.op for node in ours if node.op in _HOST] == ["PyFunc"] * (kind == "train")
        top = [node.op for node in _step_graph(quantized, make(quantized)).as_graph_def().node]
        assert not {*top} & {*_HOST}
        doubles = [
            collections.Counter(
                node.op for node in nodes if tf.float64.as_datatype_enum in _types(node)
            )
            for nodes in (ours, floats)
        ]
        assert not doubles[0] - doubles[1]


@pytest.mark.thorough
def test_a_compiled_step_stays_on_its_device():
    model = _compiled()
    images, labels = next(iter(_data(4, 4)))

    @tf.function(jit_compile=True)
    def step(images, labels):
        with tf.GradientTape() as tape:
            loss = model.compiled_loss(labels, model(images, training=True))
        gradients = tape.gradient(loss, model.trainable_variables)
        model.optimizer.apply_gradients(zip(gradients, model.trainable_variables, strict=True))
        return loss

    model.optimizer.build(model.trainable_variables)
    program = step.experimental_get_compiler_ir(images, labels)(stage="optimized_hlo")
    for forbidden in ("f64[", "infeed(", "outfeed(", "send(", "recv(", "callback"):
        assert forbidden not in program
    assert np.isfinite(step(images, labels))


def test_evaluation_takes_no_branch_on_the_training_flag():
    """The flag is a Python value: each step holds what it needs, and no choice."""
    model = _compiled()
    evaluation = _operations(_step_graph(model, model.make_test_function))
    kinds = {node.op for node in evaluation}
    assert not kinds & {"QuantizeAndDequantizeV4Grad", "TanhGrad", "FusedBatchNormGradV3"}
    branches = [node for node in evaluation if node.op in ("If", "StatelessIf")]
    # Only for NaN among the weights, a branch for each kernel; and for each range with two ends, as
    # a symmetric one has a grid of its own.
    choices = [v for v in model.trainable_variables if "kernel" in v.name or "skew" in v.name]
    assert len(branches) <= len(choices)


def _types(node):
    return [value.type for value in node.attr.values() if value.WhichOneof("value") == "type"]


MEBIBYTES = 300


def _registered():
    from tensorflow.python.framework import ops

    return set(ops.gradient_registry.list())


def _trained(name="dropout", **options):
    """A model after a plain `fit`, and the graph of its step."""
    model = sat_tf.quantize_model(float_models.build(name), BitPolicy.mobile(4))
    images = float_models.images(8)
    model.compile(keras.optimizers.SGD(1e-4, momentum=0.9), "mse", **options)
    model.fit(images, np.zeros((8, *model.output_shape[1:])), batch_size=4, verbose=0)
    *_, step = model.train_function._list_all_concrete_functions()
    return model, weakref.ref(step.graph)


def _collect():
    keras.backend.clear_session()
    # A first pass frees a graph, among others, which lets go of more.
    gc.collect()
    gc.collect()


@pytest.mark.thorough
@pytest.mark.parametrize("options", [{}, {"jit_compile": True}], ids=["plain", "xla"])
def test_the_graph_of_a_step_goes_with_its_model(options):
    model, graph = _trained(**options)
    before = _registered()
    assert graph() is not None
    del model
    _collect()
    assert graph() is None
    for _ in range(2):
        model, graph = _trained(**options)
        del model
        _collect()
    assert not {name for name in _registered() - before if name.startswith("sat_tf")}
    assert len(_registered()) <= len(before)


@pytest.mark.thorough
def test_a_living_model_keeps_its_gradients():
    class Squared(keras.layers.Layer):
        def call(self, inputs):
            return tf.custom_gradient(lambda x: (x * x, lambda upstream: upstream * 7.0))(inputs)

    owner, layer = Squared(), Squared()

    @tf.function
    def function(x):
        graphs_go_with(owner)
        return layer(x)

    x = tf.constant(2.0)
    function(x)
    _collect()
    with tf.GradientTape() as tape:
        tape.watch(x)
        y = function(x)
    assert tape.gradient(y, x) == 7.0


@pytest.mark.slow
@pytest.mark.skipif(not pathlib.Path("/proc/self/status").exists(), reason="asks Linux")
def test_fifty_trainings_take_little_more_memory_than_one():
    sizes = []
    for _ in range(50):
        _trained("mobile_block")
        _collect()
        status = pathlib.Path("/proc/self/status").read_text().splitlines()
        (resident,) = [line.split()[1] for line in status if line.startswith("VmRSS")]
        sizes.append(int(resident) // 1024)
    assert max(sizes) <= sizes[0] + MEBIBYTES, sizes
