import gzip

import numpy as np
import pytest

import sat_tf
from sat_tf.export.export import StorageCost
from sat_tf.export.litert.runtime import Runtime
from sat_tf.export.lowering.pipeline import deployed_graph, with_softmax
from sat_tf.export.tflite.contents import gzip_size
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


@pytest.mark.thorough
def test_float_streams_are_refused(with_float_streams):
    with pytest.raises(ValueError, match=r"block_3_add: received a float stream"):
        sat_tf.export.to_keras(with_float_streams)
