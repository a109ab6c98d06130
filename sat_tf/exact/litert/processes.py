"""Processes that try files, so that a file that crashes one crashes no other; and the machine."""

import contextlib
import dataclasses
import json
import os
import pathlib
import platform
import re
import signal
import subprocess
import sys
from collections.abc import Iterable

from sat_tf.exact.litert.runtime import MICRO, MicroRuntime, loaded


def child_command(runtimes: Iterable[str]) -> list[str]:
    """Returns the command of a process that tries a file in runtimes."""
    # -P: modules come from where this process has them, not from the working directory.
    return [sys.executable, "-P", "-m", "sat_tf.exact.litert.processes", *runtimes]


def child_environment() -> dict[str, str]:
    """Returns the environment of that process: one thread, and the package from its folder here."""
    package = str(pathlib.Path(__file__).parents[3])
    paths = [package, *filter(None, [os.environ.get("PYTHONPATH")])]
    threads = dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), "1")
    return {**os.environ, **threads, "PYTHONPATH": os.pathsep.join(paths)}


def describe_ending(status: int, errors: bytes) -> str:
    """Returns why a process that tries a file ended, in words."""
    if status >= 0:
        lines = errors.decode(errors="replace").strip().splitlines()
        return f"its process ended with status {status}: {lines[-1] if lines else 'no message'}"
    names = {number.value: number.name for number in signal.Signals}
    return f"it ends the process with {names.get(-status, f'signal {-status}')}"


# -- whether a file runs ---------------------------------------------------------------------------

# A network of a billion products takes the reference kernels some seconds an image.
_SECONDS = 300
_LARGEST_MEMORY_BYTES = 8 * 2**30


def refusals(content: bytes, runtimes: Iterable[str]) -> dict[str, str | None]:
    """Returns why each runtime does not run a file on zeros; None where it does."""
    waiting = list(runtimes)
    answers: dict[str, str | None] = {}
    while waiting:
        try:
            done = trial(content, waiting, _SECONDS)
            output, reason = done.stdout, describe_ending(done.returncode, done.stderr)
        except subprocess.TimeoutExpired as expired:
            output, reason = expired.stdout or b"", f"it took more than {_SECONDS} s"
        for line in output.decode(errors="replace").splitlines():
            # A line that is incomplete, or not one of the answers, is skipped.
            with contextlib.suppress(ValueError, KeyError, TypeError):
                answer = json.loads(line)
                answers[answer["runtime"]] = answer["refusal"]
        waiting = [name for name in waiting if name not in answers]
        if waiting:
            # The process ended in the first one that has not answered.
            answers[waiting.pop(0)] = reason
    return answers


def arena_bytes(content: bytes) -> int | None:
    """Returns the bytes of arena that TFLite Micro takes here; None where it does not run."""
    with contextlib.suppress(subprocess.TimeoutExpired, ValueError, KeyError):
        bytes_taken: int | None = json.loads(trial(content, [MICRO], _SECONDS).stdout)[
            "arena_bytes"
        ]
        return bytes_taken
    return None


def trial(
    content: bytes, runtimes: list[str], seconds: float
) -> subprocess.CompletedProcess[bytes]:
    """Runs a process that tries a file in runtimes until it ends; see `refusals`."""
    return subprocess.run(
        child_command(runtimes),
        input=content,
        capture_output=True,
        env=child_environment(),
        timeout=seconds,
        check=False,
    )


# -- the machine -----------------------------------------------------------------------------------

# The instructions that XNNPACK has int8 kernels for, as Linux names them.
_INSTRUCTION_SETS = (
    *("ssse3", "sse4_1", "avx", "fma", "avx2", "f16c", "avx512f", "avx512bw", "avx512_vnni"),
    *("avx_vnni", "amx_int8", "asimd", "neon", "asimdhp", "asimdrdm", "asimddp", "i8mm", "sve"),
    *("sve2", "sme", "sme2"),
)
KNOWN_DELEGATE = "XNNPACK"
NO_DELEGATE = "none"
_CREATED = re.compile(r"Created TensorFlow Lite (.+?) delegate")
_SECONDS_TO_SPEAK = 60
# The delegate that this process has found: a build of LiteRT has the same one for all files.
_found: list[str] = []


@dataclasses.dataclass(frozen=True)
class Machine:
    """A machine that LiteRT runs on."""

    architecture: str  # Python's name of the architecture, such as x86_64 or aarch64.
    # The processor's instruction sets for int8 kernels; empty where the system does not tell.
    instruction_sets: list[str]
    delegate: str  # The delegate that LiteRT says it has created by itself, or "none".

    @property
    def doubt(self) -> str | None:
        """A warning; None where the delegate is the one that the proof is about."""
        if self.delegate == KNOWN_DELEGATE:
            return None
        named = "no delegate" if self.delegate == NO_DELEGATE else f"the delegate {self.delegate}"
        return (
            f"LiteRT runs the file with {named} here, and may round otherwise than XNNPACK, of "
            "which alone is known what other processors compute"
        )


def usable_cores() -> int:
    """Returns the number of cores that this process may use; all where the system does not tell."""
    has_affinity = hasattr(os, "sched_getaffinity")
    return len(os.sched_getaffinity(0)) if has_affinity else os.cpu_count() or 1


def this_machine(content: bytes) -> Machine:
    """Returns this machine, with the delegate that LiteRT names on a process' standard error."""
    if not _found:
        delegate = NO_DELEGATE
        with contextlib.suppress(OSError, subprocess.TimeoutExpired):
            errors = trial(content, ["xnnpack"], _SECONDS_TO_SPEAK).stderr
            if created := _CREATED.search(errors.decode(errors="replace")):
                delegate = created[1]
        _found.append(delegate)
    words: set[str] = set()
    with contextlib.suppress(OSError):
        for line in pathlib.Path("/proc/cpuinfo").read_text(errors="replace").splitlines():
            name, _, values = line.partition(":")
            if name.strip().lower() in ("flags", "features"):
                words.update(values.split())
    instruction_sets = [name for name in _INSTRUCTION_SETS if name in words]
    return Machine(platform.machine(), instruction_sets, _found[0])


def _try_file(runtimes: list[str]) -> None:
    """Tries the file on standard input; prints an answer for each runtime."""
    # Memory that a damaged file asks for is refused, and not taken from other processes. Not every
    # system has limits.
    with contextlib.suppress(ImportError, ValueError, OSError):
        import resource

        resource.setrlimit(resource.RLIMIT_AS, (_LARGEST_MEMORY_BYTES, _LARGEST_MEMORY_BYTES))
    content = sys.stdin.buffer.read()
    for name in runtimes:
        refusal = arena = None
        try:
            for keep_tensors in (False, True):
                runtime = loaded(content, name, keep_tensors=keep_tensors)
                runtime.rehearse()
                if isinstance(runtime, MicroRuntime) and not keep_tensors:
                    arena = runtime.arena_bytes
        except (ValueError, MemoryError) as error:
            reason = error.__cause__ or error
            refusal = str(reason) or type(reason).__name__
        answer = {"runtime": name, "refusal": refusal, "arena_bytes": arena}
        print(json.dumps(answer), flush=True)


if __name__ == "__main__":
    _try_file(sys.argv[1:])
