import concurrent.futures
import json

import keras
import numpy as np
import pytest
import tf_keras

import sat_tf
from sat_tf.keras3.quantized_layer import AtLeast, QuantizedLayer
from sat_tf.qat import wrapper
from sat_tf.qat.configs import PlacedConfig
from sat_tf.quantizers.dorefa import DorefaQuantizer
from sat_tf.quantizers.observers import RangeObserver
from sat_tf.quantizers.pact import PactQuantizer, StreamQuantizer
from sat_tf.quantizers.values import ACTIVATION, AROUND, BEFORE_ACTIVATION, BEHIND, INSTEAD, PLACES


def images(*shape, seed=0):
    return np.random.default_rng(seed).normal(0.0, 2.0, shape).astype(np.float32)


def numpy(tensor):
    return keras.ops.convert_to_numpy(tensor)


def quantized_convolution(**options):
    keras.utils.set_random_seed(1)
    layer = keras.layers.Conv2D(4, 3, activation="relu", name="conv", dtype=options.pop("of", None))
    return QuantizedLayer(
        layer,
        DorefaQuantizer(num_bits=2),
        PactQuantizer(num_bits=2, initial_clipping_level=3.0),
        place=ACTIVATION,
        **options,
    )


def test_a_convolution_computes_with_its_effective_kernel_and_keeps_its_own():
    layer, x = quantized_convolution(), images(2, 6, 6, 3)
    found = numpy(layer(x))
    assert len(np.unique(numpy(layer.effective_kernel()))) == 4
    assert len(np.unique(numpy(layer.layer.kernel))) > 50
    by_hand = keras.ops.conv(x, layer.effective_kernel()) + layer.layer.bias
    codes = np.floor(np.clip(numpy(by_hand), 0.0, 3.0) + 0.5)
    np.testing.assert_array_equal(found, codes)


def test_a_quantizer_takes_the_place_of_a_rectifier():
    quantizer, x = PactQuantizer(num_bits=8, initial_clipping_level=4.0), images(2, 5)
    instead = QuantizedLayer(keras.layers.ReLU(name="relu"), None, quantizer, place=INSTEAD)
    np.testing.assert_allclose(numpy(instead(x)), np.clip(x, 0, 4), atol=4 / 255)


# For each place, a layer of the package that is given and the quantizers of its kernel and output.
PLACED = {
    BEHIND: lambda of: (of.Dense(4), DorefaQuantizer(num_bits=3), StreamQuantizer(num_bits=4)),
    ACTIVATION: lambda of: (of.Dense(4, activation="relu"), None, PactQuantizer(num_bits=4)),
    BEFORE_ACTIVATION: lambda of: (of.Dense(4, activation="softmax"), None, RangeObserver()),
    INSTEAD: lambda of: (of.ReLU(), None, PactQuantizer(num_bits=4)),
    AROUND: lambda of: (of.AveragePooling2D(2), None, StreamQuantizer(num_bits=4)),
}


@pytest.mark.parametrize("place", PLACES)
def test_a_quantizer_in_each_place_does_the_same_in_both_kerases(place):
    x = images(2, 4, 4, 3)
    layer, *quantizers = PLACED[place](keras.layers)
    three = QuantizedLayer(layer, *quantizers, place=place)
    layer, *quantizers = PLACED[place](tf_keras.layers)
    config = PlacedConfig(weights=quantizers[0], output=quantizers[1], around=place == AROUND)
    two = wrapper.QuantizedLayer(layer, config)
    assert two.place == place
    two(x)
    three(x)
    three.layer.set_weights(two.layer.get_weights())
    for training in (True, False):
        outputs = two(x, training=training).numpy()
        np.testing.assert_array_equal(numpy(three(x, training=training)), outputs)
        assert np.any(outputs)
    for name, variable in two.output_variables.items():
        np.testing.assert_array_equal(numpy(three.output_variables[name]), variable)


