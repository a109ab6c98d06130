"""Runtimes that a verification compares, releases of LiteRT, and processors with equal codes."""

import dataclasses
import importlib.util
from collections.abc import Iterable, Iterator

from ai_edge_litert import schema_py_generated as tfl

from sat_tf.exact.kernels import kernel_sets
from sat_tf.exact.kernels.kernel_sets import XNNPACK_SETS, KernelSet
from sat_tf.exact.litert.runtime import MICRO, PACKAGE
from sat_tf.exact.operations.graph import Graph
from sat_tf.exact.operations.operation import Basis, Portability
from sat_tf.exact.operations.windows import ends_early
from sat_tf.exact.targets.processors import DEFAULT_TARGET, PROCESSORS
from sat_tf.exact.tflite.contents import Contents, StoredOperator
from sat_tf.exact.tflite.tensors import Storage, Window
from sat_tf.messages import did_you_mean, first_ones


@dataclasses.dataclass(frozen=True)
class RuntimeKind:
    """A runtime."""

    name: str  # The name for users.
    title: str  # The title in tables.
    kernels: KernelSet  # The kernels that round like it.
    is_simulated: bool = False  # Whether it runs on other machines, and is simulated.


_KINDS = (
    RuntimeKind("xnnpack", "LiteRT with XNNPACK", kernel_sets.of_this_machine()),
    RuntimeKind("builtin", "LiteRT, builtin kernels", kernel_sets.builtin_of_this_machine()),
    RuntimeKind("reference", "LiteRT, reference kernels", kernel_sets.REFERENCE),
    RuntimeKind(MICRO, "TFLite Micro", kernel_sets.MICRO),
    RuntimeKind("arm_xnnpack", "Arm, XNNPACK (simulated)", kernel_sets.ARM, True),
    RuntimeKind(
        "arm_xnnpack_unfused", "Arm, XNNPACK unfused (simulated)", kernel_sets.ARM_UNFUSED, True
    ),
    RuntimeKind("arm_builtin", "Arm, builtin kernels (simulated)", kernel_sets.BUILTIN_ARM, True),
)
RUNTIMES: dict[str, RuntimeKind] = {spec.name: spec for spec in _KINDS}


def runtime_title(name: str) -> str:
    """Returns a runtime's title in tables; its name where only another version knows it."""
    return RUNTIMES[name].title if name in RUNTIMES else name


# These cost little: operations that are the same on all processors are not simulated again.
USUAL_RUNTIMES = ("xnnpack", "builtin", "arm_xnnpack", "arm_xnnpack_unfused")


def chosen(
    names: Iterable[str], target: str = DEFAULT_TARGET, *, needs_micro: bool = False
) -> list[RuntimeKind]:
    """Returns the named runtimes, "xnnpack", and those that a file needs, where installed."""
    if isinstance(names, str) or not isinstance(names, Iterable):
        raise ValueError(
            f"runtimes: received {names!r}, expected a list of names; pass one such as ['builtin']."
        )
    all_names = {"xnnpack", *map(str, names)}
    if target in PROCESSORS and (confirming := PROCESSORS[target].confirmed_by):
        all_names.add(confirming)
    if needs_micro and is_installed(MICRO):
        all_names.add(MICRO)
    unknown = sorted(all_names - set(RUNTIMES))
    if unknown:
        raise ValueError(
            f"runtimes: received {', '.join(unknown)}, expected names of runtimes. "
            f"{did_you_mean(unknown[0], RUNTIMES)}"
        )
    if MICRO in all_names and not is_installed(MICRO):
        raise ValueError(
            f"runtimes: received {MICRO!r}, expected that TFLite Micro is installed, which it is "
            f"not; install {PACKAGE} with pip install 'sat-tf[micro]', or leave it out."
        )
    return [spec for spec in RUNTIMES.values() if spec.name in all_names]


def is_installed(name: str) -> bool:
    """Returns whether a runtime can be compared on this machine."""
    return name != MICRO or importlib.util.find_spec("tflite_micro") is not None


# -- releases of LiteRT ----------------------------------------------------------------------------

