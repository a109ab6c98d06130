import contextlib
import errno
import gzip
import hashlib
import itertools
import os
import pathlib
import shutil

import numpy as np
import pytest
import tensorflow as tf
import tf_keras as keras
from ai_edge_litert import schema_py_generated as tfl
from ai_edge_litert.interpreter import Interpreter

import sat_tf
from sat_tf.exact.operations.windows import ends_early, placement
from sat_tf.exact.operator_comparison import compare_operators
from sat_tf.exact.tflite.contents import gzip_size
from sat_tf.exact.tflite.tensors import Window
from sat_tf.export.export import StorageCost
from sat_tf.export.lowering.pipeline import with_softmax
from tests.exact.foreign.one_operator import Grid, constant, file_of
from tests.export.proofs import calibrated, deployed, file_outputs, proved
from tests.export.zoo import Specimen, bottleneck, chain, images_for, quantized

FEW_BITS = "channels_of_their_own_range"  # a model of 3 bits


def test_the_report_describes_the_file(path):
    few_bits = quantized(FEW_BITS)
    report = sat_tf.export_tflite(few_bits, str(path), pack="none")
    content = path.read_bytes()
    assert (report.path, report.bytes) == (str(path), len(content))
    assert report.gzip_bytes == len(gzip.compress(content, 6, mtime=0)) < len(content)
    assert report.storage == [StorageCost("none", report.bytes, report.gzip_bytes)]
    assert report.to_dict()["sha256"] == report.sha256 == hashlib.sha256(content).hexdigest()
    sat_tf.export_tflite(few_bits, path, pack="none")
    assert path.read_bytes() == content


def test_on_request_it_tells_what_every_choice_costs_and_how_long_it_takes(tmp_path):
    few_bits = quantized(FEW_BITS)
    own = sat_tf.export_tflite(few_bits, tmp_path / "own.tflite", compare_storage=True)
    packed = sat_tf.export_tflite(few_bits, tmp_path / "packed.tflite", pack="int4")
    auto, none, int4, _ = own.storage
    assert [cost.pack for cost in own.storage] == ["auto", "none", "int4", "int2"]
    assert int4.bytes < auto.bytes == own.bytes < none.bytes
    assert (int4.bytes, int4.gzip_bytes) == (packed.bytes, packed.gzip_bytes)
    for cost in own.storage:
        assert cost.milliseconds is not None
        assert cost.milliseconds > 0
        assert f"{cost.bytes:,} bytes, {cost.gzip_bytes:,} after gzip" in str(cost)


def test_a_choice_that_the_model_does_not_have_is_left_out(path):
    model = Specimen(bottleneck, sat_tf.BitPolicy.mobile(8)).quantized()
    report = sat_tf.export_tflite(model, path, compare_storage=True)
    assert [cost.pack for cost in report.storage] == ["none"]


def test_large_files_are_compressed_in_pieces_that_cost_next_to_nothing():
    content = np.arange(2**25 + 5, dtype=np.uint8).tobytes()
    pieces = [content[start : start + 2**24] for start in (0, 2**24, 2**25)]
    assert gzip_size(content) == sum(map(gzip_size, pieces))
    # Each piece begins without what the one before had in its window.
    assert gzip_size(content) == pytest.approx(len(gzip.compress(content, 6)), rel=0.01)


@pytest.mark.parametrize("settings", [{}, {"float_head": True}])
def test_softmax_gives_the_probabilities_of_the_logits(settings, path):
    model = quantized("bottleneck")
    images = images_for(model, 8)
    outputs = []
    for softmax in (False, True):
        file = {"softmax": softmax, **settings}
        report, certificate = proved(model, path, images, file, float_model=model)
        assert report.operators.get("SOFTMAX", 0) == softmax
        # The output of Keras is made one of probabilities, as the file has it.
        outputs.append(file_outputs(path, images))
        (beside,) = certificate.float_outputs
        assert beside.largest_difference < 0.2 * np.max(np.abs(outputs[-1]))
    logits, probabilities = outputs
    powers = np.exp(logits - np.max(logits, axis=1, keepdims=True), dtype=np.float64)
    expected = powers / np.sum(powers, axis=1, keepdims=True)
    np.testing.assert_allclose(probabilities, expected, atol=1e-6)  # float32


def test_a_model_that_ends_in_a_softmax_has_no_second_one(path):
    model = quantized("softmax")
    graph = deployed(model)
    assert with_softmax(graph) is graph
    report = sat_tf.export_tflite(model, path, softmax=True)
    assert report.operators["SOFTMAX"] == 1


