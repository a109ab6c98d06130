"""Proof kits: what they hold, their script in processes of its own, and the reports it writes."""

import ast
import json
import pathlib
import platform
import shutil
import sys
import zipfile
from unittest import mock

import numpy as np
import pytest
import tf_keras as keras

import sat_tf
from sat_tf.exact.certificate.proof import verify_file
from sat_tf.exact.certificate.proof_images import ImagesFrom, images_hash, random_images
from sat_tf.exact.device import check
from sat_tf.exact.device.kit import (
    is_device_certificate,
    read_device_certificate,
    read_device_check,
    write_kit,
)
from tests.exact.device.kits import certificate_in, checked, checked_here, reseal, unpacked
from tests.exact.test_without_tensorflow import environment
from tests.export.damage import changed
from tests.export.proofs import calibrated

NUM_IMAGES = 3


@pytest.fixture(scope="package")
def few_images(small_images):
    return small_images[:NUM_IMAGES]


@pytest.fixture(scope="package")
def kit(small_file, few_images, tmp_path_factory):
    return write_kit(small_file, few_images, tmp_path_factory.mktemp("kit") / "kit.zip")


@pytest.fixture(scope="package")
def kit_with_codes(small_file, few_images, tmp_path_factory):
    path = tmp_path_factory.mktemp("kit_codes") / "kit.zip"
    return write_kit(small_file, few_images, path, codes=True)


@pytest.fixture
def folder(kit_with_codes, tmp_path):
    """The kit with codes, unpacked, for a test to change."""
    return unpacked(kit_with_codes.path, tmp_path / "kit")


@pytest.fixture(scope="package")
def certificate_path(kit, tmp_path_factory):
    """The certificate that the kit wrote on this machine."""
    working = tmp_path_factory.mktemp("device")
    assert checked_here(kit.path, working).returncode == 0
    return certificate_in(working)


def test_a_machine_that_computes_the_codes_is_said_to(kit, small_file, few_images, tmp_path):
    done = checked(kit.path, tmp_path)
    assert (done.returncode, done.stderr) == (0, "")
    expected = verify_file(small_file, few_images, runtimes=())
    assert f"0 of {len(expected.codes)} tensors differ" in done.stdout
    found = read_device_certificate(certificate_in(tmp_path)).check
    counts = found.codes_compared, found.codes_differing, found.first_differing, found.is_exact
    assert counts == (expected.codes_compared, 0, None, True)
    assert (found.machine, found.delegate) == (platform.machine(), "XNNPACK")
    assert found.versions["numpy"] == np.__version__
    assert found.milliseconds > 0


def test_it_needs_python_numpy_and_litert_alone(kit, tmp_path):
    python = environment(tmp_path / "venv", "numpy", "ai-edge-litert")
    folder = unpacked(kit.path, tmp_path / "kit")
    for script in (kit.path, folder / "check.py", folder):
        done = checked(script, tmp_path, python=str(python))
        assert (done.returncode, done.stderr) == (0, "")


def test_it_is_written_for_python_3_9():
    ast.parse(pathlib.Path(check.__file__).read_text(), feature_version=(3, 9))


def test_it_says_what_to_install_and_what_it_does(kit, tmp_path, capsys):
    done = checked(kit.path, tmp_path, "-S")
    assert done.returncode == 2
    assert "No module named 'numpy': pip install numpy ai-edge-litert==" in done.stderr
    with mock.patch.object(sys, "argv", ["check.py", "--verbose"]):
        assert check.main() == 2
    assert "Exit status: 0 if nothing differs" in capsys.readouterr().out
    assert not list(tmp_path.iterdir())


def test_a_litert_that_refuses_the_file_is_named_with_the_one_it_is_for(folder, tmp_path):
    def of_tomorrow(model, graph):
        for code in model.operatorCodes:
            code.version = 99

    reseal(folder, lambda kit: kit.update(litert="9.9.9"))
    done = checked_here(folder, tmp_path)
    assert done.returncode == 0
    assert "the kit was made with ai-edge-litert 9.9.9" in done.stdout
    certificate_in(tmp_path).unlink()
    content = (folder / "model.tflite").read_bytes()
    (folder / "model.tflite").write_bytes(changed(content, of_tomorrow))
    reseal(folder)
    done = checked_here(folder, tmp_path)
    assert done.returncode == 2
    assert "does not load the file, which is for 9.9.9" in done.stderr
    assert "pip install ai-edge-litert==9.9.9" in done.stderr
    assert not list(tmp_path.glob("certificate*"))


