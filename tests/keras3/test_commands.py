import keras as keras3
import pytest

import sat_tf
from sat_tf.commands import main
from tests.keras3 import models
from tests.keras3.networks import digits_network

L = keras3.layers


def _said(capsys):
    captured = capsys.readouterr()
    return " ".join((captured.out + captured.err).split())


def _saved(path, *layers):
    image = keras3.Input((8, 8, 3), name="image")
    x = L.Conv2D(4, 3, use_bias=False, name="conv")(image)
    x = L.ReLU(name="relu")(L.BatchNormalization(name="bn")(x))
    for layer in layers:
        x = layer(x)
    x = L.Dense(3, name="head")(L.GlobalAveragePooling2D(name="pool")(x))
    models.pretend_trained(keras3.Model(image, x, name="small")).save(path)
    return str(path)


def test_audit_converts_a_file_of_keras_3_and_says_so(tmp_path, capsys):
    path = _saved(tmp_path / "model.keras")
    assert main.main(["audit", path]) == 0
    words = _said(capsys)
    assert f"saved by Keras {keras3.__version__}; converted to tf_keras" in words
    assert "head" in words


def test_export_names_the_step_that_is_left(tmp_path, capsys):
    path = _saved(tmp_path / "model.keras")
    assert main.main(["export", path]) != 0
    assert "call sat_tf.quantize_model(model, policy)" in _said(capsys)


def test_a_file_that_cannot_be_converted_says_why(tmp_path, capsys):
    path = _saved(tmp_path / "model.keras", L.RMSNormalization(name="rms"))
    assert main.main(["audit", path]) == 2
    assert "rms: received RMSNormalization, which tf_keras does not have" in _said(capsys)


@pytest.mark.thorough
def test_a_quantized_file_of_keras_3_is_exported(tmp_path, capsys):
    path = tmp_path / "quantized.keras"
    sat_tf.quantize_model(digits_network(), 4).save(path)
    assert main.main(["export", str(path)]) == 0
    assert (tmp_path / "quantized.tflite").is_file()
