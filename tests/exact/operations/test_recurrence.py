"""The fused LSTM: worked by hand, against real values, and code by code in every runtime here."""

import dataclasses
import pathlib
import zlib
from typing import NamedTuple

import numpy as np
import pytest
import tensorflow as tf
import tf_keras as keras
from ai_edge_litert import schema_py_generated as tfl
from ai_edge_litert.interpreter import Interpreter

import sat_tf.export
from sat_tf.exact.certificate.runtimes import is_installed
from sat_tf.exact.kernels import gates
from sat_tf.exact.kernels.kernel_sets import (
    BUILTIN_ARM,
    BUILTIN_X86,
    MICRO,
    REFERENCE,
    X86,
    KernelSet,
)
from sat_tf.exact.litert.runtime import RUNTIMES, Runtime
from sat_tf.exact.operations.conversions import Dequantize, ShiftImage
from sat_tf.exact.operations.graph_file import ForeignFile, read_foreign, read_graph, serialize
from sat_tf.exact.operations.operation import Basis
from sat_tf.exact.operations.recurrence import Lstm
from sat_tf.exact.tflite.tensors import Tensor
from sat_tf.exact.tflite.writer import Writer
from tests import reference
from tests.exact.foreign.one_operator import Grid, assert_as_in_litert, constant, file_of

NAME = "UNIDIRECTIONAL_SEQUENCE_LSTM"
GATES = ("input", "forget", "cell", "output")
TANH = tfl.ActivationFunctionType.TANH
# The places of the operator's tensors, as in the kernels' sources.
KERNELS, RECURRENT, BIASES, HIDDEN, CELL = 1, 5, 12, 18, 19


@dataclasses.dataclass
class Layer:
    """An LSTM in codes, with gates in the order of GATES, or without the first."""

    shape: tuple[int, int, int]  # Sequences, steps and inputs, or steps first.
    source: tuple[float, int]  # The grid of the inputs.
    state: tuple[float, int]  # The grid of the hidden state.
    kernels: list[np.ndarray]
    kernel_scales: list[float]
    recurrent: list[np.ndarray]
    recurrent_scales: list[float]
    biases: list[np.ndarray]
    cell_bits: int = 3
    time_major: bool = False
    clip: float = 0.0
    # The grids in the intermediate tensor and in the output, where they are not the state's.
    hidden: tuple[float, int] | None = None
    made: tuple[float, int] | None = None

    @property
    def batch(self) -> int:
        return self.shape[1 if self.time_major else 0]

    @property
    def units(self) -> int:
        return len(self.biases[0])

    def tensors(self) -> list[Grid | None]:
        """The operator's 24 tensors."""
        tensors: list[Grid | None] = [None] * 24
        tensors[0] = Grid(self.shape, *self.source)
        skipped = len(GATES) - len(self.biases)
        for gate, weights in enumerate(zip(self.kernels, self.kernel_scales, strict=True), skipped):
            tensors[KERNELS + gate] = constant(*weights)
        for gate, weights in enumerate(
            zip(self.recurrent, self.recurrent_scales, strict=True), skipped
        ):
            tensors[RECURRENT + gate] = constant(*weights)
        for gate, bias in enumerate(self.biases, skipped):
            tensors[BIASES + gate] = constant(bias)
        states = (self.batch, self.units)
        tensors[HIDDEN] = Grid(states, *self.state, is_variable=True)
        scale = 2.0 ** (self.cell_bits - 15)
        tensors[CELL] = Grid(states, scale, type="INT16", is_variable=True)
        return tensors

    def file(self, tensors: list[Grid | None] | None = None, **changes) -> bytes:
        between = [Grid((0,), None, type="FLOAT32")] * 4
        options = {
            "intermediates": [*between, Grid((0,), *(self.hidden or self.state))],
            "fusedActivationFunction": TANH,
            "cellClip": self.clip,
            "timeMajor": self.time_major,
            **changes,
        }
        made = [Grid((*self.shape[:2], self.units), *(self.made or self.state))]
        return file_of(NAME, tensors or self.tensors(), made, **options)


def simulated(file: ForeignFile, kernels: KernelSet, stored: np.ndarray) -> np.ndarray:
    (operation,) = file.graph.operations
    return operation.simulate(file.graph.on(kernels), stored.astype(np.int32))


