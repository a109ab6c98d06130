import functools
import os
import subprocess
import sys
import warnings

import keras as keras3
import numpy as np
import pytest
import tensorflow as tf
import tensorflow_model_optimization as tfmot
import tf_keras as keras

import sat_tf
from sat_tf.core import asymmetric
from sat_tf.core.ranges import scale_and_zero
from sat_tf.keras3.inference_layers import QuantizedActivation
from sat_tf.quantizers.input_range import range_of
from tests.export import layer_models
from tests.export.zoo import make_realistic
from tests.qat import float_models, nested_models

POLICIES = {
    "w4a4": sat_tf.BitPolicy(),
    "requantized": sat_tf.BitPolicy(requantize_streams=True),
    "paper": sat_tf.BitPolicy.paper(3),
    "w8a8_by_channel": sat_tf.BitPolicy(weight_bits=8, activation_bits=8, weight_range="channel"),
    "weights_only": sat_tf.BitPolicy(weight_bits=2, activation_bits=None),
}
BEYOND = [
    name if name == "functions" else pytest.param(name, marks=pytest.mark.slow)
    for name in layer_models.MODELS
]
NESTED = [
    build if build is nested_models.shared_backbone else pytest.param(build, marks=pytest.mark.slow)
    for build in nested_models.MODELS.values()
]


def _ready(model, policy):
    quantized = sat_tf.quantize_model(model, policy)
    # Observers have been at work and clipping levels are no round numbers.
    return sat_tf.calibrate(quantized, float_models.images(16))


@functools.cache  # nothing changes it
def _quantized(name, policy="w4a4"):
    return _ready(float_models.build(name), POLICIES[policy])


@functools.cache
def _exported(name, policy="w4a4"):
    return sat_tf.to_keras3(_quantized(name, policy), exact=True)


@functools.cache
def _plain(name, policy="w4a4"):
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", ".* codes are others in Keras 3", UserWarning)
        return sat_tf.to_keras3(_quantized(name, policy))


@pytest.mark.thorough
@pytest.mark.parametrize("value", [(-1, 1), "torch", "caffe"])
def test_what_the_model_is_fed_comes_over_bit_for_bit(value, tmp_path):
    model = float_models.build("plain")
    quantized = sat_tf.quantize_model(model, sat_tf.BitPolicy(input_range=value))
    fed = range_of(value).fed(float_models.images(16).astype(np.uint8))
    sat_tf.calibrate(quantized, fed)
    sat_tf.to_keras3(quantized, exact=True).save(tmp_path / "model.keras")
    loaded = keras3.saving.load_model(tmp_path / "model.keras")
    np.testing.assert_array_equal(loaded(fed, training=False), quantized(fed, training=False))
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", ".* codes are others in Keras 3", UserWarning)
        plain = sat_tf.to_keras3(quantized)  # which proves it
    assert "sat_tf" not in plain.to_json()


def _assert_equal(exported, model):
    """The outputs of both, called the same way, bit for bit."""
    images = float_models.images(32, seed=9)
    given = images if len(model.inputs) == 1 else [images] * len(model.inputs)
    ours = keras3.tree.flatten(exported(given, training=False))
    theirs = keras3.tree.flatten(model(given, training=False))
    for one, other in zip(ours, theirs, strict=True):
        np.testing.assert_array_equal(one, other)


def _error(model, **options):
    with pytest.raises(ValueError, match=r".") as caught:
        sat_tf.to_keras3(model, **options)
    return str(caught.value)


@pytest.mark.parametrize(
    ("name", "policy"),
    [
        ("mobile_block", "w4a4"),
        ("depthwise", "paper"),
        ("residual", "w8a8_by_channel"),
        ("no_gamma", "weights_only"),
        ("softmax_in_the_classifier", "w4a4"),
    ],
)
def test_outputs_are_equal_bit_for_bit(name, policy):
    exported = _exported(name, policy)
    assert isinstance(exported, keras3.Model)
    _assert_equal(exported, _quantized(name, policy))


def test_outputs_of_prediction_in_batches_are_equal_bit_for_bit():
    images = float_models.images(32, seed=9)
    ours = _exported("depthwise", "paper").predict(images, verbose=0)
    theirs = _quantized("depthwise", "paper").predict(images, verbose=0)
    np.testing.assert_array_equal(ours, theirs)