@pytest.mark.parametrize("content", [b"", b"import sys", None])
def test_a_kit_whose_script_is_not_its_own_is_not_run(content, kit, folder, tmp_path):
    if content is None:
        (folder / "check.py").unlink()
    else:
        (folder / "check.py").write_bytes(content)
    zipped = pathlib.Path(shutil.make_archive(str(tmp_path / "damaged"), "zip", folder))
    for start in (folder, zipped):
        done = checked(start, tmp_path)
        assert (done.returncode, done.stdout) == (2, "")
        assert done.stderr == "error: check.py or kit.json is damaged; copy the kit again.\n"


def test_the_script_that_runs_is_the_one_that_was_hashed(kit, tmp_path):
    path = pathlib.Path(shutil.copy(kit.path, tmp_path / "kit.zip"))
    with zipfile.ZipFile(path, "a") as archive:  # an import of check would find the folder
        for name in ("check/__init__.py", "check/__main__.py"):
            archive.writestr(name, "print('another script')")
    done = checked(path, tmp_path)
    assert (done.returncode, done.stderr) == (0, "")
    assert "another script" not in done.stdout
    assert certificate_in(tmp_path)


def _other_codes(folder, number, tensor, places):
    """Lets the kit expect other codes of one image at some places of a tensor; its name."""

    def change(kit):
        sizes = [int(np.prod(row["shape"])) for row in kit["tensors"]]
        start = sum(sizes[:tensor])
        path = folder / "codes" / str(number)
        codes = np.frombuffer(path.read_bytes(), np.int8).copy()
        codes[start + np.arange(places)] ^= 1
        path.write_bytes(codes.tobytes())
        row = kit["tensors"][tensor]
        row["images"][number] = check.sha256(codes[start : start + sizes[tensor]].tobytes())
        row["sha256"] = "0" * 64
        kit["files"][f"codes/{number}"] = check.sha256(path.read_bytes())

    reseal(folder, change)
    return json.loads((folder / "kit.json").read_text())["tensors"][tensor]["name"]


def test_codes_that_differ_are_counted_exactly_and_the_first_tensor_named(folder, tmp_path):
    last = _other_codes(folder, 0, 5, places=7)
    first = _other_codes(folder, 1, 2, places=3)
    done = checked_here(folder, tmp_path)
    assert done.returncode == 1
    assert f"DIFFERS    {first}: 3 of" in done.stdout
    assert "in 1 images, first in number 1" in done.stdout
    assert f"DIFFERS    {last}: 7 of" in done.stdout
    assert f"the first is {first}" in done.stdout
    found = read_device_certificate(certificate_in(tmp_path)).check
    assert (found.codes_differing, found.tensors_differing) == (10, 2)
    assert (found.first_differing, found.is_exact) == (first, False)


def test_without_codes_it_says_where_they_differ_and_not_how_many(kit, tmp_path):
    folder = unpacked(kit.path, tmp_path / "kit")

    def change(found):
        found["tensors"][2]["images"][1] = found["tensors"][2]["sha256"] = "0" * 64

    reseal(folder, change)
    done = checked_here(folder, tmp_path)
    assert done.returncode == 1
    assert ": some of " in done.stdout
    found = read_device_certificate(certificate_in(tmp_path)).check
    assert (found.codes_differing, found.tensors_differing) == (None, 1)
    assert found.counted == f"some of {found.codes_compared:,}"


def test_where_it_cannot_write_it_leaves_nothing(kit, tmp_path):
    taken = tmp_path / f"certificate_{platform.machine()}.json"
    taken.mkdir()
    done = checked_here(kit.path, tmp_path)
    assert done.returncode == 2
    assert "run this in another folder" in done.stderr
    assert list(tmp_path.iterdir()) == [taken]


