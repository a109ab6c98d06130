"""The runtimes that a verification can compare, what is counted of each, and where codes hold."""

import collections
import dataclasses
import importlib.util
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import NamedTuple

import numpy as np
from ai_edge_litert import schema_py_generated as tfl

from sat_tf.exact.certificate.outputs import OutputCount
from sat_tf.exact.kernels import kernel_sets
from sat_tf.exact.kernels.kernel_sets import XNNPACK_SETS, KernelSet
from sat_tf.exact.litert.runtime import MICRO, PACKAGE, TOSA, TOSA_TOOLS, Delegation, tosa_tool
from sat_tf.exact.operations.graph import Graph
from sat_tf.exact.operations.operation import Basis, Portability
from sat_tf.exact.operations.windows import ends_early
from sat_tf.exact.targets.processors import DEFAULT_TARGET, PROCESSORS
from sat_tf.exact.tflite.contents import Contents, StoredOperator
from sat_tf.exact.tflite.tensors import Storage, Window
from sat_tf.messages import did_you_mean, first_ones
from sat_tf.presentation.tables import Cell, Column, Marked, Table, digits, percent


@dataclasses.dataclass(frozen=True)
class RuntimeKind:
    """A runtime."""

    name: str  # For users.
    title: str  # In tables.
    kernels: KernelSet  # The kernels that round as it does.
    is_simulated: bool = False  # Whether it is only simulated, as what runs it is another machine.


_KINDS = (
    RuntimeKind("xnnpack", "LiteRT with XNNPACK", kernel_sets.of_this_machine()),
    RuntimeKind("builtin", "LiteRT, builtin kernels", kernel_sets.builtin_of_this_machine()),
    RuntimeKind("reference", "LiteRT, reference kernels", kernel_sets.REFERENCE),
    RuntimeKind(MICRO, "TFLite Micro", kernel_sets.MICRO),
    RuntimeKind(TOSA, "TOSA, reference model", kernel_sets.REFERENCE),
    *(
        RuntimeKind(name, f"{title} (simulated)", kernels, is_simulated=True)
        for name, title, kernels in (
            ("arm_xnnpack", "Arm, XNNPACK", kernel_sets.ARM),
            ("arm_xnnpack_unfused", "Arm, XNNPACK unfused", kernel_sets.ARM_UNFUSED),
            ("arm_builtin", "Arm, builtin kernels", kernel_sets.BUILTIN_ARM),
        )
    ),
)
RUNTIMES: dict[str, RuntimeKind] = {kind.name: kind for kind in _KINDS}

# These cost little: nothing of a file that is the same on all processors is simulated again.
USUAL_RUNTIMES = ("xnnpack", "builtin", "arm_xnnpack", "arm_xnnpack_unfused")


def chosen(names: Iterable[str], target: str = DEFAULT_TARGET) -> list[RuntimeKind]:
    """The runtimes of these names, in the order of the table.

    "xnnpack" always takes part, and the one that confirms files for a target.
    """
    if isinstance(names, str) or not isinstance(names, Iterable):
        raise ValueError(
            f"runtimes: received {names!r}, expected a list of names; pass one such as ['builtin']."
        )
    wanted = {"xnnpack", *map(str, names)}
    if target in PROCESSORS and (confirming := PROCESSORS[target].confirmed_by):
        wanted.add(confirming)
    unknown = sorted(wanted - set(RUNTIMES))
    if unknown:
        raise ValueError(
            f"runtimes: received {', '.join(unknown)}, expected names of runtimes. "
            f"{did_you_mean(unknown[0], RUNTIMES)}"
        )
    for name in (MICRO, TOSA):
        if name in wanted and not is_installed(name):
            raise ValueError(f"runtimes: received {name!r}, {_TO_INSTALL[name]}, or leave it out.")
    return [kind for kind in _KINDS if kind.name in wanted]


def is_installed(name: str) -> bool:
    """Whether a runtime can be compared here."""
    if name == TOSA:
        return all(map(tosa_tool, TOSA_TOOLS))
    return name != MICRO or importlib.util.find_spec("tflite_micro") is not None


