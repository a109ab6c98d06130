"""Simulations with the rules of a kernel set, against the kernels: every code of every tensor."""

import numpy as np
import pytest

import sat_tf
from sat_tf.export.kernels.kernel_sets import (
    BUILTIN_ARM,
    BUILTIN_X86,
    KERNEL_SETS,
    REFERENCE,
    Engine,
)
from sat_tf.export.operations.graph import Graph, simulate
from sat_tf.export.operations.graph_file import read_graph, serialize
from sat_tf.export.operations.linear import Linear
from sat_tf.export.operations.operation import Operation
from sat_tf.export.operations.pairs import Pair
from sat_tf.export.operations.pointwise import Pointwise
from sat_tf.export.operations.pools import Mean
from sat_tf.export.operations.quantize import Dequantize, Quantize, ShiftImage
from sat_tf.export.tflite.tensors import Codes, Image, Tensor
from tests.export import zoo
from tests.export.local import own_count

RUNTIMES = ("builtin", "reference")


def of_codes(
    shapes: list[tuple[int, ...]],
    made: list[tuple[Operation, tuple[int, ...], Codes]],
    inputs: list[Codes],
) -> bytes:
    """A file of operations on its inputs "a", "b" and so on, which are codes."""
    names = [chr(ord("a") + index) for index in range(len(shapes))]
    images = tuple(
        Image(f"image_{name}", shape, codes.scale, codes.zero_point, type="int8")
        for name, shape, codes in zip(names, shapes, inputs, strict=True)
    )
    tensors = {
        name: Tensor(name, shape, codes)
        for name, shape, codes in zip(names, shapes, inputs, strict=True)
    }
    operations: list[Operation] = [ShiftImage((f"image_{name}",), name) for name in names]
    outputs = []
    for operation, shape, codes in made:
        tensors[operation.output] = Tensor(operation.output, shape, codes)
        real = f"{operation.output}_real"
        tensors[real] = Tensor(real, shape, None)
        operations += [operation, Dequantize((operation.output,), real)]
        outputs.append(real)
    graph = Graph("made", tensors, tuple(operations), images, outputs[0], (), {}, (*outputs[1:],))
    return serialize(graph, {})


def _scale(rng: np.random.Generator) -> np.float32:
    """One of those that make ties, and any other."""
    exponent, odd = rng.integers(-6, 1), rng.integers(1, 300)
    return np.float32(rng.choice([2.0**exponent, 1 / odd, rng.random()]))


PAIRS = np.stack(np.meshgrid(*[np.arange(-128, 128)] * 2, indexing="ij"), -1).reshape(-1, 2)


@pytest.mark.parametrize("runtime", RUNTIMES)
@pytest.mark.parametrize("seed", range(3))
def test_sums_differences_and_products_of_all_codes_are_those_of_the_kernels(runtime, seed):
    rng = np.random.default_rng(seed)
    # There is a rest behind the last block of 16.
    values = np.concatenate([PAIRS, PAIRS[:7]]).astype(np.int8)
    shape = (len(values), 1)
    inputs = [Codes(_scale(rng), int(rng.integers(-128, 128))) for _ in range(2)]
    made = []
    for index in range(6):
        widest = max(codes.scale for codes in inputs)
        sums = Codes(np.float32(widest * rng.choice([0.5, 1.0, 2.0, rng.uniform(0.5, 4.0)])), 3)
        products = np.float32(
            inputs[0].scale * inputs[1].scale * rng.choice([2.0 ** rng.integers(2, 8), 254.0])
        )
        read = ("a", "b") if index % 2 else ("b", "a")
        made += [
            (Pair(read, f"sum_{index}", Pointwise.SUM), shape, sums),
            (Pair(read, f"difference_{index}", Pointwise.DIFFERENCE), shape, sums),
            (Pair(read, f"product_{index}", Pointwise.PRODUCT), shape, Codes(products, -9)),
        ]
    content = of_codes([shape, shape], made, inputs)
    compared, differing = own_count(content, (values[None, :, :1], values[None, :, 1:]), runtime)
    assert (compared, differing) == (20 * len(values), 0)


