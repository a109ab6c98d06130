"""Graphs of operators by themselves, each with an image that holds every input that matters."""

import itertools
import math
import pathlib
from collections.abc import Callable, Iterable, Mapping, Sequence

import numpy as np

from sat_tf.exact.certificate.proof import Subject
from sat_tf.exact.kernels.kernel_sets import KernelSet
from sat_tf.exact.operations.conversions import Dequantize, ShiftImage
from sat_tf.exact.operations.graph import Graph
from sat_tf.exact.operations.graph_file import serialize
from sat_tf.exact.operations.native import FIXED_GRIDS, NATIVE, PROBABILITIES, Softmax
from sat_tf.exact.operations.operation import Operation
from sat_tf.exact.operations.pools import AveragePool, ResizeBilinear
from sat_tf.exact.operations.tabled import (
    Computed,
    Reshape,
    joined,
    matrix_product,
    moved,
    sloped,
)
from sat_tf.exact.operations.windows import placement
from sat_tf.exact.tflite.contents import read_contents
from sat_tf.exact.tflite.tensors import Codes, Image, Tensor, Window

Specimen = tuple[Graph, np.ndarray]
# An operation of the tensors that it reads and makes, and how the latter is stored.
_Made = tuple[Callable[[str, str], Operation], tuple[int, ...], Codes]
# Kernels of RSQRT refuse negative values.
FUNCTIONS = (*(name for name in NATIVE if name != "RSQRT"), "PRELU")
_MOST_JOINED = 10
_READ = "read"


def subject_of(graph: Graph, kernels: KernelSet) -> Subject:
    """The file of a graph, with the rules of some kernels."""
    path, content = pathlib.Path("made.tflite"), serialize(graph, {})
    return Subject(path, content, read_contents(content, "made"), graph.on(kernels))


def _graph(codes: Codes, parts: Sequence[tuple[np.ndarray, Mapping[str, _Made]]]) -> Specimen:
    """A graph of operations on parts of an image, which are arrays of stored integers.

    All that they make is joined: a file has one output, and what nothing reads is not computed.
    TFLite Micro joins ten tensors at most.
    """
    tensors: dict[str, Tensor] = {}
    operations: list[Operation] = [ShiftImage(("image",), "codes")]
    pixels, ends, place = [], [], 0
    whole = (sum(values.size for values, _ in parts), 1, 1)

    def add(operation: Operation, shape: tuple[int, ...], codes: Codes | None) -> str:
        operations.append(operation)
        tensors[operation.output] = Tensor(operation.output, shape, codes)
        return operation.output

    for number, (values, made) in enumerate(parts):
        start, place = place, place + values.size
        pixels.append(values.reshape(-1))
        slices = ((start, place, 1), (0, 1, 1), (0, 1, 1))
        line = moved("STRIDED_SLICE", "codes", f"line_{number}", whole, slices)
        line = add(line, (values.size, 1, 1), codes)
        read = add(Reshape((line,), f"{_READ}_{number}"), values.shape, codes)
        for name, (operation, shape, own) in made.items():
            found = add(operation(read, f"{name}_{number}"), shape, own)
            real = add(Dequantize((found,), f"{found}_real"), shape, None)
            ends.append(add(Reshape((real,), f"{found}_end"), (math.prod(shape), 1, 1), None))
    tensors["codes"] = Tensor("codes", whole, codes)
    while len(ends) > 1:
        some, ends = ends[:_MOST_JOINED], ends[_MOST_JOINED:]
        sizes = sum(tensors[name].shape[0] for name in some), 1, 1
        ends.append(add(joined(some, f"joined_{len(operations)}", 0), sizes, None))
    image = Image("image", whole, codes.scale, codes.zero_point + 128)
    stored = np.concatenate(pixels).reshape(1, *whole)
    graph = Graph("made", tensors, (*operations,), (image,), ends[0])
    return graph, (stored + 128).astype(np.uint8)


