"""Arm's reference model of NPUs, as a runtime of comparisons: a program of TOSA for each file."""

import contextlib
import functools
import os
import pathlib
import re
import shutil
import subprocess
import tempfile
from collections.abc import Iterator, Sequence
from unittest import mock

import numpy as np

from sat_tf.exact import operator_comparison
from sat_tf.exact.certificate.runtimes import RUNTIMES, RuntimeKind
from sat_tf.exact.kernels import kernel_sets
from sat_tf.exact.litert.runtime import Computed, OneImageRuntime, explained, loaded, standalone
from sat_tf.exact.tflite.contents import read_contents, unpacked

TOSA = "tosa"
# The variable with the folder of the tools; without it, they are looked for on PATH.
_FOLDER = "SAT_TF_TOSA"
TOOLS = ("tosa-converter-for-tflite", "tosa-opt", "tosa_reference_model")
_CONVERTER, _SERIALIZER, _MODEL = TOOLS
_SECONDS = 300


def tool_at(name: str) -> str | None:
    """Returns the path of a tool of TOSA; None where it is not found."""
    return shutil.which(name, path=os.environ.get(_FOLDER))


# The tools' marks of a reason: they write places in front of it, and other lines after it.
_REASON = re.compile(r"(?:[eE]rror: |\(\): )(.+?)(?:\w+::\w+\(\): .*)?$", re.MULTILINE)


def reason_in(errors: str) -> str:
    """Returns the reason in the errors of a failing tool: its first error, or its last line."""
    reasons = [*_REASON.findall(errors)[:1], *errors.strip().splitlines()[-1:]]
    return reasons[0] if reasons else "it gives no reason"


def results_in(program: str) -> list[int]:
    """Returns the output of each result of a printed program: equal results share an output."""
    (line,) = re.findall(r"^ *return (.+) :", program, re.MULTILINE)
    results = line.split(", ")
    outputs = list(dict.fromkeys(results))
    return [outputs.index(result) for result in results]


def _called(tool: str, *words: str) -> str:
    """Runs a tool in a process of its own, as it needs an older NumPy; returns its output."""
    try:
        process = subprocess.run(
            [tool_at(tool) or tool, *words],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            errors="replace",  # as text
            timeout=_SECONDS,
            check=False,
        )
    except subprocess.TimeoutExpired as error:
        raise RuntimeError(f"{tool} took more than {_SECONDS} s") from error
    except OSError as error:
        raise RuntimeError(f"{tool}: {error.strerror}") from error
    if process.returncode:
        raise RuntimeError(f"{tool}: {reason_in(process.stderr)}")
    return process.stdout


def version() -> str:
    """Returns the version of TOSA's converter."""
    return _called(_CONVERTER, "--version").splitlines()[0].rpartition(" ")[2]


class TosaRuntime(OneImageRuntime):
    """A file as a program of TOSA, the operators of NPUs, run by Arm's reference model."""

    title = "TOSA's reference model"

    def __init__(self, content: bytes, *, keep_tensors: bool) -> None:
        contents = read_contents(content, "file")
        super().__init__(contents, keep_tensors=keep_tensors)
        self._tensors = contents.tensors
        self._folder = tempfile.TemporaryDirectory()  # removed with the runtime
        with unpacked(content, "file") as model:
            graph = model.subgraphs[0]
            self._ends = [int(index) for index in graph.outputs]
            # A program gives out only its outputs, each once: the kept tensors are among them.
            handed_out = [*dict.fromkeys([*self._ends, *self._made])]
            graph.outputs = np.array(handed_out, np.int32)
            pathlib.Path(self._file("model.tflite")).write_bytes(standalone(model))
        with explained("load", self.title):
            mlir, printed = self._file("mlir"), self._file("program.mlir")
            _called(_CONVERTER, "--bytecode", "-o", mlir, self._file("model.tflite"))
            program = f"--tosa-serialize=tosa-flatbuffer-filename={self._file('program.tosa')}"
            # The serializer also prints the program, and only its `return` line is read.
            prints = ("--mlir-elide-elementsattrs-if-larger=8", "-o", printed)
            _called(_SERIALIZER, mlir, "--tosa-convert-integer-type-to-signless", program, *prints)
            printed = pathlib.Path(printed).read_text(encoding="utf-8")
            self._places = dict(zip(handed_out, results_in(printed), strict=True))

    def _file(self, name: str) -> str:
        return os.path.join(self._folder.name, name)

    def compute(self, arrays: Sequence[np.ndarray]) -> Computed:
        inputs = {f"TosaInput_{place}": array for place, array in enumerate(arrays)}
        for name, array in inputs.items():
            np.save(self._file(f"{name}.npy"), array)
        _called(
            _MODEL,
            f"--tosa_file={self._file('program.tosa')}",
            "--tosa_level=NONE",
            f"--ifm_name={','.join(inputs)}",
            f"--ifm_file={','.join(self._file(f'{name}.npy') for name in inputs)}",
            f"--ofm_name={','.join(f'TosaOutput_{place}' for place in self._places.values())}",
            f"--ofm_file={','.join(self._file(f'{index}.npy') for index in self._places)}",
        )
        computed = {}
        for index in self._places:
            path, tensor = self._file(f"{index}.npy"), self._tensors[index]
            values, dtype = np.load(path) if os.path.exists(path) else None, tensor.type.lower()
            if values is None or values.shape != tensor.shape:
                raise RuntimeError(f"{_MODEL} makes no {tensor.name} of the shape {tensor.shape}")
            # All of a program's codes are signed.
            computed[index] = values.view(dtype) if values.dtype == np.int8 else values
        return computed, [computed[index] for index in self._ends]


@contextlib.contextmanager
def known_to_comparisons() -> Iterator[None]:
    """A scope in which `compare_operators` knows the runtime "tosa"."""
    row = RuntimeKind(TOSA, "TOSA, reference model", kernel_sets.TOSA)

    def load(content: bytes, runtime: str, *, keep_tensors: bool) -> object:
        made = TosaRuntime if runtime == TOSA else functools.partial(loaded, runtime=runtime)
        return made(content, keep_tensors=keep_tensors)

    with (
        mock.patch.dict(RUNTIMES, {TOSA: row}),
        mock.patch.object(operator_comparison, "loaded", load),
        # A file that another process could try there is tried here: the tools are processes.
        mock.patch.object(operator_comparison, "refusals", lambda _, names: dict.fromkeys(names)),
    ):
        yield