# -- by hand ---------------------------------------------------------------------------------------

ONE, FAR = 4096, 32767  # sums of gates


class Row(NamedTuple):
    """One unit with one input; a code of input · weight is one of a gate's sum."""

    biases: tuple[int, ...]  # Of each gate; the first may be left out.
    made: list[int]  # The codes of three steps, units of 1/128.
    weight: int = 0  # The cell gate's weight of the input, which is 1 at every step, in 1/64.
    recurrent: int = 0  # The cell gate's weight of the hidden state, in 1/32.
    clip: float = 0.0
    zero: int = 0  # The zero point of the hidden state.


BY_HAND = [
    # All is zero: gates are 1/2, the candidate is tanh 0.
    Row((0, 0, 0, 0), [0, 0, 0]),
    Row((0, 0, 0, 0), [-7, -7, -7], zero=-7),
    # The candidate is 1: c = 1/2, 3/4, 7/8, and h = tanh(c) / 2 = 0.2311, 0.3176, 0.3520.
    Row((0, 0, FAR, 0), [30, 41, 45]),
    Row((0, 0, -FAR, 0), [-30, -41, -45]),
    Row((0, 0, FAR, 0), [35, 46, 50], zero=5),
    # A coupled input gate is 1 - forget gate: the same at 1/2, and about 1 where that is about 0.
    Row((0, FAR, 0), [30, 41, 45]),
    Row((-FAR, FAR, FAR), [97, 97, 97]),
    # The input gate is 0.9997 at 8, and the forget gate 0.0003: c = 1, tanh 1 = 0.7616.
    Row((FAR, -FAR, FAR, FAR), [97, 97, 97]),
    # The cell is clipped at 1/4: tanh(1/4) / 2 = 0.1225.
    Row((0, 0, FAR, 0), [16, 16, 16], clip=0.25),
    # The input is 1: candidates are tanh 1, c = 0.3808, 0.5712, 0.6664, h = tanh(c) / 2 = 0.1817...
    Row((0, 0, 0, 0), [23, 33, 37], weight=64),
    # A code of the hidden state adds 50 to the sum: tanh(1 + 23 · 50 / 4096) = 0.8567, c = 0.6187.
    Row((0, 0, ONE, 0), [23, 35, 41], recurrent=50),
]


@pytest.mark.parametrize("kernels", [REFERENCE, BUILTIN_X86, BUILTIN_ARM, MICRO])
@pytest.mark.parametrize("row", BY_HAND)
def test_steps_worked_by_hand(row: Row, kernels: KernelSet) -> None:
    count = len(row.biases)
    kernels_of_gates, recurrent = ([np.int8([[0]])] * count for _ in range(2))
    kernels_of_gates[-2], recurrent[-2] = np.int8([[row.weight]]), np.int8([[row.recurrent]])
    layer = Layer(
        shape=(1, 3, 1),
        source=(2.0**-6, 3),
        state=(2.0**-7, row.zero),
        kernels=kernels_of_gates,
        kernel_scales=[2.0**-6] * count,
        recurrent=recurrent,
        recurrent_scales=[2.0**-5] * count,
        biases=[np.array([bias]) for bias in row.biases],
        clip=row.clip,
    )
    made = simulated(read_foreign(layer.file(), "one"), kernels, np.full((1, 3, 1), 64 + 3))
    assert made[0, :, 0].tolist() == row.made


# What the C++ sources compute for all integers of 16 bits, as CRCs: the sigmoid of numbers with 3
# bits in front of their point, and the tanh of those with 0 to 6 bits.
ALL = np.arange(-(2**15), 2**15)
SOURCES = {
    "gemmlowp": [
        *(0x89B3F38E, 0xA348DAF8, 0xC979DD1D, 0x742F59B7, 0x70B28DFE, 0x215077B2, 0x3A695108),
        0x32E074AE,
    ],
    "micro": [
        *(0x928F0A46, 0xC3723410, 0x0A35E7EF, 0x931C6619, 0xABDD53CC, 0x20F0F708, 0x93EE576E),
        0x2537531D,
    ],
}
RULES = {"gemmlowp": gates.OF_LITERT, "micro": gates.OF_MICRO}


