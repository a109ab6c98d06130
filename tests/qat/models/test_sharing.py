import numpy as np
import pytest
import tensorflow as tf
import tensorflow_model_optimization as tfmot
import tf_keras as keras

import sat_tf
from sat_tf.graph.network import Network
from sat_tf.qat.layout import inner_layer
from sat_tf.qat.policy import BitPolicy
from sat_tf.qat.wrapper import QuantizedLayer
from tests.qat.models import nested_models

L = keras.layers
LOSS = keras.losses.SparseCategoricalCrossentropy(from_logits=True)


@pytest.fixture(scope="module")
def quantized():
    """The model with two uses of everything, at w4a4, calibrated."""
    keras.utils.set_random_seed(0)
    model = sat_tf.quantize_model(nested_models.shared(), BitPolicy.mobile(4))
    return sat_tf.calibrate(model, nested_models.images(64))


@pytest.mark.thorough
def test_a_shared_layer_has_one_latent_weight_and_a_clipping_level_for_each_use(quantized):
    names = [variable.name for variable in quantized.trainable_variables]
    assert len(names) == len(set(names))
    assert sum("conv/kernel" in name for name in names) == 1
    assert sum("norm/gamma" in name for name in names) == 1
    levels = [name.split("/")[0] for name in names if "clipping_level" in name]
    # The rectifiers behind two calls have levels, two activations that were part of one layer, and
    # two calls without any.
    assert {"quant_relu", "quant_relu_2"} <= set(levels)
    assert {"quant_mix_activation", "quant_mix_activation_2"} <= set(levels)
    assert {"quant_plain_output", "quant_plain_call_2_output"} <= set(levels)
    rectifiers = map(quantized.get_layer, ("quant_relu", "quant_relu_2"))
    levels = {float(layer.output_variables["clipping_level"]) for layer in rectifiers}
    assert len(levels) == 2  # calibrated one by one


def test_both_uses_give_the_latent_weight_their_gradients(quantized):
    images = nested_models.images()
    kernel = inner_layer(quantized.get_layer("quant_conv")).kernel

    def gradient(stopped):
        """The gradient of the kernel where one use of the convolution is cut off from it."""
        network = Network(quantized)

        def call(node, inputs):
            made = node.call(node.layer, inputs)
            return tf.stop_gradient(made) if node.name in stopped else made

        with tf.GradientTape() as tape:
            made = dict(network.computed({network.input: images}, [network.output], call))
            loss = tf.reduce_sum(made[network.output] ** 2)
        return tape.gradient(loss, kernel)

    both, only_first = gradient([]), gradient(["quant_conv@2"])
    assert np.abs(both - only_first).max() > 1e-3 * np.abs(both).max()
    assert np.abs(only_first).max() > 0.0


@pytest.mark.parametrize(("build", "rescale"), [("shared", None), ("partly_normalized", "stddev")])
def test_a_layer_is_rescaled_unless_every_use_has_a_normalization_behind(build, rescale):
    model = sat_tf.quantize_model(nested_models.MODELS[build](), BitPolicy.mobile(4))
    assert model.get_layer("quant_conv").quantize_config.weights.rescale == rescale


def test_layers_that_share_a_normalization_are_rescaled():
    image = keras.Input((8, 8, 3), name="image")
    norm = L.BatchNormalization(name="norm")
    one = norm(L.Conv2D(4, 3, name="a")(image))
    other = norm(L.Conv2D(4, 3, name="b")(image))
    model = keras.Model(image, L.Flatten(name="flatten")(L.Add(name="add")([one, other])))
    images = nested_models.images()
    expected = model(images).numpy()
    policy = BitPolicy(weight_bits=None, activation_bits=None)
    quantized = sat_tf.quantize_model(model, policy)
    for name in ("quant_a", "quant_b"):
        assert quantized.get_layer(name).quantize_config.weights.rescale == "stddev"
    assert np.abs(quantized(images) - expected).max() < 1e-4 * np.abs(expected).max()


