import numpy as np
import pytest
import tensorflow as tf

import sat_tf
from sat_tf.export.litert.runtime import Runtime
from sat_tf.export.tflite.contents import read_contents
from tests.export.zoo import images_for


@pytest.fixture(
    scope="module", params=["small", pytest.param("quantized", marks=pytest.mark.thorough)]
)
def model(request):
    return request.getfixturevalue(request.param)


@pytest.fixture(scope="module")
def converted(model) -> bytes:
    converter = tf.lite.TFLiteConverter.from_keras_model(sat_tf.export.to_keras(model))
    converter.optimizations = [tf.lite.Optimize.DEFAULT]
    return converter.convert()


def test_the_converter_leaves_nothing_float_but_the_ends(converted):
    found = read_contents(converted, "converted")
    assert [name.split()[0] for name in found.float_operators()] == ["QUANTIZE", "DEQUANTIZE"]


def test_the_converter_gives_the_logits_of_the_written_file(converted, model, tmp_path):
    images = images_for(model, 64)
    # The converter has no weights of 4 bits, whose biases are on coarser grids.
    sat_tf.export_tflite(model, tmp_path / "model.tflite", pack="none")
    written = Runtime((tmp_path / "model.tflite").read_bytes(), keep_tensors=False)
    ordinary = Runtime(converted, keep_tensors=False)
    found, expected = ordinary.run(images.astype(np.float32)), written.run(images)
    # The same codes; the converter's scales have been through FakeQuant's ranges.
    np.testing.assert_allclose(found, expected, rtol=1e-6)
    np.testing.assert_array_equal(np.argmax(found, axis=1), np.argmax(expected, axis=1))


@pytest.mark.thorough
def test_float_streams_are_refused(with_float_streams):
    with pytest.raises(ValueError, match=r"block_3_add: received a float stream"):
        sat_tf.export.to_keras(with_float_streams)
