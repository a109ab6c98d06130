"""The interface of a deployed graph's operations, and of rows of the table of operators."""

import abc
import dataclasses
import enum
from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar, NamedTuple, Self

import numpy as np

from sat_tf.exact.kernels.kernel_sets import X86, XNNPACK_SETS, KernelSet
from sat_tf.exact.tflite.contents import NotUnderstoodError
from sat_tf.exact.tflite.operator_view import OperatorView
from sat_tf.exact.tflite.tensors import WIDE, Activation, Codes, Tensors, dequantized
from sat_tf.exact.tflite.writer import Operator, Writer

# Why kernels agree.
SELECTED = "it moves or selects values, and computes none"
ROUNDED_ONCE = "one float32 operation a value, which all processors round alike"
WIDE_ALIKE = "XNNPACK leaves 16 bits to builtin kernels that all processors have in common"

# The operation that an operator of a file becomes, and the codes of its tensor; None where more of
# the operation's operators follow.
Made = tuple["Operation", Codes | None] | None


class Basis(enum.Enum):
    """How it is known that processors agree on an operation."""

    RULE = "by its rule"
    ENUMERATED = "proved for every input"
    IMAGES = "compared on images"
    FLOAT = "float"
    BEHIND_FLOAT = "behind float values"


@dataclasses.dataclass(frozen=True)
class Portability:
    """The agreement of processors with x86 on an operation's codes, where XNNPACK runs the file."""

    basis: Basis  # How the agreement is known.
    why: str  # The reason, in words.
    # The number of different inputs of its rounding, all of which were tried; 0 where no input was
    # tried.
    inputs: int = 0
    # The number of inputs that get another code, by the name of the kernel set.
    differing: Mapping[str, int] = dataclasses.field(default_factory=dict)

    @property
    def holds(self) -> bool:
        """Whether the codes are the same with all kernels of XNNPACK, on all processors."""
        is_certain = self.basis not in (Basis.IMAGES, Basis.BEHIND_FLOAT)
        return is_certain and not any(self.differing.values())


def enumerated(
    inputs: np.ndarray,
    codes: Callable[[KernelSet, np.ndarray], np.ndarray],
    what: str,
    *,
    total: int,
) -> Portability:
    """Returns the portability of an operation that makes `codes` of inputs that are all known.

    `inputs` are the ones among all `total` that rules may round differently, for example sums near
    half a code; `what` names them in the plural.
    """
    expected, *arrays = (codes(kernels, inputs) for kernels in XNNPACK_SETS)
    differing = {
        kernels.name: int(np.count_nonzero(array != expected))
        for kernels, array in zip(XNNPACK_SETS[1:], arrays, strict=True)
    }
    why = f"all {what} of its codes have been tried with every rule of XNNPACK"
    return Portability(Basis.ENUMERATED, why, total, differing)


