import copy
import math
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import tensorflow as tf
import tf_keras as keras

import sat_tf
from sat_tf.core import pact
from sat_tf.graph.operation_layers import ConstantSum
from sat_tf.qat.configs import PlacedConfig
from sat_tf.qat.layout import inner_layer
from sat_tf.qat.policy import BitPolicy
from sat_tf.qat.walk import float_weights
from sat_tf.qat.wrapper import ConstantWeights, QuantizedLayer, constant_weights
from sat_tf.quantizers.dorefa import DorefaQuantizer
from sat_tf.quantizers.observers import RangeObserver
from sat_tf.quantizers.pact import PactQuantizer, StreamQuantizer
from tests import reference
from tests.qat import float_models
from tests.qat.float_models import L, model_of


def _draw(shape=(2, 6, 6, 3), seed=0):
    return np.random.default_rng(seed).normal(0, 2, shape).astype(np.float32)


def _wrapped(layer, weights=None, output=None, **options):
    return QuantizedLayer(layer, PlacedConfig(weights=weights, output=output), **options)


@pytest.mark.parametrize(
    "make",
    [
        lambda: L.Conv2D(4, 3, bias_initializer="ones"),
        lambda: L.DepthwiseConv2D(3, depth_multiplier=2),
        lambda: L.Dense(4, bias_initializer="ones"),
    ],
)
def test_a_linear_layer_computes_with_its_effective_kernel(make):
    quantizer = DorefaQuantizer(num_bits=3, rescale="constant", fan_out=12)
    wrapped, x = _wrapped(make(), quantizer), _draw()
    found = wrapped(x).numpy()
    layer = wrapped.layer
    latent = layer.get_weights()[0]
    effective = wrapped.effective_kernel().numpy()
    quantized = reference.quantize_weights(latent, 3, "dorefa")
    expected = quantized * reference.rescale_factor(quantized, 12)
    np.testing.assert_allclose(effective, expected, rtol=1e-5)
    twin = make()
    twin.build(x.shape)
    twin.set_weights([effective, *layer.get_weights()[1:]])
    np.testing.assert_allclose(found, twin(x).numpy(), rtol=1e-5, atol=1e-5)
    # The kernel is the latent one again.
    assert layer.weights[0] is layer.trainable_weights[0]
    np.testing.assert_array_equal(layer.get_weights()[0], latent)


def test_a_quantizer_takes_the_place_of_a_rectifier_inside_a_layer():
    wrapped = _wrapped(L.Conv2D(4, 3, activation="relu"), None, PactQuantizer(num_bits=2))
    x = _draw()
    plain = L.Conv2D(4, 3)
    plain.build(x.shape)
    found = wrapped(x)
    plain.set_weights(wrapped.layer.get_weights())
    level = wrapped.output_variables["clipping_level"]
    np.testing.assert_array_equal(found, pact.quantize_activation(plain(x), level, 2))
    assert wrapped.layer.activation is keras.activations.relu


def test_a_quantizer_takes_the_place_of_a_whole_rectifier_and_a_stream_s_stands_behind():
    wrapped = _wrapped(L.ReLU(6.0, name="relu"), None, PactQuantizer(num_bits=3, ceiling=6.0))
    x, y = _draw(), _draw(seed=1)
    np.testing.assert_array_equal(wrapped(x), pact.quantize_activation(x, 6.0, 3))
    wrapped = _wrapped(L.Add(), None, StreamQuantizer(num_bits=8, initial_clipping_level=3.0))
    np.testing.assert_array_equal(wrapped([x, y]), pact.quantize_stream(x + y, 3.0, 8))


def test_an_observer_looks_at_logits_in_front_of_the_softmax():
    wrapped = _wrapped(L.Dense(4, activation="softmax"), None, RangeObserver())
    x = _draw((8, 3))
    found = wrapped(x, training=True).numpy()
    np.testing.assert_allclose(found.sum(-1), 1.0, rtol=1e-6)
    logits = x @ wrapped.layer.kernel.numpy()
    ends = [float(wrapped.output_variables[end]) for end in ("lowest", "highest")]
    assert ends == pytest.approx([logits.min(), logits.max()], rel=1e-5)