def functions_of_codes(scale: float, zero_point: int, names=FUNCTIONS) -> Specimen:
    """Functions of every code by operators of their own, on 10 grids each.

    Half of the ratios of two scales make codes of a line lie half way between two others.
    """
    rng, made = np.random.default_rng(0), {}
    ratios = [*rng.uniform(0.05, 3.0, 5), 0.25, 0.5, 1.5, 2.5, 3.5]
    shape = (16, 16, 1)
    for number, ratio in enumerate(ratios):
        grid = Codes(np.float32(scale / ratio), int(rng.integers(-128, 128)))
        slopes = rng.integers(-127, 128, shape).astype(np.int8)
        settings = {"alpha": 0.2, "approximate": bool(number % 2)}
        for name in names:
            own = FIXED_GRIDS.get(name, grid)
            made[f"{name}_{number}"] = _function(name, settings, slopes), shape, own
    stored = np.arange(-128, 128).reshape(shape)
    return _graph(Codes(np.float32(scale), zero_point), [(stored, made)])


def _function(name, settings, slopes) -> Callable[[str, str], Operation]:
    if name not in NATIVE:
        return lambda read, made: sloped(read, made, slopes, np.float32(0.003))
    own = {key: settings[key] for key in NATIVE[name].options}
    return lambda read, made: Computed((read,), made, name, options=own)


def probabilities_of_codes(scale: float, zero_point: int) -> Specimen:
    """Softmax of every pair of codes, of every three with the largest at 127, and of many classes.

    Kernels of Arm take 16 classes at a time, and what is left by ones.
    """
    rng = np.random.default_rng(0)
    pairs = np.indices((256, 256)).reshape(2, -1).T[np.newaxis] - 128
    threes = np.concatenate([np.full((*pairs.shape[:2], 1), 127), pairs], -1)
    rows = [pairs, threes]
    for classes in (10, 16, 33, 100):
        count = 20_000 // classes
        spread, middle = rng.choice([4, 20, 128], (count, 1)), rng.integers(-60, 60, (count, 1))
        values = middle + spread * rng.uniform(-1, 1, (count, classes))
        rows.append(np.clip(values, -128, 127).astype(int)[np.newaxis])
    codes = Codes(np.float32(scale), zero_point)

    def softmax(read: str, made: str) -> Operation:
        return Softmax((read,), made)

    parts = [(row, {"SOFTMAX": (softmax, row.shape, PROBABILITIES)}) for row in rows]
    return _graph(codes, parts)


def means_of_codes(scale: float, zero_point: int) -> Specimen:
    """AVERAGE_POOL_2D of windows with every sum, and of all that lie otherwise in an image."""
    rng, codes = np.random.default_rng(0), Codes(np.float32(scale), zero_point)
    parts = []
    for size, channels in (((1, 2), 4), ((2, 2), 3), ((3, 3), 8), ((3, 5), 17), ((7, 7), 270)):
        # Windows beside each other whose stored integers have every sum that there is.
        count = math.prod(size)
        totals = np.arange(count * 255 + 1) - 128 * count
        totals = np.pad(totals, (0, -totals.size % channels)).reshape(-1, channels)
        base, more = np.divmod(totals[:, np.newaxis], count)
        values = base + (np.arange(count)[:, np.newaxis] < more)
        values = values.reshape(-1, *size, channels).swapaxes(0, 1)
        values = values.reshape(size[0], -1, channels)
        parts.append((values, dict([_means(size, Window(size), values.shape, codes)])))
    shape = (12, 13, 9)
    sizes = ((2, 2), (3, 3), (3, 5), (1, 4), (8, 8), (12, 12))
    strides = ((1, 1), (2, 2), (2, 3), (3, 1))
    windows = [Window(*each) for each in itertools.product(strides, ("SAME", "VALID"))]
    made = [_means(*each, shape, codes) for each in itertools.product(sizes, windows)]
    parts.append((rng.integers(-128, 128, shape), dict(made)))
    return _graph(codes, parts)


