"""Functions of one value by operators of their own: every code, in every kernel that has them."""

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from sat_tf.export.certificate.runtimes import is_installed
from sat_tf.export.litert.processes import loaded
from sat_tf.export.operations.graph import Graph, simulate
from sat_tf.export.operations.graph_file import read_graph, serialize
from sat_tf.export.operations.native import FIXED_GRIDS, NATIVE, Native, Sloped
from sat_tf.export.operations.operation import Operation
from sat_tf.export.operations.quantize import ShiftImage
from sat_tf.export.tflite.tensors import Codes, Image, Tensor
from tests.export.local import KERNELS

ALL_CODES = np.arange(-128, 128).astype(np.int8).reshape(1, 16, 16, 1)
# Runtimes that have no kernel.
WITHOUT = {"ELU": ("reference",), "GELU": ("micro",)}
CASES = [
    *((name, {}) for name, row in NATIVE.items() if not row.settings),
    *(("GELU", {"approximate": form}) for form in (False, True)),
    *(("LEAKY_RELU", {"alpha": alpha}) for alpha in (0.01, 0.2, 1.0)),
]
IDS = [f"{name}{list(values.values()) or ''}" for name, values in CASES]
# Half of the ratios of two scales make codes of a line lie half way between two others.
RATIOS = st.one_of(
    st.floats(0.05, 20.0), st.sampled_from([0.125, 0.25, 0.5, 0.75, 1.0, 1.5, 2.5, 3.0, 3.5])
)
SCALES = st.one_of(st.floats(0.002, 0.3), st.sampled_from([2.0**-power for power in range(1, 9)]))
ZERO_POINTS = st.integers(-128, 127)


def _graph(operation: Operation, source: Codes, output: Codes, channels: int = 1) -> Graph:
    shape = (16, 16, channels)
    image = Image("image", shape, source.scale, source.zero_point, type="int8")
    return Graph(
        "one",
        {"x": Tensor("x", shape, source), "y": Tensor("y", shape, output)},
        (ShiftImage(("image",), "x"), operation),
        (image,),
        "y",
    )


def _codes(scale: float, zero_point: int) -> Codes:
    return Codes(np.float32(scale), zero_point)


def _output(name: str, scale: float, zero_point: int) -> Codes:
    fixed = FIXED_GRIDS.get(name)
    return _codes(scale, zero_point) if fixed is None else Codes(*fixed)


def _assert_as_in_litert(graph: Graph, images: np.ndarray, *, skipped=()) -> None:
    content = serialize(graph, {})
    read = read_graph(content, "one")
    for name, kernels in KERNELS.items():
        if name in skipped or not is_installed(name):
            continue
        runtime = loaded(content, name, keep_tensors=True)
        runtime.run(images)
        expected = simulate(graph.on(kernels), images)["y"]
        np.testing.assert_array_equal(runtime.tensors(["y"])["y"], expected, err_msg=name)
        again = simulate(read.on(kernels), images)["y"]
        np.testing.assert_array_equal(again, expected)


@pytest.mark.parametrize(("name", "values"), CASES, ids=IDS)
@settings(deadline=None, derandomize=True, max_examples=60)
@given(scale=SCALES, ratio=RATIOS, zero=ZERO_POINTS, output_zero=ZERO_POINTS)
def test_every_code_is_that_of_litert(name, values, scale, ratio, zero, output_zero):
    source, output = _codes(scale * ratio, zero), _output(name, scale, output_zero)
    if name == "TANH":  # next to a half, the last bit of C's library decides
        made = np.tanh((np.arange(-128, 128) - zero) * float(source.scale)) / float(output.scale)
        assume(np.min(np.abs(made - np.floor(made) - 0.5)) > 1e-4)
    graph = _graph(Native(("x",), "y", name, values), source, output)
    _assert_as_in_litert(graph, ALL_CODES, skipped=WITHOUT.get(name, ()))


@settings(deadline=None, derandomize=True, max_examples=60)
@given(
    scale=SCALES,
    ratio=RATIOS,
    zero=ZERO_POINTS,
    output_zero=ZERO_POINTS,
    slope_scale=st.floats(0.0005, 0.02),
    slopes=st.lists(st.integers(-127, 127), min_size=4, max_size=4),
)
def test_every_code_of_sloped_channels_is_that_of_litert(
    scale, ratio, zero, output_zero, slope_scale, slopes
):
    slope = np.array(slopes, np.int8).reshape(1, 1, 4)
    operation = Sloped(("x",), "y", slope, np.float32(slope_scale))
    graph = _graph(operation, _codes(scale * ratio, zero), _codes(scale, output_zero), 4)
    _assert_as_in_litert(graph, np.repeat(ALL_CODES, 4, axis=-1))
