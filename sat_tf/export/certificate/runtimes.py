"""The runtimes that a verification can compare: those that run here, and those it simulates."""

import dataclasses
import importlib.util
from collections.abc import Iterable

from sat_tf.export.kernels import kernel_sets
from sat_tf.export.kernels.kernel_sets import KernelSet
from sat_tf.export.litert.micro import MICRO, PACKAGE
from sat_tf.messages import did_you_mean


@dataclasses.dataclass(frozen=True)
class RuntimeKind:
    """A runtime.

    Attributes:
        name: for users.
        title: in tables.
        kernels: the kernels that round as it does.
        is_simulated: whether it is only simulated, as what runs it is another machine.
    """

    name: str
    title: str
    kernels: KernelSet
    is_simulated: bool = False


def _simulated(name: str, title: str, kernels: KernelSet) -> RuntimeKind:
    return RuntimeKind(name, f"{title} (simulated)", kernels, is_simulated=True)


_KINDS = (
    RuntimeKind("xnnpack", "LiteRT with XNNPACK", kernel_sets.of_this_machine()),
    RuntimeKind("builtin", "LiteRT, builtin kernels", kernel_sets.builtin_of_this_machine()),
    RuntimeKind("reference", "LiteRT, reference kernels", kernel_sets.REFERENCE),
    RuntimeKind(MICRO, "TFLite Micro", kernel_sets.MICRO),
    _simulated("arm_xnnpack", "Arm, XNNPACK", kernel_sets.ARM),
    _simulated("arm_xnnpack_unfused", "Arm, XNNPACK unfused", kernel_sets.ARM_UNFUSED),
    _simulated("arm_builtin", "Arm, builtin kernels", kernel_sets.BUILTIN_ARM),
)
RUNTIMES: dict[str, RuntimeKind] = {kind.name: kind for kind in _KINDS}

# These cost little: nothing of a file that is the same on all processors is simulated again.
USUAL_RUNTIMES = ("xnnpack", "builtin", "arm_xnnpack", "arm_xnnpack_unfused")


def chosen(names: Iterable[str]) -> list[RuntimeKind]:
    """The runtimes of these names, in the order of the table; "xnnpack" always takes part.

    Raises:
        ValueError: a name is unknown, or of a runtime that is not installed.
    """
    if isinstance(names, str):
        raise ValueError(
            f"runtimes: received the string {names!r}, expected a list of names; pass [{names!r}]."
        )
    wanted = {"xnnpack", *names}
    unknown = sorted(wanted - set(RUNTIMES))
    if unknown:
        raise ValueError(
            f"runtimes: received {', '.join(unknown)}, expected names of runtimes. "
            f"{did_you_mean(unknown[0], RUNTIMES)}"
        )
    if MICRO in wanted and not is_installed(MICRO):
        raise ValueError(
            f"runtimes: received {MICRO!r}, expected that TFLite Micro is installed, which it is "
            f"not; install {PACKAGE} with pip install 'sat-tf[micro]', or leave it out."
        )
    return [kind for kind in _KINDS if kind.name in wanted]


def installed() -> list[str]:
    """The names of all runtimes that can be compared here."""
    return [name for name in RUNTIMES if is_installed(name)]


def is_installed(name: str) -> bool:
    """Whether a runtime can be compared here."""
    return name != MICRO or importlib.util.find_spec("tflite_micro") is not None
