import dataclasses
import itertools

import numpy as np
import pytest
import tf_keras as keras

import sat_tf
from sat_tf.exact.tflite.input_range import range_of
from sat_tf.qat.inputs import input_ranges
from sat_tf.qat.layout import quantized_network
from sat_tf.qat.policy import BitPolicy
from tests.qat.float_models import pretend_trained

L = keras.layers
RANGES = [(0, 1), (-1, 1), (20, 275), "torch", "caffe", ((0, -1, -2), (1, 1, 3))]
PICTURES = np.random.default_rng(3).integers(0, 256, (8, 8, 8, 3)).astype(np.uint8)


def _model(*front):
    image = keras.Input((8, 8, 3), name="image")
    tensor = image
    for layer in front:
        tensor = layer(tensor)
    if len(tensor.shape) == 4:
        tensor = L.GlobalAveragePooling2D(name="pool")(tensor)
    return pretend_trained(keras.Model(image, L.Dense(3, name="classifier")(tensor)))


# The function stays what it was, as nothing pads the image with zeros.
FRONTS = {
    "bias": lambda: [L.Conv2D(4, 3, name="conv")],
    "norm": lambda: [L.Conv2D(4, 3, use_bias=False, name="conv"), L.BatchNormalization(name="bn")],
    "bias_and_norm": lambda: [L.Conv2D(4, 3, name="conv"), L.BatchNormalization(name="bn")],
    "flat": lambda: [L.Flatten(name="flat"), L.Dense(4, activation="relu", name="dense")],
    "cropped": lambda: [L.Cropping2D(1), L.MaxPooling2D(2), L.Conv2D(4, 3, name="conv")],
}
# Their outputs have the channels of the image, so that "caffe" is not for them.
IN_ORDER = {
    "norm_first": lambda: [L.BatchNormalization(name="bn"), L.Conv2D(4, 3, name="conv")],
    "depthwise": lambda: [L.DepthwiseConv2D(3, depth_multiplier=2, name="depthwise"), L.ReLU()],
    "groups": lambda: [L.Conv2D(6, 3, groups=3, name="conv"), L.ReLU()],
}


# One range for all channels and one for each stand for the others in the fast tests.
QUICK = [*itertools.product(FRONTS, [(-1, 1), "caffe"]), *itertools.product(IN_ORDER, ["torch"])]


@pytest.mark.parametrize(
    ("name", "value"),
    [
        pytest.param(name, value, marks=() if (name, value) in QUICK else pytest.mark.thorough)
        for name in (*FRONTS, *IN_ORDER)
        for value in RANGES
        if value != "caffe" or name in FRONTS
    ],
    ids=str,
)
def test_a_model_keeps_its_function(name, value):
    model = _model(*{**FRONTS, **IN_ORDER}[name]())
    policy = BitPolicy(weight_bits=None, activation_bits=None, input_range=value)
    fed = range_of(value).fed(PICTURES)
    expected = model(fed).numpy()
    found = sat_tf.quantize_model(model, policy)(fed).numpy()
    assert np.abs(found - expected).max() < 1e-5 * np.abs(expected).max()


def test_beside_zero_padding_a_pixel_stands_for_real_0():
    model = _model(L.Conv2D(4, 3, padding="same", name="conv"))
    policy = BitPolicy(weight_bits=None, activation_bits=None, input_range="tf")
    quantized = sat_tf.quantize_model(model, policy)
    fed = range_of("tf").fed(PICTURES)
    inside = np.s_[:, 1:-1, 1:-1]
    expected = model.get_layer("conv")(fed).numpy()
    made = keras.Model(quantized.input, quantized.get_layer("quant_conv").output)(fed).numpy()
    np.testing.assert_allclose(made[inside], expected[inside], atol=1e-5)
    kernel = model.get_layer("conv").kernel.numpy()
    assert 0 < np.abs(made - expected).max() <= 1 / 255 * np.abs(kernel).sum(axis=(0, 1, 2)).max()


