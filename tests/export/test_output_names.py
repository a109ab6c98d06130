"""Inputs and outputs of files are called as in Keras, whatever is at the end of the model."""

import numpy as np
import pytest
import tf_keras as keras
from ai_edge_litert.interpreter import Interpreter

import sat_tf
from tests.export.proofs import calibrated

L = keras.layers
PIXELS = np.random.default_rng(0).integers(0, 256, (16, 8, 8, 3)).astype(np.uint8)


def _features():
    picture = L.Input((8, 8, 3), name="picture")
    return picture, L.GlobalAveragePooling2D(name="mean")(L.Conv2D(4, 3, name="conv")(picture))


def _heads():
    """Outputs of each kind; the last two are one layer, and the codes of `scores` have a name."""
    picture, mean = _features()
    shared = L.Dense(2, activation="sigmoid", name="shared")
    outputs = {
        "probs": L.Dense(3, activation="softmax", name="probs")(mean),
        "softmax": L.Softmax(name="softmax")(L.Dense(3, name="logits")(mean)),
        "box": L.Dense(4, name="box")(mean),
        "sizes": L.Dense(2, activation="relu", name="sizes")(mean),
        "angle": L.Dense(2, activation="tanh", name="angle")(mean),
        "rows": L.Reshape((1, 3), name="rows")(L.Dense(3, name="row")(mean)),
        "dropped": L.Dropout(0.5, name="dropped")(L.Dense(3, name="kept")(mean)),
        "inner": keras.Sequential([L.Dense(3, name="d"), L.Softmax(name="s")], name="inner")(mean),
        "scores": L.Dense(3, name="scores")(
            L.Dense(4, activation="relu", name="scores_codes")(mean)
        ),
        "shared": shared(mean),
        "shared_1": shared(L.ReLU(name="positive")(mean)),
    }
    return picture, outputs


def _quantized(model):
    return calibrated(model, 8, images=PIXELS.astype(np.float32))


@pytest.fixture(scope="module")
def quantized():
    picture, outputs = _heads()
    model = keras.Model(picture, list(outputs.values()))
    assert model.output_names == list(outputs)
    return model, _quantized(model)


def _names(path):
    """The names of a file's inputs and outputs in its signature, and of its output tensors."""
    interpreter = Interpreter(str(path))
    (signature,) = interpreter.get_signature_list().values()
    tensors = [details["name"] for details in interpreter.get_output_details()]
    return signature["inputs"], signature["outputs"], tensors


@pytest.mark.parametrize("output_type", ["float32", "int8", "uint8"])
def test_each_output_has_its_name_in_keras(quantized, output_type, tmp_path):
    model, q = quantized
    path = tmp_path / "model.tflite"
    sat_tf.export_tflite(q, path, output_type=output_type)
    inputs, outputs, tensors = _names(path)
    assert inputs == ["picture"]
    assert outputs == sorted(model.output_names)
    assert tensors == model.output_names
    certificate = sat_tf.verify_tflite(q, path, PIXELS)
    assert certificate.codes_differing == 0
    # No layer is lost to the comparison by the name of an output.
    trained = {tensor.name.removesuffix("_codes") for tensor in certificate.trained}
    assert {"box", "sizes", "scores", "conv", "mean"} <= trained
    assert trained & {"kept", "dropped"}


def test_a_call_by_name_gives_what_the_keras_output_of_that_name_does(quantized, tmp_path):
    model, q = quantized
    sat_tf.export_tflite(q, tmp_path / "model.tflite")
    run = Interpreter(str(tmp_path / "model.tflite")).get_signature_runner()
    found = [run(picture=pixels[np.newaxis]) for pixels in PIXELS]
    expected = dict(zip(model.output_names, q.predict(PIXELS.astype(np.float32)), strict=True))
    for name, values in expected.items():
        made = np.concatenate([one[name] for one in found])
        np.testing.assert_allclose(made, values, atol=0.3 * np.ptp(values), err_msg=name)


@pytest.mark.thorough
def test_the_converters_file_and_that_of_a_saved_model_have_the_same_names(quantized, tmp_path):
    model, q = quantized
    sat_tf.export_tflite(q, tmp_path / "converter.tflite", route="converter")
    assert _names(tmp_path / "converter.tflite")[:2] == (["picture"], sorted(model.output_names))
    q.save(tmp_path / "q.keras")
    again = sat_tf.requantize(keras.models.load_model(tmp_path / "q.keras"), sat_tf.BitPolicy())
    sat_tf.calibrate(again, PIXELS.astype(np.float32))
    sat_tf.export_tflite(again, tmp_path / "again.tflite")
    assert _names(tmp_path / "again.tflite")[2] == model.output_names


@pytest.mark.parametrize("settings", [{"softmax": True}, {"float_head": True}])
def test_an_ending_that_the_export_adds_keeps_the_name(settings, tmp_path):
    picture, mean = _features()
    q = _quantized(keras.Model(picture, L.Dense(3, name="probs")(mean)))
    sat_tf.export_tflite(q, tmp_path / "model.tflite", **settings)
    assert _names(tmp_path / "model.tflite") == (["picture"], ["probs"], ["probs"])
    assert sat_tf.verify_tflite(q, tmp_path / "model.tflite", PIXELS).codes_differing == 0


@pytest.mark.parametrize("route", ["direct", "converter"])
def test_the_keys_of_a_dictionary_are_the_names(route, tmp_path):
    picture, mean = _features()
    outputs = {
        "class": L.Dense(3, activation="softmax", name="probs")(mean),
        "where": L.Dense(2, name="box")(mean),
    }
    q = _quantized(keras.Model({"image": picture}, outputs))
    sat_tf.export_tflite(q, tmp_path / "model.tflite", route=route)
    assert _names(tmp_path / "model.tflite")[:2] == (["image"], ["class", "where"])


def test_an_output_left_float_in_a_model_inside_keeps_the_name_of_that(tmp_path):
    picture, mean = _features()
    inner = keras.Sequential([L.Dense(3), L.LayerNormalization()], name="probs")
    policy = sat_tf.BitPolicy.mobile(8, unsupported="float")
    q = sat_tf.quantize_model(keras.Model(picture, inner(mean)), policy)
    sat_tf.calibrate(q, PIXELS.astype(np.float32))
    sat_tf.export_tflite(q, tmp_path / "model.tflite")
    assert _names(tmp_path / "model.tflite") == (["picture"], ["probs"], ["probs"])