@pytest.mark.parametrize("name", SOURCES)
def test_functions_are_those_of_the_sources_for_every_integer_of_16_bits(name: str) -> None:
    rules = RULES[name]
    results = [rules.sigmoid(ALL), *(rules.tanh(ALL, bits) for bits in range(7))]
    assert [zlib.crc32(made.astype("<i2").tobytes()) for made in results] == SOURCES[name]


@pytest.mark.parametrize("name", SOURCES)
def test_functions_are_near_those_of_real_numbers(name: str) -> None:
    """gemmlowp errs by 12 units of 2^-15 at most, and interpolation by 4, but at the ends."""
    rules, real = RULES[name], ALL / 4096
    sigmoid = np.minimum(1 / (1 + np.exp(-real)), 1 - 2**-15)
    assert np.max(np.abs(rules.sigmoid(ALL) / 2**15 - sigmoid)) < 12 * 2**-15
    tanh = np.clip(np.tanh(real), -1, 1 - 2**-15)
    assert np.max(np.abs(rules.tanh(ALL, 3) / 2**15 - tanh)) < 12 * 2**-15


# -- random layers ---------------------------------------------------------------------------------


def random_layer(
    rng: np.random.Generator,
    batch: int = 1,
    *,
    spread: float = 1.0,
    other_grids: bool = False,
    **settings,
) -> Layer:
    """A layer whose gates add up to about 1 in real values, times `spread`."""
    steps, inputs, units = (int(rng.integers(1, most + 1)) for most in (12, 20, 24))
    source = float(rng.uniform(0.004, 0.1)), int(rng.choice([-128, 0, 127, rng.integers(-99, 99)]))
    state = float(rng.uniform(0.3, 1.2)) / 128, int(rng.integers(-128, 128))
    count = int(rng.choice([3, 4, 4]))

    def weights(columns: int, scale: float) -> tuple[list[np.ndarray], list[float]]:
        usual = spread / (73**2 * scale * np.sqrt(columns))
        codes = [rng.integers(-127, 128, (units, columns)).astype(np.int8) for _ in range(count)]
        return codes, [float(usual * rng.uniform(0.3, 3)) for _ in range(count)]

    kernels, kernel_scales = weights(inputs, source[0])
    recurrent, recurrent_scales = weights(units, state[0])
    biases = [
        np.rint(rng.normal(0, spread, units) / (source[0] * scale)) for scale in kernel_scales
    ]
    time_major = bool(rng.integers(2))
    if other_grids:
        hidden, made = (
            (state[0] * float(rng.uniform(0.5, 2)), int(rng.integers(-128, 128))) for _ in range(2)
        )
        settings = {"hidden": hidden, "made": made, **settings}
    return Layer(
        (steps, batch, inputs) if time_major else (batch, steps, inputs),
        source,
        state,
        kernels,
        kernel_scales,
        recurrent,
        recurrent_scales,
        biases,
        cell_bits=int(rng.integers(0, 7)),
        time_major=time_major,
        clip=float(rng.choice([0.0, 0.3, 10.0])),
        **settings,
    )


def runs(content: bytes, runtime: str, arrays: list[np.ndarray]) -> list[np.ndarray]:
    """The outputs of LiteRT for several inputs in turn, whatever batch the file has."""
    interpreter = Interpreter(
        model_content=content, experimental_op_resolver_type=RUNTIMES[runtime], num_threads=1
    )
    interpreter.allocate_tensors()
    (source,), (output,) = interpreter.get_input_details(), interpreter.get_output_details()
    made = []
    for array in arrays:
        interpreter.reset_all_variables()
        interpreter.set_tensor(source["index"], array)
        interpreter.invoke()
        made.append(np.array(interpreter.get_tensor(output["index"])))
    return made


@pytest.mark.parametrize("seed", range(12))
def test_every_runtime_of_litert_makes_the_simulated_codes(seed: int) -> None:
    rng = np.random.default_rng(seed)
    for _ in range(4):
        layer = random_layer(
            rng,
            int(rng.integers(1, 4)),
            spread=float(rng.choice([0.5, 2, 8])),
            other_grids=not rng.integers(4),
        )
        content = layer.file()
        file = read_foreign(content, "one")
        assert not file.reasons
        arrays = [rng.integers(-128, 128, layer.shape).astype(np.int8) for _ in range(3)]
        expected = [simulated(file, BUILTIN_X86, array) for array in arrays]
        for runtime in RUNTIMES:
            np.testing.assert_array_equal(runs(content, runtime, arrays), expected)


