"""TensorFlow's own forms: registered gradients, kernels, fewer passes over memory."""

import contextlib
import functools
import gc
import weakref

import numpy as np
import pytest
import tensorflow as tf
import tf_keras as keras
from hypothesis import given, settings
from hypothesis import strategies as st

from sat_tf.core import asymmetric, dorefa, lsq, on_keras, on_tensorflow, pact
from sat_tf.core.gradients import CLIPPING_GRADIENTS, Surrogate, scaled_gradient, straight_through
from tests import reference
from tests.core.execution import draw, value_and_gradients
from tests.core.test_dorefa import ROWS as WEIGHTS
from tests.core.test_every_method import METHODS
from tests.core.test_pact import QUANTIZERS, activations, clipped
from tests.core.test_pact import ROWS as CLIPPED

WAYS = {
    "eager": lambda function: function,
    "graph": tf.function,
    "xla": functools.partial(tf.function, jit_compile=True),
}


_kernel = functools.partial(draw, deviation=0.5)

# Each with a gradient of its own.
FUNCTIONS = {
    **{
        name: lambda x, method=method: method.function(x, *map(tf.constant, method.learnt), 3)
        for name, method in METHODS.items()
    },
    "stream, pact": lambda x: pact.quantize_stream(x, 2.0, 3, "pact"),
    "dorefa by channel": lambda x: dorefa.quantize_weights(x, 3, range_axes=(1,)),
    "clamp": dorefa.clamp_weights,
    "rate": lambda x: scaled_gradient(x, 0.5),
    "observed": lambda x: asymmetric.quantize_observed(x, -1.3, 2.9),
    "surrogate": lambda x: pact.quantize_activation(x, 2.0, 3, surrogate=Surrogate("ewgs")),
}


def _graph_with_gradient(function):
    """The graph of a function and its gradient, traced anew."""

    @tf.function
    def step(x):
        with tf.GradientTape() as tape:
            tape.watch(x)
            y = function(x)
        return tape.gradient(y, x)

    return step.get_concrete_function(tf.TensorSpec([3, 2])).graph


def test_a_function_that_was_traced_before_is_differentiated_as_well():
    traced = tf.function(lambda x: straight_through(tf.floor(x), x * x))
    x = tf.constant([1.5, 2.5])
    with tf.GradientTape() as tape:
        tape.watch(x)
        y = tf.cond(tf.constant(True), lambda: traced(x), lambda: x)
    np.testing.assert_array_equal(y, [1.0, 2.0])
    np.testing.assert_array_equal(tape.gradient(y, x), [3.0, 5.0])


@pytest.mark.parametrize("name", FUNCTIONS)
def test_a_configuration_is_registered_once(name, monkeypatch):
    registered = []
    real = tf.RegisterGradient.__init__

    def counted(self, op_type):
        registered.append(op_type)
        real(self, op_type)

    monkeypatch.setattr(tf.RegisterGradient, "__init__", counted)
    _graph_with_gradient(FUNCTIONS[name])
    assert len(registered) <= 1
    before = list(registered)
    for _ in range(3):
        _graph_with_gradient(FUNCTIONS[name])
    assert registered == before


@pytest.mark.thorough
@pytest.mark.parametrize("name", FUNCTIONS)
def test_no_graph_outlives_its_function(name):
    graph = weakref.ref(_graph_with_gradient(FUNCTIONS[name]))
    gc.collect()
    assert graph() is None


def test_a_saved_model_computes_and_says_that_it_has_no_gradients(tmp_path):
    module = tf.Module()
    module.level = tf.Variable(3.0)
    module.f = tf.function(
        lambda x: pact.quantize_activation(x, module.level, 2), input_signature=[tf.TensorSpec([4])]
    )
    tf.saved_model.save(module, str(tmp_path))
    loaded = tf.saved_model.load(str(tmp_path))
    x = tf.constant([-1.0, 0.4, 0.6, 9.0])
    with tf.GradientTape() as tape:
        y = loaded.f(x)
    np.testing.assert_array_equal(y, [0.0, 0.0, 1.0, 3.0])
    with pytest.raises(tf.errors.InvalidArgumentError, match=r"load it with keras\.models\.load"):
        tape.gradient(y, loaded.level)


