import functools
import json
import zipfile

import numpy as np
import pytest
import tf_keras as keras

import sat_tf
from sat_tf.exact.certificate.certificate import read_certificate
from sat_tf.exact.targets.operator_constraints import TARGETS
from sat_tf.exact.targets.processors import PROCESSORS
from sat_tf.exact.tflite.contents import Contents, StoredOperator, StoredTensor, read_contents
from sat_tf.export.lowering.packing import FileSettings
from sat_tf.qat.policy import BitPolicy
from tests.exact.foreign.one_operator import table
from tests.export.proofs import proved
from tests.export.zoo import Specimen, bottleneck, images_for


def tensor(shape, kind="INT8", *, values=None, scales=1, name="x"):
    numbers, data = np.ones(scales, np.float32), None
    if values is not None:
        dtype = np.int32 if kind == "INT32" else np.int8
        data = np.asarray(values, dtype).reshape(-1).view(np.uint8)
    return StoredTensor(name, kind, shape, numbers, np.zeros(scales, np.int64), 0, data)


def operator(name, inputs, output, schema=None, **options):
    stored = table(schema, **options) if schema else None
    return StoredOperator(name, tuple(inputs), (output,), stored)


def chained(*names, types=None):
    """Operators behind each other, with tensors of codes, or of some types."""
    types = types or ["INT8"] * (len(names) + 1)
    tensors = tuple(tensor((1, 4, 4, 3), kind, name=f"t{i}") for i, kind in enumerate(types))
    pairs = zip(names, tensors, tensors[1:], strict=False)
    operators = [operator(name, [read], made) for name, read, made in pairs]
    return Contents(tuple(operators), inputs=tensors[:1], outputs=tensors[-1:])


def test_every_target_has_its_operators():
    assert TARGETS.keys() == PROCESSORS.keys()
    for name, target in TARGETS.items():
        assert target.name == name
        assert (target.operators is None) == (name == "litert")
        assert not target.native or "HARD_SWISH" in (target.operators or ())


@pytest.mark.parametrize("name", TARGETS)
@pytest.mark.parametrize("count", [0, 1])
def test_operators_without_their_tensors_or_options_are_left_to_the_cpu(name, count):
    operators = TARGETS[name].operators or ("CONV_2D", "DEQUANTIZE")
    for kind in operators:
        tensors = (tensor((1, 4, 4, 3)),) * count
        bare = Contents((StoredOperator(kind, tensors, tensors, None),))
        for found in TARGETS[name].cpu_fallback(bare):
            assert found.operator == kind
            assert found.reason


@functools.cache
def made_for(target):
    return Specimen(bottleneck, policy=BitPolicy.mobile(3, target=target)).quantized()


def test_a_file_is_for_the_target_of_the_policy_and_stores_what_that_takes(path):
    report = sat_tf.export_tflite(made_for("ethos-u55"), path)
    assert {kernel.bits for kernel in report.kernels} == {8}
    settings = read_contents(path.read_bytes(), "file").settings
    assert (settings["target"], settings["pack"]) == ("ethos-u55", "none")
    assert report.to_dict()["target"] == "ethos-u55"


def test_a_file_of_litert_says_nothing_of_it(path):
    report = sat_tf.export_tflite(made_for("ethos-u55"), path, target="litert")
    assert report.target == "litert"
    assert report.on_target == []
    assert {kernel.bits for kernel in report.kernels} == {4, 8}
    assert "target" not in read_contents(path.read_bytes(), "file").settings
    assert sat_tf.export_tflite(made_for("litert"), path).target == "litert"


def test_operators_for_the_cpu_are_data_and_statements(path):
    report = sat_tf.export_tflite(made_for("litert"), path, target="int8")
    said = "\n".join(statement.words for statement in report.statements)
    for one in report.cpu_fallback:
        assert one.reason in said
        assert one.tensor in json.dumps(report.to_dict())
    assert report.on_target[0].words in said


def test_a_packing_that_the_target_does_not_take_is_written_and_said_aloud(path):
    report = sat_tf.export_tflite(made_for("ethos-u55"), path, pack="int4")
    assert {kernel.bits for kernel in report.kernels} == {4, 8}
    (warning,) = (text for text in report.warnings if "Arm Ethos-U55 takes 8 alone" in text)
    assert "pack='int4' stores kernels in 4 bits" in warning
    assert any("its weights are INT4" in one.reason for one in report.cpu_fallback)


def test_a_certificate_names_the_target_and_what_it_does_not_prove(tmp_path):
    path, proof = tmp_path / "model.tflite", tmp_path / "certificate.json"
    model = made_for("ethos-u55")
    _, found = proved(model, path, images_for(model, 2), certificate_path=proof)
    assert read_certificate(proof).target == "ethos-u55"
    words = "The file is for Arm Ethos-U55, which was not here"
    assert any(words in statement.words for statement in found.statements)
    assert words in proof.with_suffix(".html").read_text(encoding="utf-8")


def test_a_target_of_earlier_versions_is_the_one_that_took_its_place(tmp_path):
    found = FileSettings.of_file({"float_head": False, "target": "edgetpu"}, "file")
    assert found.target == "int8"
    saved = tmp_path / "model.keras"
    made_for("int8").save(saved)
    with zipfile.ZipFile(saved) as archive:
        parts = {name: archive.read(name) for name in archive.namelist()}
    former = parts["config.json"].replace(b'"target": "int8"', b'"target": "android-npu"')
    assert former != parts["config.json"]
    with zipfile.ZipFile(saved, "w") as archive:
        for name, content in {**parts, "config.json": former}.items():
            archive.writestr(name, content)
    model = keras.models.load_model(saved, compile=False)
    report = sat_tf.export_tflite(model, tmp_path / "model.tflite")
    assert (report.target, report.cpu_fallback) == ("int8", [])


def test_a_certificate_of_the_specification_has_its_reference_kernels(path):
    model = made_for("int8")
    _, found = proved(model, path, images_for(model, 2), runtimes=["builtin"])
    assert found.runtimes.keys() == {"xnnpack", "builtin", "reference"}
    assert found.runtimes["reference"].own_differing == 0
    words = "TFLite's int8 specification, whose reference kernels are"
    assert any(words in statement.words for statement in found.statements)
