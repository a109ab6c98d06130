import contextlib
import errno
import os
import pathlib

import numpy as np
import pytest
import tensorflow as tf
import tf_keras as keras
from ai_edge_litert.interpreter import Interpreter

import sat_tf
from sat_tf.export.litert.runtime import Runtime
from tests.export.zoo import Specimen, bottleneck


@pytest.fixture(scope="module")
def model(small) -> keras.Model:
    return small


@pytest.fixture(scope="module")
def images(small_images) -> np.ndarray:
    return small_images


@pytest.fixture(scope="module")
def content(small_file) -> bytes:
    return small_file.read_bytes()


@pytest.fixture
def path(content, tmp_path) -> pathlib.Path:
    (tmp_path / "model.tflite").write_bytes(content)
    return tmp_path / "model.tflite"


# -- writing -----------------------------------------------------------------------------------


@pytest.mark.thorough
def test_the_report_describes_the_file(model, content, tmp_path):
    report = sat_tf.export_tflite(model, str(tmp_path / "again.tflite"))
    assert (tmp_path / "again.tflite").read_bytes() == content
    assert report.path == str(tmp_path / "again.tflite")
    assert report.bytes == len(content) > report.gzip_bytes
    assert report.to_dict()["sha256"] == report.sha256


def test_a_folder_that_is_not_writable_is_refused(model, tmp_path, monkeypatch):
    # Permission bits do not stop root, who may be running this.
    monkeypatch.setattr(os, "access", lambda *_: False)
    with pytest.raises(ValueError, match=r"which is not writable, expected one that is"):
        sat_tf.export_tflite(model, tmp_path / "model.tflite")
    assert not os.listdir(tmp_path)


def test_a_disk_that_fills_up_leaves_the_older_file(model, path, content, monkeypatch):
    def write_half(self: pathlib.Path, data: bytes) -> None:
        with open(self, "wb") as file:
            file.write(data[: len(data) // 2])
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(pathlib.Path, "write_bytes", write_half)
    with pytest.raises(ValueError, match=r"\(No space left on device\), expected"):
        sat_tf.export_tflite(model, path)
    assert path.read_bytes() == content
    assert os.listdir(path.parent) == [path.name]


@pytest.mark.parametrize(("resizable", "expected"), [(False, 1), (True, -1)])
def test_the_batch_size_is_one_and_free_on_request(resizable, expected, model, images, tmp_path):
    path = tmp_path / "model.tflite"
    sat_tf.export_tflite(model, path, resizable=resizable)
    interpreter = Interpreter(str(path))
    (details,) = interpreter.get_input_details()
    assert list(details["shape"]) == [1, *images.shape[1:]]
    assert details["shape_signature"][0] == expected
    # LiteRT resizes both.
    assert len(Runtime(path.read_bytes(), keep_tensors=False).run(images)) == len(images)
    assert sat_tf.verify_tflite(model, path, images).codes_differing == 0


# -- reading -----------------------------------------------------------------------------------


@pytest.mark.thorough
def test_a_flipped_bit_is_named_or_changes_nothing(model, path, content, images):
    # Some bits are padding. No other error than ValueError may come of the others.
    for position in np.random.default_rng(3).integers(0, len(content), 40):
        flipped = bytearray(content)
        flipped[position] ^= 0x10
        path.write_bytes(flipped)
        with contextlib.suppress(ValueError):
            assert sat_tf.verify_tflite(model, path, images[:1]).codes_differing == 0


@pytest.mark.thorough
def test_the_file_of_another_tool_is_named(model, path, images):
    path.write_bytes(tf.lite.TFLiteConverter.from_keras_model(bottleneck()).convert())
    with pytest.raises(ValueError, match=r"that sat_tf.export_tflite did not write, expected one"):
        sat_tf.verify_tflite(model, path, images)


def test_all_operators_that_differ_are_counted_and_advice_is_no_problem(path, images):
    other = Specimen(bottleneck).quantized()
    for weight in other.weights:
        if "kernel" in weight.name:
            weight.assign(weight[..., ::-1])
    with pytest.raises(ValueError, match="another model") as refused:
        sat_tf.verify_tflite(other, path, images)
    title, *listed, fix = str(refused.value).splitlines()
    assert fix == "Expected what the model exports to; export it again."
    assert title.endswith(f"of this one: {len(listed)} problems")
    assert len(listed) > 1
    assert all(line.startswith("  - ") for line in listed)