def _manifest(kit):
    with zipfile.ZipFile(kit.path) as archive:
        return json.loads(archive.read("kit.json")), archive.namelist()


def test_it_expects_the_hashes_of_a_certificate_on_the_same_images(
    kit, small_file, few_images, tmp_path
):
    manifest, names = _manifest(kit)
    certificate = verify_file(small_file, few_images, runtimes=())
    assert [(row["name"], row["sha256"]) for row in manifest["tensors"]] == [
        (codes.name, codes.sha256) for codes in certificate.codes
    ]
    hashes = certificate.sha256, images_hash(few_images)
    assert (manifest["sha256"], manifest["images_sha256"]) == hashes
    assert set(names) == {"model.tflite", "images.npy", "check.py", "__main__.py", "kit.json"}
    assert kit.compared == tuple(codes.name for codes in certificate.codes)
    assert kit.not_compared == ()
    assert kit.bytes == kit.path.stat().st_size
    again = write_kit(small_file, few_images, tmp_path / "kit.zip")
    assert again.path.read_bytes() == kit.path.read_bytes()


def test_codes_are_in_it_on_request(kit_with_codes):
    manifest, names = _manifest(kit_with_codes)
    assert manifest["has_codes"]
    assert [name for name in names if "/" in name] == [f"codes/{i}" for i in range(NUM_IMAGES)]


def test_tensors_behind_float_layers_are_left_out(tmp_path):
    layers, inputs = keras.layers, keras.Input((6, 6, 3), name="image")
    x = layers.Conv2D(4, 3, use_bias=False, name="stem")(inputs)
    x = layers.ReLU(name="stem_relu")(layers.BatchNormalization(name="stem_bn")(x))
    x = layers.Reshape((16, 4), name="rows")(x)
    x = layers.AdditiveAttention(name="attention")([x, x])
    x = layers.GlobalAveragePooling1D(name="pool")(x)
    model = keras.Model(inputs, layers.Dense(3, name="classifier")(x), name="attentive")
    images = np.random.default_rng(0).integers(0, 256, (8, 6, 6, 3)).astype(np.uint8)
    model = calibrated(model, sat_tf.BitPolicy.mobile(4, unsupported="float"), images)
    sat_tf.export_tflite(model, tmp_path / "model.tflite")
    kit = write_kit(tmp_path / "model.tflite", images[:2], tmp_path / "kit.zip")
    assert "stem_relu" in kit.compared
    assert "classifier_codes" in kit.not_compared
    done = checked_here(kit.path, tmp_path)
    assert done.returncode == 0
    assert f"{len(kit.not_compared)} tensors after float layers not compared" in done.stdout
    assert certificate_in(tmp_path)


def test_a_kit_broken_off_leaves_the_older(kit, small_file, few_images, tmp_path, monkeypatch):
    path = tmp_path / "kit.zip"
    path.write_bytes(b"older")
    interrupted = mock.Mock(side_effect=KeyboardInterrupt)
    monkeypatch.setattr("sat_tf.exact.device.kit.simulate", interrupted)
    with pytest.raises(KeyboardInterrupt):
        write_kit(small_file, few_images, path)
    assert path.read_bytes() == b"older"
    assert list(tmp_path.iterdir()) == [path]


def test_it_says_when_its_images_were_not_at_hand(certificate_path, small_file, few_images):
    found, is_simulated = read_device_check(small_file, certificate_path, few_images)
    assert found.is_exact
    assert is_simulated
    assert read_device_check(small_file, certificate_path) == (found, False)


def test_random_images_are_drawn_again(small_file, tmp_path):
    images = random_images((8, 9, 3), 2, 42)
    kit = write_kit(small_file, images, tmp_path / "k.zip", images_from=ImagesFrom("noise", 42))
    assert checked_here(kit.path, tmp_path).returncode == 0
    assert read_device_check(small_file, certificate_in(tmp_path))[1]


def test_those_of_files_are_told_apart(certificate_path, small_file, few_images, tmp_path):
    own = tmp_path / "certificate.json"
    verify_file(small_file, few_images, certificate_path=own)
    assert is_device_certificate(certificate_path)
    assert not is_device_certificate(own)
    assert not is_device_certificate(tmp_path / "none.json")