@pytest.mark.parametrize("seed", range(6))
def test_each_image_starts_from_zero_states_in_every_runtime(seed: int) -> None:
    """Images in turn, with no state of the one before; TFLite Micro too, where it is installed."""
    rng = np.random.default_rng(seed)
    layer = dataclasses.replace(random_layer(rng, other_grids=seed > 3), time_major=False)
    layer.shape = (1, max(layer.shape[:2]), layer.shape[2])
    images = [rng.integers(-128, 128, layer.shape).astype(np.int8) for _ in range(3)]
    assert_as_in_litert(layer.file(), [(image,) for image in images])
    runtime = Runtime(layer.file(), "builtin", keep_tensors=False)
    together = runtime.run(np.concatenate(images))
    np.testing.assert_array_equal(together, np.concatenate(list(map(runtime.run, images))))


@pytest.mark.parametrize("seed", range(8))
def test_codes_are_near_the_real_lstm(seed: int) -> None:
    """Each state is rounded by half a code, which comes back through the recurrent weights.

    These multiply errors by less than 1/2 here, and a cell keeps errors of a few steps: two codes
    are enough where states do not saturate.
    """
    rng = np.random.default_rng(seed)
    layer = random_layer(rng, 2, spread=0.5)
    layer.state = 1.0 / 128, int(rng.integers(-5, 6))
    layer.cell_bits, layer.clip = 3, 0.0
    layer.recurrent_scales = [
        min(scale, 0.5 / np.max(np.abs(codes.astype(int)).sum(1)))
        for codes, scale in zip(layer.recurrent, layer.recurrent_scales, strict=True)
    ]
    stored = rng.integers(-128, 128, layer.shape)
    made = simulated(read_foreign(layer.file(), "one"), REFERENCE, stored)
    scale, zero = (np.float32(layer.source[0]), layer.source[1])
    x = scale * (stored - zero)
    expected = reference.lstm(
        np.moveaxis(x, 0, 1) if layer.time_major else x,
        [np.float32(s) * k for k, s in zip(layer.kernels, layer.kernel_scales, strict=True)],
        [np.float32(s) * k for k, s in zip(layer.recurrent, layer.recurrent_scales, strict=True)],
        [scale * np.float32(s) * b for b, s in zip(layer.biases, layer.kernel_scales, strict=True)],
    )
    if layer.time_major:
        expected = np.moveaxis(expected, 1, 0)
    distance = np.abs(made - layer.state[1] - np.clip(128 * expected, -128, 127))
    assert np.max(distance) < 2


def test_sequences_do_not_mix() -> None:
    layer = dataclasses.replace(random_layer(np.random.default_rng(3), 3), time_major=False)
    layer.shape = (3, 5, layer.shape[2])
    file = read_foreign(layer.file(), "one")
    stored = np.random.default_rng(4).integers(-128, 128, (3, 5, layer.shape[2]))
    alone = [simulated(file, X86, stored[i : i + 1]) for i in range(3)]
    np.testing.assert_array_equal(simulated(file, X86, stored), np.concatenate(alone))


def test_steps_that_come_first_are_those_of_the_file() -> None:
    """Images that are put together on the first axis would be steps of one sequence."""
    layer = dataclasses.replace(random_layer(np.random.default_rng(3)), time_major=True)
    layer.shape = (4, 1, layer.shape[2])
    file = read_foreign(layer.file(), "one")
    with pytest.raises(ValueError, match="received 8 steps of 1 sequences, expected 4 of 1"):
        simulated(file, X86, np.zeros((8, 1, layer.shape[2])))


def test_arm_agrees_unless_a_weight_is_the_lowest_integer() -> None:
    layer = random_layer(np.random.default_rng(0))
    graph = read_foreign(layer.file(), "one").graph
    assert graph.operations[0].portability(graph).basis is Basis.RULE
    assert graph.operations[0].computes_alike(graph, BUILTIN_ARM) is False  # not of XNNPACK's sets
    layer.kernels[0][0, 0] = -128
    graph = read_foreign(layer.file(), "one").graph
    assert graph.operations[0].portability(graph).basis is Basis.IMAGES


