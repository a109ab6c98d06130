import keras
import numpy as np
import pytest
import tf_keras

import sat_tf
from sat_tf.keras3 import proof
from sat_tf.keras3.incoming import convert
from sat_tf.keras3.proof import _are_ties, difference

L = keras.layers


def test_differences_are_parts_of_the_largest_value():
    assert difference(np.float32([1.0, -4.0]), np.float32([1.5, -4.0])) == 0.125
    assert difference(np.zeros(2), np.zeros(2)) == 0.0
    assert difference(np.zeros(2), np.ones(2)) == np.inf


def test_infinities_and_nan_are_equal_to_themselves_only():
    odd = np.array([np.inf, np.nan, 1.0])
    assert difference(odd, odd) == 0.0
    assert difference(odd, np.array([-np.inf, np.nan, 1.0])) == np.inf
    assert difference(odd, np.array([np.inf, 0.0, 1.0])) == np.inf
    assert difference(odd, np.array([np.inf, np.nan, 1.5])) == 0.5


def test_other_shapes_are_infinitely_far_apart():
    assert difference(np.zeros((2, 1)), np.zeros((1, 2))) == np.inf


def test_ties_are_halfway_between_two_codes_as_closely_as_the_largest_value_is_rounded():
    steps = np.array([-13.5, -13.5 + 1e-5, -13.4, 0.5, 1.0, 2.49, 100.5 - 9e-4, 127.0])
    assert _are_ties(steps * 0.25, 0.25).tolist() == [
        True,
        True,
        False,
        True,
        False,
        False,
        True,
        False,
    ]


def test_equal_sums_may_all_be_ties():
    assert np.all(_are_ties(np.full(1728, -13.5 * 0.108, np.float32), 0.108))


def _magnifying():
    """A model whose outputs are what float32 loses: the Kerases normalize in other orders."""
    draws = np.random.default_rng(0)
    image = keras.Input((8, 8, 4))
    norm, affine = L.BatchNormalization(), L.DepthwiseConv2D(1)
    difference = norm(image) - affine(image)
    norm.set_weights([draws.uniform(0.5, 2.0, 4) for _ in range(4)])
    gamma, beta, mean, variance = norm.get_weights()
    slope = gamma / np.sqrt(variance + norm.epsilon)
    affine.set_weights([slope.reshape(1, 1, 4, 1), beta - mean * slope])
    return keras.Model(image, L.Rescaling(1e6)(difference))


def test_rounding_that_a_model_magnifies_is_no_other_model(recwarn):
    found = convert(_magnifying())
    assert found.proof.layer_difference < 1e-5 < found.proof.difference
    assert not [warning for warning in recwarn if "differ in tf_keras" in str(warning.message)]


def test_a_difference_that_rounding_does_not_explain_is_told_and_refused_where_answers_change(
    monkeypatch,
):
    # Each layer differs by less than it may, and all of them in one direction.
    original = tf_keras.layers.Conv2D.call
    image = keras.Input((8, 8, 3))
    tensor = image
    for _ in range(6):
        tensor = L.Conv2D(3, 1, use_bias=False)(tensor)
    model = keras.Model(image, tensor)
    monkeypatch.setattr(
        tf_keras.layers.Conv2D, "call", lambda self, x: original(self, x) * (1.0 + 9e-6)
    )
    with pytest.warns(UserWarning, match=r"differ in tf_keras by 5.4e-05 .* answers are the same"):
        convert(model)
    monkeypatch.setattr(proof, "_changed_answers", lambda expected, received: 0.25)
    with pytest.raises(ValueError, match=r"and 25\.0% of its answers"):
        convert(model)


def test_a_layer_that_does_something_else_is_no_rounding(monkeypatch):
    image = keras.Input((8, 8, 3))
    model = keras.Model(image, L.UpSampling2D(interpolation="bilinear", name="up")(image))
    original = tf_keras.layers.UpSampling2D.call
    monkeypatch.setattr(
        tf_keras.layers.UpSampling2D, "call", lambda self, x: original(self, x) * (1.0 + 1e-4)
    )
    with pytest.raises(ValueError, match="up: received an UpSampling2D whose output differs"):
        sat_tf.from_keras3(model)
