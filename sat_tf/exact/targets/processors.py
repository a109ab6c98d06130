"""The processors that files are made for; their operators are in `sat_tf.exact.targets.table`."""

import dataclasses
from collections.abc import Collection, Mapping

from sat_tf.messages import did_you_mean


@dataclasses.dataclass(frozen=True, kw_only=True)
class Processor:
    """One row of the table of targets."""

    name: str  # As options and policies call it.
    title: str  # As sentences call it.
    source: str  # Where its constraints stand.
    stores: frozenset[int] = frozenset({8})  # The storage of kernels that it takes, by their bits.
    output_type: str = "float32"  # The type of outputs that it makes by itself.
    # It is an NPU, which computes functions, pools and resizing by integer operators of its own,
    # and leaves what it does not know to the CPU.
    native: bool = False
    has_hard_swish: bool = True  # Of an NPU, HARD_SWISH is one of them.
    # The first operator that it leaves to the CPU takes all behind it there too.
    one_partition: bool = False

    def packing(self, pack: str) -> str:
        """How its files store kernels: what is asked for, of which "auto" is what it takes.

        >>> PROCESSORS["micro"].packing("auto"), PROCESSORS["micro"].packing("int4")
        ('none', 'int4')
        """
        return "none" if pack == "auto" and min(self.stores) == 8 else pack


_ROWS = (
    Processor(
        name="litert",
        title="LiteRT's CPU kernels",
        source="measured with ai-edge-litert, on x86 and on emulated Arm processors",
        stores=frozenset({8, 4, 2}),
    ),
    Processor(
        name="micro",
        title="TFLite Micro",
        source="measured with tflite-micro: its operators; FULLY_CONNECTED has no packed kernels",
    ),
    *(
        Processor(
            name=f"ethos-u{model}",
            title=f"Arm Ethos-U{model}",
            source="the list of supported operators that Arm's compiler ethos-u-vela 5.2.0 writes",
            output_type="int8",
            native=True,
        )
        for model in (55, 65, 85)
    ),
    Processor(
        name="edgetpu",
        title="Google's Edge TPU",
        source="the table of operators in Coral's documentation, and reports of its compiler 16",
        output_type="int8",
        native=True,
        has_hard_swish=False,
        one_partition=True,
    ),
    Processor(
        name="android-npu",
        title="the NPUs of Android phones",
        source="what the documentation of Qualcomm's QNN and MediaTek's Neuron have in common",
        output_type="int8",
        native=True,
    ),
)
PROCESSORS: Mapping[str, Processor] = {row.name: row for row in _ROWS}
DEFAULT_TARGET = "litert"
DEFAULT_PROCESSOR = PROCESSORS[DEFAULT_TARGET]


# The types of outputs that a file can have.
OUTPUT_TYPES = ("float32", "int8", "uint8")


def target_problem(name: object) -> str | None:
    """Why `name` is not the name of a target, with a suggestion; None where it is."""
    return _problem(name, PROCESSORS, f"one of {', '.join(map(repr, PROCESSORS))}")


def output_type_problem(output_type: object) -> str | None:
    """Why this is no type of outputs, with the fix; None where it is one."""
    return _problem(output_type, OUTPUT_TYPES, "'float32', 'int8' or 'uint8'")


def _problem(received: object, known: Collection[str], expected: str) -> str | None:
    if isinstance(received, str) and received in known:
        return None
    hint = did_you_mean(str(received), known)
    # Where none is near, all of them are listed already.
    return f"received {received!r}, expected {expected}.{f' {hint}' if hint.endswith('?') else ''}"
