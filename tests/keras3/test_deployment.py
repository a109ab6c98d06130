"""Keras 3 models on their way to a phone."""

import pathlib
import sys

import keras as keras3
import numpy as np
import pytest
from ai_edge_litert.interpreter import Interpreter

import sat_tf
from sat_tf.commands import main
from tests.export.proofs import proved
from tests.keras3 import models
from tests.keras3.models import digits_network

sys.path.append(str(pathlib.Path(__file__).parents[2] / "benchmarks"))

import keras3_applications

L = keras3.layers


@pytest.mark.thorough
@pytest.mark.parametrize(
    "build", [models.mobile, pytest.param(models.functions, marks=pytest.mark.slow)]
)
def test_a_keras_3_model_becomes_an_integer_file_with_its_codes(build, tmp_path):
    model = sat_tf.from_keras3(build())
    quantized = sat_tf.quantize_model(model, sat_tf.BitPolicy.mobile(8))
    shape = (32, *model.input_shape[1:])
    images = np.random.default_rng(3).integers(0, 256, shape).astype(np.uint8)
    sat_tf.calibrate(quantized, images.astype(np.float32))
    report, found = proved(quantized, tmp_path / "model.tflite", images)
    assert {name.split()[0] for name in report.float_operators} == {"DEQUANTIZE"}  # the logits
    assert found.runtimes["xnnpack"].codes_compared > 0


@pytest.mark.thorough
def test_outputs_keep_their_names_and_a_saved_model_knows_them(tmp_path):
    picture = L.Input((8, 8, 3), name="picture")
    mean = L.GlobalAveragePooling2D()(L.Conv2D(4, 3)(picture))
    inner = keras3.Sequential([L.Input((4,)), L.Dense(3), L.Softmax()], name="probs")
    outputs = [inner(mean), L.Dense(2, activation="sigmoid", name="box")(mean)]
    q = sat_tf.quantize_model(keras3.Model(picture, outputs), sat_tf.BitPolicy.mobile(8))
    images = np.random.default_rng(3).integers(0, 256, (8, 8, 8, 3)).astype(np.float32)
    sat_tf.calibrate(q, images)
    q.save(tmp_path / "q.keras")
    for model in (q, keras3.saving.load_model(tmp_path / "q.keras")):
        sat_tf.export_tflite(model, tmp_path / "model.tflite")
        run = Interpreter(str(tmp_path / "model.tflite")).get_signature_runner()
        assert list(run.get_input_details()) == ["picture"]
        assert set(run.get_output_details()) == {"probs", "box"}


def _said(capsys):
    captured = capsys.readouterr()
    return " ".join((captured.out + captured.err).split())


def _saved(path):
    image = keras3.Input((8, 8, 3), name="image")
    x = L.Conv2D(4, 3, use_bias=False, name="conv")(image)
    x = L.ReLU(name="relu")(L.BatchNormalization(name="bn")(x))
    x = L.Dense(3, name="head")(L.GlobalAveragePooling2D(name="pool")(x))
    models.pretend_trained(keras3.Model(image, x, name="small")).save(path)
    return str(path)


def test_audit_converts_a_file_of_keras_3_and_says_so(tmp_path, capsys):
    path = _saved(tmp_path / "model.keras")
    assert main.main(["audit", path]) == 0
    words = _said(capsys)
    assert f"saved by Keras {keras3.__version__}; converted to tf_keras" in words
    assert "head" in words


@pytest.mark.thorough
def test_a_quantized_file_of_keras_3_is_exported(tmp_path, capsys):
    path = tmp_path / "quantized.keras"
    sat_tf.quantize_model(digits_network(), 4).save(path)
    assert main.main(["export", str(path)]) == 0
    assert (tmp_path / "quantized.tflite").is_file()


@pytest.mark.filterwarnings("ignore::UserWarning")
@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=pytest.mark.thorough if name == "MobileNet" else pytest.mark.slow)
        for name in keras3_applications.FAMILIES
    ],
)
def test_a_network_of_keras_trains_a_step_and_no_code_of_its_file_differs(name):
    row = keras3_applications.make_row(name)
    assert float(row["largest difference of a layer"]) <= 1e-5
    assert row["loss is finite"]
    assert row["codes compared"] > 1000
    assert row["codes differing"] == 0
