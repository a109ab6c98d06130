import copy
import math

import numpy as np
import pytest
import tensorflow as tf
import tf_keras as keras

import sat_tf
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
    with (
        pytest.raises(RuntimeError, match="train it outside"),
        constant_weights(model),
    ):
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
