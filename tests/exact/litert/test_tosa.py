"""TOSA's reference model: what its tools print, and, where they are, what it computes.

Without the tools, scripts that print what these did take their place.
"""

import stat

import numpy as np
import pytest

import sat_tf
from sat_tf.exact.certificate.runtimes import chosen, is_installed
from sat_tf.exact.litert.runtime import (
    TOSA,
    TOSA_TOOLS,
    loaded,
    reason_in,
    results_in,
    tosa_version,
)
from sat_tf.exact.operator_comparison import compare_operators
from tests.export import zoo
from tests.export.proofs import proved

HERE = pytest.mark.skipif(not is_installed(TOSA), reason="TOSA's tools are not on PATH")

# As tosa-opt prints a program with constants left out; its two equal results are one output.
PROGRAM = """\
module attributes {tfl.description = "a file", tfl.schema_version = 3 : i32} {
  func.func @main(%arg0: tensor<1x6x5x3xi8>) -> (tensor<1x30x3xi8>, tensor<1x1x30x3xi8>) {
    %0 = "tosa.const"() <{values = dense_resource<__elided__> : tensor<9xi8>}> : () -> tensor<9xi8>
    %47 = tosa.reshape %arg0, %1 : (tensor<1x6x5x3xi8>, !tosa.shape<4>) -> tensor<1x1x30x3xi8>
    return %44, %47, %48#1, %47 : tensor<1x30x3xi8>, tensor<4xi8>, tensor<4xi8>, tensor<4xi8>
  }
}
"""
REFUSED = """\
error: 'tosa.abs' op requires the same element type for all operands and results
note: see current operation: %27 = "tosa.abs"(%26)
Error: conversion failed
"""


FAILED = (
    "SubgraphTraverser::initializeGraph(): OpFactory could not allocate op RESHAPE input=(INT4 "
    "rank 2) -> (INT4 rank 4)SubgraphTraverser::initializeGraph(): Input: layer_27\n"
    "SubgraphTraverser::initializeGraph(): Unsupported operation type.\nGraph result: ERROR."
)


def test_the_outputs_of_a_program_are_its_results_without_equal_ones():
    assert results_in(PROGRAM) == [0, 1, 2, 1]


@pytest.mark.parametrize(
    ("errors", "reason"),
    [
        (REFUSED, "'tosa.abs' op requires the same element type for all operands and results"),
        (FAILED, "OpFactory could not allocate op RESHAPE input=(INT4 rank 2) -> (INT4 rank 4)"),
        ("noise\nlast\n", "last"),
        ("", "it gives no reason"),
    ],
)
def test_the_reason_of_a_tool_is_its_first_error(errors, reason):
    assert reason_in(errors) == reason


def test_tools_that_are_missing_are_named_with_how_to_install_them(tmp_path, monkeypatch):
    monkeypatch.setenv("SAT_TF_TOSA", str(tmp_path))
    assert not is_installed(TOSA)
    with pytest.raises(ValueError, match="received 'tosa', expected tosa-converter") as error:
        chosen([TOSA])
    assert "pip install tosa-converter-for-tflite tosa-tools" in str(error.value)
    assert "SAT_TF_TOSA=tosa/bin" in str(error.value)


@pytest.fixture
def scripts(tmp_path, monkeypatch):
    """A function that puts scripts in the place of the tools."""

    def write(**scripts):
        for name, script in zip(TOSA_TOOLS, scripts.values(), strict=True):
            path = tmp_path / name
            path.write_text(f"#!/bin/sh\n{script}\n")
            path.chmod(path.stat().st_mode | stat.S_IXUSR)

    monkeypatch.setenv("SAT_TF_TOSA", str(tmp_path))
    return write


@pytest.fixture(scope="module")
def content(tmp_path_factory):
    path = tmp_path_factory.mktemp("tosa") / "model.tflite"
    sat_tf.export_tflite(zoo.quantized("bottleneck"), path, target="int8")
    return path.read_bytes()


PRINTS = 'while [ "$1" != -o ]; do shift; done; echo "return {} : x" > "$2"'


def test_what_the_converter_refuses_is_said_in_its_words(scripts, content):
    scripts(converter="echo 'a.mlir:1: error: no tfl.elu' >&2; exit 1", optimizer="", model="")
    with pytest.raises(ValueError, match=r"TOSA's reference model does not load \(tosa-converter"):
        loaded(content, TOSA, keep_tensors=False)


def test_a_model_that_hands_nothing_out_is_an_error(scripts, content):
    scripts(converter="true", optimizer=PRINTS.format("%1"), model="echo WARNING >&2")
    runtime = loaded(content, TOSA, keep_tensors=False)
    with pytest.raises(ValueError, match=r"does not run \(tosa_reference_model makes no dense"):
        runtime.rehearse()


def test_the_version_is_that_of_the_converter(scripts):
    scripts(converter="echo TOSA Converter version: 2026.02.0; echo more", optimizer="", model="")
    assert tosa_version() == "2026.02.0"


@HERE
def test_every_tensor_of_a_file_is_handed_out(tmp_path):
    # Flattening one pixel, and a dense layer on a sequence, make tensors that are one in a program.
    model = zoo.quantized("dense_on_a_sequence")
    images, settings = zoo.images_for(model, 2), {"target": "int8"}
    path = tmp_path / "model.tflite"
    _, found = proved(model, path, images, settings, runtimes=[TOSA])
    assert found.refused == {}
    assert found.runtimes[TOSA].own_compared > 0
    assert found.runtimes[TOSA].own_differing == 0
    assert found.runtimes[TOSA].outputs_differing == 0
    assert "tosa-converter-for-tflite" in found.versions


@HERE
@pytest.mark.parametrize("output_type", ["float32", "int8", "uint8"])
def test_outputs_have_the_type_of_the_file(output_type, tmp_path):
    path = tmp_path / "model.tflite"
    model = zoo.quantized("bottleneck")
    sat_tf.export_tflite(model, path, output_type=output_type, target="int8")
    images = np.random.default_rng(0).integers(0, 256, (2, 8, 9, 3)).astype(np.uint8)
    runtimes = [loaded(path.read_bytes(), name, keep_tensors=True) for name in (TOSA, "reference")]
    computed, expected = (runtime.run(images) for runtime in runtimes)
    np.testing.assert_allclose(computed, expected, rtol=1e-6)


@HERE
def test_operators_are_compared_one_by_one(content, tmp_path):
    path = tmp_path / "model.tflite"
    path.write_bytes(content)
    images = np.random.default_rng(0).integers(0, 256, (2, 8, 9, 3)).astype(np.uint8)
    found = compare_operators(path, images, runtimes=[TOSA], progress=False)
    assert {operator.counts[TOSA].own.differing for operator in found.operators} == {0}