def test_what_enters_the_quantizer_can_be_asked_for():
    x = _draw()
    for layer, output, expected in [
        (L.ReLU(), PactQuantizer(num_bits=2), x),
        (L.Activation("relu"), PactQuantizer(num_bits=2), x),
        (L.Add(), StreamQuantizer(num_bits=2), None),
        (L.Flatten(), None, x.reshape(2, -1)),
    ]:
        inputs = [x, x] if isinstance(layer, L.Add) else x
        wrapped = _wrapped(layer, None, output)
        wrapped(inputs)
        found = np.asarray(wrapped.before_quantization(inputs))
        np.testing.assert_array_equal(found, 2 * x if expected is None else expected)


def test_the_gradient_reaches_the_latent_kernel_and_the_clipping_level():
    output = PactQuantizer(num_bits=2, initial_clipping_level=0.5)
    wrapped = _wrapped(L.Dense(4, activation="relu"), DorefaQuantizer(num_bits=2), output)
    x = _draw((8, 3))
    with tf.GradientTape() as tape:
        loss = tf.reduce_sum(tf.square(wrapped(x)))
    names = [variable.name.split("/")[-1] for variable in wrapped.trainable_variables]
    assert sorted(names) == ["bias:0", "clipping_level:0", "kernel:0"]
    for gradient in tape.gradient(loss, wrapped.trainable_variables):
        assert np.abs(gradient).max() > 0


def test_a_layer_that_fails_is_put_back():
    weights, output = DorefaQuantizer(num_bits=2), PactQuantizer(num_bits=2)
    wrapped = _wrapped(L.Dense(4, activation="relu"), weights, output)
    wrapped(_draw((8, 3)))
    kernel = wrapped.layer.kernel
    with pytest.raises(ValueError, match="incompatible"):
        wrapped(_draw((8, 5)))
    assert wrapped.layer.kernel is kernel
    assert wrapped.layer.activation is keras.activations.relu


def test_threads_do_not_see_each_others_kernels():
    model = sat_tf.quantize_model(float_models.build("without_normalization"), BitPolicy.mobile(2))
    images = float_models.images(16)
    expected = model(images).numpy()
    kernels = {layer.name: layer.layer.weights for layer in model.layers[1:]}
    with ThreadPoolExecutor(4) as threads:
        for outputs in threads.map(model, [images] * 80):
            np.testing.assert_array_equal(outputs, expected)
    for layer in model.layers[1:]:
        assert [id(v) for v in layer.layer.weights] == [id(v) for v in kernels[layer.name]]
    assert isinstance(model.get_layer("quant_a").layer.kernel, tf.Variable)


def test_frozen_layers_neither_train_nor_observe():
    wrapped = _wrapped(L.Dense(4), DorefaQuantizer(num_bits=2), RangeObserver())
    x = _draw((8, 3))
    wrapped(x)
    wrapped.trainable = False
    assert not wrapped.trainable_variables
    wrapped(x, training=True)
    assert float(wrapped.output_variables["observations"]) == 0.0
    wrapped.trainable = True
    wrapped(x, training=True)
    assert float(wrapped.output_variables["observations"]) == 1.0


def test_a_wrapper_can_be_copied():
    wrapped = _wrapped(L.Dense(4), DorefaQuantizer(num_bits=2), StreamQuantizer(num_bits=8))
    x = _draw((8, 3))
    expected = wrapped(x).numpy()
    twin = copy.deepcopy(wrapped)
    wrapped.layer.kernel.assign(tf.zeros([3, 4]))
    np.testing.assert_array_equal(twin(x), expected)


@pytest.mark.parametrize("dtype", ["mixed_bfloat16", "mixed_float16"])
def test_half_precision_layers_have_quantizers_in_float32(dtype):
    weights = DorefaQuantizer(num_bits=4, rescale="constant", fan_out=4)
    layer = L.Dense(4, activation="relu", dtype=dtype)
    wrapped = _wrapped(layer, weights, PactQuantizer(num_bits=4))
    x = _draw((8, 3))
    found = wrapped(x)
    assert found.dtype == dtype.removeprefix("mixed_")
    assert {variable.dtype for variable in wrapped.variables} == {tf.float32}
    effective = wrapped.effective_kernel()
    assert effective.dtype == tf.float32
    half = tf.cast(x, found.dtype) @ tf.cast(effective, found.dtype)
    np.testing.assert_array_equal(found, pact.quantize_activation(half, 8.0, 4))


def test_the_wrapped_layers_own_losses_count_once():
    layer = L.Dense(4, kernel_regularizer="l2", activity_regularizer="l2")
    wrapped = _wrapped(layer, DorefaQuantizer(num_bits=2))
    wrapped(_draw((8, 3)))
    assert len(wrapped.losses) == 2