@pytest.mark.parametrize("runtime", RUNTIMES)
@pytest.mark.parametrize("shape", [(1, 1, 21), (9, 11, 1), (9, 1, 1), (1, 11, 1)])
def test_sums_and_products_with_repeated_values_are_those_of_the_kernels(runtime, shape):
    rng = np.random.default_rng(5)
    whole = (9, 11, 21)
    inputs = [Codes(np.float32(0.3), -128), Codes(np.float32(0.07), 11)]
    made = []
    for index, ratio in enumerate(rng.uniform(0.5, 2.0, 12)):
        read = ("a", "b") if index % 2 else ("b", "a")
        codes = Codes(np.float32(0.3 * ratio), 3)
        made += [
            (Pair(read, f"sum_{index}", Pointwise.SUM), whole, codes),
            (Pair(read, f"product_{index}", Pointwise.PRODUCT), whole, codes),
        ]
    content = of_codes([whole, shape], made, inputs)
    images = tuple(rng.integers(-128, 128, (4, *size)).astype(np.int8) for size in (whole, shape))
    compared, differing = own_count(content, images, runtime)
    assert compared > 4 * 24 * 9 * 11 * 21
    assert differing == 0


@pytest.mark.parametrize("runtime", RUNTIMES)
@pytest.mark.parametrize("shape", [(7, 7, 37), (1, 1, 16), (3, 5, 33), (8, 8, 9)])
def test_means_are_those_of_the_kernels(runtime, shape):
    rng = np.random.default_rng(7)
    made = []
    for index in range(16):
        keep = bool(index % 2)
        ratio = rng.choice([0.25, 0.5, 1.0, 2.0, rng.uniform(0.25, 2.0)])
        codes = Codes(np.float32(0.3 * ratio), int(rng.choice([-128, 0, 17])))
        made.append(
            (Mean(("a",), f"mean_{index}", keep), (1, 1, shape[-1])[-1 - 2 * keep :], codes)
        )
    for zero_point in (-128, 5):
        content = of_codes([shape], made, [Codes(np.float32(0.3), zero_point)])
        base = rng.integers(-128, 128, (8, 1, 1, shape[-1]))
        images = np.clip(base + rng.integers(-60, 60, (8, *shape)), -128, 127).astype(np.int8)
        compared, differing = own_count(content, images, runtime)
        assert compared == 8 * (np.prod(shape) + 16 * shape[-1])
        assert differing == 0


@pytest.mark.parametrize("runtime", RUNTIMES)
def test_float_values_become_the_codes_of_the_kernels(runtime):
    rng = np.random.default_rng(3)
    count, names = 1003, [f"codes_{index}" for index in range(8)]
    scales = [_scale(rng) for _ in names]
    tensors, operations = {}, []
    for name, scale in zip(names, scales, strict=True):
        tensors[name] = Tensor(name, (count,), Codes(scale, 3))
        tensors[f"{name}_real"] = Tensor(f"{name}_real", (count,), None)
        operations += [Quantize(("a",), name), Dequantize((name,), f"{name}_real")]
    graph = Graph(
        "made",
        tensors,
        tuple(operations),
        (Image("a", (count,), np.float32(1.0), type="float32"),),
        f"{names[0]}_real",
        (),
        {},
        tuple(f"{name}_real" for name in names[1:]),
    )
    halves = rng.integers(-300, 300, (2, count)) * np.float32(0.5) * np.float32(scales[0])
    assert own_count(serialize(graph, {}), halves.astype(np.float32), runtime)[1] == 0


@pytest.fixture(scope="module", params=["preactivation", "bottleneck"])
def packed(request, tmp_path_factory) -> tuple[bytes, np.ndarray]:
    """A file with convolutions, or depthwise ones, that have kernels of 4 bits, and images."""
    model = zoo.quantized(request.param)
    path = tmp_path_factory.mktemp("packed") / "model.tflite"
    sat_tf.export_tflite(model, path, pack="int4")
    return path.read_bytes(), zoo.images_for(model)


def test_packed_files_have_the_codes_of_the_kernels(packed):
    # The reference kernels have no depthwise convolution of 4 bits.
    compared, differing = own_count(*packed, "builtin")
    assert compared > 1000
    assert differing == 0


def test_the_table_names_every_set_once():
    assert [KERNEL_SETS[name].name for name in KERNEL_SETS] == list(KERNEL_SETS)
    assert len({kernels.title for kernels in KERNEL_SETS.values()}) == len(KERNEL_SETS)


def test_kernels_that_xnnpack_leaves_convolutions_to_differ_by_processor(packed):
    content, images = packed
    graph = read_graph(content, "packed.tflite")
    left = [op.engine is Engine.BUILTIN for op in graph.operations if isinstance(op, Linear)]
    assert any(left)
    found = [simulate(graph.on(one), images) for one in (BUILTIN_X86, BUILTIN_ARM, REFERENCE)]
    x86, *others = found
    for other in others:
        assert any(np.any(x86[name] != other[name]) for name in graph.integer_tensors)