@pytest.mark.parametrize(("name", "bits"), WEIGHTS)
def test_the_fused_route_and_the_composed_one_agree_bit_by_bit(name, bits, monkeypatch):
    latent, upstream = _kernel((64, 1024)), _kernel((64, 1024), seed=1)

    def run():
        return value_and_gradients(
            lambda w: dorefa.quantize_weights(w, bits, name), [latent], upstream
        )

    fused = run()
    monkeypatch.setattr(on_tensorflow, "compiles_with_xla", lambda: True)
    composed = run()
    np.testing.assert_array_equal(fused[0], composed[0])
    # The gradient through the maximum is a sum over the layer, here taken in another order.
    largest = np.abs(latent) == np.max(np.abs(latent))
    np.testing.assert_array_equal(fused[1][~largest], composed[1][~largest])
    np.testing.assert_allclose(fused[1][largest], composed[1][largest], rtol=1e-5)


@pytest.mark.parametrize("odd", [(), (np.nan, np.inf, -np.inf, 0.0, -0.0)])
@pytest.mark.parametrize("name", FUNCTIONS)
def test_own_forms_give_what_the_plain_ones_do(name, odd):
    x, upstream = draw((64, 8), 0, 2.0), draw((64, 8), 1, 2.0)
    x.flat[: len(odd)] = odd
    value, gradient = value_and_gradients(FUNCTIONS[name], [x], upstream)
    expected, wanted = value_and_gradients(FUNCTIONS[name], [x], upstream, "plain")
    np.testing.assert_array_equal(value, expected)
    np.testing.assert_allclose(gradient, wanted, rtol=1e-5, atol=1e-6)


def test_both_namespaces_have_the_same_rows():
    assert set(vars(on_tensorflow.NAMESPACE)) == set(vars(on_keras.NAMESPACE))


@settings(max_examples=150)
@given(
    at=st.sampled_from(CLIPPED),
    level=st.floats(2.0**-10, 2.0**13, width=32),
    seed=st.integers(0, 2**32 - 1),
)
def test_the_kernel_and_the_composed_route_agree_bit_by_bit(at, level, seed):
    kind, bits = at
    signed = kind == "stream"
    steps = 2**bits - (2 if signed else 1)
    x = draw(512, seed, level)
    # Ties and their neighbours, where a last bit decides.
    ties = (np.arange(-steps, steps) + 0.5) * (level * (2 if signed else 1) / steps)
    ties = ties.astype(np.float32)
    x = np.concatenate(
        [x, ties, np.nextafter(ties, np.float32(np.inf)), np.nextafter(ties, -np.float32(np.inf))]
    )
    fused = QUANTIZERS[kind](x, level, bits).numpy()
    composed = pact.round_on_range(tf.constant(x), tf.constant(level), steps, signed).numpy()
    np.testing.assert_array_equal(fused, composed)


@pytest.mark.parametrize("gradient", CLIPPING_GRADIENTS)
@pytest.mark.parametrize(("kind", "bits"), CLIPPED)
def test_both_routes_have_the_same_gradients(kind, bits, gradient, monkeypatch):
    x, upstream = (draw((2, 32, 32, 8), seed, 2.0) for seed in range(2))
    fused = clipped(kind, x, 2.7, bits, gradient, upstream)
    monkeypatch.setattr(on_tensorflow, "compiles_with_xla", lambda: True)
    composed = clipped(kind, x, 2.7, bits, gradient, upstream)
    np.testing.assert_array_equal(fused[0], composed[0])
    np.testing.assert_array_equal(fused[1], composed[1])
    # The two sums of 16384 products run in another order.
    assert abs(fused[2] - composed[2]) <= 1e-6 * np.abs(upstream).sum()


@pytest.mark.parametrize("level", [0.77, 2.7, 3.1])
@pytest.mark.parametrize(("kind", "bits"), CLIPPED)
def test_xla_gives_the_same_bits(kind, bits, level):
    x = draw((64, 256), 0, 2.0)
    value, inside, _ = clipped(kind, x, level, bits)
    compiled, compiled_inside, _ = clipped(kind, x, level, bits, mode="xla")
    np.testing.assert_array_equal(compiled, value)
    np.testing.assert_array_equal(compiled_inside, inside)


