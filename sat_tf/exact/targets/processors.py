"""The processors that files are made for; `operator_constraints` has their operators."""

import dataclasses
from collections.abc import Collection, Mapping
from typing import Any

from sat_tf.messages import REMOVED, did_you_mean


@dataclasses.dataclass(frozen=True, kw_only=True)
class Processor:
    """One row of the table of targets."""

    name: str  # The name in options and policies.
    title: str  # The name in sentences.
    stores: frozenset[int] = frozenset({8})  # The storage of kernels that it takes, by their bits.
    output_type: str = "float32"  # The type of outputs that it makes by itself.
    # Whether it is an NPU, which computes functions, pools and resizing by integer operators of its
    # own, and leaves unknown operators to the CPU.
    native: bool = False
    wide: bool = False  # Whether an NPU also computes with codes of 16 bits.
    # Whether programs have its files compiled in, and kernels may be tables of values.
    on_microcontrollers: bool = False
    # For a specification, which many processors follow: the runtime that computes it, in every
    # certificate of its files. None for a processor.
    confirmed_by: str | None = None

    def packing(self, pack: str) -> str:
        """Returns how its files store kernels: as asked for, where "auto" is what it takes."""
        return "none" if pack == "auto" and min(self.stores) == 8 else pack

    def shortfall(self, left: int, count: int) -> str:
        """Says in a sentence how many of a file's operators it does not compute."""
        share = f"{left} of {count} operators"
        if self.confirmed_by:
            return f"{share} are not those of {self.title}."
        if not self.native:
            return f"{self.title} refuses {share}."
        return f"{self.title} leaves {share} to the CPU."


_INTEGERS: dict[str, Any] = {"output_type": "int8", "native": True}
_WIDE = {**_INTEGERS, "wide": True}
_ROWS = (
    Processor(name="litert", title="LiteRT's CPU kernels", stores=frozenset({8, 4, 2})),
    Processor(name="micro", title="TFLite Micro", on_microcontrollers=True),
    *(Processor(name=f"ethos-u{u}", title=f"Arm Ethos-U{u}", **_WIDE) for u in (55, 65, 85)),
    Processor(
        name="int8", title="TFLite's int8 specification", confirmed_by="reference", **_INTEGERS
    ),
)
PROCESSORS: Mapping[str, Processor] = {row.name: row for row in _ROWS}
DEFAULT_TARGET = "litert"
DEFAULT_PROCESSOR = PROCESSORS[DEFAULT_TARGET]
# The targets of earlier versions, by the names in files and models that these have saved.
_FORMER_TARGETS = {"edgetpu": "int8", "android-npu": "int8"}


def saved_target(name: Any) -> Any:
    """Returns the present target for the one with which a file or a model was saved."""
    return _FORMER_TARGETS.get(name, name) if isinstance(name, str) else name


def saved_processor(name: str) -> Processor:
    """Returns the processor that a certificate names, even if only a later version knows it."""
    return PROCESSORS.get(saved_target(name), Processor(name=name, title=name))


# The types of outputs that a file can have.
OUTPUT_TYPES = ("float32", "int8", "uint8")


def target_problem(name: object) -> str | None:
    """Says why `name` is not the name of a target, with a suggestion; None where it is."""
    if isinstance(name, str) and (removed := f"target={name}") in REMOVED:
        return f"{name!r} is gone; {REMOVED[removed]}."
    return _problem(name, PROCESSORS, f"one of {', '.join(map(repr, PROCESSORS))}")


def output_type_problem(output_type: object) -> str | None:
    """Says why this is no type of outputs, with the fix; None where it is one."""
    return _problem(output_type, OUTPUT_TYPES, "'float32', 'int8' or 'uint8'")


def _problem(received: object, names: Collection[str], expected: str) -> str | None:
    if isinstance(received, str) and received in names:
        return None
    hint = did_you_mean(str(received), names, is_listed=True)
    return f"received {received!r}, expected {expected}.{f' {hint}' if hint else ''}"
