import copy
import math

import numpy as np
import pytest
import tensorflow as tf
import tf_keras as keras

import sat_tf
from sat_tf.graph.operation_layers import ConstantSum
from sat_tf.qat.calibrate import float_weights
from sat_tf.qat.wrapper import ConstantWeights, constant_weights
from tests.qat import float_models

IMAGES = float_models.images(12)
LABELS = np.arange(12) % 3


def _quantized(policy=None, *, compiled=True):
    keras.utils.set_random_seed(0)
    model = sat_tf.quantize_model(
        float_models.build("residual"), policy or sat_tf.BitPolicy.paper(3)
    )
    if compiled:
        _compile(model)
    return model


def _compile(model):
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(keras.optimizers.SGD(0.1), loss, metrics=["accuracy"])


def _kernels_made(function, *arguments):
    """How many kernels a traced function squashes."""
    graph = function.get_concrete_function(*arguments).graph.as_graph_def()
    nodes = [*graph.node, *(node for f in graph.library.function for node in f.node_def)]
    return sum(node.op == "Tanh" for node in nodes)


@pytest.mark.thorough
@pytest.mark.parametrize(
    "policy",
    [
        sat_tf.BitPolicy.paper(3),
        sat_tf.BitPolicy.mobile(4),
        sat_tf.BitPolicy(weight_bits=None, activation_bits=None),
    ],
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


@pytest.mark.thorough
def test_no_effective_weight_is_made_inside():
    model = _quantized()
    images = tf.constant(IMAGES)
    outside = tf.function(lambda images: model(images, training=False))
    assert _kernels_made(outside, images) > 0
    with constant_weights(model):
        inside = tf.function(lambda images: model(images, training=False))
        assert _kernels_made(inside, images) == 0


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


@pytest.mark.thorough
def test_compiling_again_makes_new_metrics_known_inside_too():
    model = _quantized()
    with constant_weights(model):
        assert len(model.evaluate(IMAGES, LABELS, verbose=0)) == 2
    model.compile(loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    with constant_weights(model):
        assert isinstance(model.evaluate(IMAGES, LABELS, verbose=0), float)


@pytest.mark.thorough
def test_training_inside_is_refused_and_works_outside():
    model = _quantized()
    with pytest.raises(RuntimeError, match="train it outside"), constant_weights(model):
        model.fit(IMAGES, LABELS, verbose=0)
    before = model.get_weights()
    model.fit(IMAGES, LABELS, verbose=0)
    assert any(np.any(old != new) for old, new in zip(before, model.get_weights(), strict=True))


def test_a_function_traced_inside_gives_nan_outside_and_never_old_results():
    model = _quantized()
    function = tf.function(lambda images: model(images, training=False))
    with constant_weights(model):
        expected = function(IMAGES).numpy()
    assert np.all(np.isnan(function(IMAGES)))
    with constant_weights(model):
        np.testing.assert_array_equal(function(IMAGES), expected)


def test_weights_of_the_model_stay_the_same_ones():
    model = _quantized()
    before = [weight.name for weight in model.weights]
    with constant_weights(model):
        assert [weight.name for weight in model.weights] == before
    assert [weight.name for weight in model.weights] == before


@pytest.mark.thorough
def test_copies_and_saved_models_know_nothing_of_it(tmp_path):
    model = _quantized()
    with constant_weights(model):
        expected = model.predict(IMAGES, verbose=0)
        model.save(tmp_path / "model.keras")
        layers = [
            copy.deepcopy(layer) for layer in model.layers if hasattr(layer, "constant_kernel")
        ]
    assert layers
    assert all(layer.constant_kernel is None for layer in layers)
    loaded = keras.models.load_model(tmp_path / "model.keras")
    np.testing.assert_array_equal(loaded.predict(IMAGES, verbose=0), expected)


def test_an_error_inside_ends_it():
    model = _quantized()
    expected = model.predict(IMAGES, verbose=0)
    with pytest.raises(ZeroDivisionError), constant_weights(model):
        math.floor(1 / 0)
    assert not ConstantWeights(model).are_read
    np.testing.assert_array_equal(model.predict(IMAGES, verbose=0), expected)


def test_a_model_around_the_quantized_one_may_be_given():
    model = _quantized(compiled=False)
    inputs = keras.Input(model.input_shape[1:])
    around = keras.Model(inputs, keras.layers.Softmax()(model(inputs)))
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
    model = _quantized(compiled=False)
    with float_weights(model.layers):
        made = model(IMAGES)
    assert np.any(made != model(IMAGES))
    with constant_weights(model):
        with float_weights(model.layers):
            np.testing.assert_array_equal(model(IMAGES), made)
        assert np.any(made != model(IMAGES))


L = keras.layers
MAP = np.random.default_rng(0).normal(size=(4, 4, 6)).astype(np.float32)


def _of_sums(policy, behind=lambda x: x):
    image = keras.Input((4, 4, 3), name="image")
    x = behind(L.Conv2D(6, 3, padding="same", name="conv")(image) + MAP)
    outputs = L.Dense(2, name="head")(L.Flatten(name="flat")(x))
    return sat_tf.quantize_model(keras.Model(image, outputs), policy)


def _map_of(model):
    (layer,) = (
        getattr(layer, "layer", layer)
        for layer in model.layers
        if isinstance(getattr(layer, "layer", layer), ConstantSum)
    )
    return layer.values


@pytest.mark.parametrize("behind", [lambda x: x, L.ReLU(name="relu")], ids=["plain", "absorbed"])
def test_a_map_that_the_file_holds_as_int8_is_trained_as_such(behind):
    values = _map_of(_of_sums(sat_tf.BitPolicy.mobile(4), behind))
    step = np.max(np.abs(MAP)) / 127.0
    codes = values / step
    np.testing.assert_allclose(codes, np.rint(codes), atol=1e-4)
    assert np.max(np.abs(values - MAP)) <= step * 0.5001


def test_a_map_on_a_float_stream_keeps_its_values():
    np.testing.assert_array_equal(_map_of(_of_sums(sat_tf.BitPolicy.paper(4))), MAP)


@pytest.mark.parametrize("formula", [lambda x: x + MAP, lambda x: x - np.abs(MAP)])
def test_negative_numbers_of_a_map_make_negative_values_of_what_has_none(formula):
    image = keras.Input((4, 4, 3), name="image")
    x = L.Conv2D(6, 3, padding="same", activation="relu", name="conv")(image)
    x = L.Conv2D(3, 1, name="reader")(formula(0.01 * x))
    float_model = keras.Model(image, x)
    images = np.random.default_rng(1).integers(0, 256, (64, 4, 4, 3)).astype(np.float32)
    quantized = sat_tf.quantize_model(float_model, sat_tf.BitPolicy.mobile(8))
    sat_tf.calibrate(quantized, images)
    expected = float_model(images).numpy()
    assert np.mean(np.abs(quantized(images) - expected)) < 0.01 * np.ptp(expected)


@pytest.mark.parametrize("scale", [1e-20, 1e-3, 1.0, 3e7])
def test_rounding_twice_changes_nothing(scale):
    once = ConstantSum(MAP * np.float32(scale)).rounded()
    codes, step = once.codes()
    np.testing.assert_array_equal(once.rounded().values, once.values)
    np.testing.assert_array_equal((codes * step).astype(np.float32), once.values)
    assert np.max(np.abs(codes)) == 127


def test_a_map_of_zeros_has_codes():
    codes, step = ConstantSum(np.zeros((2, 2, 1))).codes()
    assert not np.any(codes)
    assert step > 0.0


def test_a_map_stays_in_saved_and_cloned_models(tmp_path):
    model = _of_sums(sat_tf.BitPolicy.mobile(4))
    expected = _map_of(model)
    for name in ("model.keras", "model.h5"):
        model.save(tmp_path / name)
        found = keras.models.load_model(tmp_path / name)
        np.testing.assert_array_equal(_map_of(found), expected)
    np.testing.assert_array_equal(_map_of(keras.models.clone_model(model)), expected)
    np.testing.assert_array_equal(
        _map_of(sat_tf.requantize(model, sat_tf.BitPolicy.mobile(8))), expected
    )