@pytest.mark.parametrize(("name", "policy"), [("mobile_block", "w4a4"), ("depthwise", "paper")])
def test_the_plain_form_names_no_class_of_sat_tf_and_is_saved_as_it_is(name, policy, tmp_path):
    exported = _plain(name, policy)
    assert "sat_tf" not in exported.to_json()
    exported.save(tmp_path / "model.keras")
    loaded = keras3.saving.load_model(tmp_path / "model.keras")
    images = float_models.images(8)
    np.testing.assert_array_equal(loaded(images), exported(images))
    assert not exported.trainable_weights
    exact = [layer.name for layer in _exported(name, policy).layers]
    assert [layer.name for layer in exported.layers] == exact


def test_the_plain_form_has_equal_codes_where_nothing_is_normalized():
    exported, model = _plain("without_normalization"), _quantized("without_normalization")
    _assert_equal(exported, model)


@pytest.mark.thorough
@pytest.mark.parametrize("name", BEYOND)
def test_the_plain_form_has_layers_and_functions_beyond_the_usual_ones(name, tmp_path):
    model = layer_models.MODELS[name].model()
    make_realistic(model)
    model = _ready(model, sat_tf.BitPolicy(activation_bits=8))
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", ".* codes are others in Keras 3", UserWarning)
        exported = sat_tf.to_keras3(model)  # which proves it
    assert "sat_tf" not in exported.to_json()
    exported.save(tmp_path / "model.keras")
    loaded = keras3.saving.load_model(tmp_path / "model.keras")
    images = float_models.images(8)
    keras3.tree.map_structure(np.testing.assert_array_equal, loaded(images), exported(images))


@pytest.mark.slow
@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("name", float_models.GRAPHS)
def test_outputs_of_every_graph_are_equal_bit_for_bit(name, policy):
    try:
        model = _quantized(name, policy)
    except ValueError:
        pytest.skip("it cannot be quantized like this")
    _assert_equal(sat_tf.to_keras3(model, exact=True), model)


@pytest.mark.thorough
@pytest.mark.parametrize("name", BEYOND)
def test_layers_and_functions_beyond_the_usual_ones_are_equal_bit_for_bit(name, tmp_path):
    model = layer_models.MODELS[name].model()
    make_realistic(model)
    model = _ready(model, sat_tf.BitPolicy(activation_bits=8))
    exported = sat_tf.to_keras3(model, exact=True)
    _assert_equal(exported, model)
    exported.save(tmp_path / "model.keras")
    _assert_equal(keras3.saving.load_model(tmp_path / "model.keras"), model)


@pytest.mark.slow
@pytest.mark.parametrize("name", layer_models.MODELS)
def test_all_layers_are_equal_bit_for_bit_at_two_bits(name):
    model = layer_models.MODELS[name].model()
    make_realistic(model)
    model = _ready(model, sat_tf.BitPolicy.mobile(2))
    _assert_equal(sat_tf.to_keras3(model, exact=True), model)


@pytest.mark.thorough
@pytest.mark.parametrize("build", NESTED, ids=lambda build: build.__name__)
def test_models_that_nest_or_share_are_equal_bit_for_bit(build):
    model = _ready(build(), sat_tf.BitPolicy())
    exported = sat_tf.to_keras3(model, exact=True)
    _assert_equal(exported, model)
    linear = [layer.layer.name for layer in model.layers if getattr(layer, "kernel_variables", 0)]
    assert linear
    assert {name.replace("/", "_") for name in linear} <= {layer.name for layer in exported.layers}


@pytest.mark.thorough
def test_several_inputs_and_outputs_keep_their_structure():
    left, right = (keras.Input((8, 8, 3), name=name) for name in ("left", "right"))
    conv = keras.layers.Conv2D(4, 3, activation="swish", name="conv")  # one set of weights
    both = (conv(left) * 2.0 - conv(right))[:, 1:]
    pooled = keras.layers.GlobalAveragePooling2D(name="pool")(both)
    outputs = {"map": both, "classes": keras.layers.Dense(3, name="classes")(pooled)}
    model = sat_tf.quantize_model(keras.Model({"left": left, "right": right}, outputs))
    images = {"left": float_models.images(8), "right": float_models.images(8, seed=2)}
    sat_tf.calibrate(model, images)
    exported = sat_tf.to_keras3(model, exact=True)
    ours, theirs = exported(images), model(images, training=False)
    assert set(ours) == {"map", "classes"}
    for name in ours:
        np.testing.assert_array_equal(ours[name], theirs[name])


