import contextlib

import numpy as np
import pytest
import tensorflow as tf
import tf_keras as keras

from sat_tf.core import on_tensorflow, pact
from sat_tf.core.clipping_gradients import CLIPPING_GRADIENTS
from tests.core.ancestors import ancestors

QUANTIZERS = {
    "activation": pact.quantize_activation,
    "stream": pact.quantize_stream,
}


def _norm(**settings):
    norm = keras.layers.BatchNormalization(**settings)
    norm.build((None, 6, 5, 3))
    rng = np.random.default_rng(1)
    norm.set_weights([rng.uniform(0.5, 2.0, 3).astype(np.float32) for _ in norm.get_weights()])
    return norm


def _gradients(norm, quantize, gradient, training, context=contextlib.nullcontext):
    """Gradients of a function of images, γ, β and α, and the graph that computes them."""
    images = tf.constant(np.random.default_rng(0).normal(0, 2, (4, 6, 5, 3)), tf.float32)
    seed = tf.constant(np.random.default_rng(2).normal(0, 1, (4, 6, 5, 3)), tf.float32)

    @tf.function
    def step(images, seed, level):
        with context(), tf.GradientTape() as tape:
            tape.watch([images, level])
            quantized = quantize(norm(images, training=training), level, 3, gradient)
        sources = [images, level, *norm.trainable_variables]
        return quantized, *tape.gradient(quantized, sources, seed)

    arguments = images, seed, tf.constant(1.5)
    return [made.numpy() for made in step(*arguments)], step.get_concrete_function(*arguments).graph


@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("gradient", CLIPPING_GRADIENTS)
@pytest.mark.parametrize("quantizer", QUANTIZERS)
def test_computing_a_tensor_again_changes_no_bit(quantizer, gradient, training, monkeypatch):
    quantize = QUANTIZERS[quantizer]
    found, graph = _gradients(_norm(), quantize, gradient, training)
    assert _recomputed(graph)
    monkeypatch.setattr(on_tensorflow, "computed_again", lambda x, upstream: x)
    kept, graph = _gradients(_norm(), quantize, gradient, training)
    assert not _recomputed(graph)
    for one, other in zip(found, kept, strict=True):
        np.testing.assert_array_equal(one, other)


@pytest.mark.parametrize("quantizer", QUANTIZERS)
def test_the_normalized_tensor_is_not_read_by_the_backward_pass(quantizer):
    _, graph = _gradients(_norm(), QUANTIZERS[quantizer], "calibrated", True)
    (forward,) = [op for op in _norms(graph) if op.get_attr("is_training")]
    assert _readers(forward.outputs[0]) == {"FakeQuantWithMinMaxVars"}


def test_it_is_computed_again_when_its_gradient_is_there():
    _, graph = _gradients(_norm(), pact.quantize_activation, "calibrated", True)
    (recomputed,) = _recomputed(graph)
    (awaited,) = recomputed.control_inputs
    (argument,) = [op for op in graph.get_operations() if op.name == "seed"]
    assert argument in ancestors(awaited)


def test_what_no_batch_normalization_puts_out_is_kept():
    x = tf.constant([1.0, 2.0])

    @tf.function
    def kept(x):
        doubled = 2.0 * x
        return tf.constant(on_tensorflow.computed_again(doubled, doubled) is doubled)

    assert kept(x)
    assert on_tensorflow.computed_again(x, x) is x  # eager


def test_half_floats_and_statistics_are_kept():
    norm, in_half = _norm(), _norm(dtype="mixed_float16")

    @tf.function
    def found(images):
        half = in_half(images, training=True)
        graph = tf.compat.v1.get_default_graph()
        normalized = norm(images, training=True)
        (op,) = [op for op in _norms(graph) if op.inputs[0].dtype == tf.float32]
        seen = (
            on_tensorflow.normalization_of(normalized),
            on_tensorflow.normalization_of(op.outputs[1]),
        )
        return [
            tf.constant(each is not None) for each in (on_tensorflow.normalization_of(half), *seen)
        ]

    flags = found(tf.zeros([2, 6, 5, 3]))
    assert [bool(flag) for flag in flags] == [False, True, False]


def test_xla_and_accelerators_keep_everything(monkeypatch):
    for asked in "compiles_with_xla", "has_accelerator":
        with monkeypatch.context() as patch:
            patch.setattr(on_tensorflow, asked, lambda: True)
            _, graph = _gradients(_norm(), pact.quantize_activation, "calibrated", True)
            assert not _recomputed(graph)


def _norms(graph):
    return [op for op in graph.get_operations() if op.type == "FusedBatchNormV3"]


def _recomputed(graph):
    """BatchNormalization kernels that wait for something."""
    return [op for op in _norms(graph) if op.control_inputs]


def _readers(tensor):
    """Types of what reads a tensor, behind operations that only pass it on."""
    types = set()
    for op in tensor.consumers():
        if op.type in ("Identity", "IdentityN"):
            passed = [
                output
                for given, output in zip(op.inputs, op.outputs, strict=True)
                if given is tensor
            ]
            types |= {kind for output in passed for kind in _readers(output)}
        else:
            types.add(op.type)
    return types
