"""Arm's reference model; `tests/messages/proof.txt` has what it says without its tools."""

import numpy as np
import pytest

import sat_tf
from benchmarks.tosa_runtime import TOOLS, TOSA, TosaRuntime, known_to_comparisons, tool_at
from sat_tf.exact.litert.runtime import loaded
from sat_tf.exact.operator_comparison import compare_operators
from tests.export import zoo

pytestmark = pytest.mark.skipif(not all(map(tool_at, TOOLS)), reason="TOSA's tools are not on PATH")


@pytest.fixture
def path(tmp_path):
    return tmp_path / "model.tflite"


def _differing(path, images):
    with known_to_comparisons():
        found = compare_operators(path, images, runtimes=[TOSA], progress=False)
    assert found.refused == {}
    assert found.total(TOSA).own.compared > 0
    return {operator.counts[TOSA].own.differing for operator in found.simulated}


def test_every_tensor_of_a_file_is_handed_out(path):
    # Flattening one pixel, and a dense layer on a sequence, make tensors that are one in a program.
    model = zoo.quantized("dense_on_a_sequence")
    sat_tf.export_tflite(model, path, target="int8")
    assert _differing(path, zoo.images_for(model, 2)) == {0}


@pytest.mark.parametrize("output_type", ["float32", "int8", "uint8"])
def test_outputs_have_the_type_of_the_file_and_operators_its_codes(output_type, path):
    model = zoo.quantized("bottleneck")
    sat_tf.export_tflite(model, path, output_type=output_type, target="int8")
    images = zoo.images_for(model, 2)
    reference = loaded(path.read_bytes(), "reference", keep_tensors=True)
    computed = TosaRuntime(path.read_bytes(), keep_tensors=True).run(images)
    np.testing.assert_allclose(computed, reference.run(images), rtol=1e-6)
    assert _differing(path, images) == {0}