def test_names_that_meet_without_their_slashes_are_numbered():
    image = keras.Input((8, 8, 3), name="image")
    x = keras.layers.Conv2D(4, 3, activation="relu", name="a_conv")(image)
    x = keras.layers.Conv2D(4, 3, activation="relu", name="a/conv")(x)
    model = _ready(keras.Model(image, x, name="with/slash"), sat_tf.BitPolicy())
    exported = sat_tf.to_keras3(model, exact=True)
    _assert_equal(exported, model)
    names = [layer.name for layer in exported.layers]
    assert names == ["image", "a_conv", "quant_a_conv", "a_conv_2"]
    assert exported.name == "with_slash"


def test_weights_are_the_effective_ones_and_nothing_is_trained():
    model = _quantized("no_gamma", "weights_only")
    exported = _exported("no_gamma", "weights_only")
    wrapped = [layer for layer in model.layers if getattr(layer, "kernel_variables", None)]
    assert wrapped
    for layer in wrapped:
        found = exported.get_layer(layer.layer.name)
        assert type(found).__module__.startswith("keras.")
        np.testing.assert_array_equal(found.kernel, layer.effective_kernel())
    assert not exported.trainable_weights


def test_every_quantized_tensor_is_on_its_grid():
    exported = _exported("mobile_block", "requantized")
    grids = [layer for layer in exported.layers if isinstance(layer, QuantizedActivation)]
    found = {(layer.lowest_code, layer.highest_code) for layer in grids}
    assert found == {(0, 15), (-7, 7), (0, 255), (-127, 127)}
    looked_at = keras3.Model(exported.inputs, [layer.output for layer in grids])
    for layer, values in zip(grids, looked_at(float_models.images(8)), strict=True):
        codes = np.asarray(values, np.float64) / np.float64(layer.scale)
        # The product of code and step is rounded to float32: by half a unit in the last place.
        np.testing.assert_allclose(codes, np.round(codes), rtol=2.0**-24)
        assert layer.lowest_code <= np.min(np.round(codes))
        assert np.max(np.round(codes)) <= layer.highest_code


def test_rounding_is_half_up_and_saturates():
    layer = QuantizedActivation(-3, 3)
    layer.scale.assign(0.5)
    given = np.float32([-9.0, -0.75, -0.25, 0.24, 0.25, 0.75, 9.0, np.inf, np.nan])
    expected = [-1.5, -0.5, 0.0, 0.0, 0.5, 1.0, 1.5, 1.5, np.nan]
    np.testing.assert_array_equal(layer(given), expected)
    np.testing.assert_array_equal(layer.codes(given[:3], layer.scale), [-3.0, -1.0, 0.0])
    rectifier = QuantizedActivation(0, 3)
    np.testing.assert_array_equal(rectifier(np.float32([-1.0, 0.5, 7.0])), [0.0, 1.0, 3.0])


@pytest.mark.parametrize("bits", [1, 3, 8])
@pytest.mark.parametrize(("lowest", "share"), [(-0.375, 0.0), (0.0, 0.2), (-0.2785, 0.1)])
def test_codes_counted_from_zero_are_those_of_the_offset_quantizer(bits, lowest, share):
    draws = np.random.default_rng(bits)
    for level in draws.uniform(0.1, 9.0, 5).astype(np.float32):
        step, below = scale_and_zero(tf.constant(level), 2**bits - 1, lowest, share, tf.floor)
        layer = QuantizedActivation(-int(below), 2**bits - 1 - int(below), from_zero=True)
        layer.scale.assign(step)
        ties = (np.arange(-300, 300) + 0.5) * np.float32(step)
        near = np.concatenate([ties, np.nextafter(ties, 9), np.nextafter(ties, -9)])
        given = np.float32([*near, *draws.normal(0, level, 200), np.inf, -np.inf, np.nan])
        expected = asymmetric.quantize_offset(given, level, bits, lowest=lowest, share=share)
        np.testing.assert_array_equal(layer(given), expected)


