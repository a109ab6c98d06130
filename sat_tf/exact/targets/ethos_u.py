"""Arm's compiler for Ethos-U NPUs: the compiled file, and its estimated time and memory."""

import collections
import configparser
import csv
import dataclasses
import importlib.util
import io
import os
import pathlib
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping

from sat_tf.exact.targets.operator_constraints import TARGETS
from sat_tf.exact.tflite.contents import read_contents
from sat_tf.files import expect_path, read_bytes
from sat_tf.messages import ProblemsError, did_you_mean, printable

# The configurations of the processors, by their target.
CONFIGURATIONS = {
    "ethos-u55": ("ethos-u55-32", "ethos-u55-64", "ethos-u55-128", "ethos-u55-256"),
    "ethos-u65": ("ethos-u65-256", "ethos-u65-512"),
    "ethos-u85": tuple(f"ethos-u85-{products}" for products in (128, 256, 512, 1024, 2048)),
}
# The target of each configuration.
TARGET_OF = {name: target for target, names in CONFIGURATIONS.items() for name in names}
# The operator that stands for everything the NPU computes.
_NPU_OPERATOR = "CUSTOM"
_PACKAGE = "ethosu"
_KIB = 1024
# Data that an operator may read for longer than it computes, with the compiler's names for them.
_LIMITS = {"weights": "Weights", "scales and biases": "Scales", "activations": "FeatureMap"}
_ARITHMETIC = "arithmetic"


@dataclasses.dataclass(frozen=True)
class CompiledFile:
    """A file that Arm's compiler has compiled, with its estimates."""

    configuration: str  # The configuration of the NPU.
    system_config: str  # The clock and the memories that the compiler assumes, as it names them.
    memory_mode: str  # The contents of each memory, as the compiler names them.
    on_cpu: tuple[str, ...]  # Names of the operators that are left to the CPU, in order.
    milliseconds: float  # Time of one inference, by the compiler's estimate.
    # The time of each operator of the file on the NPU, by the tensor it makes.
    milliseconds_of: Mapping[str, float] = dataclasses.field(repr=False)
    # The time of the operators that take as long as "arithmetic" does, or as it takes to read
    # "weights", "scales and biases" or "activations".
    milliseconds_by_limit: Mapping[str, float]
    # The memory of weights and commands in the system that the compiler assumes, as it names it.
    weights_memory: str
    weights_memory_bytes: int  # Bytes used there; with activations, where that is DRAM.
    sram_bytes: int  # Bytes of the rest, in SRAM.
    encoded_weight_bytes: int  # Bytes of compressed weights, scales and biases.
    # These bytes of each operator of the file, by the tensor it makes.
    encoded_weight_bytes_of: Mapping[str, int] = dataclasses.field(repr=False)
    content: bytes = dataclasses.field(repr=False)  # The compiled file.


