"""Inputs that only layers left float read, and what such layers pass to each other: as it is."""

import numpy as np
import pytest
import tensorflow as tf
import tf_keras as keras
from ai_edge_litert.interpreter import Interpreter

import sat_tf
from sat_tf.export import verify_file
from sat_tf.export.device.kit import write_kit
from tests.export.device.kits import checked_here

L = keras.layers
VOCABULARY = 5000
IDS = np.random.default_rng(3).integers(0, VOCABULARY, (64, 6))
FLOAT = sat_tf.BitPolicy.mobile(8, unsupported="float")

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
    quantized = sat_tf.calibrate(sat_tf.quantize_model(model, policy), values, progress=False)
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


@pytest.mark.parametrize("dtype", ["float32", "int32"])
def test_ids_of_an_embedding_reach_the_file_unchanged(dtype, tmp_path):
    path, ids = tmp_path / "net.tflite", IDS.astype(dtype)
    model = _of_ids(dtype)
    quantized, report = _written(model, ids, path)
    (taken,), run = _of_file(path)
    assert (taken["dtype"], taken["quantization"][0]) == (np.dtype(dtype), 0.0)
    assert report.islands == ["table"]
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
def test_what_only_prepares_ids_is_left_float_too(dtype, prepared, tmp_path):
    path, ids = tmp_path / "net.tflite", IDS.astype(dtype)
    model = _of_ids(dtype, prepared)
    _written(model, ids, path)
    assert _difference(model, _of_file(path)[1], ids) < 0.03


def test_ids_beside_an_image_keep_their_type_and_the_image_its_pixels(tmp_path):
    path = tmp_path / "net.tflite"
    keras.utils.set_random_seed(3)
    image = keras.Input((8, 8, 1), name="image")
    ids = keras.Input((6,), dtype="int32", name="ids")
    features = L.GlobalAveragePooling2D()(L.Conv2D(8, 3, activation="relu")(image))
    found = L.Flatten()(L.Embedding(VOCABULARY, 4, embeddings_initializer="normal")(ids))
    both = L.Concatenate()([features, L.Dense(8, activation="relu")(found)])
    model = keras.Model([image, ids], L.Dense(3)(both))
    pixels = np.random.default_rng(3).integers(0, 256, (64, 8, 8, 1)).astype(np.uint8)
    real = (pixels / np.float32(255)).astype(np.float32)
    # A range for all inputs is that of the images.
    policy = sat_tf.BitPolicy.mobile(8, unsupported="float", input_range=(0, 1))
    quantized, _ = _written(model, [real, IDS.astype(np.int32)], path, policy)
    inputs, run = _of_file(path)
    assert {one["name"]: one["dtype"] for one in inputs} == {"image": np.uint8, "ids": np.int32}
    found = run([pixels, IDS.astype(np.int32)])
    assert _difference(model, lambda values: found, [real, IDS.astype(np.int32)]) < 0.05
    again = sat_tf.requantize(quantized, sat_tf.BitPolicy.mobile(4, unsupported="float"))
    sat_tf.export_tflite(again, path)
    assert [one["dtype"] for one in _of_file(path)[0]] == [one["dtype"] for one in inputs]


@pytest.mark.parametrize(
    "first",
    [
        pytest.param(L.LSTM(8, return_sequences=True), marks=pytest.mark.thorough),
        L.LayerNormalization(),
    ],
    ids=["lstm", "norm"],
)
def test_real_numbers_for_layers_left_float_stay_as_they_are(first, tmp_path):
    path = tmp_path / "net.tflite"
    values = np.random.default_rng(3).normal(0.0, 30.0, (64, 6, 4)).astype(np.float32)
    values[:, 0] *= 1000.0  # of which codes for all would leave nothing else
    read = keras.Input((6, 4), name="read")
    model = keras.Model(read, _head(first(read)))
    assert sat_tf.explain(model, FLOAT).inputs[0].startswith("read: float32 as it is")
    _written(model, values, path)
    assert _difference(model, _of_file(path)[1], values) < 0.05
    stated = sat_tf.BitPolicy.mobile(8, unsupported="float", input_type="int8")
    assert "int8 codes" in sat_tf.explain(model, stated).inputs[0]


# -- between layers left float -------------------------------------------------------------------


def _of_waves(behind):
    keras.utils.set_random_seed(3)
    wave = keras.Input((128,), name="wave")
    spectrum = L.Lambda(lambda x: tf.signal.stft(x, 32, 16), name="stft")(wave)
    return keras.Model(wave, behind(spectrum))


WAVES = np.random.default_rng(3).normal(size=(64, 128)).astype(np.float32)


@pytest.mark.parametrize(
    "size", [L.Lambda(lambda z: tf.abs(z), name="size"), tf.abs], ids=["layer", "operation"]
)
def test_complex_numbers_between_layers_left_float_keep_their_imaginary_part(size, tmp_path):
    path = tmp_path / "net.tflite"
    model = _of_waves(lambda z: L.Dense(3)(L.Flatten()(L.Dense(8, activation="relu")(size(z)))))
    quantized, report = _written(model, WAVES, path)
    assert report.islands[0].startswith("stft + ")
    assert _difference(model, _of_file(path)[1], WAVES) < 0.04  # without it, 0.6
    certificate = sat_tf.verify_tflite(quantized, path, WAVES[:8], progress=False)
    assert certificate.codes_differing == 0