def test_what_reads_and_makes_codes_of_one_grid_passes_the_proof_of_its_twin():
    image = keras.Input((8, 8, 3), name="image")
    x = keras.layers.Conv2D(4, 3, activation="gelu", padding="same")(image)
    x = keras.layers.AveragePooling2D(2, name="pool")(x)
    x = keras.layers.Conv2D(2, 1, name="last")(x)
    policy = sat_tf.BitPolicy.mobile(8, target="ethos-u55", input_max=255.0)
    model = sat_tf.quantize_model(keras.Model(image, x), policy)
    assert model.get_layer("quant_pool").place == AROUND


def test_an_observer_stands_before_a_softmax():
    classifier, x = keras.layers.Dense(3, activation="softmax", name="classifier"), images(2, 5)
    before = QuantizedLayer(classifier, None, RangeObserver(), place=BEFORE_ACTIVATION)
    np.testing.assert_allclose(np.sum(numpy(before(x, training=True)), axis=-1), 1.0, rtol=1e-5)
    logits = x @ numpy(classifier.kernel) + numpy(classifier.bias)
    np.testing.assert_allclose(before.output_variables["highest"], logits.max(), rtol=1e-5)


def test_a_frozen_layer_observes_nothing():
    layer = QuantizedLayer(keras.layers.Identity(name="x"), None, RangeObserver(), trainable=False)
    layer(images(2, 5), training=True)
    assert float(numpy(layer.output_variables["observations"])) == 0.0


def test_its_configuration_survives_json_and_its_variables_a_file(tmp_path):
    layer = quantized_convolution(annotation={"weight_bits": 2})
    model = keras.Sequential([keras.Input((6, 6, 3)), layer])
    layer.output_variables["clipping_level"].assign(2.5)
    again = QuantizedLayer.from_config(json.loads(json.dumps(layer.get_config())))
    one, other = again.get_config(), layer.get_config()
    for config in (one, other):  # only one has been built
        config["layer"].pop("build_config", None)
        config["layer"]["config"].pop("build_config", None)
    assert one == other
    model.save(tmp_path / "model.keras")
    loaded = keras.saving.load_model(tmp_path / "model.keras")
    x = images(2, 6, 6, 3)
    np.testing.assert_array_equal(numpy(loaded(x)), numpy(model(x)))
    assert float(loaded.layers[-1].output_variables["clipping_level"]) == 2.5


def test_a_file_of_a_later_version_is_refused():
    config = quantized_convolution().get_config()
    config["saved_by"] = {"sat_tf": "9.9.9", "format": 99}
    with pytest.raises(ValueError, match=r"sat-tf 9\.9\.9 in format 99.*install sat-tf 9\.9\.9"):
        QuantizedLayer.from_config(config)


def test_quantizers_compute_in_float32_whatever_the_precision():
    layer = quantized_convolution(of="mixed_bfloat16")
    image = keras.Input((6, 6, 3), dtype="float32")
    model = keras.Model(image, layer(image))
    found = model(images(2, 6, 6, 3))
    assert keras.backend.standardize_dtype(found.dtype) == "bfloat16"
    assert keras.backend.standardize_dtype(layer.effective_kernel().dtype) == "float32"
    assert len(np.unique(numpy(layer.effective_kernel()))) == 4


def test_threads_do_not_see_the_stand_ins_of_each_other():
    layer = quantized_convolution()
    x = images(2, 6, 6, 3)
    expected = numpy(layer(x))
    with concurrent.futures.ThreadPoolExecutor(8) as threads:
        found = list(threads.map(lambda _: numpy(layer(x)), range(8)))
    np.testing.assert_array_equal(found, np.stack([expected] * 8))
    assert layer.layer.activation is keras.activations.relu


def test_a_clipping_level_stays_above_its_smallest_value():
    np.testing.assert_allclose(numpy(AtLeast(1e-3)(keras.ops.array([-1.0, 2.0]))), [1e-3, 2.0])
