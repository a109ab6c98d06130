"""Products, means and functions, against LiteRT on emulated Arm processors: every input."""

import pathlib
from collections.abc import Collection

import numpy as np
import pytest

from sat_tf.export.certificate.proof import Subject
from sat_tf.export.kernels.kernel_sets import ARM, X86, KernelSet
from sat_tf.export.litert.runtime import Runtime
from sat_tf.export.lowering.portable_scales import make_portable
from sat_tf.export.operations.concatenate import Concatenate
from sat_tf.export.operations.graph import Graph, simulate
from sat_tf.export.operations.graph_file import serialize
from sat_tf.export.operations.mean import Mean
from sat_tf.export.operations.movements import StridedSlice
from sat_tf.export.operations.native import FIXED_GRIDS, NATIVE, Native, Sloped
from sat_tf.export.operations.operation import Operation
from sat_tf.export.operations.pairs import Pair
from sat_tf.export.operations.pointwise import Pointwise
from sat_tf.export.operations.quantize import Dequantize, ShiftImage
from sat_tf.export.tflite.contents import read_contents
from sat_tf.export.tflite.tensors import Codes, Image, Tensor
from tests.arm.processors import PROCESSORS, check_on_arm
from tests.arm.system import ArmSystem, find_system

ONE = np.float32(1.0)


def _graph(shape: tuple[int, ...], *made: tuple[Operation, tuple[int, ...], Codes]) -> Graph:
    """A graph that makes float values of the last of some tensors of codes."""
    pixels = Codes(ONE, -128)
    found = [(ShiftImage(("image",), "codes"), shape, pixels), *made]
    last, size, _ = found[-1]
    tensors = {op.output: Tensor(op.output, shape, codes) for op, shape, codes in found}
    tensors["real"] = Tensor("real", size, None)
    return Graph(
        "made",
        tensors,
        (*(op for op, _, _ in found), Dequantize((last.output,), "real")),
        (Image("image", shape, ONE),),
        "real",
    )


def _product(ratio: float) -> tuple[Graph, np.ndarray]:
    """A product of the left and the right half of an image, which hold all pairs of pixels."""
    half = (256, 256, 1)
    halves = [
        (StridedSlice(("codes",), name, ((0, 256, 1), (start, start + 256, 1), (0, 1, 1))))
        for name, start in (("left", 0), ("right", 256))
    ]
    graph = _graph(
        (256, 512, 1),
        *((operation, half, Codes(ONE, -128)) for operation in halves),
        (Pair(("left", "right"), "y", Pointwise.PRODUCT), half, Codes(np.float32(1 / ratio), -128)),
    )
    one, other = np.meshgrid(np.arange(256), np.arange(256), indexing="ij")
    return graph, np.concatenate([one, other], axis=1).astype(np.uint8)[np.newaxis, ..., np.newaxis]


def _mean(scale: float, zero_point: int) -> tuple[Graph, np.ndarray]:
    """A mean of 7x7 pixels, and images with every sum there is."""
    channels = 256
    output = Codes(np.float32(scale), zero_point)
    graph = _graph((7, 7, channels), (Mean(("codes",), "y"), (channels,), output))
    totals = np.arange(49 * 255 + 1)
    totals = np.pad(totals, (0, -totals.size % channels)).reshape(-1, channels)
    base, more = np.divmod(totals, 49)
    images = base[:, np.newaxis] + (np.arange(49)[:, np.newaxis] < more[:, np.newaxis])
    return graph, images.reshape(-1, 7, 7, channels).astype(np.uint8)


# Ratios and scales for which the rules differ on some inputs, and two for which they do not.
CASES = {
    "product, 2^-8": lambda: _product(2.0**-8),
    "product, 1/254": lambda: _product(1 / 254),
    "product, 1/255": lambda: _product(1 / 255),
    "mean, 2.0": lambda: _mean(2.0, -128),
    "mean, 1.2632": lambda: _mean(1.2631578, 40),
    "mean, 0.98": lambda: _mean(0.98, -128),
}
DIFFERING = ("product, 2^-8", "product, 1/254", "mean, 2.0", "mean, 1.2632")


@pytest.fixture(params=CASES)
def case(request) -> tuple[Graph, np.ndarray]:
    return CASES[request.param]()


def subject_of(graph: Graph, kernels: KernelSet) -> Subject:
    content = serialize(graph, {})
    return Subject(
        pathlib.Path("made.tflite"), content, read_contents(content, "made"), graph.on(kernels)
    )


