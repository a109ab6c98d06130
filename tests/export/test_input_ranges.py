import numpy as np
import pytest
import tf_keras as keras

import sat_tf
from sat_tf.export.litert.runtime import Runtime
from sat_tf.export.operations.graph_file import read_graph
from sat_tf.qat.policy import BitPolicy
from sat_tf.quantizers.input_range import range_of
from tests.export.proofs import proved
from tests.qat.float_models import pretend_trained

L = keras.layers
RANGES = [(0, 255), (0, 1), (-1, 1), (20, 275), "torch", "caffe", ((0, -1, -2), (1, 1, 3))]
PICTURES = np.random.default_rng(3).integers(0, 256, (64, 9, 9, 3)).astype(np.uint8)


def _model(padding="same"):
    image = keras.Input((9, 9, 3), name="image")
    tensor = L.ZeroPadding2D(1)(image)
    tensor = L.Conv2D(6, 3, strides=2, padding=padding, use_bias=False, name="conv")(tensor)
    tensor = L.ReLU(name="relu")(L.BatchNormalization(name="bn")(tensor))
    tensor = L.GlobalAveragePooling2D(name="pool")(tensor)
    return pretend_trained(keras.Model(image, L.Dense(3, name="classifier")(tensor)))


def _quantized(value, **fields):
    model = sat_tf.quantize_model(_model(), BitPolicy(**{**fields, "input_range": value}))
    sat_tf.calibrate(model, range_of(value).fed(PICTURES), batch_normalization=False)
    return model


@pytest.mark.parametrize("value", RANGES, ids=str)
def test_a_file_takes_pixels_and_computes_what_keras_does_of_its_range(value, path):
    model = _quantized(value)
    runtimes = ("xnnpack", "builtin", "reference")
    report, certificate = proved(model, path, PICTURES, runtimes=runtimes)
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
    report, certificate = proved(_quantized(value, activation_bits=None), path, PICTURES)
    assert certificate.agreement == 1.0
    assert any(f"on pixels of {range_of(value)}" in warning for warning in report.warnings)


@pytest.mark.thorough
def test_the_ordinary_converter_takes_the_range(tmp_path):
    model = _quantized("caffe")
    sat_tf.export_tflite(model, tmp_path / "model.tflite")
    sat_tf.export_tflite(model, tmp_path / "other.tflite", route="converter")
    one, other = (
        Runtime((tmp_path / name).read_bytes(), keep_tensors=False).run(PICTURES)
        for name in ("model.tflite", "other.tflite")
    )
    np.testing.assert_allclose(one, other, rtol=1e-5, atol=1e-5)


@pytest.mark.thorough
def test_a_model_that_was_fed_another_range_is_refused_and_no_file_written(path):
    model = sat_tf.quantize_model(_model(), BitPolicy())
    model.compile("sgd", keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    model.optimizer.learning_rate = 0.0
    with pytest.warns(UserWarning, match="the model is trained on"):
        model.fit(range_of("tf").fed(PICTURES), np.zeros(64), verbose=0)
    with pytest.raises(ValueError, match=r"image: .* was fed, .*fits is input_range=\(-1, 1\)"):
        sat_tf.export_tflite(model, path)
    assert not path.exists()
    fitting = sat_tf.requantize(model, BitPolicy(input_range="tf"))
    assert proved(fitting, path, PICTURES)[1].trained_differing < 0.02


def test_values_between_pixels_are_said_in_report_and_certificate(path):
    model = sat_tf.quantize_model(_model(), BitPolicy(input_range=(0, 1)))
    with pytest.warns(UserWarning, match="lie between those of the pixels"):
        sat_tf.calibrate(model, PICTURES / 260.0)
    report, certificate = proved(model, path, PICTURES)
    assert any("lie between those of the pixels" in warning for warning in report.warnings)
    assert certificate.warnings == report.warnings


def test_a_model_that_was_never_fed_anything_is_exported_with_a_warning(tmp_path):
    model = sat_tf.quantize_model(_model(), BitPolicy(input_range=(0, 1)))
    report = sat_tf.export_tflite(model, tmp_path / "model.tflite")
    assert any("nothing was seen of what the model is fed" in one for one in report.warnings)
    sat_tf.calibrate(model, range_of((0, 1)).fed(PICTURES))
    report = sat_tf.export_tflite(model, tmp_path / "model.tflite")
    assert not any("nothing was seen" in one for one in report.warnings)