LOADING = """
import sys
import numpy as np
if sys.argv[4] == "exact":
    import sat_tf
    assert "tf_keras" not in sys.modules
else:
    sys.modules["sat_tf"] = None
import keras
model = keras.saving.load_model(sys.argv[1])
images = np.load(sys.argv[2])
np.testing.assert_array_equal(model.predict(images, verbose=0), np.load(sys.argv[3]))
print("equal")
"""


@pytest.mark.thorough  # a process with a TensorFlow of its own
@pytest.mark.parametrize("form", ["plain", pytest.param("exact", marks=pytest.mark.slow)])
def test_it_is_loaded_by_keras_3_alone_and_with_sat_tf_in_its_exact_form(form, tmp_path):
    exported = (_exported if form == "exact" else _plain)("mobile_block")
    exported.save(tmp_path / "model.keras")
    images = float_models.images(4)
    np.save(tmp_path / "images.npy", images)
    np.save(tmp_path / "outputs.npy", exported.predict(images, verbose=0))
    paths = [str(tmp_path / name) for name in ("model.keras", "images.npy", "outputs.npy")]
    # TFMOT, loaded here, asks for Keras 2 in all processes started from this one.
    others = {name: value for name, value in os.environ.items() if name != "TF_USE_LEGACY_KERAS"}
    run = subprocess.run(
        [sys.executable, "-c", LOADING, *paths, form], capture_output=True, text=True, env=others
    )
    assert run.stdout == "equal\n", run.stderr[-2000:]


@pytest.mark.thorough  # a process for each
@pytest.mark.parametrize("first", ["sat_tf", "sat_tf, tf_keras", "tensorflow, sat_tf", "keras"])
def test_keras_3_knows_its_layers_in_any_order_of_imports(first):
    find = "keras.saving.get_registered_object('sat_tf>{}').__module__"
    names = ", ".join(find.format(name) for name in ("Slice", "QuantizedActivation"))
    others = {name: value for name, value in os.environ.items() if name != "TF_USE_LEGACY_KERAS"}
    run = subprocess.run(
        [sys.executable, "-c", f"import {first}; import keras, sat_tf; print({names})"],
        capture_output=True,
        text=True,
        env=others,
    )
    modules = "sat_tf.keras3.inference_operations sat_tf.keras3.inference_layers\n"
    assert run.stdout == modules, run.stderr[-2000:]


def test_what_it_makes_cannot_be_quantized_again(tmp_path):
    exported = _exported("residual", "w8a8_by_channel")
    exported.save(tmp_path / "model.keras")
    with pytest.raises(ValueError, match=r"which sat_tf\.to_keras3 made"):
        sat_tf.from_keras3(tmp_path / "model.keras")
    with pytest.raises(ValueError, match=r"which sat_tf\.to_keras3 made"):
        sat_tf.from_keras3(exported)


def test_a_float_model_is_refused():
    assert "call sat_tf.quantize_model(model, policy) first" in _error(float_models.build("plain"))


@keras.utils.register_keras_serializable(package="tests_keras3")
class Own(keras.layers.Layer):
    def call(self, inputs):
        return inputs


@keras.utils.register_keras_serializable(package="tests_keras3")
def cube(x):
    return _cube(x)


@tf.custom_gradient
def _cube(x):  # so that it is no product of layers
    return x * x * x, lambda upstream: 3.0 * x * x * upstream