@dataclasses.dataclass(frozen=True)
class Operation(abc.ABC):
    """One operation of a graph, complete in one file; `graph_file.OPERATIONS` lists them all."""

    inputs: tuple[str, ...]  # Names of the tensors that it reads.
    output: str  # Name of the tensor that it makes.

    operator: ClassVar[Operator]  # Its operator in a file, where it has a single, fixed one.
    # Names of the operators from which it may be read; by default the name of `operator`.
    reads: ClassVar[tuple[str, ...]] = ()
    # Names of the operators that sat-tf writes and its files may have; by default `reads`.
    writes: ClassVar[tuple[str, ...]] = ()
    same_because: ClassVar[str] = SELECTED  # Why all kernels of XNNPACK give it the same codes.
    # Why all processors give it the same float values; "" where they differ in the last bits.
    same_in_float_because: ClassVar[str] = ""
    rounds: ClassVar[bool] = False  # Whether runtimes have different rules for its codes.
    # Whether its codes are those of an input of the model.
    of_input: ClassVar[bool] = False
    # Whether its grid cannot move, as that of an input's codes, or of a table's.
    has_fixed_grid: ClassVar[bool] = False
    # Whether it reads numbers as they are, such as ids, and not as codes or real values.
    reads_numbers: ClassVar[bool] = False
    # Whether its arithmetic is known; otherwise a runtime has to give its values.
    is_simulated: ClassVar[bool] = True
    makes_probabilities: ClassVar[bool] = False  # Whether it is a softmax.
    averages: ClassVar[bool] = False  # Whether it makes means of values of its input.
    reshapes: ClassVar[bool] = False  # Whether it only changes the shape of values.
    moves: ClassVar[bool] = False  # Whether layers of data movement become it.
    converts: ClassVar[bool] = False  # Whether its output may have other bits than its input.
    of_each_code: ClassVar[bool] = False  # Whether each code is made of one, wherever that lies.

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        if "operator" in vars(cls) and "reads" not in vars(cls):
            cls.reads = (cls.operator.name,)
        if "writes" not in vars(cls):
            cls.writes = cls.reads

    def renamed(self, names: Mapping[str, str]) -> Self:
        """Returns the same operation with other names of tensors."""
        inputs = tuple(names.get(name, name) for name in self.inputs)
        return dataclasses.replace(self, inputs=inputs, output=names.get(self.output, self.output))

    # -- in words --------------------------------------------------------------------------------

    @property
    def operators(self) -> tuple[str, ...]:
        """The names of its operators in the file, for `explain`."""
        return (self.operator.name,)

    def title(self, graph: Tensors) -> str:
        """Returns its name in the listing of a graph."""
        return ", ".join(self.operators)

    def weights_title(self) -> str:
        """Returns the range of its weights in the listing; empty where it has no weights."""
        return ""

    @property
    def num_weights(self) -> int:
        """The number of its weights."""
        return 0

    def multiply_adds(self, graph: Tensors) -> int:
        """Returns the number of products of weights and inputs that one image takes."""
        return 0

    @property
    def float_layer(self) -> str | None:
        """The layer left float that it stands for, or is part of; None for any other operation."""
        return None

    def is_float(self, graph: Tensors) -> bool:
        """Returns whether it makes a float tensor."""
        return graph.tensors[self.output].codes is None

    @property
    def joins(self) -> bool:
        """Whether it puts tensors together to one, whatever their number."""
        return False

    @property
    def on_rows(self) -> Self | None:
        """The operation for images of one row in place of sequences; None where it may differ."""
        return self if self.of_each_code else None

    @property
    def keeps_grid(self) -> bool:
        """Whether its codes are those of its inputs, so that all are on one grid."""
        return self.selects

    @property
    def takes_one_image(self) -> bool:
        """Whether its operator holds the shape of its output, the batch of 1 included."""
        return False

    def bits(self, graph: Tensors) -> set[int]:
        """Returns the bits of the codes that it reads and makes."""
        tensors = (graph.tensors.get(name) for name in (*self.inputs, self.output))
        return {tensor.codes.bits for tensor in tensors if tensor and tensor.codes}

    def scale_problem(self, graph: Tensors) -> str | None:
        """Returns why its kernel does not take its scales, with the fix; None where it does."""
        return None

    def takes_blocks(self, graph: Tensors) -> bool:
        """Whether its kernels take blocks of values that reach from one image into the next."""
        return False

    @property
    def takes_wide(self) -> bool:
        """Whether its rules are those of kernels for codes of 16 bits, too."""
        return self.moves or self.converts

    def bits_problem(self, graph: Tensors) -> str | None:
        """Returns why no kernel takes the bits of its codes; None where one does."""
        bits = self.bits(graph)
        if WIDE not in bits or self.converts or (self.takes_wide and len(bits) == 1):
            return None
        received = " and ".join(map(str, sorted(bits)))
        return f"received a {self.operators[0]} of {received} bits, which no known kernel computes"

    def warning(self) -> str | None:
        """Returns what users of another tool's file should know of it; None where nothing."""
        return None

    def bounded(self, codes: Codes) -> Codes | None:
        """Returns its float tensor's codes within a bound that it sets; None without a bound."""
        return None

    @property
    def represented(self) -> str:
        """The tensor whose codes it only stores in another form; "" where it computes."""
        return ""

    @property
    def selects(self) -> bool:
        """Whether its codes are selected from those of its inputs, whatever their grid is."""
        return self.moves

    @property
    def told_apart(self) -> tuple[int, int] | None:
        """The codes of its input between which its own change, if they do not everywhere."""
        return None

    def portability(self, graph: Tensors) -> Portability:
        """Returns how far processors agree with x86 on its codes, where XNNPACK runs the file."""
        if not self.is_float(graph):
            return self.portability_of_codes(graph)
        if self.same_in_float_because:
            return Portability(Basis.RULE, self.same_in_float_because)
        return Portability(Basis.FLOAT, "processors differ in the last bits of float32")

    def portability_of_codes(self, graph: Tensors) -> Portability:
        """Returns its portability where it makes codes."""
        is_wide = self.rounds and not self.keeps_grid and WIDE in self.bits(graph)
        return Portability(Basis.RULE, WIDE_ALIKE if is_wide else self.same_because)

    def share_rounded_otherwise(self, graph: Tensors) -> float:
        """Returns the share of its codes that training may round otherwise, beside biases."""
        return 0.0

    def ends_process(self, graph: Tensors, kernels: KernelSet) -> str | None:
        """Returns why kernels may end the process that runs them; None where they never do."""
        return None

    def computes_alike(self, graph: Tensors, kernels: KernelSet) -> bool:
        """Returns whether kernels compute the codes of XNNPACK on x86 from the same inputs."""
        if self.is_float(graph) or not self.rounds or kernels is X86:
            return True
        if kernels not in XNNPACK_SETS:
            return False
        portability = self.portability(graph)
        return portability.basis is not Basis.IMAGES and not portability.differing.get(kernels.name)

    # -- in NumPy --------------------------------------------------------------------------------

    @abc.abstractmethod
    def simulate(self, graph: Tensors, *inputs: np.ndarray) -> np.ndarray:
        """Returns the output of the file's kernel for its inputs, bit for bit.

        Stored integers are int32, and values of float tensors float32; the batch dimension is first
        and may be empty.
        """

    # -- in a file -------------------------------------------------------------------------------

    @abc.abstractmethod
    def write(self, writer: Writer) -> None:
        """Adds its constants and its operators to a file, which has its tensors already."""

    @classmethod
    def recognizes(cls, operator: OperatorView) -> bool:
        """Returns whether an operator with one of the names in `reads` is this operation's."""
        return True

    @classmethod
    def read(cls, operator: OperatorView) -> Made:
        """Returns the operation of an operator of any tool, and the codes of its tensor.

        None where more of its operators follow; the facts read so far are then in
        `operator.progress.pending`. Raises NotUnderstoodError with the reason why there is no
        operation for it.
        """
        raise NotUnderstoodError("not an operator of sat-tf")

    def expect_own_form(self, operator: OperatorView) -> None:
        """Raises NotUnderstoodError where it was read from a form that sat-tf does not write."""
        if operator.activation == Activation.NONE.value:
            return
        codes = operator.fused_codes()
        if operator.activation == Activation.SIX.value:
            raise NotUnderstoodError(f"its fused activation is {operator.activation}")
        if codes and codes.rounded_ends is not Activation.NONE:
            raise NotUnderstoodError(f"its {operator.activation} ends between two codes")

    @property
    def num_constants(self) -> int:
        """The number of its tensors in a file, apart from its output."""
        return 0

    def constant_bytes(self, *, shares_kernel: bool) -> int:
        """Returns the bytes of these values and scales, without a kernel that others store."""
        return 0


