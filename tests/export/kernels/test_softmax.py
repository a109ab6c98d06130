"""Softmax of int8 codes, against the kernels: every probability."""

import numpy as np
import pytest

from sat_tf.export.kernels.kernel_sets import BUILTIN_ARM, BUILTIN_X86, REFERENCE, X86
from sat_tf.export.kernels.softmax import powers
from sat_tf.export.operations.graph_file import read_graph
from sat_tf.export.operations.native import PROBABILITIES, Softmax
from sat_tf.export.tflite.tensors import Codes
from tests.export.kernels.test_kernel_sets import of_codes
from tests.export.local import assert_simulated

RUNTIMES = ("xnnpack", "builtin", "reference")


def a_file(scale: float, classes: int) -> bytes:
    made = [(Softmax(("a",), "p"), (classes,), PROBABILITIES)]
    return of_codes([(classes,)], made, [Codes(np.float32(scale), 9)])


def rows(classes: int, count: int = 100) -> np.ndarray:
    rng = np.random.default_rng(classes)
    spread, middle = rng.choice([4, 20, 128], (count, 1)), rng.integers(-60, 60, (count, 1))
    values = middle + spread * rng.uniform(-1, 1, (count, classes))
    return np.clip(values, -128, 127).astype(np.int8)


@pytest.mark.parametrize("runtime", RUNTIMES)
@pytest.mark.parametrize("classes", [2, 17, 100])
@pytest.mark.parametrize("scale", [0.003, 0.0625, 0.31, 1.7])
def test_probabilities_are_those_of_the_kernels(scale, classes, runtime):
    assert_simulated(a_file(scale, classes), "p", rows(classes), runtime)


@pytest.mark.parametrize("kernels", [X86, BUILTIN_ARM, REFERENCE], ids=lambda one: one.name)
@pytest.mark.parametrize("scale", [0.003, 0.0625, 0.31, 1.7])
def test_probabilities_are_within_a_code_of_real_ones(scale, kernels):
    stored = rows(100).astype(np.int32)
    real = np.exp(stored * np.float64(np.float32(scale)))
    real = np.minimum(256.0 * real / real.sum(-1, keepdims=True), 255.0) - 128.0
    assert np.max(np.abs(kernels.softmax(stored, np.float32(scale)) - real)) < 0.53


def test_x86_and_arm_differ_in_about_one_code_of_a_thousand_by_one():
    stored, scale = rows(40, 3000).astype(np.int32), np.float32(0.05)
    found = BUILTIN_X86.softmax(stored, scale) - BUILTIN_ARM.softmax(stored, scale)
    assert np.max(np.abs(found)) == 1
    assert 1e-4 < np.mean(found != 0) < 3e-3


def test_powers_are_those_of_differences_times_the_scale():
    found = powers(np.float32(0.5))
    np.testing.assert_allclose(found[:3], [1.0, 0.60653066, 0.36787944], rtol=1e-7)
    assert found.dtype == np.float32
    assert found.size == 256


def test_every_pixel_has_probabilities_of_its_own():
    shape = (3, 2, 7)
    content = of_codes(
        [shape], [(Softmax(("a",), "p"), shape, PROBABILITIES)], [Codes(np.float32(0.07), 9)]
    )
    stored = np.random.default_rng(1).integers(-128, 128, (50, *shape)).astype(np.int8)
    assert_simulated(content, "p", stored, "xnnpack")


def test_a_file_keeps_where_its_codes_hold():
    graph = read_graph(a_file(0.1, 4), "softmax")
    (softmax,) = (one for one in graph.operations if isinstance(one, Softmax))
    portability = softmax.portability(graph)
    assert not portability.holds
    assert "one code of a thousand" in " ".join(portability.why.split())
    others = [one for one in graph.operations if one is not softmax]
    assert all(one.portability(graph).holds for one in others)


def test_another_grid_of_probabilities_is_not_read():
    made = [(Softmax(("a",), "p"), (4,), Codes(np.float32(1 / 255), -128))]
    content = of_codes([(4,)], made, [Codes(np.float32(0.1), 0)])
    with pytest.raises(ValueError, match="expected 1/256 and -128"):
        read_graph(content, "softmax")
