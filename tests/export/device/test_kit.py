import json
import zipfile

import numpy as np
import pytest
import tf_keras as keras

import sat_tf
from sat_tf.export.certificate.inputs import images_hash
from sat_tf.export.device.kit import write_kit
from sat_tf.export.file_verification import verify_file
from tests.export.device.kits import certificate_in, checked_here
from tests.export.proofs import calibrated


def _manifest(kit):
    with zipfile.ZipFile(kit.path) as archive:
        return json.loads(archive.read("kit.json")), archive.namelist()


def test_it_expects_the_hashes_of_a_certificate_on_the_same_images(kit, small_file, few_images):
    manifest, names = _manifest(kit)
    certificate = verify_file(small_file, few_images, runtimes=())
    assert [(row["name"], row["sha256"]) for row in manifest["tensors"]] == [
        (codes.name, codes.sha256) for codes in certificate.codes
    ]
    assert (manifest["sha256"], manifest["images_sha256"]) == (
        certificate.sha256,
        images_hash(few_images),
    )
    assert set(names) == {"model.tflite", "images.npy", "check.py", "__main__.py", "kit.json"}
    assert kit.compared == tuple(codes.name for codes in certificate.codes)
    assert kit.not_compared == ()
    assert kit.bytes == kit.path.stat().st_size


def test_codes_are_in_it_on_request(kit_with_codes, few_images):
    manifest, names = _manifest(kit_with_codes)
    assert manifest["has_codes"]
    assert {name for name in names if "/" in name} == {
        f"codes/{number}" for number in range(len(few_images))
    }


def test_equal_kits_are_equal_bytes(kit, small_file, few_images, tmp_path):
    again = write_kit(small_file, few_images, tmp_path / "kit.zip")
    assert again.path.read_bytes() == kit.path.read_bytes()


def _with_attention():
    inputs = keras.Input((6, 6, 3), name="image")
    x = keras.layers.Conv2D(4, 3, use_bias=False, name="stem")(inputs)
    x = keras.layers.BatchNormalization(name="stem_bn")(x)
    x = keras.layers.ReLU(name="stem_relu")(x)
    x = keras.layers.Reshape((16, 4), name="rows")(x)
    x = keras.layers.MultiHeadAttention(2, 2, name="attention")(x, x)
    x = keras.layers.GlobalAveragePooling1D(name="pool")(x)
    return keras.Model(inputs, keras.layers.Dense(3, name="classifier")(x), name="attentive")


def test_tensors_behind_float_layers_are_left_out(tmp_path):
    rng = np.random.default_rng(0)
    images = rng.integers(0, 256, (8, 6, 6, 3)).astype(np.uint8)
    policy = sat_tf.BitPolicy.mobile(4, unsupported="float")
    model = calibrated(_with_attention(), policy, images)
    sat_tf.export_tflite(model, tmp_path / "model.tflite")
    kit = write_kit(tmp_path / "model.tflite", images[:2], tmp_path / "kit.zip")
    assert "stem_relu" in kit.compared
    assert "classifier_codes" in kit.not_compared
    done = checked_here(kit.path, tmp_path)
    assert done.returncode == 0
    assert f"{len(kit.not_compared)} tensors behind float layers not compared" in done.stdout
    assert certificate_in(tmp_path)


def test_a_kit_that_is_broken_off_leaves_the_older_one(
    kit, small_file, few_images, tmp_path, monkeypatch
):
    path = tmp_path / "kit.zip"
    path.write_bytes(b"older")

    def interrupted(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr("sat_tf.export.device.kit.simulate", interrupted)
    with pytest.raises(KeyboardInterrupt):
        write_kit(small_file, few_images, path)
    assert path.read_bytes() == b"older"
    assert list(tmp_path.iterdir()) == [path]
