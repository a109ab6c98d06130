"""The operators of the file of every model: `python -m tests.export.operators` writes them anew.

A line of `operators.txt` is of one model: all operators of its file, and the kinds of those that
read or make float tensors, in order. The difference in the lines shows what files get more or less.
"""

import pathlib
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


def main() -> None:
    with tempfile.TemporaryDirectory() as folder, TABLE.open("w", encoding="utf-8") as table:
        for name, specimen in {**ZOO, **MODELS}.items():
            path = pathlib.Path(folder) / "model.tflite"
            report = sat_tf.export_tflite(
                specimen.quantized(), path, float_head=specimen.float_head
            )
            print(f"{name}: {line_of(report)}", file=table)


if __name__ == "__main__":
    main()