def test_a_disk_that_fills_up_leaves_the_older_file(small, path, small_file, monkeypatch):
    def write_half(self: pathlib.Path, data: bytes) -> None:
        with open(self, "wb") as file:
            file.write(data[: len(data) // 2])
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    shutil.copy(small_file, path)
    monkeypatch.setattr(pathlib.Path, "write_bytes", write_half)
    with pytest.raises(ValueError, match=r"\(No space left on device\), expected"):
        sat_tf.export_tflite(small, path)
    assert path.read_bytes() == small_file.read_bytes()
    assert os.listdir(path.parent) == [path.name]


@pytest.mark.parametrize(("resizable", "expected"), [(False, 1), (True, -1)])
def test_the_batch_size_is_one_and_free_on_request(resizable, expected, small, small_images, path):
    proved(small, path, small_images, {"resizable": resizable})
    interpreter = Interpreter(str(path))
    (details,) = interpreter.get_input_details()
    assert list(details["shape"]) == [1, *small_images.shape[1:]]
    assert details["shape_signature"][0] == expected
    # LiteRT resizes both.
    outputs = file_outputs(path, small_images)
    assert len(outputs) == len(small_images)


@pytest.mark.thorough
def test_a_flipped_bit_is_named_or_changes_nothing(small, path, small_file, small_images):
    # Some bits are padding. No other error than ValueError may come of the others.
    content = small_file.read_bytes()
    for position in np.random.default_rng(3).integers(0, len(content), 40):
        flipped = bytearray(content)
        flipped[position] ^= 0x10
        path.write_bytes(flipped)
        with contextlib.suppress(ValueError):
            assert sat_tf.verify_tflite(small, path, small_images[:1]).codes_differing == 0


def test_all_operators_that_differ_are_counted_and_advice_is_no_problem(small_file, small_images):
    other = Specimen(bottleneck).quantized()
    for weight in other.weights:
        if "kernel" in weight.name:
            weight.assign(weight[..., ::-1])
    with pytest.raises(ValueError, match="another model") as refused:
        sat_tf.verify_tflite(other, small_file, small_images)
    title, *listed, fix = str(refused.value).splitlines()
    assert fix == "Expected what the model exports to; export it again."
    assert title.endswith(f"of this one: {len(listed)} problems")
    assert len(listed) > 1
    assert all(line.startswith("  - ") for line in listed)


def test_windows_end_early_where_the_last_one_does():
    sizes = itertools.product((7, 15, 16), range(1, 6), range(1, 5), (1, 2))
    for size, kernel, stride, dilation in sizes:
        window = Window((stride, 1), "SAME", (dilation, 1))
        # The last pixel that the windows meet, or would beyond the image.
        before = placement(size, kernel, stride, dilation, "SAME")[0][0]
        last = max(range(-before, size - before, stride)) + dilation * (kernel - 1)
        # Five columns are met whatever the rows do.
        expected = last < size - 1
        assert ends_early((size, 5), (kernel, 3), window) == expected
    assert not ends_early((16, 16), (1, 1), Window((2, 2), "SAME"))
    assert not ends_early((16, 16), (1, 3), Window((2, 2), "VALID"))


def _proved(path, layer):
    model = calibrated(chain((16, 16, 3), layer, "Flatten"), 8)
    # The release that is installed computes all windows rightly.
    return proved(model, path, images_for(model, 8))


@pytest.mark.parametrize("kind", [keras.layers.Conv2D, keras.layers.DepthwiseConv2D])
def test_what_pads_nothing_is_right_in_tensorflow_too(kind, path):
    settings = {"filters": 4} if kind is keras.layers.Conv2D else {}
    layer = kind(kernel_size=3, strides=4, padding="same", name="patches", **settings)
    report, _ = _proved(path, layer)
    assert (report.runs_from, report.warnings) == ("1.0.0", [])
    run = tf.lite.Interpreter(str(path)).get_signature_runner()
    pixels = np.random.default_rng(0).integers(0, 256, (1, 16, 16, 3)).astype(np.uint8)
    (found,) = run(**dict.fromkeys(run.get_input_details(), pixels)).values()
    expected = file_outputs(path, pixels)
    np.testing.assert_array_equal(found, expected)


def test_what_pads_on_one_axis_and_ends_early_on_the_other_is_named_also_in_files_of_others(path):
    layer = keras.layers.Conv2D(4, (1, 3), strides=2, padding="same", name="wide")
    report, certificate = _proved(path, layer)
    assert report.runs_from == "2.2.0"
    for (warning,) in (report.warnings, certificate.warnings):
        assert warning.startswith("wide: the windows of padding='same' end in front of the last")
        assert "LiteRT before 2.2.0" in warning
    # So it is in files of other tools.
    kernel, made = constant(np.ones((4, 1, 3, 2)), 0.01), Grid((1, 8, 8, 4), 0.5)
    given = Grid((1, 16, 16, 2)), kernel, constant(np.zeros(4))
    settings = {"strideH": 2, "strideW": 2, "padding": tfl.Padding.SAME, "version": 3}
    path.write_bytes(file_of("CONV_2D", given, (made,), **settings))
    images = np.random.default_rng(0).integers(-128, 128, (2, 16, 16, 2)).astype(np.int8)
    found = compare_operators(path, images, runtimes=(), progress=False)
    assert "Note: t3: the windows of padding='same' end" in str(found)
