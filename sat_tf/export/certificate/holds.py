"""The reach of a certificate: on which processors XNNPACK computes the same codes, and why."""

import collections
import dataclasses

from sat_tf.export.kernels.kernel_sets import XNNPACK_SETS
from sat_tf.export.operations.graph import Graph
from sat_tf.export.operations.operation import Basis, Portability
from sat_tf.presentation.tables import Marked

NOT_SAID = (
    "Nothing is said of GPU delegates, NNAPI and the delegates of vendors' neural processors, "
    "which have rules of their own."
)
EVERYWHERE = "x86 and on Arm (version 7 and later: NEON, dot-product, i8mm and SME kernels)"


_NOT_KNOWN = (Basis.IMAGES.value, Basis.BEHIND_FLOAT.value)


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
        return self.basis not in _NOT_KNOWN and not any(self.differing.values())

    @property
    def is_float(self) -> bool:
        """Whether they make float values, of which no codes are compared."""
        return self.basis == Basis.FLOAT.value


_BEHIND_FLOAT = Portability(
    Basis.BEHIND_FLOAT,
    "it depends on float values, in which processors differ in the last bits",
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