def compile_file(
    path: str | os.PathLike[str],
    configuration: str,
    *,
    system_config: str | None = None,
    memory_mode: str | None = None,
    config: str | os.PathLike[str] | None = None,
) -> CompiledFile:
    """Compiles a TFLite file for an Ethos-U with the compiler of the extra `[ethos]`.

    Estimates depend on the memory of weights: for U65 and U85, DRAM by default, and flash with
    `system_config="Ethos_U65_Embedded"` or `"Ethos_U85_SYS_Flash_High"` and
    `memory_mode="Shared_Sram"`.

    Args:
        path: the path of the file, which is not changed.
        configuration: the configuration of the NPU, for example "ethos-u55-128".
        system_config: the clock and the memories of the system: a section of the compiler's file
            of configurations; with `memory_mode`, or None for the NPU's default system.
        memory_mode: the contents of each memory: another section of that file.
        config: your own file of configurations.

    Raises:
        ImportError: the compiler is not installed; says how to install it.
        ValueError: no such configuration, system or file, or the compiler refuses the file or
            crashes; the error names the operators that the compiler does not take.
    """
    system = {"system_config": system_config, "memory_mode": memory_mode}
    options = compiler_options(configuration, config=config, **system)
    path = expect_path(path)
    name = printable(os.fspath(path))
    if not path.is_file():
        raise ValueError(
            f"{name}: received no file of that name, expected a TFLite file; write one with "
            "sat_tf.export_tflite."
        )
    content = read_bytes(path)
    contents = read_contents(content, name)
    fallbacks = TARGETS[TARGET_OF[configuration]].cpu_fallback(contents)
    made_tensors = (tensor.name for operator in contents.operators for tensor in operator.outputs)
    if quoted := [tensor for tensor in made_tensors if '"' in tensor]:
        raise ValueError(
            f"{name}: received a tensor named {printable(quoted[0])}, expected one without "
            "quotation marks, which the compiler's reports do not mask; rename the layer."
        )
    with tempfile.TemporaryDirectory() as folder:
        source, out = pathlib.Path(folder, "model.tflite"), pathlib.Path(folder, "compiled")
        source.write_bytes(content)
        # The compiler has its own process, as a signal may end it. -P: Python does not look for it
        # in the working directory, which may be a stranger's folder.
        command = [sys.executable, "-P", "-m", "ethosu.vela", *options, "--enable-debug-db"]
        command += ["--output-dir", str(out), str(source)]
        ended = subprocess.run(command, capture_output=True, text=True, check=False)
        compiled = out / "model_vela.tflite"
        if ended.returncode or not compiled.exists():
            lines = (ended.stderr or ended.stdout).strip().splitlines()
            last = printable(lines[-1]) if lines else ""
            reason = f"signal {-ended.returncode}" if ended.returncode < 0 else last or "no file"
            ended_with = f"Arm's compiler ended with {reason} on {configuration}"
            if _ARENA in last:
                raise ValueError(
                    f"{ended_with}, expected a memory_mode that has activations where they can be "
                    "written; of a system with weights in flash pass memory_mode='Shared_Sram'."
                )
            listed = "".join(f"\n  - {fallback}" for fallback in fallbacks)
            ending = f"; these operators are none of its:{listed}" if fallbacks else "."
            raise ValueError(f"{name}: {ended_with}, expected a file that it takes{ending}")
        (summary,) = out.glob("model_summary_*.csv")
        with summary.open(newline="") as file:
            (row,) = csv.DictReader(file)
        operators = list(_operators(out / "model_debug.xml"))
        compiled_content = compiled.read_bytes()
    milliseconds = collections.defaultdict[str, float](float)
    limited = collections.defaultdict[str, float](float)
    weights = collections.Counter[str]()
    for source_place, cycles, limit, weight_bytes in operators:
        tensor = contents.operators[source_place].outputs[0].name
        duration = 1000.0 * cycles / float(row["core_clock"])
        milliseconds[tensor] += duration
        limited[limit] += duration
        weights[tensor] += weight_bytes
    names = [operator.name for operator in read_contents(compiled_content, name).operators]
    memory = row["weights_storage_area"]
    used = memory.lower().replace("-", "_").replace(" ", "_") + "_memory_used"
    return CompiledFile(
        configuration=configuration,
        system_config=row["system_config"],
        memory_mode=row["memory_mode"],
        on_cpu=tuple(operator_name for operator_name in names if operator_name != _NPU_OPERATOR),
        milliseconds=1000.0 * float(row["inference_time"]),
        milliseconds_of=dict(milliseconds),
        milliseconds_by_limit=dict(limited),
        weights_memory=memory,
        weights_memory_bytes=round(_KIB * float(row[used])),
        sram_bytes=round(_KIB * float(row["sram_memory_used"])),
        encoded_weight_bytes=int(row["total_npu_encoded_weights"]),
        encoded_weight_bytes_of=dict(weights),
        content=compiled_content,
    )


