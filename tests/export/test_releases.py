"""Convolutions that earlier releases of XNNPACK compute wrongly."""

import itertools

import numpy as np
import pytest
import tensorflow as tf
import tf_keras as keras
from ai_edge_litert import schema_py_generated as tfl

import sat_tf
from sat_tf.export.litert.runtime import Runtime
from sat_tf.export.operations.windows import ends_early, placement
from sat_tf.export.operator_comparison import compare_operators
from sat_tf.export.tflite.tensors import Window
from tests.export.foreign.one_operator import Grid, constant, file_of
from tests.export.proofs import calibrated

PIXELS = np.random.default_rng(0).integers(0, 256, (8, 16, 16, 3)).astype(np.uint8)


def _last_pixel(size, kernel, stride, dilation):
    """The place of the last pixel that the windows of SAME meet, or would beyond the image."""
    before = placement(size, kernel, stride, dilation, "SAME")[0][0]
    starts = range(-before, size - before, stride)
    return max(starts) + dilation * (kernel - 1)


def test_windows_end_early_where_the_last_one_does():
    for size, kernel, stride, dilation in itertools.product(
        (7, 15, 16), range(1, 6), range(1, 5), (1, 2)
    ):
        window = Window((stride, 1), "SAME", (dilation, 1))
        # Five columns are met whatever the rows do.
        expected = _last_pixel(size, kernel, stride, dilation) < size - 1
        assert ends_early((size, 5), (kernel, 3), window) == expected
    assert not ends_early((16, 16), (1, 1), Window((2, 2), "SAME"))
    assert not ends_early((16, 16), (1, 3), Window((2, 2), "VALID"))


def _exported(path, layer):
    image = keras.Input((16, 16, 3), name="image")
    q = calibrated(
        keras.Model(image, keras.layers.Flatten()(layer(image))), 8, PIXELS.astype(np.float32)
    )
    return q, sat_tf.export_tflite(q, path)


@pytest.mark.parametrize("kind", [keras.layers.Conv2D, keras.layers.DepthwiseConv2D])
def test_what_pads_nothing_is_right_in_tensorflow_too(kind, tmp_path):
    settings = {"filters": 4} if kind is keras.layers.Conv2D else {}
    path = tmp_path / "model.tflite"
    layer = kind(kernel_size=3, strides=4, padding="same", name="patches", **settings)
    q, report = _exported(path, layer)
    assert (report.runs_from, report.warnings) == ("1.0.0", [])
    assert sat_tf.verify_tflite(q, path, PIXELS).codes_differing == 0
    interpreter = tf.lite.Interpreter(str(path))
    interpreter.allocate_tensors()
    interpreter.set_tensor(interpreter.get_input_details()[0]["index"], PIXELS[:1])
    interpreter.invoke()
    found = interpreter.get_tensor(interpreter.get_output_details()[0]["index"])
    expected = Runtime(path.read_bytes(), keep_tensors=False).run(PIXELS[:1])
    np.testing.assert_array_equal(found, expected)


def test_what_pads_on_one_axis_and_ends_early_on_the_other_is_named(tmp_path):
    path = tmp_path / "model.tflite"
    layer = keras.layers.Conv2D(4, (1, 3), strides=2, padding="same", name="wide")
    q, report = _exported(path, layer)
    assert report.runs_from == "2.2.0"
    certificate = sat_tf.verify_tflite(q, path, PIXELS)
    assert certificate.codes_differing == 0  # the release that is installed is right
    for warnings in (report.warnings, certificate.warnings):
        (warning,) = warnings
        assert warning.startswith("wide: the windows of padding='same' end in front of the last")
        assert "LiteRT before 2.2.0" in warning


def test_files_of_other_tools_are_told_too(tmp_path):
    image, kernel = Grid((1, 16, 16, 2)), constant(np.ones((4, 1, 3, 2)), 0.01)
    made = Grid((1, 8, 8, 4), 0.5)
    settings = {"strideH": 2, "strideW": 2, "padding": tfl.Padding.SAME}
    given = (image, kernel, constant(np.zeros(4)))
    content = file_of("CONV_2D", given, (made,), version=3, options="Conv2DOptions", **settings)
    (tmp_path / "other.tflite").write_bytes(content)
    images = np.random.default_rng(0).integers(-128, 128, (2, 16, 16, 2)).astype(np.int8)
    found = compare_operators(tmp_path / "other.tflite", images, runtimes=(), progress=False)
    assert "Note: t3: the windows of padding='same' end" in str(found)