_TO_INSTALL = {
    MICRO: "expected that TFLite Micro is installed, which it is not; install "
    f"{PACKAGE} with pip install 'sat-tf[micro]'",
    TOSA: f"expected {', '.join(TOSA_TOOLS)} on PATH, or in the folder that SAT_TF_TOSA names; "
    "install them in an environment of their own, as they need an older NumPy: python -m venv tosa "
    "&& tosa/bin/pip install tosa-converter-for-tflite tosa-tools; and set SAT_TF_TOSA=tosa/bin",
}


# -- what is counted -------------------------------------------------------------------------------


@dataclasses.dataclass
class TensorCount:
    """How one tensor compares with that of the simulation."""

    name: str  # Of the tensor.
    shape: tuple[int, ...]  # Without the batch dimension.
    codes_compared: int = 0  # How many stored integers, over all images.
    codes_differing: int = 0  # How many of them differ.

    def add(self, expected: np.ndarray, computed: np.ndarray) -> None:
        """Counts one batch."""
        self.codes_compared += expected.size
        self.codes_differing += int(np.count_nonzero(expected != computed))


# A tensor is named where more of its codes than this share, and more than so many, are others than
# Keras makes of the same inputs, beside those that rounding of biases explains.
MOST_UNEXPLAINED, FEW_CODES = 0.02, 10


@dataclasses.dataclass
class TrainedCount(TensorCount):
    """How one tensor of the Keras model compares with that of the simulation.

    Both compute from the image on, so that a code that differs can change others behind it. To tell
    where differences begin, the operations that make the tensor are also given Keras' own codes.
    """

    # How many values of Keras lie beyond all codes of the file, by more than half a code: the range
    # was only observed, and Keras does not clip there. They differ, except in an input, which Keras
    # clips alike.
    saturated: int = 0
    worst_channel: int | None = None  # The channel with most of them; None where there are none.
    worst_share: float = 0.0  # Of its values, in [0, 1].
    alone_compared: int = 0  # How many codes were computed from Keras' own, of the first images.
    alone_differing: int = 0  # How many of them differ, beside those saturated.
    # The share that differs at most because biases are integers: of each channel, half of what a
    # unit of its sum is worth in codes.
    explained_share: float = 0.0

    @property
    def saturated_share(self) -> float:
        """Share of its values that saturate, in [0, 1]."""
        return self.saturated / max(self.codes_compared, 1)

    @property
    def alone_share(self) -> float:
        """Share of its codes that differ by themselves, in [0, 1]."""
        return self.alone_differing / max(self.alone_compared, 1)

    @property
    def is_unexplained(self) -> bool:
        """Whether more codes differ by themselves than rounding of biases explains."""
        most = self.explained_share + MOST_UNEXPLAINED
        return self.alone_differing > max(most * self.alone_compared, FEW_CODES)


