"""Weights decide what a quantized model computes: they can be loaded into another one."""

import functools

import numpy as np
import pytest
import tensorflow as tf
import tf_keras as keras

import sat_tf
from sat_tf.qat.policy import BitPolicy
from tests.qat import float_models
from tests.qat.models import many_layers

L = keras.layers


def transposed(seed):
    image = keras.Input((8, 8, 3), name="image")
    norm = L.Normalization(name="adapted")
    norm.adapt(float_models.images(16, seed=seed) * (0.3 + seed))
    tensor = L.Conv2D(4, 3, 2, name="a")(norm(image))
    tensor = L.ReLU(name="a_relu")(L.BatchNormalization(name="a_bn")(tensor))
    tensor = L.Conv2DTranspose(5, 3, 2, name="up")(tensor)
    tensor = L.ReLU(6.0, name="up_relu")(L.BatchNormalization(name="up_bn")(tensor))
    tensor = L.Conv2DTranspose(2, 2, activation="relu", name="last")(tensor)
    model = keras.Model(
        image, L.Dense(3, name="classifier")(L.Flatten()(tensor)), name="transposed"
    )
    statistics = norm.get_weights()
    float_models.pretend_trained(model, seed)
    norm.set_weights(statistics)
    norm.finalize_state()
    return model


GRAPHS = ["mobile_block", "depthwise", "without_normalization", "no_gamma", "preactivation"]
MODELS = {
    **{name: functools.partial(float_models.build, name) for name in GRAPHS},
    "transposed": transposed,
    "dense": lambda seed: float_models.pretend_trained(float_models.dense_only(), seed),
    "many_layers": lambda seed: float_models.pretend_trained(many_layers.build(), seed),
}
POLICIES = {
    "mobile8": BitPolicy.mobile(8),
    "mobile4_channel": BitPolicy.mobile(4, weight_range="channel", detach_max=True),
    "paper2": BitPolicy.paper(2),
    "paper3_kept": BitPolicy.paper(3, latent_start="keep_function"),
    "stddev": BitPolicy.mobile(3, rescale="stddev", weight_grid="narrow"),
    "clamped": BitPolicy(weight_bits=None, activation_bits=None, rescale="none"),
    "many_layers": many_layers.POLICY,
}


def _images(model):
    if model.input_shape[1:] == (6,):
        return np.random.default_rng(0).normal(size=(8, 6)).astype(np.float32)
    return float_models.images()


@functools.cache
def _quantized(name, policy, seed):
    keras.backend.reset_uids()  # names that Keras gives count the layers that there are
    return sat_tf.quantize_model(MODELS[name](seed), POLICIES[policy])


def _lasting(config):
    """The configuration without the start of clipping levels, which are weights."""
    if isinstance(config, dict):
        kept = {key: part for key, part in config.items() if key != "initial_clipping_level"}
        return {key: _lasting(part) for key, part in kept.items()}
    return [_lasting(part) for part in config] if isinstance(config, list | tuple) else config


ONE_INPUT = [name for name in POLICIES if name != "many_layers"]
# Every model and every policy, and those with gains beside those without.
PAIRS = [
    *zip([*GRAPHS, "transposed"], ONE_INPUT, strict=False),
    *(("depthwise", policy) for policy in ONE_INPUT if policy != "mobile4_channel"),
    ("transposed", "mobile4_channel"),
    ("dense", "paper2"),
]


@pytest.mark.thorough
@pytest.mark.parametrize(("name", "policy"), PAIRS)
def test_set_weights_makes_another_model_the_same(name, policy):
    one, other = (_quantized(name, policy, seed) for seed in (0, 1))
    if name != "transposed":
        assert _lasting(one.get_config()) == _lasting(other.get_config())
    images = _images(one)
    assert not np.array_equal(other(images), one(images))
    other = keras.models.clone_model(other)
    other.set_weights(one.get_weights())
    np.testing.assert_array_equal(other(images), one(images))
    one = keras.models.clone_model(one)
    one.set_weights(other.get_weights())
    for _ in range(2):  # also with the statistics that the first step has moved
        trained = one(images, training=True)
        np.testing.assert_array_equal(other(images, training=True), trained)
    np.testing.assert_array_equal(other(images), one(images))


FILES = {"model.weights.h5": "h5", "weights.h5": "h5", "checkpoint": "tf"}


@pytest.mark.thorough
@pytest.mark.parametrize("file", FILES)
@pytest.mark.parametrize("name", ["transposed", "depthwise"])
def test_a_file_of_weights_makes_another_model_the_same(name, file, tmp_path):
    one, other = (_quantized(name, "mobile4_channel", seed) for seed in (0, 1))
    one.save_weights(tmp_path / file)
    other = keras.models.clone_model(other)
    other.load_weights(tmp_path / file)
    images = _images(one)
    np.testing.assert_array_equal(other(images), one(images))
    np.testing.assert_array_equal(tf.function(other)(images), tf.function(one)(images))


@pytest.mark.thorough
def test_weights_of_models_with_functions_and_shared_layers_can_be_loaded():
    one, other = (_quantized("many_layers", "many_layers", seed) for seed in (0, 1))
    assert _lasting(one.get_config()) == _lasting(other.get_config())
    other.set_weights(one.get_weights())
    images = many_layers.images(4)
    for found, wanted in zip(
        tf.nest.flatten(other(images)), tf.nest.flatten(one(images)), strict=True
    ):
        np.testing.assert_array_equal(found, wanted)


@pytest.mark.parametrize("name", ["transposed", "depthwise", "without_normalization"])
def test_loaded_weights_give_the_same_file(name, tmp_path):
    one, other = (_quantized(name, "mobile4_channel", seed) for seed in (0, 1))
    other = keras.models.clone_model(other)
    other.set_weights(one.get_weights())
    for model, file in ((one, "one.tflite"), (other, "other.tflite")):
        sat_tf.calibrate(model, _images(model), batch_normalization=False)
        sat_tf.export_tflite(model, tmp_path / file)
    assert (tmp_path / "one.tflite").read_bytes() == (tmp_path / "other.tflite").read_bytes()
