import json

import pytest

from sat_tf.export.certificate.certificate import read_certificate
from sat_tf.export.file_verification import verify_file


@pytest.fixture(scope="module")
def written(small_file, small_images, tmp_path_factory):
    path = tmp_path_factory.mktemp("certificate") / "certificate.json"
    return verify_file(small_file, small_images[:2], certificate_path=path), path


def test_a_certificate_is_read_back_as_it_was_written(written):
    certificate, path = written
    assert read_certificate(path) == certificate


def test_counts_take_one_line_a_tensor(written):
    certificate, path = written
    lines = [line for line in path.read_text().splitlines() if '"counts"' in line]
    assert len(lines) == len(certificate.codes)
    assert all(line.rstrip(",").endswith("]") for line in lines)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", "is not JSON"),
        ("not JSON", "is not JSON"),
        ("[" * 100_000, "is not JSON"),
        ("[]", "received JSON that is no certificate"),
        ("{}", "received JSON that is no certificate"),
        ('{"model": "toy"}', r"(?s)file: Field required.*sha256: Field required"),
    ],
)
def test_what_is_no_certificate_is_named(text, expected, tmp_path):
    path = tmp_path / "certificate.json"
    path.write_text(text)
    with pytest.raises(ValueError, match=expected) as caught:
        read_certificate(path)
    assert str(path) in str(caught.value)


def test_a_certificate_that_is_not_there_is_named(tmp_path):
    with pytest.raises(ValueError, match=r"none.json: No such file .*; expected the certificate"):
        read_certificate(tmp_path / "none.json")
    with pytest.raises(ValueError, match=r"Is a directory; expected the certificate"):
        read_certificate(tmp_path)


def test_bytes_that_are_no_text_are_named(tmp_path):
    path = tmp_path / "certificate.json"
    path.write_bytes(b"\xff\xfe\x00\x80")
    with pytest.raises(ValueError, match="is not JSON"):
        read_certificate(path)


@pytest.mark.parametrize("key", ["sha256", "codes", "images_from", "runtimes"])
def test_a_key_that_lacks_is_named(key, written, tmp_path):
    values = json.loads(written[1].read_text())
    del values[key]
    (tmp_path / "c.json").write_text(json.dumps(values))
    with pytest.raises(ValueError, match=rf"{key}: Field required(.|\n)*create it again"):
        read_certificate(tmp_path / "c.json")


def test_a_certificate_without_xnnpack_is_none(written, tmp_path):
    values = json.loads(written[1].read_text())
    values["runtimes"]["other"] = values["runtimes"].pop("xnnpack")
    (tmp_path / "c.json").write_text(json.dumps(values))
    with pytest.raises(ValueError, match="received a certificate without XNNPACK"):
        read_certificate(tmp_path / "c.json")
