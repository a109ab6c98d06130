import numpy as np
import pytest
import tensorflow as tf
import tf_keras as keras
from ai_edge_litert.interpreter import Interpreter

import sat_tf
from sat_tf.exact.tflite.input_range import range_of
from sat_tf.export import read_graph, verify_file, write_kit
from sat_tf.graph.network import Network
from sat_tf.qat.inputs import input_types
from sat_tf.qat.policy import BitPolicy
from tests.exact.device.kits import checked_here
from tests.export.proofs import calibrated, proved
from tests.export.zoo import chain, layers_of
from tests.qat.float_models import pretend_trained

L = keras.layers
TYPES = ("int8", "float32")
DRAW = np.random.default_rng(4)
FEATURES = (DRAW.normal(size=(256, 12)) * 2.0 + 0.5).astype(np.float32)
SOUND = (np.sin(np.linspace(0, 90, 256 * 40)) * DRAW.uniform(0.1, 1.0, 256 * 40)).astype(np.float32)


def _dense(*front):
    return pretend_trained(chain((12,), *front, "Dense 16 relu | Dense 4"))


def _conv1d():
    conv = "Conv1D 8 5 strides=2 padding=same activation=relu"
    return pretend_trained(chain((40, 1), f"{conv} | Flatten | Dense 4"))


MODELS = {"dense": (_dense, FEATURES), "conv1d": (_conv1d, SOUND.reshape(256, 40, 1))}


@pytest.mark.thorough
@pytest.mark.parametrize("kind", TYPES)
@pytest.mark.parametrize("name", MODELS)
def test_a_file_takes_real_values_and_computes_what_keras_does(name, kind, path):
    make, values = MODELS[name]
    model = make()
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
    if kind == "int8":  # codes may be given instead of the values they stand for
        codes = image.taken(values)
        assert codes.dtype == np.int8
        found = sat_tf.verify_tflite(quantized, path, codes)
        assert found.images_sha256 == certificate.images_sha256


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


PHOTOS = DRAW.integers(0, 256, (256, 8, 8, 3)).astype(np.uint8)
FED = PHOTOS / np.float32(127.5) - 1.0


def test_each_input_has_a_type_of_its_own(path):
    photo, features = keras.Input((8, 8, 3), name="photo"), keras.Input((12,), name="features")
    first = L.GlobalAveragePooling2D()(L.Conv2D(4, 3, activation="relu", name="conv")(photo))
    both = L.Concatenate()([first, L.Dense(4, activation="relu", name="dense")(features)])
    model = pretend_trained(keras.Model([photo, features], L.Dense(3, name="classifier")(both)))
    policy = BitPolicy.mobile(8, input_range={"photo": "tf"}, input_type={"features": "float32"})
    quantized = calibrated(model, policy, [FED, FEATURES])
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


RANGES = [(0, 255), (0, 1), (-1, 1), (20, 275), "torch", "caffe", ((0, -1, -2), (1, 1, 3))]
PICTURES = np.random.default_rng(3).integers(0, 256, (64, 9, 9, 3)).astype(np.uint8)


def _of_range(value=(0, 255), **fields):
    image = keras.Input((9, 9, 3), name="image")
    layers = "ZeroPadding2D 1 | block conv 6 strides=2 | GlobalAveragePooling2D | Dense 3"
    model = pretend_trained(keras.Sequential([image, *layers_of(layers)]))
    return sat_tf.quantize_model(model, BitPolicy(input_range=value, **fields))


def _calibrated(value, **fields):
    fed = range_of(value).fed(PICTURES)
    return sat_tf.calibrate(_of_range(value, **fields), fed, batch_normalization=False)


@pytest.mark.parametrize("value", RANGES, ids=str)
def test_a_file_takes_pixels_and_computes_what_keras_does_of_its_range(value, path):
    runtimes = ("xnnpack", "builtin", "reference")
    report, certificate = proved(_calibrated(value), path, PICTURES, runtimes=runtimes)
    # No operator more than without a range.
    kinds = ("CONV_2D", "DEQUANTIZE", "FULLY_CONNECTED", "MEAN", "PAD", "QUANTIZE")
    assert report.operators == dict.fromkeys(kinds, 1)
    pixels = [count.tensors[0] for count in certificate.runtimes.values()]
    assert [count.codes_differing for count in pixels] == [0, 0, 0]
    assert certificate.trained_differing < 0.01
    assert certificate.agreement == 1.0
    found = read_graph(path.read_bytes(), "file").images[0]
    grid = range_of(value).grid
    assert (found.scale, found.zero_point) == (np.float32(grid.scale), grid.zero_point)