def test_litert_takes_the_input_gate_for_the_tanh_of_a_small_cell_state() -> None:
    """This is why a cell state with a scale below 2^-15 is not simulated."""
    layer = usual_layer()
    layer.cell_bits, layer.shape = -1, (1, 1, 3)
    layer.biases = [np.array([-500, 2000])] * 4
    # Weights do not count, so that all gates of a unit have the same sigmoid.
    layer.kernels, layer.recurrent = [np.zeros((2, 3))] * 4, [np.zeros((2, 2))] * 4
    sums = np.rint(np.array([-500, 2000]) * 0.02 * 0.01 * 4096)
    gate = 1 / (1 + np.exp(-sums / 4096))
    for runtime in RUNTIMES:
        (made,) = runs(layer.file(), runtime, [np.zeros((1, 1, 3), np.int8)])
        np.testing.assert_array_equal(made[0, 0], np.rint(128 * gate * gate))


def test_a_hidden_state_that_changes_its_grid_is_a_warning() -> None:
    layer = usual_layer()
    assert read_foreign(layer.file(), "one").graph.operations[0].warning() is None
    layer.made = (0.02, 15)
    warning = read_foreign(layer.file(), "one").graph.operations[0].warning()
    assert "0.0078125 and 0 where LiteRT computes them" in warning
    assert "0.02 and 15 in the output" in warning
    assert "put a Dense layer between them" in warning


def test_what_it_says_of_itself() -> None:
    layer = dataclasses.replace(random_layer(np.random.default_rng(1)), time_major=False)
    layer.shape = (1, 7, layer.shape[2])
    file = read_foreign(layer.file(), "one")
    (operation,) = file.graph.operations
    assert isinstance(operation, Lstm)
    assert operation.operators == (NAME,)
    assert operation.takes_one_image
    weights = sum(codes.size for codes in (*layer.kernels, *layer.recurrent))
    assert operation.num_weights == weights
    assert operation.multiply_adds(file.graph) == 7 * weights
    assert file.contents.operators[0].multiply_adds == 7 * weights
    assert operation.weights_title() == "-127 to 127"


@pytest.mark.parametrize("change", [{"time_major": True}, {"gates": 3}])
def test_forms_that_sat_tf_does_not_write_are_refused(change) -> None:
    layer = usual_layer()
    if "gates" in change:
        parts = (layer.kernels, layer.recurrent, layer.biases)
        layer.kernels, layer.recurrent, layer.biases = (part[1:] for part in parts)
        layer.kernel_scales, layer.recurrent_scales = [0.01] * 3, [0.01] * 3
    else:
        layer.time_major = True
    graph = read_foreign(layer.file(), "one").graph
    with pytest.raises(ValueError, match="expected 4 gates and sequences as the first dimension"):
        graph.operations[0].write(Writer(graph))


@pytest.mark.parametrize("seed", range(8))
def test_a_layer_is_written_as_it_is_read(seed: int) -> None:
    layer = random_layer(np.random.default_rng(seed))
    layer.time_major = False
    steps, units = max(layer.shape[:2]), layer.units
    layer.shape = (1, steps, layer.shape[2])
    if len(layer.biases) < len(GATES):  # an input gate of its own
        for part in (layer.kernels, layer.recurrent, layer.biases):
            part.insert(0, part[0])
        layer.kernel_scales.insert(0, 0.01), layer.recurrent_scales.insert(0, 0.01)
    foreign = read_foreign(layer.file(), "one").graph
    (operation,), (image,) = foreign.operations, foreign.images
    ends = ShiftImage((image.name,), "codes"), Dequantize((operation.output,), "out")
    graph = dataclasses.replace(
        foreign,
        operations=(ends[0], dataclasses.replace(operation, inputs=("codes",)), ends[1]),
        tensors={
            **foreign.tensors,
            "codes": Tensor("codes", (steps, layer.shape[2]), image.codes),
            "out": Tensor("out", (steps, units), None),
        },
        output="out",
    )
    content = serialize(graph, {})
    found = read_graph(content, "one")
    assert serialize(found, {}) == content
    (again,) = [one for one in found.operations if isinstance(one, Lstm)]
    for name in ("kernels", "scales", "bias"):
        for ours, theirs in zip(getattr(operation, name), getattr(again, name), strict=True):
            np.testing.assert_array_equal(ours, theirs)
    for name in ("cell_bits", "clip", "hidden", "state", "made"):
        assert getattr(operation, name) == getattr(again, name)