@dataclasses.dataclass(frozen=True)
class RuntimeCount:
    """How one runtime compares with the simulation, and its outputs with the reference."""

    tensors: list[TensorCount]  # Every integer tensor, producers first.
    float_values_compared: int  # Values of float tensors.
    largest_float_difference: float  # The largest difference among them; infinite where one is NaN.
    # Outputs that differ between a run that keeps every tensor and one that does not, as a phone
    # runs it.
    outputs_differing: int
    # What XNNPACK has taken over in the latter; None where that is not LiteRT's.
    delegation: Delegation | None
    # Share of images, or of the pixels, rows or boxes of them, with the class of the reference; the
    # smallest of several outputs; None where none has classes.
    agreement: float | None
    # From the outputs of the reference; infinite where one is NaN.
    largest_output_difference: float
    # Share of these classified right; None without labels, or with those of several outputs, of
    # which `Certificate.accuracy` tells.
    top1: float | None
    # Each output by itself against the reference.
    outputs: list[OutputCount] = dataclasses.field(default_factory=list)
    kernels: str = ""  # Name of the kernel set with its rounding.
    # Whether another machine runs it, so that it is only simulated, with these kernels; float
    # layers are then those of LiteRT here.
    is_simulated: bool = False
    # The same tensors against a simulation with its own kernels, on the first images: what differs
    # there, no rule explains. Empty for those with XNNPACK, of which `tensors` says it, and for
    # simulated ones.
    own: list[TensorCount] = dataclasses.field(default_factory=list)

    @property
    def own_compared(self) -> int:
        """How many stored integers are compared with the simulation of its own kernels."""
        return sum(tensor.codes_compared for tensor in self.own)

    @property
    def own_differing(self) -> int:
        """How many of them differ."""
        return sum(tensor.codes_differing for tensor in self.own)

    @property
    def first_differing(self) -> str | None:
        """Name of the first tensor with another code, in order; None where all agree."""
        return next((tensor.name for tensor in self.tensors if tensor.codes_differing), None)

    @property
    def codes_compared(self) -> int:
        """How many stored integers."""
        return sum(tensor.codes_compared for tensor in self.tensors)

    @property
    def codes_differing(self) -> int:
        """How many of them differ."""
        return sum(tensor.codes_differing for tensor in self.tensors)

    @property
    def differing(self) -> str:
        """How many codes differ, in words."""
        return f"{self.codes_differing:,} of {self.codes_compared:,}"


class RuntimeRow(NamedTuple):
    """A row of the table of runtimes."""

    title: str  # Of a runtime, or of a model that only classifies.
    name: str  # Of the runtime.
    found: RuntimeCount | None  # What was counted of it; None for such a model.
    top1: float | None  # Share of images that it classifies right.


def runtime_columns(
    runtimes: Mapping[str, RuntimeCount], reference: str
) -> list[Column[RuntimeRow]]:
    """The columns of the table of runtimes; for the arguments, see `Certificate`."""

    def counted(show: Callable[[RuntimeCount], Cell]) -> Callable[[RuntimeRow], Cell]:
        return lambda row: "" if row.found is None else show(row.found)

    def differing(row: RuntimeRow) -> Cell:
        if row.found is None:
            return ""
        # Only that of XNNPACK must be 0.
        bad = "bad" if row.name == "xnnpack" else "watch"
        return Marked(row.found.differing, bad if row.found.codes_differing else "good")

    def not_as_simulated(count: RuntimeCount) -> Cell:
        if not count.own:
            return "simulated" if count.is_simulated else ""
        differing, compared = count.own_differing, count.own_compared
        return Marked(f"{differing:,} of {compared:,}", "watch" if differing else "good")

    def largest_error(count: RuntimeCount) -> Cell:
        values = [output.values for output in count.outputs if output.values is not None]
        return _FOUR(max(value.channels[0].error for value in values))

    of = REFERENCE_TITLES[reference]
    columns: list[Column[RuntimeRow]] = [
        Column("runtime", lambda row: row.title, wrap="fold"),
        Column("codes differing", differing, number=True),
    ]
    if any(count.own or count.is_simulated for count in runtimes.values()):
        columns.append(Column("not as simulated", counted(not_as_simulated), number=True))
    columns += [
        Column("first that differs", counted(lambda c: c.first_differing or "none"), wrap="fold"),
        Column("top-1", lambda row: row.top1, percent(), number=True),
    ]
    outputs = [output for count in runtimes.values() for output in count.outputs]
    if outputs and all(output.is_values for output in outputs):
        columns.append(Column(f"from {of}, std. dev.", counted(largest_error), number=True))
    else:
        same = counted(lambda count: shown_share(count.agreement))
        columns.append(Column(f"classes of {of}", same, number=True))
    largest = counted(lambda count: _FOUR(count.largest_output_difference))
    return [*columns, Column("largest difference", largest, number=True)]


def runtime_table(
    runtimes: Mapping[str, RuntimeCount], reference: str, top1: Mapping[str, float]
) -> Table[RuntimeRow]:
    """The runtimes, and below them what models classify; for the arguments, see `Certificate`."""
    rows = [RuntimeRow(name, name, count, count.top1) for name, count in runtimes.items()]
    rows += [
        RuntimeRow(title, "", None, top1[name])
        for name, title in MODEL_TITLES.items()
        if name in top1 and name != "tflite"  # which is the runtime xnnpack
    ]
    return Table(columns=runtime_columns(runtimes, reference), rows=rows)


