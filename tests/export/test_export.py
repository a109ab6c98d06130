import gzip

import numpy as np
import pytest
import tensorflow as tf

import sat_tf
from sat_tf.export.export import StorageCost
from sat_tf.export.litert.runtime import Runtime
from sat_tf.export.lowering.pipeline import deployed_graph, with_softmax
from sat_tf.export.tflite.contents import gzip_size, read_contents
from tests.export.zoo import Specimen, bottleneck, images_for, quantized


@pytest.fixture(scope="module")
def few_bits():
    return Specimen(bottleneck, "", sat_tf.BitPolicy.mobile(3)).quantized()


def test_a_report_tells_what_its_own_file_costs(few_bits, path):
    report = sat_tf.export_tflite(few_bits, path, pack="none")
    assert report.storage == [StorageCost("none", report.bytes, report.gzip_bytes)]
    assert report.bytes == path.stat().st_size
    assert report.gzip_bytes == len(gzip.compress(path.read_bytes(), 6, mtime=0))


def test_on_request_it_tells_what_every_choice_costs_and_how_long_it_takes(few_bits, tmp_path):
    own = sat_tf.export_tflite(few_bits, tmp_path / "own.tflite", compare_storage=True)
    packed = sat_tf.export_tflite(few_bits, tmp_path / "packed.tflite", pack="int4")
    auto, none, int4, int2 = own.storage
    assert (auto.pack, auto.bytes) == ("auto", own.bytes)
    assert (none.pack, int2.pack) == ("none", "int2")
    assert int4.bytes < auto.bytes < none.bytes
    assert (int4.pack, int4.bytes, int4.gzip_bytes) == ("int4", packed.bytes, packed.gzip_bytes)
    for cost in own.storage:
        assert cost.milliseconds is not None
        assert cost.milliseconds > 0
        assert f"{cost.bytes:,} bytes, {cost.gzip_bytes:,} after gzip" in str(cost)


def test_a_choice_that_the_model_does_not_have_is_left_out(tmp_path):
    model = Specimen(bottleneck, "", sat_tf.BitPolicy.mobile(8)).quantized()
    report = sat_tf.export_tflite(model, tmp_path / "model.tflite", compare_storage=True)
    assert [cost.pack for cost in report.storage] == ["none"]


def test_large_files_are_compressed_in_pieces_that_cost_next_to_nothing():
    content = np.arange(2**25 + 5, dtype=np.uint8).tobytes()
    pieces = [content[start : start + 2**24] for start in (0, 2**24, 2**25)]
    assert gzip_size(content) == sum(map(gzip_size, pieces))
    # Each piece begins without what the one before had in its window.
    assert gzip_size(content) == pytest.approx(len(gzip.compress(content, 6)), rel=0.01)


def test_gzip_sizes_do_not_depend_on_the_time():
    assert gzip_size(b"codes" * 100) == gzip_size(b"codes" * 100) < 500


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
