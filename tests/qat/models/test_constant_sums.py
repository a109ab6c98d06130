import numpy as np
import pytest
import tf_keras as keras

import sat_tf
from sat_tf.graph.operation_layers import ConstantSum

L = keras.layers
MAP = np.random.default_rng(0).normal(size=(4, 4, 6)).astype(np.float32)


def _quantized(policy, behind=lambda x: x):
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
    values = _map_of(_quantized(sat_tf.BitPolicy.mobile(4), behind))
    step = np.max(np.abs(MAP)) / 127.0
    codes = values / step
    np.testing.assert_allclose(codes, np.rint(codes), atol=1e-4)
    assert np.max(np.abs(values - MAP)) <= step * 0.5001


def test_a_map_on_a_float_stream_keeps_its_values():
    np.testing.assert_array_equal(_map_of(_quantized(sat_tf.BitPolicy.paper(4))), MAP)


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
    model = _quantized(sat_tf.BitPolicy.mobile(4))
    expected = _map_of(model)
    for name in ("model.keras", "model.h5"):
        model.save(tmp_path / name)
        found = keras.models.load_model(tmp_path / name)
        np.testing.assert_array_equal(_map_of(found), expected)
    np.testing.assert_array_equal(_map_of(keras.models.clone_model(model)), expected)
    np.testing.assert_array_equal(
        _map_of(sat_tf.requantize(model, sat_tf.BitPolicy.mobile(8))), expected
    )
