"""The processors on which XNNPACK computes the codes of a file, operator by operator."""

import collections
import dataclasses

from sat_tf.exact.kernels.kernel_sets import XNNPACK_SETS
from sat_tf.exact.operations.graph import Graph
from sat_tf.exact.operations.operation import Basis, Portability

# What tells of an operator that it has its codes on all processors, or that it makes none. What
# later versions name proves nothing to this one.
_PROVEN = {basis.value for basis in (Basis.RULE, Basis.ENUMERATED, Basis.FLOAT)}


@dataclasses.dataclass(frozen=True)
class PortabilityClaim:
    """The claim on operators of which the same is known."""

    operators: str  # Their names.
    tensors: list[str]  # What they make.
    basis: str  # What the claim rests on, a value of `Basis`.
    why: str  # In words.
    inputs: int = 0  # How many different inputs of their rounding were tried with every rule.
    # How many of these get another code than on x86, by the kernels.
    differing: dict[str, int] = dataclasses.field(default_factory=dict)

    @property
    def is_portable(self) -> bool:
        """Whether XNNPACK has the same codes on all processors, or they make none."""
        return self.basis in _PROVEN and not any(self.differing.values())

    @property
    def is_float(self) -> bool:
        """Whether they make float values, of which no codes are compared."""
        return self.basis == Basis.FLOAT.value

    @property
    def is_behind_float(self) -> bool:
        """Whether their codes depend on float values in which processors differ."""
        return self.basis == Basis.BEHIND_FLOAT.value


_BEHIND_FLOAT = Portability(
    Basis.BEHIND_FLOAT, "it depends on float values, in which processors differ in the last bits"
)


def portability_of(graph: Graph) -> list[PortabilityClaim]:
    """Returns a claim on each operation of a graph; those of which the same is known share one."""
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
        PortabilityClaim(
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


def are_portable(claims: list[PortabilityClaim]) -> bool:
    """Returns whether XNNPACK computes a file's codes on all processors: all claims say so."""
    of_codes = [claim for claim in claims if not claim.is_float]
    return bool(of_codes) and all(claim.is_portable for claim in of_codes)
