import dataclasses
import json
import re

import pytest

from sat_tf.export.certificate.certificate import Certificate, read_certificate
from sat_tf.export.certificate.page import certificate_page
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


def test_a_certificate_of_an_earlier_version_is_read_and_says_nothing_of_what_is_new(
    written, tmp_path
):
    certificate, path = written
    values = json.loads(path.read_text())
    for field in dataclasses.fields(Certificate):
        defaults = field.default, field.default_factory
        if any(default is not dataclasses.MISSING for default in defaults):
            del values[field.name]
    for count in values["runtimes"].values():
        for name in ("kernels", "is_simulated", "own", "outputs"):
            del count[name]
    del values["is_portable"]
    (tmp_path / "c.json").write_text(json.dumps(values))
    older = read_certificate(tmp_path / "c.json")
    assert (older.codes, older.agreement) == (certificate.codes, certificate.agreement)
    assert (older.float_outputs, older.accuracy, older.holds) == ([], {}, [])
    assert older.runtimes["xnnpack"].own == []
    assert not older.is_portable
    assert not re.search("Where this holds|not as simulated", certificate_page(older))