@pytest.mark.parametrize("value", [(-1, 1), "torch"], ids=str)
def test_a_file_of_quantized_weights_alone_has_the_range_too(value, path):
    report, certificate = proved(_calibrated(value, activation_bits=None), path, PICTURES)
    assert certificate.agreement == 1.0
    assert any(f"on pixels of {range_of(value)}" in warning for warning in report.warnings)


@pytest.mark.thorough
def test_a_model_that_was_fed_another_range_is_refused_and_no_file_written(path):
    model = _of_range()
    model.compile("sgd", keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    model.optimizer.learning_rate = 0.0
    with pytest.warns(UserWarning, match="the model is trained on"):
        model.fit(range_of("tf").fed(PICTURES), np.zeros(64), verbose=0)
    with pytest.raises(ValueError, match=r"image: .* was fed, .*fits is input_range=\(-1, 1\)"):
        sat_tf.export_tflite(model, path)
    assert not path.exists()
    fitting = sat_tf.requantize(model, BitPolicy(input_range="tf"))
    assert proved(fitting, path, PICTURES)[1].trained_differing < 0.02


def test_values_between_pixels_and_none_at_all_are_said_in_report_and_certificate(path):
    model = _of_range((0, 1))
    said = "nothing was seen of what the model is fed"
    assert said in " ".join(sat_tf.export_tflite(model, path).warnings)
    with pytest.warns(UserWarning, match="lie between those of the pixels"):
        sat_tf.calibrate(model, PICTURES / 260.0)
    report, certificate = proved(model, path, PICTURES)
    assert said not in " ".join(report.warnings)
    assert "lie between those of the pixels" in " ".join(report.warnings)
    assert certificate.warnings == report.warnings


VOCABULARY = 5000
IDS = np.random.default_rng(3).integers(0, VOCABULARY, (64, 6))
FLOAT = BitPolicy.mobile(8, unsupported="float")

pytestmark = pytest.mark.filterwarnings(
    "ignore::sat_tf.qat.layout.GuessedClippingLevelsWarning",
    "ignore::sat_tf.qat.shared_grids.CoarseValuesWarning",
)


def _head(tensor):
    tensor = L.Conv1D(8, 3, activation="relu", padding="same")(tensor)
    return L.Dense(3, name="classifier")(L.GlobalAveragePooling1D()(tensor))


def _of_ids(dtype, prepared=lambda ids: ids):
    keras.utils.set_random_seed(3)
    ids = keras.Input((6,), dtype=dtype, name="ids")
    table = L.Embedding(VOCABULARY + 1, 8, embeddings_initializer="normal", name="table")
    return keras.Model(ids, _head(table(prepared(ids))), name="net")


def _written(model, values, path, policy=FLOAT):
    quantized = calibrated(model, policy, values)
    return quantized, sat_tf.export_tflite(quantized, path)


def _difference(model, other, values):
    """The difference of the outputs, in standard deviations of the first model's."""
    expected, found = np.asarray(model(values)), np.asarray(other(values))
    return np.sqrt(np.mean((found - expected) ** 2)) / np.std(expected)


def _of_file(path):
    interpreter = Interpreter(str(path))
    interpreter.allocate_tensors()
    inputs, (output,) = interpreter.get_input_details(), interpreter.get_output_details()

    def run(values):
        arrays, found = values if isinstance(values, list) else [values], []
        for index in range(len(arrays[0])):
            for detail, array in zip(inputs, arrays, strict=True):
                interpreter.set_tensor(detail["index"], array[index : index + 1])
            interpreter.invoke()
            found.append(interpreter.get_tensor(output["index"]))
        return np.concatenate(found)

    return inputs, run


@pytest.mark.parametrize("left_float", [True, False])
@pytest.mark.parametrize("dtype", ["float32", "int32"])
def test_ids_of_an_embedding_reach_the_file_unchanged(dtype, left_float, path):
    ids = IDS.astype(dtype)
    model = _of_ids(dtype)
    overrides = {"table": {"weight_bits": None}} if left_float else {}
    quantized, report = _written(model, ids, path, BitPolicy.mobile(8, overrides=overrides))
    (taken,), run = _of_file(path)
    assert (taken["dtype"], taken["quantization"][0]) == (np.dtype(dtype), 0.0)
    assert report.float_layers == ["table"] * left_float
    assert _difference(model, quantized, ids) < 0.03
    assert _difference(model, run, ids) < 0.03  # ids that are made others give 1.4
    certificate = sat_tf.verify_tflite(quantized, path, ids[:8], float_model=model, progress=False)
    assert certificate.codes_differing == 0
    assert verify_file(path, ids[:8], progress=False).codes_differing == 0


def test_a_proof_kit_of_ids_compares_what_is_behind_the_embedding(tmp_path):
    path, ids = tmp_path / "net.tflite", IDS.astype(np.int32)
    _written(_of_ids("int32"), ids, path)
    kit = write_kit(path, ids[:3], tmp_path / "kit.zip")
    assert "classifier_codes" in kit.compared
    assert not kit.not_compared
    assert checked_here(kit.path, tmp_path).returncode == 0


@pytest.mark.parametrize(
    ("dtype", "prepared"),
    [
        ("int32", lambda ids: ids + 1),
        ("float32", lambda ids: ids + 1.0),
        ("int32", lambda ids: L.Reshape((6,))(L.Reshape((3, 2))(ids))),
        ("float32", lambda ids: L.Reshape((6,))(L.Reshape((3, 2))(ids))),
        ("int64", lambda ids: tf.math.floormod(ids * 1000003, VOCABULARY)),
    ],
)
def test_what_only_prepares_ids_is_left_float_too(dtype, prepared, path):
    ids = IDS.astype(dtype)
    model = _of_ids(dtype, prepared)
    _written(model, ids, path)
    assert _difference(model, _of_file(path)[1], ids) < 0.03


def test_ids_beside_an_image_keep_their_type_and_the_image_its_pixels(path):
    keras.utils.set_random_seed(3)
    image, ids = keras.Input((8, 8, 1), name="image"), keras.Input((6,), dtype="int32", name="ids")
    features = L.GlobalAveragePooling2D()(L.Conv2D(8, 3, activation="relu")(image))
    found = L.Flatten()(L.Embedding(VOCABULARY, 4, embeddings_initializer="normal")(ids))
    both = L.Concatenate()([features, L.Dense(8, activation="relu")(found)])
    model = keras.Model([image, ids], L.Dense(3)(both))
    pixels = np.random.default_rng(3).integers(0, 256, (64, 8, 8, 1)).astype(np.uint8)
    real, numbers = pixels / np.float32(255), IDS.astype(np.int32)
    # A range for all inputs is that of the images.
    policy = BitPolicy.mobile(8, unsupported="float", input_range=(0, 1))
    quantized, _ = _written(model, [real, numbers], path, policy)
    inputs, run = _of_file(path)
    assert {one["name"]: one["dtype"] for one in inputs} == {"image": np.uint8, "ids": np.int32}
    found = run([pixels, numbers])
    assert _difference(model, lambda values: found, [real, numbers]) < 0.05
    again = sat_tf.requantize(quantized, BitPolicy.mobile(4, unsupported="float"))
    sat_tf.export_tflite(again, path)
    assert [one["dtype"] for one in _of_file(path)[0]] == [one["dtype"] for one in inputs]


@pytest.mark.parametrize("name", [pytest.param("gru", marks=pytest.mark.thorough), "norm"])
def test_real_numbers_for_layers_left_float_stay_as_they_are(name, path):
    first = L.LayerNormalization()
    if name == "gru":
        first = L.GRU(8, return_sequences=True, kernel_constraint="max_norm")
    values = np.random.default_rng(3).normal(0.0, 30.0, (64, 6, 4)).astype(np.float32)
    values[:, 0] *= 1000.0  # of which codes for all would leave nothing else
    read = keras.Input((6, 4), name="read")
    model = keras.Model(read, _head(first(read)))
    assert sat_tf.explain(model, FLOAT).inputs[0].startswith("read: float32 as it is")
    _written(model, values, path)
    assert _difference(model, _of_file(path)[1], values) < 0.05
    stated = BitPolicy.mobile(8, unsupported="float", input_type="int8")
    assert "int8 codes" in sat_tf.explain(model, stated).inputs[0]


@pytest.mark.parametrize(
    "size", [L.Lambda(lambda z: tf.abs(z), name="size"), tf.abs], ids=["layer", "operation"]
)
def test_complex_numbers_between_layers_left_float_keep_their_imaginary_part(size, path):
    keras.utils.set_random_seed(3)
    waves = np.random.default_rng(3).normal(size=(64, 128)).astype(np.float32)
    wave = keras.Input((128,), name="wave")
    spectrum = L.Lambda(lambda x: tf.signal.stft(x, 32, 16), name="stft")(wave)
    behind = L.Flatten()(L.Dense(8, activation="relu")(size(spectrum)))
    model = keras.Model(wave, L.Dense(3)(behind))
    quantized, report = _written(model, waves, path)
    assert report.float_layers[0].startswith("stft + ")
    assert _difference(model, _of_file(path)[1], waves) < 0.04  # without it, 0.6
    certificate = sat_tf.verify_tflite(quantized, path, waves[:8], progress=False)
    assert certificate.codes_differing == 0
