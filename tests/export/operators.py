"""Operators of the files of all models: `python -m tests.export.operators NAME` writes a line.

A line of `operators.txt` is of one model: all operators of its file, and the kinds of those that
read or make float tensors, in order. The difference in the lines shows what files get more or less.
"""

import pathlib
import sys
import tempfile

import sat_tf
from sat_tf.export.export import ExportReport
from tests.export.layer_models import MODELS
from tests.export.zoo import ZOO

TABLE = pathlib.Path(__file__).with_suffix(".txt")


def read() -> dict[str, str]:
    return dict(line.split(": ") for line in TABLE.read_text("utf-8").splitlines())


def counts(line: str) -> dict[str, int]:
    """Returns how many operators of each kind a line has."""
    pairs = (each.split() for each in line.split("; ")[0].split(", "))
    return {name: int(count) for count, name in pairs}


def line_of(report: ExportReport) -> str:
    every = ", ".join(f"{count} {name}" for name, count in sorted(report.operators.items()))
    return f"{every}; {' '.join(each.split()[0] for each in report.float_operators)}"


def main(names: list[str]) -> None:
    """Writes the lines of these models, or of all, anew."""
    models = {**ZOO, **MODELS}
    lines = read() if names else {}
    with tempfile.TemporaryDirectory() as folder:
        path = pathlib.Path(folder) / "model.tflite"
        for name in names or models:
            model, float_head = models[name].quantized(), models[name].float_head
            lines[name] = line_of(sat_tf.export_tflite(model, path, float_head=float_head))
    TABLE.write_text("".join(f"{name}: {lines[name]}\n" for name in models), "utf-8")


if __name__ == "__main__":
    main(sys.argv[1:])
