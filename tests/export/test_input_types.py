import numpy as np
import pytest
import tf_keras as keras

import sat_tf
from sat_tf.export.file_verification import verify_file
from sat_tf.export.operations.graph_file import read_graph
from sat_tf.graph.network import Network
from sat_tf.qat.inputs import input_types
from sat_tf.qat.policy import BitPolicy
from tests.export.proofs import calibrated, proved
from tests.qat.float_models import pretend_trained

L = keras.layers
TYPES = ("int8", "float32")
DRAW = np.random.default_rng(4)
FEATURES = (DRAW.normal(size=(256, 12)) * 2.0 + 0.5).astype(np.float32)
SOUND = (np.sin(np.linspace(0, 90, 256 * 40)) * DRAW.uniform(0.1, 1.0, 256 * 40)).astype(np.float32)


def _dense(*front):
    parts = [*front, L.Dense(16, activation="relu"), L.Dense(4, name="classifier")]
    return pretend_trained(keras.Sequential([keras.Input((12,), name="features"), *parts]))


def _conv1d():
    sound = keras.Input((40, 1), name="sound")
    tensor = L.Conv1D(8, 5, strides=2, padding="same", activation="relu", name="conv")(sound)
    tensor = L.Flatten()(tensor)
    return pretend_trained(keras.Model(sound, L.Dense(4, name="classifier")(tensor)))


MODELS = {"dense": (_dense, FEATURES), "conv1d": (_conv1d, SOUND.reshape(256, 40, 1))}


@pytest.mark.thorough
@pytest.mark.parametrize("kind", TYPES)
@pytest.mark.parametrize("name", MODELS)
def test_a_file_takes_real_values_and_computes_what_keras_does(name, kind, tmp_path):
    make, values = MODELS[name]
    model, path = make(), tmp_path / "model.tflite"
    quantized = calibrated(model, BitPolicy.mobile(8, input_type=kind), values)
    report, certificate = proved(quantized, path, values)
    assert (report.operators["QUANTIZE"], report.operators["DEQUANTIZE"]) == (1, 1)
    assert certificate.trained_differing < 0.005
    classes = np.argmax(model.predict(values, verbose=0), axis=1)
    found = np.argmax(quantized.predict(values, verbose=0), axis=1)
    assert np.mean(found == classes) > 0.96
    assert certificate.agreement > 0.99
    image = read_graph(path.read_bytes(), "file").images[0]
    assert image.type == kind
    assert verify_file(path, values).images_sha256 == certificate.images_sha256


def test_codes_may_be_given_instead_of_the_values_they_stand_for(path):
    quantized = calibrated(_dense(), BitPolicy.mobile(8, input_type="int8"), FEATURES)
    sat_tf.export_tflite(quantized, path)
    codes = read_graph(path.read_bytes(), "file").images[0].taken(FEATURES)
    assert codes.dtype == np.int8
    one, other = (sat_tf.verify_tflite(quantized, path, given) for given in (FEATURES, codes))
    assert one.images_sha256 == other.images_sha256


def test_real_values_are_normalized_in_float_before_they_get_codes(path):
    raw = FEATURES * np.logspace(-3, 3, 12).astype(np.float32)
    norm = L.Normalization(name="norm")
    norm.adapt(raw)
    model = _dense(norm)
    quantized = calibrated(model, BitPolicy.mobile(8, input_type="float32"), raw)
    report, certificate = proved(quantized, path, raw)
    assert {"MUL", "ADD", "QUANTIZE"} <= {*report.operators}
    assert certificate.agreement > 0.95  # equal int8 logits
    classes = np.argmax(model.predict(raw, verbose=0), axis=1)
    assert np.mean(np.argmax(quantized.predict(raw, verbose=0), axis=1) == classes) > 0.96


def _of_photos_and_features():
    photo, features = keras.Input((8, 8, 3), name="photo"), keras.Input((12,), name="features")
    first = L.GlobalAveragePooling2D()(L.Conv2D(4, 3, activation="relu", name="conv")(photo))
    both = L.Concatenate()([first, L.Dense(4, activation="relu", name="dense")(features)])
    return pretend_trained(keras.Model([photo, features], L.Dense(3, name="classifier")(both)))


PHOTOS = DRAW.integers(0, 256, (256, 8, 8, 3)).astype(np.uint8)
FED = PHOTOS / np.float32(127.5) - 1.0


def test_each_input_has_a_type_of_its_own(path):
    policy = BitPolicy.mobile(8, input_range={"photo": "tf"}, input_type={"features": "float32"})
    quantized = calibrated(_of_photos_and_features(), policy, [FED, FEATURES])
    assert proved(quantized, path, [PHOTOS, FEATURES])[1].trained_differing < 0.01
    again = sat_tf.requantize(quantized, BitPolicy.mobile(4))
    assert input_types(Network(again)) == {"photo": "uint8", "features": "float32"}


@pytest.mark.thorough
@pytest.mark.parametrize("suffix", [".keras", ".h5"])
def test_the_range_of_an_input_is_trained_and_saved(suffix, tmp_path):
    quantized = sat_tf.quantize_model(_dense(), BitPolicy.mobile(8, input_type="int8"))
    quantized.compile("sgd", keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    quantized.fit(FEATURES, np.zeros(256, np.int64), verbose=0)
    quantized.save(tmp_path / f"model{suffix}")
    loaded = keras.models.load_model(tmp_path / f"model{suffix}")
    np.testing.assert_array_equal(loaded(FEATURES), quantized(FEATURES))
    proved(loaded, tmp_path / "model.tflite", FEATURES)


def test_features_of_different_sizes_are_warned_of_with_what_to_do():
    sizes = np.array([1.0, 1.0, 200.0], np.float32)
    features = np.random.default_rng(0).normal(size=(256, 3)).astype(np.float32) * sizes
    image = keras.Input((3,), name="features")
    float_model = keras.Model(image, keras.layers.Dense(2, name="classifier")(image))
    model = sat_tf.quantize_model(float_model, BitPolicy(input_type="int8"))
    with pytest.warns(UserWarning, match=r"features: 2 of 3 get fewer than 16 .*input_type="):
        sat_tf.calibrate(model, features)
