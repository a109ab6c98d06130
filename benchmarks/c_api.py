"""Files in LiteRT's C API: every code compared with the simulation, by a C program.

The API is that of libLiteRt.so in the ai-edge-litert wheel, with its compiled model. The outputs of
the files are compared with those of the interpreter in Python.

    python benchmarks/c_api.py
"""

import importlib.metadata
import pathlib
import subprocess
import tempfile
from typing import Any

import ai_edge_litert
import numpy as np
import rich.console
from absl import app, flags
from every_code import SMALL_FILES, SmallFile, differing, with_every_code
from rows import as_table, write_csv

from sat_tf.exact.litert.runtime import Runtime
from sat_tf.exact.operations.graph import simulate
from sat_tf.exact.operations.graph_file import read_graph

_SOURCE = pathlib.Path(__file__).parent / "c_api" / "run_file.c"
_IMAGES = flags.DEFINE_integer("images", 8, "images to compare on", lower_bound=1)
_OUTPUT = flags.DEFINE_string("output", "benchmarks/results/c_api.csv", "where to write rows")


def _compiled(folder: pathlib.Path) -> pathlib.Path:
    library = pathlib.Path(ai_edge_litert.__file__).parent
    program = folder / "run_file"
    words = ["gcc", "-std=c11", "-O2", "-Wall", "-Wextra", "-Werror", _SOURCE, "-o", program]
    link = [library / "libLiteRt.so", f"-Wl,-rpath,{library}"]
    subprocess.run([*map(str, words), *map(str, link)], check=True)
    return program


def _run(program: pathlib.Path, content: bytes, images: np.ndarray) -> list[bytes]:
    """The outputs of a file as they lie in memory, one behind the other, for each image."""
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        paths = [folder / part for part in ("model.tflite", "images", "outputs")]
        paths[0].write_bytes(content)
        paths[1].write_bytes(images.tobytes())
        words = [str(program), *map(str, paths)]
        done = subprocess.run(words, capture_output=True, text=True, check=False)
        if done.returncode:
            raise RuntimeError(done.stderr)
        outputs = paths[2].read_bytes()
    size = len(outputs) // len(images)
    return [outputs[size * i : size * (i + 1)] for i in range(len(images))]


def _measure(program: pathlib.Path, file: SmallFile) -> dict[str, Any]:
    content, images = file.exported(_IMAGES.value)
    graph = read_graph(content, file.model)
    names = graph.integer_tensors
    outputs = np.stack([np.frombuffer(row, np.float32) for row in _run(program, content, images)])
    rows = _run(program, with_every_code(content, names), images)
    # Behind its own output, of as many bytes as here, a copy has the codes, each of four.
    start = outputs[0].nbytes
    sizes = [int(np.prod(graph.tensors[name].shape)) for name in names]
    codes = np.stack([np.frombuffer(row[start:], np.int32) for row in rows])
    pieces = np.split(codes, np.cumsum(sizes)[:-1], axis=1)
    found = {
        name: piece.reshape(len(images), *graph.tensors[name].shape)
        for name, piece in zip(names, pieces, strict=True)
    }
    of_interpreter = Runtime(content, keep_tensors=False).run(images)
    return {
        "model": file.model,
        "policy": file.policy,
        "runtime": f"ai-edge-litert {importlib.metadata.version('ai-edge-litert')}, C API",
        "images": len(images),
        "tensors": len(names),
        "codes compared": codes.size,
        "codes differing": differing(found, simulate(graph, images)),
        "outputs compared": outputs.size,
        "outputs differing from the interpreter": np.count_nonzero(outputs != of_interpreter),
    }


def main(argv: list[str]) -> None:
    """Compiles the program and runs every file."""
    if len(argv) > 1:
        raise app.UsageError(f"unexpected arguments: {argv[1:]}")
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        program = _compiled(pathlib.Path(folder))
        for file in SMALL_FILES:
            rows.append(_measure(program, file))
            write_csv(rows, _OUTPUT.value)
    rich.console.Console().print(as_table(rows, "codes that differ from the simulation"))


if __name__ == "__main__":
    app.run(main)
