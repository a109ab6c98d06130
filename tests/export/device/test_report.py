import json

import pytest

from sat_tf.export.certificate.certificate import ImagesFrom
from sat_tf.export.certificate.inputs import random_images
from sat_tf.export.device import check
from sat_tf.export.device.kit import write_kit
from sat_tf.export.device.report import (
    is_device_certificate,
    read_device_certificate,
    read_device_check,
)
from sat_tf.export.file_verification import verify_file
from tests.export.damage import changed
from tests.export.device.kits import certificate_in, checked_here, reseal, unpacked


def _edited(path, place, change):
    """A copy of a certificate that was changed and sealed again."""
    values = json.loads(path.read_text())
    change(values)
    values["kit"]["seal"] = check.seal(values["kit"])
    values["seal"] = check.seal(values)
    place.write_text(json.dumps(values))
    return place


def test_it_holds_with_its_images_and_says_when_they_were_not_at_hand(
    certificate_path, small_file, few_images
):
    found, is_simulated = read_device_check(small_file, certificate_path, few_images)
    assert found.is_exact
    assert is_simulated
    assert read_device_check(small_file, certificate_path) == (found, False)


def test_random_images_are_drawn_again(small_file, tmp_path):
    images = random_images((8, 9, 3), 2, 42)
    kit = write_kit(small_file, images, tmp_path / "k.zip", images_from=ImagesFrom("noise", 42))
    assert checked_here(kit.path, tmp_path).returncode == 0
    assert read_device_check(small_file, certificate_in(tmp_path))[1]


def test_another_file_and_other_images_are_named_at_once(
    certificate_path, small_file, few_images, tmp_path
):
    other = tmp_path / "other.tflite"

    def another_name(model, graph):
        model.description = b"another"

    other.write_bytes(changed(small_file.read_bytes(), another_name))
    expected = r"2 problems(.|\n)*that the kit was made of(.|\n)*images with the hash"
    with pytest.raises(ValueError, match=expected):
        read_device_check(other, certificate_path, few_images[::-1])


def test_a_kit_that_was_changed_and_sealed_again_does_not_pass(
    kit, small_file, few_images, tmp_path
):
    # A forger who makes the kit expect what a machine computes wrongly.
    folder = unpacked(kit.path, tmp_path / "kit")
    reseal(folder, lambda found: found["tensors"][2].update(sha256="0" * 64))
    path = tmp_path / "device.json"
    checked_here(folder, tmp_path)
    _edited(
        certificate_in(tmp_path),
        path,
        lambda values: values["tensors"][2].update(sha256="0" * 64),
    )
    name = kit.compared[2]
    with pytest.raises(ValueError, match=rf"expects other codes than this file has \({name}\)"):
        read_device_check(small_file, path, few_images)


def test_a_kit_of_another_format_is_named(certificate_path, tmp_path):
    path = _edited(certificate_path, tmp_path / "d.json", lambda values: values.update(format=9))
    with pytest.raises(ValueError, match=r"received format 9, of sat-tf .*, expected 1"):
        read_device_certificate(path)


def test_certificates_of_devices_are_told_from_those_of_files(
    certificate_path, small_file, few_images, tmp_path
):
    own = tmp_path / "certificate.json"
    verify_file(small_file, few_images, certificate_path=own)
    assert is_device_certificate(certificate_path)
    assert not is_device_certificate(own)
    assert not is_device_certificate(tmp_path / "none.json")
