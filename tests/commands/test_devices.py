import json
import pathlib

import numpy as np
import pytest
from PIL import Image

import sat_tf
from sat_tf.commands import main
from tests.commands.light import told_without_tensorflow
from tests.export.device.kits import certificate_in, checked
from tests.loading.hostile import small


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A folder with a file, and twenty images for it."""
    found = tmp_path_factory.mktemp("devices")
    images = np.random.default_rng(0).integers(0, 256, (20, 6, 6, 3)).astype(np.uint8)
    model = sat_tf.quantize_model(small(), sat_tf.BitPolicy.mobile(4))
    sat_tf.export_tflite(sat_tf.calibrate(model, images), found / "model.tflite")
    np.save(found / "images.npy", images)
    return found


def test_a_kit_goes_out_and_its_certificate_comes_back(folder, tmp_path):
    words = ("verify", "model.tflite", "--images", "images.npy")
    said = told_without_tensorflow(
        *(*words, "--kit", str(tmp_path / "kit.zip"), "--out", str(tmp_path / "proof")),
        status=0,
        cwd=folder,
    )
    assert "16 images" in said
    assert "On the device: python kit.zip" in said
    assert checked(tmp_path / "kit.zip", tmp_path).returncode == 0
    certificate = str(certificate_in(tmp_path))
    said = told_without_tensorflow(*words, "--certificate", certificate, status=0, cwd=folder)
    assert "nothing differs there; the codes that its kit expected are those of the" in said
    said = told_without_tensorflow(*words[:2], "--certificate", certificate, status=0, cwd=folder)
    assert "is not checked without its images: name them with --images" in said
    values = json.loads((tmp_path / "proof" / "certificate.json").read_text())
    assert values["num_images"] == 20


def test_certificates_are_checked_on_the_files_that_they_were_made_with(folder, tmp_path, capsys):
    photos, proof = tmp_path / "photos", tmp_path / "proof"
    photos.mkdir()
    for number, pixels in enumerate(np.load(folder / "images.npy")):
        Image.fromarray(pixels).save(photos / f"{number:02}.png")
    (photos / "04.png").write_bytes(b"no picture")  # of the first ten, one cannot be read

    def verify(*words):
        status = main.main(
            ["verify", str(folder / "model.tflite"), "--images", str(photos), *words]
        )
        printed = capsys.readouterr()
        return status, " ".join((printed.out + printed.err).split())

    few = ("--num_images", "10")
    assert verify(*few, "--out", str(proof), "--kit", str(tmp_path / "kit.zip"))[0] == 0
    assert checked(tmp_path / "kit.zip", tmp_path).returncode == 0
    certificates = [str(proof / "certificate.json"), str(certificate_in(tmp_path))]
    files = json.loads(pathlib.Path(certificates[0]).read_text())["images_from"]["files"]
    taken = [f"{number:02}.png" for number in (0, 2, 6, 8, 11, 13, 15, 17, 19)]
    assert list(files) == taken
    (photos / "03.png").write_bytes(b"no picture either")
    (photos / "new.png").write_bytes((photos / "00.png").read_bytes())
    for certificate in certificates:
        status, said = verify("--certificate", certificate)
        assert status == 0, said
        assert "holds; the codes" in said or "are those of the simulation here" in said
    (photos / "06.png").unlink()
    (photos / "08.png").write_bytes((photos / "00.png").read_bytes())
    for certificate in certificates:
        status, said = verify("--certificate", certificate)
        assert status == 2
        assert "1 of 9 pictures are not there: 06.png" in said
        assert "1 of 9 pictures have changed: 08.png" in said
