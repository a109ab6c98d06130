"""Bilinear resizing of int8 codes, and means of windows, against the kernels: every code."""

import itertools

import numpy as np
import pytest
import tensorflow as tf

from sat_tf.export.kernels.bilinear import (
    OF_BUILTIN,
    OF_XNNPACK,
    OF_XNNPACK_FUSED,
    Grid,
    interpolated,
)
from sat_tf.export.kernels.kernel_sets import BUILTIN_X86, MICRO, REFERENCE, X86
from sat_tf.export.operations.graph import simulate
from sat_tf.export.operations.graph_file import read_graph
from sat_tf.export.operations.pools import AveragePool, ResizeBilinear
from sat_tf.export.tflite.tensors import Codes, Window
from tests.export.kernels.test_kernel_sets import of_codes
from tests.export.local import assert_simulated

CODES = Codes(np.float32(0.1), 9)
RUNTIMES = ("xnnpack", "builtin", "reference")
PLACES = ({}, {"half_pixel_centers": False}, {"half_pixel_centers": False, "align_corners": True})
SHAPE = (5, 6, 9)


def resizing(size, **places) -> tuple[bytes, ResizeBilinear]:
    operation = ResizeBilinear(("a",), "y", size, **places)
    return of_codes([SHAPE], [(operation, (*size, SHAPE[-1]), CODES)], [CODES]), operation


def images(shape, count=8):
    return np.random.default_rng(2).integers(-128, 128, (count, *shape)).astype(np.int8)


@pytest.mark.parametrize("runtime", RUNTIMES)
@pytest.mark.parametrize("places", PLACES)
@pytest.mark.parametrize("size", [(10, 12), (20, 24), (40, 48), (7, 13), (3, 2), (1, 1), (15, 18)])
def test_resized_images_are_those_of_the_kernels(size, places, runtime):
    assert_simulated(resizing(size, **places)[0], "y", images(SHAPE), runtime)


def test_every_code_between_two_pixels_is_that_of_the_kernels():
    pairs = np.stack(np.meshgrid(*[np.arange(-128, 128)] * 2, indexing="ij"), -1)
    pairs = pairs.reshape(1, 1, -1, 2).swapaxes(2, 3).astype(np.int8)
    shape = pairs.shape[1:]
    for width, runtime in itertools.product((4, 5), RUNTIMES):
        operation = ResizeBilinear(("a",), "y", (1, width))
        content = of_codes([shape], [(operation, (1, width, shape[-1]), CODES)], [CODES])
        assert_simulated(content, "y", pairs, runtime)


@pytest.mark.parametrize("runtime", RUNTIMES)
@pytest.mark.parametrize("padding", ["SAME", "VALID"])
@pytest.mark.parametrize("size", [(2, 2), (3, 3), (1, 4), (24, 5), (25, 25)])
def test_means_of_windows_are_those_of_the_kernels(size, padding, runtime):
    shape, strides = (25, 25, 9), (2, 3)
    made = [
        -(-length // stride) if padding == "SAME" else -(-(length - window + 1) // stride)
        for length, window, stride in zip(shape, size, strides, strict=False)
    ]
    operation = AveragePool(("a",), "y", size, Window(strides, padding))
    content = of_codes([shape], [(operation, (*made, 9), CODES)], [CODES])
    assert_simulated(content, "y", images(shape, 3), runtime)


@pytest.mark.parametrize("runtime", RUNTIMES)
def test_means_of_all_pairs_of_codes_are_those_of_the_kernels(runtime):
    pairs = np.stack(np.meshgrid(*[np.arange(-128, 128)] * 2, indexing="ij"), -1)
    pairs = pairs.reshape(1, 1, -1, 1).astype(np.int8)
    operation = AveragePool(("a",), "y", (1, 2), Window((1, 2)))
    shape = pairs.shape[1:]
    made = (1, shape[1] // 2, 1)
    content = of_codes([shape], [(operation, made, CODES)], [CODES])
    assert_simulated(content, "y", pairs, runtime)


@pytest.mark.parametrize("places", PLACES)
@pytest.mark.parametrize("size", [(10, 12), (7, 13), (3, 2), (1, 1)])
def test_float_values_between_pixels_are_those_of_tensorflow_to_the_last_bit(size, places):
    values = np.random.default_rng(3).normal(size=(8, *SHAPE)).astype(np.float32)
    grids = (Grid(*lengths, **places) for lengths in zip(SHAPE, size, strict=False))
    settings = {"half_pixel_centers": True, **places}
    expected = tf.compat.v1.image.resize_bilinear(values, size, **settings).numpy()
    np.testing.assert_array_equal(interpolated(values, *grids), expected)


def test_neighbours_have_weights_of_11_bits_in_xnnpack_and_of_10_elsewhere():
    grid = Grid(3, 7)
    exact = np.clip((np.arange(7) + 0.5) * 3 / 7 - 0.5, 0, 2) % 1
    np.testing.assert_array_equal(OF_XNNPACK.places(grid).weights, np.rint(exact * 2048))
    found = OF_BUILTIN.places(grid)
    inside = slice(1, 6)
    assert np.max(np.abs(found.weights[inside] / 1024 - exact[inside])) < 7 / 1024
    assert X86.interpolation is OF_XNNPACK
    assert BUILTIN_X86.interpolation is REFERENCE.interpolation is OF_BUILTIN


def test_a_file_tells_that_xnnpack_resizes_alike_on_all_processors():
    content, operation = resizing((10, 12))
    found = operation.portability(read_graph(content, "file"))
    assert found.holds
    assert found.inputs == 22


def test_a_place_on_a_pixel_is_one_place_whichever_neighbour_has_all_the_weight():
    rules = OF_XNNPACK, OF_XNNPACK_FUSED
    one, other = (rule.places(Grid(3, 25)) for rule in rules)
    assert np.any(one.weights != other.weights)
    np.testing.assert_array_equal(one.positions(11), other.positions(11))


def test_places_of_rounded_steps_that_lie_beyond_the_image_are_told():
    operation = ResizeBilinear(("a",), "y", (5, 110), half_pixel_centers=False)
    content = of_codes([(5, 2, 1)], [(operation, (5, 110, 1), CODES)], [CODES])
    graph = read_graph(content, "file")
    for kernels in (BUILTIN_X86, REFERENCE, MICRO):
        assert "beyond images of 2 pixels that become 110" in graph.ends_process(kernels)
    assert graph.ends_process(X86) is None
    # The last place is the last one that the builtin kernels' simulation reads.
    simulate(graph.on(REFERENCE), images((5, 2, 1)))