# -- refusals --------------------------------------------------------------------------------------


def usual_layer() -> Layer:
    """A layer of two units with three inputs."""
    return Layer(
        shape=(1, 4, 3),
        source=(0.02, 1),
        state=(1 / 128, 0),
        kernels=[np.full((2, 3), gate, np.int8) for gate in range(4)],
        kernel_scales=[0.01] * 4,
        recurrent=[np.full((2, 2), gate, np.int8) for gate in range(4)],
        recurrent_scales=[0.01] * 4,
        biases=[np.zeros(2)] * 4,
    )


INT16 = Grid((2,), 0.1, type="INT16", values=np.ones(2, np.int16))
FLOAT = Grid((2,), None, type="FLOAT32", values=np.ones(2, np.float32))
STATE = Grid((1, 2), 1 / 128, is_variable=True)
CELL_STATE = Grid((1, 2), 2.0**-12, type="INT16", is_variable=True)
# Tensors at their places, and the reason.
TENSORS = [
    ({9: INT16, 10: INT16, 11: INT16}, "it has peepholes"),
    ({16: constant(np.ones((2, 2)), 0.1)}, "it has a projection"),
    ({20: INT16, 21: INT16, 22: INT16, 23: INT16}, "it has layer normalization"),
    ({KERNELS: None}, "its input gate has some of its tensors, and lacks others"),
    ({BIASES: None}, "its input gate has some of its tensors, and lacks others"),
    ({KERNELS + 1: constant(np.ones((2, 4)), 0.1)}, r"shape \(2, 4\), expected \(2, 3\)"),
    ({RECURRENT: constant(np.ones(2), 0.1)}, r"shape \(2,\), expected \(2, 2\)"),
    ({KERNELS + 1: constant(np.ones((2, 3)), (0.1, 0.2))}, "expected one scale above 0, and 0"),
    ({KERNELS + 1: constant(np.ones((2, 3)), 0.0)}, "expected one scale above 0, and 0"),
    ({KERNELS + 1: constant(np.ones((2, 3)), 0.1, 3)}, r"the zero points \[3\], expected one"),
    ({KERNELS + 1: Grid((2, 3), 0.1)}, "is not a constant of type INT8"),
    ({BIASES + 1: FLOAT}, "is not a constant of type INT32"),
    ({BIASES + 1: constant(np.zeros(3))}, "a bias does not have one number for each of 2 units"),
    ({HIDDEN: STATE._replace(is_variable=False)}, "is no variable"),
    ({HIDDEN: STATE._replace(type="FLOAT32", scale=None)}, "its hidden state is float"),
    ({HIDDEN: STATE._replace(type="INT16")}, "its tensor is INT16"),
    ({CELL: CELL_STATE._replace(scale=2.0**-8)}, r"expected INT16 with a power of two from 2\^-15"),
    ({CELL: CELL_STATE._replace(scale=2.0**-16)}, r"has the scale 2\^-16, for which LiteRT has no"),
    ({CELL: CELL_STATE._replace(scale=3.0 * 2.0**-13)}, "a power of two"),
    ({CELL: CELL_STATE._replace(zero_point=1)}, r"the zero points \[1\]"),
    ({CELL: CELL_STATE._replace(type="INT8")}, "its cell state is INT8"),
    ({BIASES: constant(np.full(2, 2**30))}, "its sums and biases may overflow"),
    ({KERNELS: constant(np.ones((2, 3)), 1e5)}, "its sums and biases may overflow"),
    ({RECURRENT: constant(np.ones((2, 2)), 1e9)}, "its sums and biases may overflow"),
    ({0: Grid((1, 4, 3), None, type="FLOAT32")}, "it reads or makes float values"),
    ({0: Grid((4, 3), 0.02, 1)}, r"its input has the shape \(4, 3\), expected three dimensions"),
]


@pytest.mark.parametrize(("changes", "reason"), TENSORS)
def test_forms_that_are_not_simulated_are_named(changes, reason) -> None:
    layer = usual_layer()
    tensors = layer.tensors()
    for place, tensor in changes.items():
        tensors[place] = tensor
    assert_refused(layer.file(tensors), reason)