IMAGES = float_models.images(12)
LABELS = np.arange(12) % 3


def _quantized(policy=None):
    keras.utils.set_random_seed(0)
    policy = policy or BitPolicy.paper(3)
    model = sat_tf.quantize_model(float_models.build("residual"), policy)
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(keras.optimizers.SGD(0.1), loss, metrics=["accuracy"])
    return model


@pytest.mark.thorough
@pytest.mark.parametrize(
    "policy",
    [BitPolicy.paper(3), BitPolicy.mobile(4), BitPolicy(weight_bits=None, activation_bits=None)],
    ids=["paper", "mobile", "clamp only"],
)
def test_inside_everything_that_evaluates_gives_the_same_bits(policy):
    model = _quantized(policy)
    made = model.predict(IMAGES, verbose=0)
    measured = model.evaluate(IMAGES, LABELS, verbose=0)
    with constant_weights(model):
        np.testing.assert_array_equal(model.predict(IMAGES, verbose=0), made)
        assert model.evaluate(IMAGES, LABELS, verbose=0) == measured
        np.testing.assert_array_equal(model(IMAGES), model(IMAGES, training=False))


def test_no_effective_weight_is_made_inside():
    model = _quantized()

    def kernels_made():
        """How many kernels a traced function squashes."""
        function = tf.function(lambda images: model(images, training=False))
        graph = function.get_concrete_function(tf.constant(IMAGES)).graph.as_graph_def()
        nodes = [*graph.node, *(node for f in graph.library.function for node in f.node_def)]
        return sum(node.op == "Tanh" for node in nodes)

    assert kernels_made() > 0
    with constant_weights(model):
        assert kernels_made() == 0


@pytest.mark.thorough
def test_training_between_two_entries_is_seen_and_nothing_is_traced_again():
    model = _quantized()
    with constant_weights(model):
        before = model.evaluate(IMAGES, LABELS, verbose=0)
        traced = model.test_function
        count = traced.experimental_get_tracing_count()
    model.fit(IMAGES, LABELS, epochs=2, verbose=0)
    after = model.evaluate(IMAGES, LABELS, verbose=0)
    assert model.test_function is not traced
    with constant_weights(model):
        assert model.evaluate(IMAGES, LABELS, verbose=0) == after != before
        assert model.test_function is traced
        assert traced.experimental_get_tracing_count() == count