def _litert(graph: Graph, images: np.ndarray) -> np.ndarray:
    runtime = Runtime(serialize(graph, {}), keep_tensors=True)
    made = []
    for image in images:
        runtime.run(image[np.newaxis])
        made.append(runtime.tensors(["y"])["y"])
    return np.concatenate(made)


def _differing(graph: Graph) -> int:
    """How many inputs of its product or mean get another code on Arm."""
    return sum(
        operation.portability(graph).differing.get(ARM.name, 0) for operation in graph.operations
    )


def test_the_cases_differ_where_they_are_said_to():
    assert {name for name, made in CASES.items() if _differing(made()[0])} == set(DIFFERING)


def test_litert_here_has_the_rules_of_x86_on_every_input(case):
    graph, images = case
    found = _litert(graph, images)
    np.testing.assert_array_equal(found, simulate(graph.on(X86), images)["y"])


@pytest.fixture(scope="module")
def system() -> ArmSystem:
    try:
        return find_system()
    except ValueError as error:
        pytest.skip(str(error))


@pytest.mark.thorough
@pytest.mark.parametrize("name", DIFFERING)
def test_litert_on_arm_has_the_rules_of_arm_on_every_input(name, system):
    graph, images = CASES[name]()
    found = check_on_arm(subject_of(graph, ARM), images, system)
    assert [check.codes_differing for check in found] == [0, 0, 0]


@pytest.mark.thorough
@pytest.mark.parametrize("name", DIFFERING)
def test_portable_graphs_have_the_codes_of_x86_on_arm(name, system):
    graph, images = CASES[name]()
    moved = make_portable(graph)
    assert not moved.warnings
    # One processor: what they differ in is not the rounding of products and means.
    (found,) = check_on_arm(subject_of(moved, X86), images, system, PROCESSORS[:1])
    assert found.codes_differing == 0
    np.testing.assert_array_equal(_litert(moved, images), simulate(moved, images)["y"])


FUNCTIONS = (*NATIVE, "PRELU")


def functions_of_codes(
    scale: float, zero_point: int, names: Collection[str] = FUNCTIONS
) -> tuple[Graph, np.ndarray]:
    """Every code of an image, and functions of it by operators of their own, on 10 grids each.

    Half of the ratios of two scales make codes of a line lie half way between two others.
    """
    shape, rng = (16, 16, 1), np.random.default_rng(0)
    pixels = Codes(np.float32(scale), zero_point - 128)
    tensors, operations = {"codes": pixels}, []
    ratios = [*rng.uniform(0.05, 3.0, 5), 0.25, 0.5, 1.5, 2.5, 3.5]
    for number, ratio in enumerate(ratios):
        grid = Codes(np.float32(scale / ratio), int(rng.integers(-128, 128)))
        slopes = rng.integers(-127, 128, shape).astype(np.int8)
        settings = {"alpha": 0.2, "approximate": bool(number % 2)}
        for name in names:
            made = f"{name}_{number}"
            if name in NATIVE:
                own = {key: settings[key] for key in NATIVE[name].settings}
                operations.append(Native(("codes",), made, name, own))
            else:
                operations.append(Sloped(("codes",), made, slopes, np.float32(0.003)))
            tensors[made] = Codes(*FIXED_GRIDS[name]) if name in FIXED_GRIDS else grid
    # What nothing reads is not kept.
    real = [Dequantize((each.output,), f"{each.output}_real") for each in operations]
    floats = dict.fromkeys(each.output for each in real)
    found = {name: Tensor(name, shape, codes) for name, codes in {**tensors, **floats}.items()}
    found["real"] = Tensor("real", (*shape[:2], len(floats)), None)
    graph = Graph(
        "made",
        found,
        (ShiftImage(("image",), "codes"), *operations, *real, Concatenate((*floats,), "real", 2)),
        (Image("image", shape, np.float32(scale), zero_point),),
        "real",
    )
    return graph, np.arange(256, dtype=np.uint8).reshape(1, *shape)


@pytest.mark.thorough
@pytest.mark.parametrize(("scale", "zero_point"), [(0.0625, 128), (0.031, 90), (0.11, 0)])
def test_litert_on_arm_has_the_rules_of_arm_on_every_code_of_functions(scale, zero_point, system):
    graph, images = functions_of_codes(scale, zero_point)
    found = check_on_arm(subject_of(graph, ARM), images, system)
    assert [check.codes_differing for check in found] == [0, 0, 0]
