"""Counts the operators of other tools' files that are simulated, and the codes of no rule.

A row for each folder of TFLite files, compared on random images:

    python benchmarks/other_tools.py tfmot/ converter/ packages/
"""

import collections
import pathlib
from collections.abc import Iterable
from typing import Any

import rich.console
from absl import app, flags
from rows import as_table, write_csv

from sat_tf.exact.certificate.proof_images import random_images
from sat_tf.exact.operator_comparison import read_any_file
from sat_tf.export import compare_operators

_RUNTIMES = ("builtin", "reference")
# These make no codes, so that there is nothing to compare.
_OTHERS = ("it makes no codes", "it is float")

_IMAGES = flags.DEFINE_integer("images", 16, "images for each file", lower_bound=1)
_OUTPUT = flags.DEFINE_string("output", "benchmarks/results/other_tools.csv", "where to write rows")


def counted(folder: pathlib.Path) -> dict[str, Any]:
    """The row of a folder."""
    named: collections.Counter[str] = collections.Counter()
    simulated = others = codes = differing = 0
    files = sorted(folder.glob("*.tflite"))
    for path in files:
        file = read_any_file(path)
        images = [random_images(one.shape, _IMAGES.value, 0) for one in file.graph.images]
        found = compare_operators(
            file, images if len(images) > 1 else images[0], runtimes=_RUNTIMES, progress=False
        )
        simulated += len(found.simulated)
        missing = [one for one in found.operators if not one.counts]
        others += sum(one.reason in _OTHERS for one in missing)
        named.update(one.kind for one in missing if one.reason not in _OTHERS)
        codes += found.total("xnnpack").own.compared
        differing += sum(found.total(name).own.differing for name in found.runtimes)
    return {
        "written by": folder.name,
        "files": len(files),
        "operators simulated": simulated,
        "named": _listed(named.items()),
        "others": others,
        "codes": codes,
        "not by the rules": differing,
    }


def _listed(counts: Iterable[tuple[str, int]]) -> str:
    return ", ".join(f"{count} {kind}" for kind, count in counts)


def main(folders: list[str]) -> None:
    """Prints the table, and writes it."""
    rows = [counted(pathlib.Path(folder)) for folder in folders[1:]]
    rich.console.Console().print(as_table(rows, "Files of other tools"))
    write_csv(rows, _OUTPUT.value)


if __name__ == "__main__":
    app.run(main)