def test_a_layer_without_a_place_for_half_a_pixel_is_fed_that_much_more():
    model = _model(L.Conv2D(4, 3, use_bias=False, name="conv"), L.ReLU())
    policy = BitPolicy(weight_bits=None, activation_bits=None, input_range=(-1, 1))
    fed = range_of("tf").fed(PICTURES)
    found = sat_tf.quantize_model(model, policy)(fed)
    np.testing.assert_allclose(found, model(fed - np.float32(1 / 255)), rtol=1e-4, atol=1e-4)


def test_a_layer_that_two_inputs_share_takes_their_range_in_once():
    one, other = keras.Input((8, 8, 3), name="one"), keras.Input((8, 8, 3), name="other")
    conv = L.Conv2D(4, 3, name="conv")
    pooled = L.GlobalAveragePooling2D()(L.Concatenate()([conv(one), conv(other)]))
    model = pretend_trained(keras.Model([one, other], L.Dense(3, name="classifier")(pooled)))
    fields = {"weight_bits": None, "activation_bits": None}
    fed = [range_of("caffe").fed(PICTURES), range_of("caffe").fed(PICTURES[::-1])]
    found = sat_tf.quantize_model(model, BitPolicy(**fields, input_range="caffe"))
    np.testing.assert_allclose(found(fed), model(fed), rtol=1e-4, atol=1e-2)
    with pytest.raises(ValueError, match="conv: received an input_range that differs"):
        sat_tf.quantize_model(model, BitPolicy(**fields, input_range={"one": "caffe"}))


def test_each_input_has_a_range_of_its_own():
    one, other = keras.Input((8, 8, 3), name="one"), keras.Input((8, 8, 1), name="other")
    parts = [L.Conv2D(4, 3, name="first")(one), L.Conv2D(4, 3, name="second")(other)]
    pooled = L.GlobalAveragePooling2D()(L.Concatenate()(parts))
    model = pretend_trained(keras.Model([one, other], L.Dense(3, name="classifier")(pooled)))
    ranges = {"one": "torch", "other": (-1, 1)}
    policy = BitPolicy(weight_bits=None, activation_bits=None, input_range=ranges)
    quantized = sat_tf.quantize_model(model, policy)
    fed = [range_of("torch").fed(PICTURES), range_of("tf").fed(PICTURES[..., :1])]
    np.testing.assert_allclose(quantized(fed), model(fed), rtol=1e-4, atol=1e-4)
    found = input_ranges(quantized_network(quantized, when="first"))
    assert found == {name: range_of(value) for name, value in ranges.items()}


def test_requantize_leaves_a_model_its_range_and_function():
    model = _model(*FRONTS["norm"]())
    first = BitPolicy(weight_bits=None, activation_bits=None, input_range="caffe")
    quantized = sat_tf.quantize_model(model, first)
    fed = range_of("caffe").fed(PICTURES)
    again = sat_tf.requantize(quantized, BitPolicy(weight_bits=None, activation_bits=None))
    np.testing.assert_array_equal(again(fed), quantized(fed))
    same = sat_tf.requantize(again, dataclasses.replace(first, weight_bits=8))
    assert input_ranges(quantized_network(same, when="first")) == {"image": range_of("caffe")}
    with pytest.raises(ValueError, match=r'input_range=\(0, 255\) for an input of "caffe"'):
        sat_tf.requantize(quantized, dataclasses.replace(first, input_range=(0, 255)))


@pytest.mark.parametrize("name", ["bias", "norm"])
def test_a_trained_model_gets_the_range_that_fits_without_another_function(name):
    model = _model(*FRONTS[name]())
    policy = BitPolicy(weight_bits=4, activation_bits=None)
    quantized = sat_tf.quantize_model(model, policy)
    fed = range_of("tf").fed(PICTURES)
    fitting = sat_tf.requantize(quantized, dataclasses.replace(policy, input_range="tf"))
    np.testing.assert_allclose(fitting(fed), quantized(fed), rtol=1e-4, atol=1e-4)