@pytest.mark.parametrize("shape", [[None, None, None, 8], [None, 6, 6, 8], None])
def test_shapes_need_not_be_known_in_a_graph(shape):
    x, upstream = activations(), activations(seed=1)

    @tf.function(input_signature=[tf.TensorSpec(shape), tf.TensorSpec(shape)])
    def run(x, upstream):
        level = tf.constant(2.7)
        with tf.GradientTape() as tape:
            tape.watch([x, level])
            value = pact.quantize_activation(x, level, 4)
        return [value, *tape.gradient(value, [x, level], upstream)]

    for found, wanted in zip(
        run(x, upstream), clipped("activation", x, 2.7, 4, upstream=upstream), strict=True
    ):
        np.testing.assert_allclose(found, wanted, rtol=1e-5)


def test_the_factor_of_images_of_any_size_is_counted_when_they_come():
    @tf.function(input_signature=[tf.TensorSpec([None, None, None, 3])])
    def factor(x):
        return lsq.gradient_factor(x, 15.0)

    for size in (4, 7):
        wanted = reference.lsq_factor(size * size * 3, 15)
        assert float(factor(np.zeros([2, size, size, 3], np.float32))) == pytest.approx(
            wanted, rel=1e-6
        )


@pytest.mark.parametrize("mode", WAYS)
@pytest.mark.parametrize("shape", [(), (1,), (3, 5), (32, 48, 48, 24), (0,)])
def test_a_dot_product_is_the_sum_in_float64_to_the_precision_of_float32(shape, mode):
    draw = np.random.default_rng(4)
    a, b = (draw.normal(0.0, 1.0, shape).astype(np.float32) for _ in range(2))
    products = a.astype(np.float64) * b
    found = WAYS[mode](on_tensorflow.dot)(tf.constant(a), tf.constant(b)).numpy()
    assert found.shape == ()
    # One rounding of the largest sum there is.
    assert found == pytest.approx(np.sum(products), abs=2.0**-24 * np.sum(np.abs(products)))


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
    ((awaited,),) = [op.control_inputs for op in _recomputed(graph)]
    assert "seed" in {op.name for op in _ancestors(awaited)}


def test_xla_and_accelerators_keep_everything(monkeypatch):
    for asked in "compiles_with_xla", "has_accelerator":
        with monkeypatch.context() as patch:
            patch.setattr(on_tensorflow, asked, lambda: True)
            _, graph = _gradients(_norm(), pact.quantize_activation, "calibrated", True)
            assert not _recomputed(graph)


def test_half_floats_statistics_and_what_no_batch_normalization_puts_out_are_kept():
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
        for kept in (half, 2.0 * normalized):
            assert on_tensorflow.computed_again(kept, kept) is kept
        return [
            tf.constant(each is not None) for each in (on_tensorflow.normalization_of(half), *seen)
        ]

    images = tf.zeros([2, 6, 5, 3])
    assert [bool(flag) for flag in found(images)] == [False, True, False]
    assert on_tensorflow.computed_again(images, images) is images  # eager


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


@pytest.mark.parametrize("detach_max", [False, True])
@pytest.mark.parametrize("range_axes", [(), (3,)])
def test_no_tensor_of_the_forward_pass_waits_for_the_backward_pass(range_axes, detach_max):
    shape = (3, 3, 4, 5)

    @tf.function
    def step(latent, upstream):
        with tf.GradientTape() as tape:
            tape.watch(latent)
            quantized = dorefa.quantize_weights(
                latent, 4, detach_max=detach_max, range_axes=range_axes
            )
        return quantized, tape.gradient(quantized, latent, upstream)

    graph = step.get_concrete_function(*[tf.TensorSpec(shape)] * 2).graph
    quantized, gradient = graph.structured_outputs
    forward = _ancestors(quantized.op) - {quantized.op}
    backward = _ancestors(gradient.op) - forward
    kept = [tensor for op in backward for tensor in op.inputs if tensor.op in forward]
    assert [each.op.type for each in kept if each.shape == shape and each.op.inputs] == []


def _ancestors(op):
    """The operation of a graph and everything that it needs."""
    found, waiting = set(), [op]
    while waiting:
        op = waiting.pop()
        if op not in found:
            found.add(op)
            waiting.extend(tensor.op for tensor in op.inputs)
    return found