def _means(size, window, shape, codes) -> tuple[str, _Made]:
    made = [
        placement(length, kernel, stride, 1, window.padding)[1]
        for length, kernel, stride in zip(shape, size, window.strides, strict=False)
    ]
    name = "_".join(map(str, ("AVERAGE_POOL_2D", *size, *window.strides, window.padding)))

    def pool(read: str, made: str) -> Operation:
        return AveragePool((read,), made, size, window)

    return name, (pool, (*made, shape[-1]), codes)


# Lengths before and after a resizing whose places depend on whether a product is rounded; builtin
# kernels do not read beyond the image there.
FUSED_LENGTHS = (22, 119), (25, 91), (36, 115), (38, 103)
_PLACES = ({}, {"half_pixel_centers": False}, {"half_pixel_centers": False, "align_corners": True})


def resized_codes(scale: float, zero_point: int) -> Specimen:
    """RESIZE_BILINEAR by whole factors, halves and others, and between every two codes.

    Among them are lengths whose places are others where compilers fuse products and sums.
    """
    rng, codes = np.random.default_rng(0), Codes(np.float32(scale), zero_point)

    def made(shape: tuple[int, ...], sizes: Iterable[tuple[int, int]]) -> dict[str, _Made]:
        return {
            f"RESIZE_BILINEAR_{size[0]}_{size[1]}_{number}": (
                lambda read, made, size=size, places=places: ResizeBilinear(
                    (read,), made, size, **places
                ),
                (*size, shape[-1]),
                codes,
            )
            for size in sizes
            for number, places in enumerate(_PLACES)
        }

    shape = (5, 6, 9)
    sizes = ((10, 12), (20, 24), (40, 48), (7, 13), (3, 2), (1, 1), (15, 18), (5, 6))
    pairs = np.indices((256, 256)).reshape(1, 2, -1) - 128
    parts = [
        (rng.integers(-128, 128, shape), made(shape, sizes)),
        (pairs, made(pairs.shape, ((1, 4), (1, 5)))),
    ]
    for before, after in FUSED_LENGTHS:
        shape = (1, before, 300)
        parts.append((rng.integers(-128, 128, shape), made(shape, ((1, after),))))
    return _graph(codes, parts)


def matrices_of_codes(scale: float, zero_point: int) -> Specimen:
    """BATCH_MATMUL of matrices by themselves, of depths that vectors take and that they leave.

    With the zero point 0 it is XNNPACK's, which on some Arm processors adds two products in 16
    bits: the codes are the widest for which they hold, in rows of the ends alone, too.
    """
    rng, codes, parts = np.random.default_rng(0), Codes(np.float32(scale), zero_point), []

    def product(read: str, made: str) -> Operation:
        return matrix_product(read, read, made, transposed=True)

    for depth in (1, 7, 16, 33, 64):
        values = rng.integers(-127, 128, (40, depth))
        values[:4] = np.array([[-127], [127]] * 2) * np.sign(values[:4] + 0.5)
        grids = [Codes(np.float32(scale / each), 5) for each in (0.3, 1 / 64, 0.004)]
        made = {
            f"BATCH_MATMUL_{number}": (product, (40, 40), grid) for number, grid in enumerate(grids)
        }
        parts.append((values, made))
    return _graph(codes, parts)


def compared(graph: Graph) -> list[str]:
    """The tensors that the operators of a graph make, without those that only move codes."""
    return [each.output for each in graph.operations if each.inputs[0].startswith(_READ)]


# Operators of several values, by their names.
OF_SEVERAL: Mapping[str, Callable[[float, int], Specimen]] = {
    "SOFTMAX": probabilities_of_codes,
    "AVERAGE_POOL_2D": means_of_codes,
    "BATCH_MATMUL": matrices_of_codes,
    "RESIZE_BILINEAR": resized_codes,
}
