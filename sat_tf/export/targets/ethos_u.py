"""Arm's compiler for Ethos-U NPUs: what becomes of a file, and what it is estimated to cost."""

import collections
import csv
import dataclasses
import importlib.util
import os
import pathlib
import subprocess
import sys
import tempfile
from collections.abc import Mapping

from sat_tf.atomic_file import expect_path
from sat_tf.export.targets.table import TARGETS
from sat_tf.export.tflite.contents import read_contents
from sat_tf.messages import did_you_mean, printable

# The configurations of the processors, by their target.
CONFIGURATIONS = {
    "ethos-u55": ("ethos-u55-32", "ethos-u55-64", "ethos-u55-128", "ethos-u55-256"),
    "ethos-u65": ("ethos-u65-256", "ethos-u65-512"),
    "ethos-u85": (
        *("ethos-u85-128", "ethos-u85-256", "ethos-u85-512", "ethos-u85-1024"),
        "ethos-u85-2048",
    ),
}
_TARGET_OF = {name: target for target, names in CONFIGURATIONS.items() for name in names}
# The operator that stands for all that the NPU computes.
_NPU_OPERATOR = "CUSTOM"
_PACKAGE = "ethosu"
_KIB = 1024


@dataclasses.dataclass(frozen=True)
class CompiledFile:
    """A file as Arm's compiler has compiled it.

    Attributes:
        configuration: of the NPU.
        on_cpu: names of the operators that are left to the CPU, in order.
        milliseconds: time of one inference, by the compiler's estimate.
        milliseconds_of: the same of each tensor that the NPU makes, by its name.
        weights_memory: where the system that it assumes has weights and commands, as it names it.
        weights_memory_bytes: that they take there; activations too, where that is DRAM.
        sram_bytes: of the rest.
        encoded_weight_bytes: of the weights alone, compressed.
        content: the compiled file.
    """

    configuration: str
    on_cpu: tuple[str, ...]
    milliseconds: float
    milliseconds_of: Mapping[str, float] = dataclasses.field(repr=False)
    weights_memory: str
    weights_memory_bytes: int
    sram_bytes: int
    encoded_weight_bytes: int
    content: bytes = dataclasses.field(repr=False)


def compile_file(path: str | os.PathLike[str], configuration: str) -> CompiledFile:
    """Compiles a TFLite file for an Ethos-U with the compiler of the extra `[ethos]`.

    Args:
        path: of the file, which is not changed.
        configuration: of the NPU, such as "ethos-u55-128".

    Raises:
        ImportError: the compiler is not installed; says how to install it.
        ValueError: no such configuration, no TFLite file there, or the compiler refuses it or
            crashes; names the operators that it does not take.
    """
    if configuration not in _TARGET_OF:
        raise ValueError(
            f"configuration: received {configuration!r}, expected one of {', '.join(_TARGET_OF)}. "
            f"{did_you_mean(configuration, _TARGET_OF)}"
        )
    if importlib.util.find_spec(_PACKAGE) is None:
        raise ImportError(
            "Arm's compiler for Ethos-U is not installed; install it with "
            "`pip install 'sat-tf[ethos]'`."
        )
    path = expect_path(path)
    name = printable(os.fspath(path))
    if not path.is_file():
        raise ValueError(
            f"{name}: received no file of that name, expected a TFLite file; write one with "
            "sat_tf.export_tflite."
        )
    content = path.read_bytes()
    elsewhere = TARGETS[_TARGET_OF[configuration]].elsewhere(read_contents(content, name))
    with tempfile.TemporaryDirectory() as folder:
        source, out = pathlib.Path(folder, "model.tflite"), pathlib.Path(folder, "compiled")
        source.write_bytes(content)
        # A process of its own: the compiler may end it by a signal.
        ended = subprocess.run(
            [
                *(sys.executable, "-m", "ethosu.vela", "--accelerator-config", configuration),
                *("--verbose-performance", "--output-dir", str(out), str(source)),
            ],
            capture_output=True,
            text=True,
            check=False,
        )
        compiled = out / "model_vela.tflite"
        if ended.returncode or not compiled.exists():
            lines = (ended.stderr or ended.stdout).strip().splitlines()
            last = printable(lines[-1]) if lines else ""
            how = f"signal {-ended.returncode}" if ended.returncode < 0 else last or "no file"
            listed = "".join(f"\n  - {one}" for one in elsewhere)
            known = "; these operators are none of its:" if listed else "."
            raise ValueError(
                f"{name}: Arm's compiler ended with {how} on {configuration}, expected a file that "
                f"it takes{known}{listed}"
            )
        (summary,) = out.glob("model_summary_*.csv")
        with summary.open(newline="") as file:
            (row,) = csv.DictReader(file)
        cycles: collections.Counter[str] = collections.Counter()
        with (out / "model_per-layer.csv").open(newline="") as file:
            for line in csv.DictReader(file):
                cycles[line["Name"]] += int(line["Op Cycles"])
        made = compiled.read_bytes()
    names = [operator.name for operator in read_contents(made, name).operators]
    memory = row["weights_storage_area"]
    used = memory.lower().replace("-", "_").replace(" ", "_") + "_memory_used"
    return CompiledFile(
        configuration=configuration,
        on_cpu=tuple(one for one in names if one != _NPU_OPERATOR),
        milliseconds=1000.0 * float(row["inference_time"]),
        milliseconds_of={
            tensor: 1000.0 * count / float(row["core_clock"]) for tensor, count in cycles.items()
        },
        weights_memory=memory,
        weights_memory_bytes=round(_KIB * float(row[used])),
        sram_bytes=round(_KIB * float(row["sram_memory_used"])),
        encoded_weight_bytes=int(row["total_npu_encoded_weights"]),
        content=made,
    )