def stored_codes(rounded: np.ndarray, codes: Codes) -> np.ndarray:
    """Returns rounded codes as stored integers, clipped."""
    low, high = codes.lowest - codes.zero_point, codes.highest - codes.zero_point
    stored = np.asarray(np.clip(rounded, low, high).astype(np.int32))
    stored += codes.zero_point
    return stored


# -- rows of the table of operators: a rule, a written form, and the reason why kernels agree ------


class Constant(NamedTuple):
    """A constant that an operator reads."""

    values: np.ndarray  # The values as the file has them.
    grid: Codes | None = None  # The grid of codes; None for numbers.

    @property
    def real(self) -> np.ndarray:
        """The real values of codes; numbers as they are."""
        return self.values if self.grid is None else dequantized(self.values, self.grid)


class Call(NamedTuple):
    """A call of an operator, with its operands in order."""

    kernels: KernelSet
    arrays: Sequence[np.ndarray]  # Stored integers with the batch dimension, or numbers.
    grids: Sequence[Codes | None]  # The grids of the arrays; None for numbers.
    made: Codes | None  # The grid of the output; None for float values.
    options: Mapping[str, Any]

    @property
    def output(self) -> Codes:
        """The grid of the output, where the output is codes."""
        return _expected(self.made)

    def grid(self, index: int = 0) -> Codes:
        """Returns the grid of a tensor of codes that it reads."""
        return _expected(self.grids[index])

    def codes(self, index: int = 0) -> np.ndarray:
        """Returns the codes, stored - zero_point, of a tensor that it reads."""
        return self.arrays[index].astype(np.int64) - self.grid(index).zero_point


def _expected(grid: Codes | None) -> Codes:
    if grid is None:
        raise TypeError("received float values, expected codes.")
    return grid


# The function that gives stored integers, in a list with an item for each tensor where the operator
# makes several. Raises ValueError where kernels do not take the operands.
Rule = Callable[[Call], Any]
# Values of int32 constants, and builtin options by their names.
Settings = tuple[Sequence[Any], dict[str, Any]]


class Written(NamedTuple):
    """The form of an operator that sat-tf writes."""

    version: int
    schema: str = ""  # The schema's name of its builtin options; "" where it has none.
    constants: tuple[str, ...] = ()  # The names of its constants.
    # The function that gives the constants and options of a layer's move, from the shape that it
    # reads, without the batch dimension, and the arguments of the move.
    settings: Callable[..., Settings] = lambda shape: ([], {})
    joins: bool = False  # Whether it reads any number of tensors.
    tensors: int = 1  # The number of tensors that it reads, where that is fixed.


class Row(NamedTuple):
    """An operator of TFLite's that one rule computes."""

    name: str
    rule: Rule
    options: tuple[str, ...] = ()  # The names of the options that its rule reads.
    # Why all kernels of XNNPACK give it the same codes; "" where that is not known.
    same_because: str = ""
    makes_several: bool = False
    of_one_value: bool = False  # Whether each code depends on one code, so that all can be tried.
    pads: bool = False  # Whether it puts zeros around the values.
    takes_wide: bool = False  # Whether it has kernels for codes of 16 bits, and the rule is theirs.
    grid: Codes | None = None  # The grid of the output, where TFLite fixes it.
    written: Written | None = None  # The form in sat-tf's files; None for other tools' operators.
    # Why its kernels do not take the scales of its input and output, with the fix.
    problem: Callable[[np.float32, np.float32], str | None] = lambda source, output: None
    # The function that says why kernels of Arm may make other codes on the grids of its tensors, ""
    # where they make the same.
    differs: Callable[..., str] | None = None
