import dataclasses

import numpy as np
import pytest

import sat_tf
from sat_tf.export.certificate import proof
from sat_tf.export.certificate.certificate import ImagesFrom, read_certificate
from sat_tf.export.certificate.inputs import random_images
from sat_tf.export.file_verification import recheck, verify_file
from sat_tf.export.operations.graph import simulate
from tests.export.damage import changed


@pytest.fixture(scope="module")
def certificate(small_file, small_images, tmp_path_factory):
    path = tmp_path_factory.mktemp("proof") / "certificate.json"
    labels = np.arange(len(small_images)) % 4
    return verify_file(
        small_file,
        small_images,
        labels,
        certificate_path=path,
        runtimes=("builtin", "reference"),
    ), path


def test_a_file_is_proved_without_its_model_as_with_it(
    certificate, small, small_file, small_images
):
    alone, _ = certificate
    both = sat_tf.verify_tflite(small, small_file, small_images)
    assert alone.codes_differing == both.codes_differing == 0
    assert alone.codes_compared == both.codes_compared > 0
    assert [(t.name, t.sha256, t.counts) for t in alone.codes] == [
        (t.name, t.sha256, t.counts) for t in both.codes
    ]
    assert (alone.reference, both.reference) == ("simulation", "keras")
    assert (alone.trained, alone.to_dict()["trained_differing"]) == ([], None)


def test_every_runtime_is_counted_against_the_simulation(certificate):
    found, _ = certificate
    assert list(found.runtimes) == ["xnnpack", "builtin", "reference"]
    assert found.refused == {}
    xnnpack = found.runtimes["xnnpack"]
    assert (xnnpack.first_differing, xnnpack.agreement) == (None, 1.0)
    assert xnnpack.largest_output_difference == 0.0
    assert xnnpack.top1 == found.top1["simulation"] == found.top1["tflite"]
    for count in found.runtimes.values():
        differing = [tensor.name for tensor in count.tensors if tensor.codes_differing]
        assert count.first_differing == (differing[0] if differing else None)


def test_a_certificate_holds_for_its_file_and_images(certificate, small_file, small_images):
    _, path = certificate
    found = recheck(small_file, read_certificate(path), small_images)
    assert found.differences == []
    assert found.certificate.codes_differing == 0


def test_random_images_are_drawn_again(small_file, tmp_path):
    images = random_images((8, 9, 3), 5, 42)
    path = tmp_path / "certificate.json"
    verify_file(small_file, images, certificate_path=path, images_from=ImagesFrom("noise", 42))
    assert recheck(small_file, read_certificate(path)).differences == []


def test_other_images_and_another_file_are_named_at_once(
    certificate, small_file, small_images, tmp_path
):
    recorded, _ = certificate
    other = tmp_path / "other.tflite"

    def another_name(model, graph):
        model.description = b"another"

    other.write_bytes(changed(small_file.read_bytes(), another_name))
    expected = r"2 problems(.|\n)*that the certificate was made of(.|\n)*images with the hash"
    with pytest.raises(ValueError, match=expected):
        recheck(other, recorded, small_images[::-1])


def test_codes_that_are_not_those_of_the_certificate_are_named(
    certificate, small_file, small_images, monkeypatch
):
    recorded, _ = certificate
    name = recorded.codes[-1].name

    def wrong_in_the_end(graph, batch, given):
        tensors = simulate(graph, batch, given)
        tensors[name] = np.clip(tensors[name] + 1, -128, 127)
        return tensors

    monkeypatch.setattr(proof, "simulate", wrong_in_the_end)
    found = recheck(small_file, recorded, small_images)
    assert found.differences[0] == f"{name}: its codes differ from the certificate"
    assert "in the certificate" in found.differences[-1]


def test_tensors_that_are_not_in_both_are_named(certificate, small_file, small_images):
    recorded, _ = certificate
    first = dataclasses.replace(recorded.codes[0], name="gone")
    changed_certificate = dataclasses.replace(recorded, codes=[first, *recorded.codes[1:]])
    found = recheck(small_file, changed_certificate, small_images)
    assert found.differences == [
        f"{recorded.codes[0].name}: it is not in the certificate",
        "gone: it is not in the file",
    ]


def test_a_runtime_that_refuses_the_file_is_told_and_xnnpack_alone_is_an_error(
    small_file, small_images, monkeypatch
):
    refusals = {"xnnpack": None, "builtin": "it ends the process with SIGSEGV"}
    monkeypatch.setattr(proof, "refusals", lambda content, names: refusals)
    found = verify_file(small_file, small_images)
    assert list(found.runtimes) == ["xnnpack", "arm_xnnpack", "arm_xnnpack_unfused"]
    assert found.refused == {"builtin": "it ends the process with SIGSEGV"}
    refusals["xnnpack"] = "no memory"
    with pytest.raises(ValueError, match=r"LiteRT does not run \(no memory\), expected one that"):
        verify_file(small_file, small_images)
