"""Computes and draws the paper's figures and tables that need no ImageNet, beside what it prints.

Each becomes a CSV and a PNG; all of them take two minutes on two cores.

    python -m benchmarks.paper.figures --out=figures
    python -m benchmarks.paper.figures --out=figures table_s1 figure2a
"""

import pathlib

import rich.console
from absl import app, flags

from benchmarks.paper import gradients, kappa, variances
from benchmarks.paper.figure import as_table
from sat_tf.messages import did_you_mean

_OUT = flags.DEFINE_string("out", "figures", "folder for the files")
_SEED = flags.DEFINE_integer("seed", 0, "of everything that is drawn at random", lower_bound=0)

FIGURES = {
    "figure2a": variances.FIGURE_2A,
    "figure_s1": gradients.FIGURE_S1,
    "table_s1": kappa.TABLE_S1,
    "figure_s2": kappa.FIGURE_S2,
    "figure_s3": variances.FIGURE_S3,
    "equation13": gradients.EQUATION_13,
}


def main(argv: list[str]) -> None:
    """Makes the figures that are named, or all."""
    names = argv[1:] or list(FIGURES)
    if unknown := [name for name in names if name not in FIGURES]:
        raise app.UsageError(
            f"received {', '.join(unknown)}, expected names of figures. "
            f"{did_you_mean(unknown[0], FIGURES)}"
        )
    folder, console = pathlib.Path(_OUT.value), rich.console.Console()
    folder.mkdir(parents=True, exist_ok=True)
    for name in names:
        figure = FIGURES[name]
        numbers = figure.measure(_SEED.value)
        figure.write(folder / name, numbers)
        console.print(as_table(figure.title, figure.compare(numbers)))


if __name__ == "__main__":
    app.run(main)
