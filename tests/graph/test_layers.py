import inspect

import numpy as np
import pytest
import tensorflow as tf
import tf_keras as keras

import sat_tf
from sat_tf.graph import layer_kinds
from sat_tf.graph.flatten import layer_copy
from sat_tf.graph.layer_kinds import KINDS
from sat_tf.graph.layers.normalization import (
    SynchronizedBatchNormalization,
    is_plain_factor,
    slope_and_offset,
)
from sat_tf.qat.layout import inner_layer
from sat_tf.qat.policy import BitPolicy
from sat_tf.qat.wrapper import QuantizedLayer
from sat_tf.quantizers.pact import StreamQuantizer
from tests.conftest import mirrored
from tests.core.execution import draw
from tests.qat import float_models

L = keras.layers


@pytest.mark.parametrize(
    ("layer", "inputs"),
    [
        (L.Conv1D(6, 3), (9, 4)),
        (L.Conv2D(8, (3, 2), groups=2), (7, 7, 4)),
        (L.Conv1DTranspose(5, 3), (9, 4)),
        (L.DepthwiseConv1D(3, depth_multiplier=2), (9, 4)),
        (L.Conv2DTranspose(5, 3, 2), (4, 4, 3)),
        (L.DepthwiseConv2D(3, depth_multiplier=2), (7, 7, 4)),
        (L.Dense(7), (4,)),
    ],
)
def test_fan_out_is_what_a_lone_input_reaches(layer, inputs):
    # A one in the middle of zeros, with stride 1: every output it reaches is not zero.
    config = layer.get_config()
    if "strides" in config:
        layer = type(layer).from_config({**config, "strides": 1, "padding": "same"})
    image = np.zeros((1, *inputs), np.float32)
    image[(0, *(size // 2 for size in inputs[:-1]), 1)] = 1.0
    reached = int(np.count_nonzero(layer(image)))
    assert layer_kinds.fan_out(layer) == reached
    assert layer_kinds.fan_out(L.ReLU()) == 0  # it has no kernel


SHAPES = {"images": (6, 3, 3, 4), "vectors": (6, 4), "one pixel": (1, 1, 1, 4)}


def _draw(shape):
    return draw(shape, 0, 2.0) + 3.0


@pytest.mark.parametrize("precision", ["float32", "mixed_float16"])
@pytest.mark.parametrize("shape", SHAPES)
def test_on_one_device_it_follows_what_keras_follows(shape, precision):
    x = _draw(SHAPES[shape])
    plain, synchronized = (
        kind(momentum=0.9, dtype=keras.mixed_precision.Policy(precision))
        for kind in (keras.layers.BatchNormalization, SynchronizedBatchNormalization)
    )
    for norm in (plain, synchronized):
        for _ in range(3):
            norm(x, training=True)
        norm(x, training=False)
    for one, two in zip(plain.get_weights(), synchronized.get_weights(), strict=True):
        np.testing.assert_allclose(two, one, rtol=1e-5, atol=1e-6)
    frozen = SynchronizedBatchNormalization(trainable=False)
    frozen(x, training=True)
    np.testing.assert_array_equal(frozen.moving_variance, np.ones(4))


def test_two_unequal_replicas_follow_the_variance_of_all():
    x, parts = _draw((5, 3, 3, 4)), (3, 2)
    plain = keras.layers.BatchNormalization(momentum=0.9)
    plain(x, training=True)
    strategy = mirrored()
    with strategy.scope():
        norm = SynchronizedBatchNormalization(momentum=0.9)
        norm.build(x.shape)

    @tf.function
    def step(x):
        def of_replica():
            number = tf.distribute.get_replica_context().replica_id_in_sync_group
            norm(x[: parts[0]] if number == 0 else x[parts[0] :], training=True)

        strategy.run(of_replica)

    step(tf.constant(x))
    for name in ("moving_mean", "moving_variance"):
        one, two = getattr(plain, name).numpy(), getattr(norm, name).numpy()
        np.testing.assert_allclose(two, one, rtol=1e-5)
        # The mean of three equal numbers is another one, as a third of their sum is rounded.
        assert getattr(norm, name).aggregation == tf.VariableAggregation.ONLY_FIRST_REPLICA
        first, second = (value.numpy() for value in getattr(norm, name).values)
        np.testing.assert_array_equal(first, second)


FLOAT = BitPolicy(weight_bits=None, activation_bits=None)


def adapted():
    norm = L.Normalization(name="norm")
    norm.adapt(float_models.images(64))
    return norm


LAYERS = {
    "rescaling": lambda: L.Rescaling(1 / 127.5, -1.0, name="norm"),
    "by_channel": lambda: L.Rescaling([0.1, 0.2, -0.3], [1.0, 0.0, 2.0], name="norm"),
    "adapted": adapted,
    "given": lambda: L.Normalization(mean=[120, 110, 100], variance=[3e3, 2e3, 0.0], name="norm"),
    "scalar": lambda: L.Normalization(axis=None, mean=100.0, variance=50.0, name="norm"),
    "inverted": lambda: L.Normalization(axis=None, mean=1.0, variance=4.0, invert=True),
}


def _model(*front):
    image = tensor = keras.Input((8, 8, 3), name="image")
    for layer in front:
        tensor = layer(tensor)
    tensor = L.Conv2D(4, 3, padding="same", name="conv")(tensor)
    tensor = L.ReLU(name="relu")(L.BatchNormalization(name="bn")(tensor))
    tensor = L.GlobalAveragePooling2D(name="pool")(tensor)
    return keras.Model(image, L.Dense(3, name="classifier")(tensor), name="preprocessed")


@pytest.mark.parametrize("name", LAYERS)
def test_slope_and_offset_are_what_the_layer_computes(name):
    layer, images = LAYERS[name](), float_models.images()
    expected = layer(images).numpy()
    slope, offset = slope_and_offset(layer)
    np.testing.assert_allclose(slope * images + offset, expected, rtol=1e-5, atol=1e-4)


def test_only_one_positive_factor_is_plain():
    assert is_plain_factor(L.Rescaling(1 / 255))
    assert is_plain_factor(L.Rescaling([0.5, 0.5, 0.5], 0))
    for layer in (L.Rescaling(-1.0), L.Rescaling(1.0, 0.1), L.Rescaling([1.0, 2.0]), L.ReLU()):
        assert not is_plain_factor(layer)


def test_one_positive_factor_has_no_codes_of_its_own_and_of_several_layers_only_the_last():
    model = _model(L.Rescaling(1 / 255, name="rescaling"))
    quantized = sat_tf.quantize_model(model, BitPolicy.mobile(4))
    assert quantized.get_layer("quant_rescaling").quantize_config.output is None
    # The first convolution reads pixels, not a re-quantized tensor.
    names = [layer.name for layer in quantized.layers]
    assert names[:4] == ["image", "quant_image_image", "quant_rescaling", "quant_conv"]
    front = [L.Rescaling(1 / 255, name="a"), L.Rescaling(2.0, -1.0, name="b"), adapted()]
    quantized = sat_tf.quantize_model(_model(*front), BitPolicy.mobile(4))
    found = [quantized.get_layer(f"quant_{name}").quantize_config.output for name in "ab"]
    assert found == [None, None]
    assert quantized.get_layer("quant_norm").quantize_config.output.num_bits == 8


@pytest.mark.parametrize("name", ["rescaling", "adapted"])
def test_a_preprocessed_model_keeps_its_function(name):
    model, images = _model(LAYERS[name]()), float_models.images()
    expected = model(images).numpy()
    assert np.abs(sat_tf.quantize_model(model, FLOAT)(images) - expected).max() < 1e-4


@pytest.mark.parametrize(
    ("layer", "level"),
    [
        (lambda: L.Rescaling(1 / 127.5, -1.0, name="norm"), 1.0),
        (lambda: L.Normalization(axis=None, mean=100.0, variance=25.0, name="norm"), 31.0),
    ],
)
def test_other_preprocessing_gets_8_bits_over_all_pixels(layer, level):
    quantized = sat_tf.quantize_model(_model(layer()), BitPolicy.mobile(4))
    quantizer = quantized.get_layer("quant_norm").quantize_config.output
    assert isinstance(quantizer, StreamQuantizer)
    assert quantizer.num_bits == 8
    assert quantizer.initial_clipping_level == pytest.approx(level)


@pytest.mark.slow
def test_an_adapted_normalization_is_loaded_with_its_mean(tmp_path):
    quantized = sat_tf.quantize_model(_model(adapted()), BitPolicy.mobile(4))
    images = float_models.images()
    quantized.save(tmp_path / "model.keras")
    loaded = keras.models.load_model(tmp_path / "model.keras")
    np.testing.assert_array_equal(loaded(images), quantized(images))
    copy = keras.models.clone_model(quantized)
    copy.set_weights(quantized.get_weights())
    np.testing.assert_array_equal(copy(images), quantized(images))
    again = sat_tf.requantize(quantized, BitPolicy.mobile(4))
    np.testing.assert_array_equal(again(images), quantized(images))
    assert inner_layer(again.get_layer("quant_norm")).weights


def test_a_copy_has_the_settings_that_are_not_changed_and_what_a_lambda_refers_to():
    copy = layer_copy(L.Conv2D(3, 1, name="conv", padding="same"), name="other")
    assert (copy.name, copy.filters, copy.padding, copy.built) == ("other", 3, "same", False)
    # Made of its code, tf.sin would look for names of TensorFlow's own module.
    assert layer_copy(L.Lambda(tf.sin)).function is tf.sin


# Constructors need these.
REQUIRED = {
    "filters": 4, "kernel_size": 3, "units": 4, "target_shape": (4,), "dims": (1,), "num_heads": 2,
    "key_dim": 2, "input_dim": 5, "output_dim": 3, "n": 2, "rate": 0.3, "scale": 2.0, "stddev": 0.1,
    "factor": 0.1, "height": 2, "width": 2, "function": abs, "activation": "relu", "axes": 1,
    "equation": "ab,bc->ac", "output_shape": 4, "bin_boundaries": [0.0, 1.0], "values": [1.0],
    "height_factor": 0.1, "width_factor": 0.1, "num_tokens": 4, "size": 2, "low": 0.0, "high": 1.0,
}  # fmt: skip
OF_KERAS = [kind for kind in KINDS if kind.__module__.startswith("tf_keras")]


def _other_values(kind):
    """Layers of a class, each with another value for one of the arguments that have a plain one."""
    parameters = inspect.signature(kind.__init__).parameters
    required = {
        name: L.Dense(2) if name == "layer" else REQUIRED.get(name)
        for name, parameter in parameters.items()
        if name in REQUIRED or (parameter.default is parameter.empty and name == "layer")
    }
    for name, parameter in parameters.items():
        if isinstance(parameter.default, bool) and name != "dynamic":
            try:
                yield name, kind(**{**required, name: not parameter.default})
            except (TypeError, ValueError, NotImplementedError):
                continue  # it does not go with the others


@pytest.mark.parametrize("kind", OF_KERAS, ids=lambda kind: kind.__name__)
def test_a_copy_has_every_argument_of_the_layer_that_differs_from_its_default(kind):
    for name, layer in _other_values(kind):
        held = getattr(layer, name, None)
        assert getattr(layer_copy(layer), name, None) == held, name


def test_a_layer_that_keras_saves_without_an_argument_is_loaded_with_it():
    read = keras.Input((8, 8, 3))
    norm = L.BatchNormalization(synchronized=True, name="norm", activity_regularizer="l2")
    model = keras.Model(read, L.Dense(2)(L.Flatten()(norm(L.Conv2D(4, 3)(read)))))
    quantized = sat_tf.quantize_model(model, 8)
    again = QuantizedLayer.from_config(quantized.get_layer("quant_norm").get_config())
    for layer in (quantized.get_layer("quant_norm").layer, again.layer):
        assert layer.synchronized
        assert layer.activity_regularizer is not None


class InTwoSteps(L.Layer):
    """A layer of a user with two layers inside, of which the first may be frozen."""

    def __init__(self, **options):
        super().__init__(**options)
        self.first, self.second = L.Dense(4), L.Dense(4)

    def call(self, inputs):
        return self.second(tf.nn.tanh(self.first(inputs)))


# Only a gelu of its own makes the model be rewritten before it is quantized.
@pytest.mark.parametrize("activation", ["linear", "gelu"])
def test_layers_inside_others_stay_frozen_and_keep_their_own_weights(activation):
    keras.utils.set_random_seed(5)
    read, inside = keras.Input((4,)), InTwoSteps(name="inside")
    model = keras.Model(read, L.Dense(2, activation=activation)(inside(L.Dense(4)(read))))
    inside.first.trainable = False
    policy = sat_tf.BitPolicy.mobile(8, unsupported="float", input_type="float32")
    quantized = sat_tf.quantize_model(model, policy)
    copy = quantized.get_layer("quant_inside").layer
    assert (copy.first.trainable, copy.second.trainable) == (False, True)
    np.testing.assert_array_equal(copy.first.kernel, inside.first.kernel)
    np.testing.assert_array_equal(copy.second.kernel, inside.second.kernel)
