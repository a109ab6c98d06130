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


def test_a_certificate_without_xnnpack_is_none(written, tmp_path):
    values = json.loads(written[1].read_text())
    values["runtimes"]["other"] = values["runtimes"].pop("xnnpack")
    (tmp_path / "c.json").write_text(json.dumps(values))
    with pytest.raises(ValueError, match="received a certificate without XNNPACK"):
        read_certificate(tmp_path / "c.json")