BETWEEN = [Grid((0,), None, type="FLOAT32")] * 4
OPTIONS = [
    ({"fusedActivationFunction": 0}, "its activation is NONE, expected TANH"),
    ({"fusedActivationFunction": 1}, "its activation is RELU, expected TANH"),
    ({"diagonalRecurrentTensors": True}, "its recurrent weights are diagonals"),
    ({"cellClip": 1e-6}, "its cell_clip is .*, expected 0 or at least one code"),
    ({"cellClip": float("nan")}, "its cell_clip is nan"),
    ({"cellClip": -1.0}, "its cell_clip is -1.0"),
    ({"intermediates": BETWEEN}, "it has 4 intermediate tensors, expected 5"),
    ({"intermediates": [*BETWEEN, BETWEEN[0]]}, "its hidden state is float"),
    ({"intermediates": [*BETWEEN, Grid((0,), 2.0**-31)]}, "its hidden state has the scale 4.6"),
]


@pytest.mark.parametrize(("changes", "reason"), OPTIONS)
def test_options_that_are_not_simulated_are_named(changes, reason) -> None:
    assert_refused(usual_layer().file(**changes), reason)


def assert_refused(content: bytes, reason: str) -> None:
    file = read_foreign(content, "one")
    ((_, found),) = file.reasons.items()
    with pytest.raises(ValueError, match=reason):
        raise ValueError(found)
    assert not any(operation.is_simulated for operation in file.graph.operations)


def test_a_layer_of_twenty_tensors_is_read_as_well() -> None:
    layer = usual_layer()
    tensors = layer.tensors()
    assert not read_foreign(layer.file(tensors), "one").reasons
    assert not read_foreign(layer.file(tensors[:20]), "one").reasons
    assert_refused(layer.file(tensors[:19]), "it reads 19 tensors, expected 20 or 24")


# -- files of TensorFlow's converter ---------------------------------------------------------------

L = keras.layers
_LARGE = {"kernel_initializer": keras.initializers.RandomNormal(stddev=2.0)}
MODELS = {
    "each_step": lambda x: L.Dense(3)(L.LSTM(6, return_sequences=True)(x)),
    "last_step": lambda x: L.Dense(3)(L.LSTM(6)(x)),
    "both_ways": lambda x: L.Dense(3)(L.Bidirectional(L.LSTM(5, return_sequences=True))(x)),
    "two_layers": lambda x: L.LSTM(4)(L.LSTM(6, return_sequences=True, **_LARGE)(x)),
    "steps_first": lambda x: L.LSTM(6, return_sequences=True, time_major=True)(x),
}


@pytest.mark.thorough
@pytest.mark.parametrize("name", MODELS)
def test_files_of_the_converter_have_no_code_that_differs(
    name: str, tmp_path: pathlib.Path
) -> None:
    keras.utils.set_random_seed(0)
    x = keras.Input((7, 5), batch_size=1)
    rng = np.random.default_rng(0)
    data = rng.normal(size=(24, 7, 5)).astype(np.float32)
    converter = tf.lite.TFLiteConverter.from_keras_model(keras.Model(x, MODELS[name](x)))
    converter.optimizations = [tf.lite.Optimize.DEFAULT]
    converter.representative_dataset = lambda: ([one[np.newaxis]] for one in data)
    converter.target_spec.supported_ops = [tf.lite.OpsSet.TFLITE_BUILTINS_INT8]
    converter.inference_input_type = converter.inference_output_type = tf.int8
    path = tmp_path / "lstm.tflite"
    path.write_bytes(converter.convert())
    runtimes = ["builtin", "reference", "arm_builtin", *filter(is_installed, ["micro"])]
    compared = sat_tf.export.compare_operators(path, data, runtimes=runtimes, progress=False)
    layers = [operator for operator in compared.operators if operator.kind == NAME]
    assert layers
    assert not any(operator.reason for operator in layers)
    assert compared.is_explained
    # The converter gives both directions the grid of their concatenation, but not their states.
    assert bool(compared.warnings) == (name == "both_ways")
    for operator in layers:
        for runtime, count in operator.counts.items():
            assert count.own.differing == 0
            assert count.beside_xnnpack.differing == 0 or runtime == "micro"
            assert count.beside_xnnpack.compared > 0
