import numpy as np
import pytest
from ai_edge_litert.interpreter import Interpreter

import sat_tf
from sat_tf.export import snap_biases
from sat_tf.training.regularization import with_weight_decay
from tests.training.small import small_float_model, small_images, small_quantized_model


def trained_model():
    model = with_weight_decay(small_quantized_model(), 0.0)
    model.get_layer("quant_classifier").layer.bias.assign([0.11, -0.07, 0.02])
    return model


def snapped_model():
    model = trained_model()
    snap_biases(model)
    return model


def variables(model):
    """By the name of the layer and its variable."""
    return {
        "/".join(variable.name.removesuffix(":0").split("/")[-2:]): variable.numpy()
        for variable in model.variables
    }


def test_only_the_last_bias_before_each_quantizer_moves_and_by_little():
    before, after = variables(trained_model()), variables(snapped_model())
    moved = {name for name in before if not np.array_equal(before[name], after[name])}
    assert moved == {
        "stem_bn/beta",
        "depthwise_bn/beta",
        "pointwise_bn/beta",
        "classifier/bias",
    }
    for name in moved:
        assert np.max(np.abs(after[name] - before[name])) < 0.01


def test_snapping_twice_is_snapping_once():
    once = snapped_model()
    before = variables(once)
    snap_biases(once)
    for name, value in variables(once).items():
        np.testing.assert_allclose(value, before[name], atol=1e-6)


def test_a_snapped_model_computes_the_logits_of_its_file(tmp_path):
    path = tmp_path / "model.tflite"
    pixels = small_images(test=300).test_images
    shares = {}
    for name, model in (("as trained", trained_model()), ("snapped", snapped_model())):
        sat_tf.export_tflite(model, path)
        interpreter = Interpreter(str(path))
        image, logits = (
            details[0]
            for details in (interpreter.get_input_details(), interpreter.get_output_details())
        )
        interpreter.resize_tensor_input(image["index"], pixels.shape)
        interpreter.allocate_tensors()
        interpreter.set_tensor(image["index"], pixels)
        interpreter.invoke()
        received = interpreter.get_tensor(logits["index"])
        expected = model(pixels.astype(np.float32), training=False).numpy()
        step = np.min(np.diff(np.unique(received)))
        # Rounding to codes alone is half a step; a code that differed before is far beyond.
        shares[name] = np.mean(np.max(np.abs(received - expected), axis=1) < 0.51 * step)
    # Not all: a signed stream that is averaged saturates one code lower in the file.
    assert shares["snapped"] > 0.95
    assert 1 - shares["snapped"] < (1 - shares["as trained"]) / 2


def test_a_float_model_has_no_grid():
    with pytest.raises(ValueError, match="expected one quantized by sat-tf"):
        snap_biases(small_float_model())