# The models that are compared, by their names in a certificate.
MODEL_TITLES = {
    "quantized": "Keras",
    "simulation": "simulation",
    "tflite": "LiteRT",
    "float": "float model",
}
# The model that outputs are compared with, by its name in a certificate.
REFERENCE_TITLES = {"keras": "Keras", "simulation": "the simulation"}
_FOUR = digits(".4g")
# Missing where an output is a number, not a class.
shown_share = percent(missing="–")


# -- the processors for which codes hold -----------------------------------------------------------

NOT_SAID = (
    "Nothing is said of GPU delegates, NNAPI and the delegates of vendors' neural processors, "
    "which have rules of their own."
)
EVERYWHERE = "x86 and on Arm (version 7 and later: NEON, dot-product, i8mm and SME kernels)"


@dataclasses.dataclass(frozen=True)
class Hold:
    """Operators of which the same is said."""

    operators: str  # Their names.
    tensors: list[str]  # What they make.
    basis: str  # What the statement rests on, a value of `Basis`.
    why: str  # In words.
    inputs: int = 0  # How many different inputs of their rounding were tried with every rule.
    # How many of these get another code than on x86, by the kernels.
    differing: dict[str, int] = dataclasses.field(default_factory=dict)

    @property
    def is_portable(self) -> bool:
        """Whether XNNPACK has the same codes on all processors, or they make none."""
        # A basis of later versions, in a certificate that was read, proves nothing to this one.
        basis = next((basis for basis in Basis if basis.value == self.basis), Basis.IMAGES)
        return Portability(basis, self.why, self.inputs, self.differing).holds

    @property
    def is_float(self) -> bool:
        """Whether they make float values, of which no codes are compared."""
        return self.basis == Basis.FLOAT.value


_BEHIND_FLOAT = Portability(
    Basis.BEHIND_FLOAT, "it depends on float values, in which processors differ in the last bits"
)


def holds_of(graph: Graph) -> list[Hold]:
    """A statement on each operation of a graph; those of which the same is said share one."""
    groups = collections.defaultdict[tuple[str, Basis, str, bool], list[tuple[str, Portability]]](
        list
    )
    # The float tensors in which processors differ, and all that depend on one of them.
    differing: set[str] = set()
    for operation in graph.operations:
        portability = operation.portability(graph)
        is_behind = not differing.isdisjoint(operation.inputs)
        if is_behind or (operation.is_float(graph) and portability.basis is Basis.FLOAT):
            differing.add(operation.output)
        if is_behind and portability.basis is not Basis.FLOAT:
            portability = _BEHIND_FLOAT
        names = ", ".join(operation.operators)
        key = names, portability.basis, portability.why, portability.holds
        groups[key].append((operation.output, portability))
    return [
        Hold(
            operators=operators,
            tensors=[tensor for tensor, _ in group],
            basis=basis.value,
            why=why,
            inputs=sum(portability.inputs for _, portability in group),
            differing={
                kernels.name: total
                for kernels in XNNPACK_SETS
                if (total := sum(each.differing.get(kernels.name, 0) for _, each in group))
            },
        )
        for (operators, basis, why, _), group in groups.items()
    ]


def are_portable(holds: list[Hold]) -> bool:
    """Whether XNNPACK computes the codes of a file on all processors: all operators are said to."""
    integer = [hold for hold in holds if not hold.is_float]
    return bool(integer) and all(hold.is_portable for hold in integer)


