import numpy as np
import pytest

import sat_tf
from sat_tf.export.litert.runtime import Runtime
from sat_tf.export.lowering.pipeline import deployed_graph, with_softmax
from tests.export.zoo import images_for, quantized


@pytest.mark.parametrize("settings", [{}, {"float_head": True}])
def test_softmax_gives_the_probabilities_of_the_logits(settings, tmp_path):
    model = quantized("bottleneck")
    images = images_for(model, 8)
    outputs = []
    for softmax in (False, True):
        path = tmp_path / f"{softmax}.tflite"
        report = sat_tf.export_tflite(model, path, softmax=softmax, **settings)
        assert report.operators.get("SOFTMAX", 0) == softmax
        certificate = sat_tf.verify_tflite(model, path, images, float_model=model)
        assert certificate.codes_differing == 0
        # The output of Keras is made one of probabilities, as the file has it.
        outputs.append(Runtime(path.read_bytes(), keep_tensors=False).run(images))
        (beside,) = certificate.float_outputs
        assert beside.largest_difference < 0.2 * np.max(np.abs(outputs[-1]))
    logits, probabilities = outputs
    powers = np.exp(logits - np.max(logits, axis=1, keepdims=True), dtype=np.float64)
    expected = powers / np.sum(powers, axis=1, keepdims=True)
    np.testing.assert_allclose(probabilities, expected, atol=1e-6)  # float32


def test_a_model_that_ends_in_a_softmax_has_no_second_one(tmp_path):
    model = quantized("softmax")
    graph = deployed_graph(model)
    assert with_softmax(graph) is graph
    report = sat_tf.export_tflite(model, tmp_path / "model.tflite", softmax=True)
    assert report.operators["SOFTMAX"] == 1
