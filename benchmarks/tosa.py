"""Arm's reference model of NPUs: what it rounds unlike LiteRT, operator by operator.

The networks of `tests/export/zoo.py` are written for the target `int8`, and run on images of noise.
For each operator of these files: how many codes TOSA's reference model makes, how many of them
differ from the rule that sat-tf simulates, each on the model's own inputs, and in how many that
rule differs from XNNPACK, on the inputs that the operator has there. It needs the tools that
`docs/guides/runtimes.md` installs.

    SAT_TF_TOSA=tosa/bin PYTHONPATH=. python benchmarks/tosa.py
    SAT_TF_TOSA=tosa/bin PYTHONPATH=. python benchmarks/tosa.py --file=model.tflite

The second compares one file, of any tool, operator by operator.
"""

import collections
import pathlib
import tempfile

import rich.console
from absl import app, flags
from rich.progress import track
from rows import as_table, write_csv
from tosa_runtime import TOSA, known_to_comparisons, version

import sat_tf
from sat_tf.exact.certificate.proof_images import random_images
from sat_tf.exact.operator_comparison import KernelCount, compare_operators, read_any_file
from tests.export import zoo

_IMAGES = flags.DEFINE_integer("images", 4, "images of noise for each network", lower_bound=1)
_NETWORKS = flags.DEFINE_list("networks", None, "names of networks; all by default")
_FILE = flags.DEFINE_string("file", None, "a file to compare, in place of the networks")
_OUTPUT = flags.DEFINE_string("output", "benchmarks/results/tosa.csv", "where to write")


def main(_: list[str]) -> None:
    """Writes the table, and prints it with the files that the tools refuse."""
    console = rich.console.Console()
    console.print(f"TOSA converter {version()}")
    if _FILE.value:
        file = read_any_file(_FILE.value)
        images = [random_images(image.shape, _IMAGES.value, 0) for image in file.graph.images]
        with known_to_comparisons():
            one = compare_operators(
                file, images[0] if len(images) == 1 else images, runtimes=[TOSA]
            )
        one.print_to(console)
        return
    counts = collections.defaultdict[str, KernelCount](KernelCount)
    refused: dict[str, str] = {}
    names = _NETWORKS.value or list(zoo.ZOO)
    for name in track(names, "networks", console=console):
        with tempfile.TemporaryDirectory() as folder:
            path, model = pathlib.Path(folder) / "model.tflite", zoo.quantized(name)
            try:
                sat_tf.export_tflite(model, path, target="int8")
                images = zoo.images_for(model, _IMAGES.value)
                with known_to_comparisons():
                    comparison = compare_operators(path, images, runtimes=[TOSA], progress=False)
            except ValueError as error:
                refused[name] = str(error).splitlines()[0]
                continue
        for reason in comparison.refused.values():
            refused[name] = reason
        for operator in comparison.operators:
            if count := operator.counts.get(TOSA):
                counts[operator.kind].own += count.own
                counts[operator.kind].beside_xnnpack += count.beside_xnnpack
    rows = [
        {
            "operator": kind,
            "codes": count.own.compared,
            "differing_from_rule": count.own.differing,
            "largest": count.own.largest,
            "rule_differing_from_xnnpack": count.beside_xnnpack.differing,
        }
        for kind, count in sorted(counts.items())
    ]
    write_csv(rows, _OUTPUT.value)
    console.print(as_table(rows, f"codes of {len(names) - len(refused)} files"))
    for name, reason in refused.items():
        console.print(f"{name}: {reason}", markup=False)


if __name__ == "__main__":
    app.run(main)