def test_a_layer_that_is_first_once_has_the_bits_of_the_first():
    image = keras.Input((8, 8, 3), name="image")
    conv = L.Conv2D(3, 3, padding="same", activation="relu", name="conv")
    tensor = L.Flatten(name="flatten")(conv(conv(image)))
    model = keras.Model(image, L.Dense(3, name="classifier")(tensor))
    quantized = sat_tf.quantize_model(model, BitPolicy.mobile(2))
    assert quantized.get_layer("quant_conv").quantize_config.weights.num_bits == 8


@pytest.mark.slow
def test_calibration_of_a_shared_normalization_is_the_mean_over_its_uses():
    policy = BitPolicy(weight_bits=None, activation_bits=None)
    model = sat_tf.quantize_model(nested_models.shared(), policy)
    images, seen = nested_models.images(64), []
    sat_tf.calibrate(model, images)

    def call(node, inputs):
        is_norm = "norm" in node.name
        seen.extend([np.mean(inputs[0], axis=(0, 1, 2))] if is_norm else [])
        made = inputs if node.takes_list else inputs[0]
        return node.layer(made, training=True) if is_norm else node.layer(made)

    network = Network(model)
    dict(network.computed({network.input: tf.constant(images)}, call=call))
    mean = inner_layer(sat_tf.calibrate(model, images).get_layer("quant_norm")).moving_mean
    np.testing.assert_allclose(mean, np.mean(seen, axis=0), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(
    "file",
    ["model.keras", *(pytest.param(f, marks=pytest.mark.slow) for f in ("model.h5", "model"))],
)
@pytest.mark.filterwarnings("ignore:You are saving your model as an HDF5 file")
def test_a_saved_model_still_shares(quantized, file, tmp_path):
    images = nested_models.images()
    quantized.save(tmp_path / file)
    loaded = keras.models.load_model(tmp_path / file)
    np.testing.assert_array_equal(loaded(images), quantized(images))
    assert len(loaded.trainable_variables) == len(quantized.trainable_variables)
    assert [node.name for node in Network(loaded)] == [node.name for node in Network(quantized)]


@pytest.mark.slow
def test_training_updates_one_kernel(quantized):
    model = keras.models.clone_model(quantized)
    model.set_weights(quantized.get_weights())
    model.compile(keras.optimizers.SGD(0.01), LOSS)
    images = nested_models.images(32)
    first = model.evaluate(images, np.arange(32) % 3, verbose=0)
    model.fit(images, np.arange(32) % 3, epochs=8, batch_size=32, verbose=0)
    assert model.evaluate(images, np.arange(32) % 3, verbose=0) < first


@pytest.mark.thorough
def test_another_policy_carries_what_every_use_has_learnt(quantized):
    images = nested_models.images()
    same = sat_tf.requantize(quantized, BitPolicy.mobile(4))
    np.testing.assert_array_equal(same(images), quantized(images))
    other = sat_tf.requantize(quantized, BitPolicy.mobile(3))
    for layer in other.layers:
        if isinstance(layer, QuantizedLayer) and "clipping_level" in layer.output_variables:
            old = layer.name.replace("3_bits", "4_bits")
            level = quantized.get_layer(old).output_variables["clipping_level"]
            assert float(layer.output_variables["clipping_level"]) == float(level), layer.name


def test_annotations_of_a_shared_layer_hold_for_all_its_calls():
    annotate = tfmot.quantization.keras.quantize_annotate_layer
    image = keras.Input((8, 8, 3), name="image")
    stem = annotate(L.Conv2D(4, 3, activation="relu", name="stem"))(image)
    config = sat_tf.configs.LayerConfig(weight_bits=3)
    shared = annotate(L.Conv2D(4, 3, padding="same", activation="relu", name="conv"), config)
    head = annotate(L.Dense(3, name="classifier"))
    model = keras.Model(image, head(L.GlobalAveragePooling2D()(shared(shared(stem)))))
    scheme = sat_tf.SatQuantizeScheme(BitPolicy.mobile(4))
    quantized = tfmot.quantization.keras.quantize_apply(model, scheme=scheme)
    assert quantized.get_layer("quant_conv").quantize_config.weights.num_bits == 3
    assert quantized.get_layer("quant_conv_activation").quantize_config.output.num_bits == 4