def verdict_of(holds: list[Hold]) -> Marked:
    """Says of all of them where they hold, and which are behind float values."""
    integer = [hold for hold in holds if not hold.is_float]
    behind = [hold for hold in integer if hold.basis == Basis.BEHIND_FLOAT.value]
    before = [hold for hold in integer if hold not in behind]
    left = [hold for hold in before if not hold.is_portable]
    if not before:
        words = "The file computes in float32, of which processors differ in the last bits."
        return Marked(words, "good" if are_portable(holds) else "watch")
    if left:
        words = f"It holds for x86 only: on Arm, {_named(left)} may compute other codes."
    else:
        ruled = [hold for hold in before if not hold.inputs]
        enumerated = [hold for hold in before if hold.inputs]
        reasons = [f"{_operators(ruled)} by their rules"] if ruled else []
        if enumerated:
            inputs = sum(hold.inputs for hold in enumerated)
            reasons.append(f"{_operators(enumerated)} proved for all {inputs:,} inputs")
        where = " in front of float values" if behind else ""
        words = f"With XNNPACK, the codes{where} are the same on {EVERYWHERE}: "
        words += f"{', '.join(reasons)}."
    if behind:
        words += (
            " Nothing is said of the codes behind float values, in which processors differ in the "
            f"last bits: {_named(behind)}."
        )
    return Marked(words, "good" if are_portable(holds) else "watch")


def _named(holds: list[Hold]) -> str:
    names = ", ".join(dict.fromkeys(hold.operators for hold in holds))
    return f"{_operators(holds)} ({names})"


def _operators(holds: list[Hold]) -> str:
    count = sum(len(hold.tensors) for hold in holds)
    return f"{count:,} operator{'s' if count != 1 else ''}"


# -- releases of LiteRT ----------------------------------------------------------------------------

# The first release that computes the codes of a file whose matrices are stored like this, found by
# running a file of each kind in every release of `ai-edge-litert`; the guide to the export says
# how. Older releases refuse files with packed matrices, or leave them to their builtin kernels,
# which round otherwise. INT4 convolutions have run since the first release.
FIRST_RELEASES = {Storage.INT8: "1.0.0", Storage.INT4: "1.3.0", Storage.INT2: "2.1.2"}
# The first release whose XNNPACK pads by nothing where windows of SAME end early.
FIRST_WITH_EARLY_ENDS = "2.2.0"
_CONVOLUTIONS = ("CONV_2D", "DEPTHWISE_CONV_2D")


def first_release(matrices: Iterable[Storage], contents: Contents | None = None) -> str:
    """The first release of the Python package `ai-edge-litert` that computes a file's codes.

    >>> first_release([Storage.INT8, Storage.INT4])
    '1.3.0'
    """
    needed = [FIRST_RELEASES[storage] for storage in (Storage.INT8, *matrices)]
    if contents is not None and any(map(_ends_early, contents.operators)):
        needed.append(FIRST_WITH_EARLY_ENDS)
    return max(needed, key=lambda release: [int(part) for part in release.split(".")])


def wrong_before(contents: Contents) -> Iterator[str]:
    """The warning for convolutions that earlier releases of XNNPACK compute wrongly, in words."""
    tensors = [one.outputs[0].name for one in contents.operators if _ends_early(one)]
    if tensors:
        yield (
            f"{first_ones(tensors)}: the windows of padding='same' end in front of the last row or "
            f"column, which XNNPACK computes wrongly in LiteRT before {FIRST_WITH_EARLY_ENDS}, and "
            "in tf.lite.Interpreter of TensorFlow 2.21, without a word; run the file in a later "
            "LiteRT, or build the layer with padding='valid' behind a ZeroPadding2D"
        )


def _ends_early(operator: StoredOperator) -> bool:
    """See `windows.ends_early`, for an operator of any tool's file."""
    options = operator.options
    if operator.name not in _CONVOLUTIONS or options is None or len(operator.reads) < 2:
        return False
    image, kernel = (tensor.shape for tensor in operator.reads[:2])
    if len(image) != 4 or len(kernel) != 4 or options.padding != tfl.Padding.SAME:
        return False
    strides = options.strideH, options.strideW
    dilation = options.dilationHFactor, options.dilationWFactor
    return min(strides) > 0 and ends_early(
        image[1:3], kernel[1:3], Window(strides, "SAME", dilation)
    )