def test_all_layers_that_keras_3_does_not_have_are_named():
    image = keras.Input((8, 8, 3), name="image")
    x = Own(name="own")(keras.layers.Conv2D(4, 3, name="conv")(image))
    x = keras.layers.Activation(cube, name="cube")(x)
    x = tf.math.bessel_i0(x, name="bessel")
    x = tf.reverse(x, [2])
    x = keras.layers.Dense(2, name="head")(keras.layers.Flatten(name="flatten")(x))
    policy = sat_tf.BitPolicy(unsupported="float")
    message = _error(sat_tf.quantize_model(keras.Model(image, x, name="odd"), policy))
    assert message.startswith("model 'odd': 4 problems")
    assert "own: received Own, which sat-tf does not know in Keras 3" in message
    assert "cube: received activation='cube', which Keras 3 does not have" in message
    assert "received the operation tf.math.bessel_i0, which sat-tf does not know" in message
    assert "received the operation tf.reverse, which sat-tf does not know in Keras 3" in message
    assert "build the model with a layer for it" in message


def test_a_call_that_keras_3_does_not_take_is_refused_by_name():
    image = keras.Input((8, 8, 3), name="image")
    x = keras.layers.Conv2D(4, 3, name="conv")(image)
    x = tf.image.resize(x, (5, 5), preserve_aspect_ratio=True)
    policy = sat_tf.BitPolicy(unsupported="float")
    message = _error(sat_tf.quantize_model(keras.Model(image, x, name="odd"), policy))
    assert message.startswith("model 'odd': quant_tf.image.resize")
    assert "received a layer that Keras 3 cannot call this way (resize()" in message


def test_layers_that_stay_float_come_over_bit_for_bit():
    image = keras.Input((8, 8, 3), name="image")
    x = keras.layers.Conv2D(4, 3, name="add")(image)
    x = keras.layers.GroupNormalization(2, name="group")(keras.layers.UpSampling2D(name="up")(x))
    x = keras.layers.SpatialDropout2D(0.1, name="dropout")(tf.math.sin(x) + x * x)
    x = keras.layers.Activation("hard_sigmoid", name="gate")(x)
    x = keras.layers.Dense(2, name="head")(keras.layers.Flatten(name="flatten")(x))
    policy = sat_tf.BitPolicy(unsupported="float")
    model = _ready(keras.Model(image, x, name="odd"), policy)
    exported = sat_tf.to_keras3(model, exact=True)
    _assert_equal(exported, model)
    functions = {getattr(layer, "function", "").split(".")[-1] for layer in exported.layers}
    assert "sin" in functions


def test_operations_that_are_no_layers_come_over_from_models_quantized_by_tfmot():
    annotate = tfmot.quantization.keras.quantize_annotate_layer
    image = keras.Input((8, 8, 3), name="image")
    x = annotate(keras.layers.Conv2D(4, 3, name="sin"))(image)
    x = keras.layers.Flatten(name="flatten")(tf.math.sin(x))  # Keras 3 would call it sin, too
    x = annotate(keras.layers.Dense(2, name="head"))(x)
    with tfmot.quantization.keras.quantize_scope():
        model = tfmot.quantization.keras.quantize_apply(
            keras.Model(image, x), scheme=sat_tf.SatQuantizeScheme()
        )
    kinds = [type(layer).__name__ for layer in model.layers]
    assert "TensorFlowOperation" in kinds
    sat_tf.calibrate(model, float_models.images(16))
    _assert_equal(sat_tf.to_keras3(model, exact=True), model)


def _largest_one_lower(self, x, scale):
    found = _CODES(self, x, scale)
    return found - keras3.ops.cast(keras3.ops.equal(x, keras3.ops.max(x)), found.dtype)


def _all_one_higher(self, x, scale):
    return _CODES(self, x, scale) + 1.0


_CODES = QuantizedActivation.codes


@pytest.mark.parametrize("exact", [True, False])
def test_codes_that_differ_are_counted_and_told(exact, monkeypatch):
    model = _quantized("residual", "w8a8_by_channel")
    monkeypatch.setattr(QuantizedActivation, "codes", _largest_one_lower)
    told = r"[1-9]\d* of \d+ codes are others in Keras 3, (?s:.)*; for equal ones, "
    told += "call it" if exact else "pass exact=True"
    with pytest.warns(UserWarning, match=told):
        sat_tf.to_keras3(model, exact=exact)


def test_a_layer_that_rounds_differently_is_refused(monkeypatch):
    model = _quantized("residual", "w8a8_by_channel")
    monkeypatch.setattr(QuantizedActivation, "codes", _all_one_higher)
    assert "quant_a_relu: received a quantizer of which" in _error(model)