# The first release that computes the codes of a file whose matrices are stored like this, found by
# running a file of each kind in every release of `ai-edge-litert`; the guide to the export says
# how. Older releases refuse files with packed matrices, or leave them to their builtin kernels,
# which round differently. INT4 convolutions have run since the first release.
FIRST_RELEASES = {Storage.INT8: "1.0.0", Storage.INT4: "1.3.0", Storage.INT2: "2.1.2"}
# The first release whose XNNPACK pads nothing where windows of SAME end early.
FIRST_WITH_EARLY_ENDS = "2.2.0"
# The release with which files of 16 bits were compared; no other was tried.
FIRST_WITH_WIDE = "2.3.0"
_CONVOLUTIONS = ("CONV_2D", "DEPTHWISE_CONV_2D")


def first_release(matrices: Iterable[Storage], contents: Contents | None = None) -> str:
    """Returns the first release of the package `ai-edge-litert` that computes a file's codes.

    >>> first_release([Storage.INT8, Storage.INT4])
    '1.3.0'
    """
    needed = [FIRST_RELEASES[storage] for storage in (Storage.INT8, *matrices)]
    if contents is not None and any(
        tensor.type == "INT16" and tensor.scales.size for tensor in contents.tensors
    ):
        needed.append(FIRST_WITH_WIDE)
    if contents is not None and any(map(_ends_early, contents.operators)):
        needed.append(FIRST_WITH_EARLY_ENDS)
    return max(needed, key=lambda release: [int(number) for number in release.split(".")])


def wrong_before(contents: Contents) -> Iterator[str]:
    """Yields the warning for convolutions that earlier releases of XNNPACK compute wrongly."""
    tensors = [operator.outputs[0].name for operator in contents.operators if _ends_early(operator)]
    if tensors:
        yield (
            f"{first_ones(tensors)}: the windows of padding='same' end in front of the last row or "
            f"column, which XNNPACK computes wrongly in LiteRT before {FIRST_WITH_EARLY_ENDS}, and "
            "in tf.lite.Interpreter of TensorFlow 2.21, without a word; run the file in a later "
            "LiteRT, or build the layer with padding='valid' after a ZeroPadding2D"
        )


def _ends_early(operator: StoredOperator) -> bool:
    """Returns `windows.ends_early` for an operator of any tool's file."""
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


# -- the processors on which XNNPACK computes the codes of a file, operator by operator ----------

# The bases that prove that an operator has its codes on all processors, or makes none. A basis of
# later versions proves nothing to this one.
_PROVEN = {basis.value for basis in (Basis.RULE, Basis.ENUMERATED, Basis.FLOAT)}


@dataclasses.dataclass(frozen=True)
class PortabilityClaim:
    """A claim that operators with the same grounds share."""

    operators: str  # The operators' names.
    tensors: list[str]  # The tensors that they make.
    basis: str  # The ground of the claim, a value of `Basis`.
    why: str  # The reason in words.
    inputs: int = 0  # The number of different inputs of the rounding tried with every rule.
    # The number of these inputs that get another code than on x86, by kernel set.
    differing: dict[str, int] = dataclasses.field(default_factory=dict)

    @property
    def is_portable(self) -> bool:
        """Whether XNNPACK has the same codes on all processors, or the operators make none."""
        return self.basis in _PROVEN and not any(self.differing.values())

    @property
    def is_float(self) -> bool:
        """Whether the operators make float values, which have no codes to compare."""
        return self.basis == Basis.FLOAT.value

    @property
    def is_behind_float(self) -> bool:
        """Whether the operators' codes depend on float values in which processors differ."""
        return self.basis == Basis.BEHIND_FLOAT.value


_BEHIND_FLOAT = Portability(
    Basis.BEHIND_FLOAT, "it depends on float values, in which processors differ in the last bits"
)


def portability_of(graph: Graph) -> list[PortabilityClaim]:
    """Returns the claims on a graph's operations; operations with the same grounds share one."""
    groups: dict[tuple[str, Basis, str, bool], list[tuple[str, Portability]]] = {}
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
        groups.setdefault(key, []).append((operation.output, portability))
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
                if (total := sum(evidence.differing.get(kernels.name, 0) for _, evidence in group))
            },
        )
        for (operators, basis, why, _), group in groups.items()
    ]


def are_portable(claims: list[PortabilityClaim]) -> bool:
    """Returns whether XNNPACK computes a file's codes on all processors: all claims say so."""
    of_codes = [claim for claim in claims if not claim.is_float]
    return bool(of_codes) and all(claim.is_portable for claim in of_codes)