def compiler_options(
    configuration: str,
    *,
    system_config: str | None = None,
    memory_mode: str | None = None,
    config: str | os.PathLike[str] | None = None,
) -> list[str]:
    """Returns the options of the compiler for an NPU; see `compile_file`."""
    if configuration not in TARGET_OF:
        raise ValueError(
            f"configuration: received {configuration!r}, expected one of {', '.join(TARGET_OF)}. "
            f"{did_you_mean(configuration, TARGET_OF)}"
        )
    package = importlib.util.find_spec(_PACKAGE)
    if package is None:
        raise ImportError(
            "Arm's compiler for Ethos-U is not installed; install it with "
            "`pip install 'sat-tf[ethos]'`."
        )
    options = ["--accelerator-config", configuration]
    if (system_config, memory_mode, config) != (None, None, None):
        # The default is the compiler's own file of configurations.
        folders = package.submodule_search_locations or ()
        default_sections = pathlib.Path(*folders, "config_files", "Arm", "vela.ini")
        sections = default_sections if config is None else expect_path(config).absolute()
        parser = configparser.ConfigParser()
        try:
            with sections.open(encoding="utf-8") as lines:
                parser.read_file(lines)
        except (OSError, UnicodeDecodeError, configparser.Error) as error:
            reason = getattr(error, "strerror", None) or str(error).splitlines()[0]
            raise ValueError(
                f"config: {printable(os.fspath(sections))}: {reason}; expected a file of "
                "configurations of Arm's compiler, with sections such as [System_Config.Board] and "
                "[Memory_Mode.Board]."
            ) from error
        options += ["--config", os.fspath(sections)]
        problems = []
        system = {"system_config": system_config, "memory_mode": memory_mode}
        for field, value in system.items():
            stem = f"{_SECTIONS[field]}."
            names = [name.removeprefix(stem) for name in parser.sections() if name.startswith(stem)]
            options += [f"--{field.replace('_', '-')}", str(value)]
            if value not in names:
                problems.append(
                    f"{field}: received {value!r}, expected the name of a section [{stem}NAME] of "
                    f"{sections.name}; name a system by both. {did_you_mean(str(value), names)}"
                )
        if problems:
            raise ProblemsError("compile_file", problems)
    return options


# The compiler names this setting where a memory mode does not fit the system.
_ARENA = "arena_mem_area"
_SECTIONS = {"system_config": "System_Config", "memory_mode": "Memory_Mode"}

# The file has unescaped names of tensors, which XML parsers do not take.
_TABLE = re.compile(
    r'<table name="(source|perf|perf_debug)">\s*<!\[CDATA\[\n(.*?)\]\]>\s*</table>', re.DOTALL
)


def _operators(path: pathlib.Path) -> Iterator[tuple[int, int, str, int]]:
    """Yields the NPU's operators in the compiler's file for debugging, whose tables are CSV in XML.

    Each comes with the place of the file's operator that it is made from, its cycles, their cause,
    arithmetic or one of `_LIMITS`, and the bytes of its weights, scales and biases.
    """
    tables = {
        name: list(csv.DictReader(io.StringIO(table)))
        for name, table in _TABLE.findall(path.read_text(encoding="utf-8"))
    }
    sources = {row["id"]: int(row["ext_key"]) for row in tables["source"]}
    details = {row["id"]: row for row in tables["perf_debug"]}
    for row in tables["perf"]:
        detail, cycles = details[row["id"]], int(row["op_cycles"])
        limit = _ARITHMETIC
        if cycles > int(row["npu_cycles"]):
            accesses = {name[:-3]: int(row[name]) for name in row if name.endswith("_ac")}
            memory = max(accesses, key=accesses.__getitem__)
            limit = max(_LIMITS, key=lambda role: int(detail[f"{memory}{_LIMITS[role]}_ac"] or 0))
        sizes = (int(detail[f"{column}_total_bytes"] or 0) for column in ("weight", "scales"))
        yield sources[row["source_id"]], cycles, limit, sum(sizes)
