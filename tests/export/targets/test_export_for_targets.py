"""Files for other processors than LiteRT's CPU: how they are stored, and what is said of them."""

import json

import pytest

import sat_tf
from sat_tf.export.certificate.certificate import read_certificate
from sat_tf.export.lowering.packing import FileSettings
from sat_tf.export.tflite.contents import read_contents
from sat_tf.qat.policy import BitPolicy
from tests.export.zoo import Specimen, bottleneck, images_for


@pytest.fixture(scope="module")
def for_npu():
    return Specimen(bottleneck, policy=BitPolicy.mobile(3, target="ethos-u55")).quantized()


@pytest.fixture(scope="module")
def for_cpu():
    return Specimen(bottleneck, policy=BitPolicy.mobile(3)).quantized()


def _settings(path):
    return read_contents(path.read_bytes(), "file").settings


def test_a_file_is_for_the_target_of_the_policy_and_stores_what_that_takes(for_npu, path):
    report = sat_tf.export_tflite(for_npu, path)
    assert report.target == "ethos-u55"
    assert {kernel.bits for kernel in report.kernels} == {8}
    assert (_settings(path)["target"], _settings(path)["pack"]) == ("ethos-u55", "none")
    assert report.to_dict()["target"] == "ethos-u55"


def test_a_file_of_litert_says_nothing_of_it(for_cpu, for_npu, path):
    report = sat_tf.export_tflite(for_npu, path, target="litert")
    assert report.target == "litert"
    assert report.on_target == []
    assert {kernel.bits for kernel in report.kernels} == {4, 8}
    assert "target" not in _settings(path)
    assert sat_tf.export_tflite(for_cpu, path).target == "litert"


def test_operators_elsewhere_are_data_and_statements(for_cpu, path):
    report = sat_tf.export_tflite(for_cpu, path, target="edgetpu")
    said = "\n".join(statement.words for statement in report.statements)
    for one in report.elsewhere:
        assert one.reason in said
        assert one.tensor in json.dumps(report.to_dict())
    assert report.on_target[0].words in said


def test_a_packing_that_the_target_does_not_take_is_written_and_said_aloud(for_npu, path):
    report = sat_tf.export_tflite(for_npu, path, pack="int4")
    assert {kernel.bits for kernel in report.kernels} == {4, 8}
    (warning,) = (text for text in report.warnings if "Arm Ethos-U55 takes 8 alone" in text)
    assert "pack='int4' stores kernels in 4 bits" in warning
    assert any("its weights are INT4" in one.reason for one in report.elsewhere)


def test_a_certificate_names_the_target_and_what_it_does_not_prove(for_npu, tmp_path):
    path, proof = tmp_path / "model.tflite", tmp_path / "certificate.json"
    sat_tf.export_tflite(for_npu, path)
    found = sat_tf.verify_tflite(for_npu, path, images_for(for_npu, 2), certificate_path=proof)
    assert found.codes_differing == 0
    assert read_certificate(proof).target == "ethos-u55"
    words = "The file is for Arm Ethos-U55, which was not here"
    assert any(words in statement.words for statement in found.statements)
    assert words in proof.with_suffix(".html").read_text(encoding="utf-8")


def test_settings_of_files_without_a_target_are_those_of_litert():
    found = FileSettings.of_file({"float_head": False, "pack": "none"}, "file")
    assert found.target == "litert"
