"""The machine that runs files: its processor, and the delegate that LiteRT uses by itself."""

import contextlib
import dataclasses
import pathlib
import platform
import re
import subprocess

from sat_tf.export.litert.processes import trial

# The instructions that XNNPACK has int8 kernels for, as Linux names them.
_INSTRUCTION_SETS = (
    *("ssse3", "sse4_1", "avx", "fma", "avx2", "f16c", "avx512f", "avx512bw", "avx512_vnni"),
    *("avx_vnni", "amx_int8", "asimd", "neon", "asimdhp", "asimdrdm", "asimddp", "i8mm", "sve"),
    *("sve2", "sme", "sme2"),
)
KNOWN_DELEGATE = "XNNPACK"
NO_DELEGATE = "none"
_CREATED = re.compile(r"Created TensorFlow Lite (.+?) delegate")
_SECONDS = 60
# The delegate that this process has found: a build of LiteRT has the same one for all files.
_found: list[str] = []


@dataclasses.dataclass(frozen=True)
class Machine:
    """A machine.

    Attributes:
        architecture: as Python names it, such as x86_64 or aarch64.
        instruction_sets: those for int8 kernels that its processor says it has; empty where the
            system does not tell.
        delegate: what LiteRT says it has created by itself, or "none".
    """

    architecture: str
    instruction_sets: list[str]
    delegate: str

    @property
    def doubt(self) -> str | None:
        """A warning; None where the delegate is the one that the proof is about."""
        if self.delegate == KNOWN_DELEGATE:
            return None
        if self.delegate == NO_DELEGATE:
            return (
                "LiteRT has created no delegate here, so that its builtin kernels run the file, "
                "which round otherwise than XNNPACK"
            )
        return (
            f"LiteRT runs the file with the delegate {self.delegate}, whose rounding is not known "
            "to this version of sat-tf: what is said of other processors is said of XNNPACK"
        )


def this_machine(content: bytes) -> Machine:
    """The machine that this process runs on.

    Args:
        content: a file that LiteRT runs.
    """
    if not _found:
        _found.append(_delegate(content))
    return Machine(platform.machine(), _instruction_sets(), _found[0])


def _instruction_sets() -> list[str]:
    words: set[str] = set()
    with contextlib.suppress(OSError):
        for line in pathlib.Path("/proc/cpuinfo").read_text(errors="replace").splitlines():
            name, _, values = line.partition(":")
            if name.strip().lower() in ("flags", "features"):
                words.update(values.split())
    return [name for name in _INSTRUCTION_SETS if name in words]


def _delegate(content: bytes) -> str:
    """The delegate that LiteRT names on the standard error of a process of its own."""
    try:
        done = trial(content, ["xnnpack"], _SECONDS)
    except (OSError, subprocess.TimeoutExpired):
        return NO_DELEGATE
    created = _CREATED.search(done.stderr.decode(errors="replace"))
    return created[1] if created else NO_DELEGATE
