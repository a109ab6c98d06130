"""Where a certificate holds: on which processors XNNPACK computes the same codes, and why."""

import collections
import dataclasses

from sat_tf.export.kernels.kernel_sets import XNNPACK_SETS
from sat_tf.export.operations.graph import Graph
from sat_tf.export.operations.portability import Basis

NOT_SAID = (
    "Nothing is said of GPU delegates, NNAPI and the delegates of vendors' neural processors, "
    "which have rules of their own."
)
EVERYWHERE = "x86 and on Arm (version 7 and later: NEON, dot-product, i8mm and SME kernels)"


@dataclasses.dataclass(frozen=True)
class Hold:
    """Operators of which the same is said.

    Attributes:
        operators: their names.
        tensors: what they make.
        basis: what the statement rests on, a value of `Basis`.
        why: in words.
        inputs: how many different inputs of their rounding were computed with every rule.
        differing: how many of these get another code than on x86, by the kernels.
    """

    operators: str
    tensors: list[str]
    basis: str
    why: str
    inputs: int = 0
    differing: dict[str, int] = dataclasses.field(default_factory=dict)

    @property
    def is_portable(self) -> bool:
        """Whether XNNPACK has the same codes on all processors."""
        return self.basis != Basis.IMAGES.value and not any(self.differing.values())

    @property
    def is_float(self) -> bool:
        """Whether they make float values, of which no codes are compared."""
        return self.basis == Basis.FLOAT.value


def holds_of(graph: Graph) -> list[Hold]:
    """What can be said of each operation of a graph, those of which the same is said together."""
    groups: dict[tuple[str, str, str, bool], list[tuple[str, int, dict[str, int]]]]
    groups = collections.defaultdict(list)
    for operation in graph.operations:
        found = operation.portability(graph)
        key = ", ".join(operation.operators), found.basis.value, found.why, found.holds
        groups[key].append((operation.output, found.inputs, dict(found.differing)))
    return [
        Hold(
            operators=operators,
            tensors=[tensor for tensor, _, _ in made],
            basis=basis,
            why=why,
            inputs=sum(inputs for _, inputs, _ in made),
            differing={
                kernels.name: total
                for kernels in XNNPACK_SETS
                if (total := sum(differing.get(kernels.name, 0) for _, _, differing in made))
            },
        )
        for (operators, basis, why, _), made in groups.items()
    ]


def verdict_of(holds: list[Hold]) -> str:
    """One sentence on all of them."""
    integer = [hold for hold in holds if not hold.is_float]
    left = [hold for hold in integer if not hold.is_portable]
    if not integer:
        return "The file computes in float32, of which processors differ in the last bits."
    if not left:
        ruled, enumerated = (
            [hold for hold in integer if bool(hold.inputs) == known] for known in (False, True)
        )
        reasons = [f"{_operators(ruled)} by their rules"] if ruled else []
        if enumerated:
            inputs = sum(hold.inputs for hold in enumerated)
            reasons.append(f"{_operators(enumerated)} proved for all {inputs:,} inputs")
        return f"With XNNPACK, the codes are the same on {EVERYWHERE}: {', '.join(reasons)}."
    names = ", ".join(dict.fromkeys(hold.operators for hold in left))
    return f"It holds for x86 only: on Arm, {_operators(left)} ({names}) may compute other codes."


def _operators(holds: list[Hold]) -> str:
    count = sum(len(hold.tensors) for hold in holds)
    return f"{count:,} operator{'s' if count != 1 else ''}"