def test_training_inside_is_refused_and_works_outside_and_new_metrics_are_known():
    model = _quantized()
    with pytest.raises(RuntimeError, match="train it outside"), constant_weights(model):
        model.fit(IMAGES, LABELS, verbose=0)
    before = model.get_weights()
    model.fit(IMAGES, LABELS, verbose=0)
    assert any(np.any(old != new) for old, new in zip(before, model.get_weights(), strict=True))
    with constant_weights(model):
        assert len(model.evaluate(IMAGES, LABELS, verbose=0)) == 2
    model.compile(loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    with constant_weights(model):
        assert isinstance(model.evaluate(IMAGES, LABELS, verbose=0), float)


def test_a_function_traced_inside_gives_nan_outside_and_never_old_results():
    model = _quantized()
    names = [weight.name for weight in model.weights]
    function = tf.function(lambda images: model(images, training=False))
    with constant_weights(model):
        expected = function(IMAGES).numpy()
        assert [weight.name for weight in model.weights] == names
    assert np.all(np.isnan(function(IMAGES)))
    with constant_weights(model):
        np.testing.assert_array_equal(function(IMAGES), expected)


@pytest.mark.thorough
def test_copies_and_saved_models_know_nothing_of_it(tmp_path):
    model = _quantized()
    with constant_weights(model):
        expected = model.predict(IMAGES, verbose=0)
        model.save(tmp_path / "model.keras")
        layers = [copy.deepcopy(layer) for layer in model.layers[1:]]
    assert all(layer.constant_kernel is None for layer in layers)
    loaded = keras.models.load_model(tmp_path / "model.keras")
    np.testing.assert_array_equal(loaded.predict(IMAGES, verbose=0), expected)


def test_an_error_inside_ends_it_and_a_model_around_the_quantized_one_may_be_given():
    model = _quantized()
    expected = model.predict(IMAGES, verbose=0)
    with pytest.raises(ZeroDivisionError), constant_weights(model):
        math.floor(1 / 0)
    assert not ConstantWeights(model).are_read
    np.testing.assert_array_equal(model.predict(IMAGES, verbose=0), expected)
    around = model_of(model, L.Softmax())
    expected = around.predict(IMAGES, verbose=0)
    with constant_weights(around):
        np.testing.assert_array_equal(around.predict(IMAGES, verbose=0), expected)


@pytest.mark.thorough
def test_replicas_read_the_same_copies():
    strategy = tf.distribute.MirroredStrategy(["CPU:0"])
    with strategy.scope():
        model = _quantized()
    expected = model.evaluate(IMAGES, LABELS, verbose=0)
    for _ in range(2):
        with constant_weights(model):
            assert model.evaluate(IMAGES, LABELS, verbose=0) == expected


def test_float_weights_are_float_inside_too():
    model = _quantized()
    with float_weights(model.layers):
        made = model(IMAGES)
    assert np.any(made != model(IMAGES))
    with constant_weights(model):
        with float_weights(model.layers):
            np.testing.assert_array_equal(model(IMAGES), made)
        assert np.any(made != model(IMAGES))


MAP = np.random.default_rng(0).normal(size=(4, 4, 6)).astype(np.float32)


def _of_sums(policy, behind=lambda x: x):
    layers = [L.Conv2D(6, 3, padding="same", name="conv"), lambda x: x + MAP, behind]
    layers += [L.Flatten(name="flat"), L.Dense(2, name="head")]
    return sat_tf.quantize_model(model_of(*layers, shape=(4, 4, 3)), policy)


def _map_of(model):
    layers = map(inner_layer, model.layers)
    (values,) = (layer.values for layer in layers if isinstance(layer, ConstantSum))
    return values


@pytest.mark.parametrize("behind", [lambda x: x, L.ReLU(name="relu")], ids=["plain", "absorbed"])
def test_a_map_that_the_file_holds_as_int8_is_trained_as_such(behind):
    values = _map_of(_of_sums(BitPolicy.mobile(4), behind))
    step = np.max(np.abs(MAP)) / 127.0
    codes = values / step
    np.testing.assert_allclose(codes, np.rint(codes), atol=1e-4)
    assert np.max(np.abs(values - MAP)) <= step * 0.5001
    # On a float stream it keeps its values.
    np.testing.assert_array_equal(_map_of(_of_sums(BitPolicy.paper(4))), MAP)


@pytest.mark.parametrize("formula", [lambda x: x + MAP, lambda x: x - np.abs(MAP)])
def test_negative_numbers_of_a_map_make_negative_values_of_what_has_none(formula):
    conv = L.Conv2D(6, 3, padding="same", activation="relu", name="conv")
    layers = [conv, lambda x: formula(0.01 * x), L.Conv2D(3, 1, name="reader")]
    float_model = model_of(*layers, shape=(4, 4, 3))
    images = np.random.default_rng(1).integers(0, 256, (64, 4, 4, 3)).astype(np.float32)
    quantized = sat_tf.quantize_model(float_model, BitPolicy.mobile(8))
    sat_tf.calibrate(quantized, images)
    expected = float_model(images).numpy()
    assert np.mean(np.abs(quantized(images) - expected)) < 0.01 * np.ptp(expected)


@pytest.mark.parametrize("scale", [1e-20, 1e-3, 1.0, 3e7])
def test_rounding_twice_changes_nothing_and_zeros_have_codes(scale):
    once = ConstantSum(MAP * np.float32(scale)).rounded()
    codes, step = once.codes()
    np.testing.assert_array_equal(once.rounded().values, once.values)
    np.testing.assert_array_equal((codes * step).astype(np.float32), once.values)
    assert np.max(np.abs(codes)) == 127
    codes, step = ConstantSum(np.zeros((2, 2, 1))).codes()
    assert not np.any(codes)
    assert step > 0.0


def test_a_map_stays_in_saved_and_cloned_models(tmp_path):
    model = _of_sums(BitPolicy.mobile(4))
    expected = _map_of(model)
    for name in ("model.keras", "model.h5"):
        model.save(tmp_path / name)
        found = keras.models.load_model(tmp_path / name)
        np.testing.assert_array_equal(_map_of(found), expected)
    again = sat_tf.requantize(model, BitPolicy.mobile(8))
    for found in (keras.models.clone_model(model), again):
        np.testing.assert_array_equal(_map_of(found), expected)
