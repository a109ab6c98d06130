"""Methods side by side on printed characters, each with the same search and a certified file.

All have the float models, the 400 steps of 64 images, the order of the images and the teacher of
`peers.py`, and the configuration of sat-tf there; what differs is what quantizes weights and
activations. Each has the same search: the three learning rates of `RATES`, at each number of bits
by itself, on the first half of the held-out images, with seed 0, and twice the highest as long as
that is the best; a run that diverges counts as 0. The best runs with the other seeds too. What is
shown is top-1 on the second half, which nothing was chosen on, mean of the seeds (lowest to
highest). The float models are trained first, if they are not there.

    python benchmarks/methods_on_glyphs.py
    python benchmarks/methods_on_glyphs.py --picture=docs/images/methods_on_glyphs.png
    python benchmarks/methods_on_glyphs.py --methods="LSQ,L1 weights + CG-PACT" --bits=2
    python benchmarks/methods_on_glyphs.py --noteacher \
        --output=benchmarks/results/methods_without_teacher.csv

Rows that are in the CSV already are not run again.
"""

import json
import pathlib
import statistics
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import peer_sat
import peer_start
import peer_task
import rich.console
import tf_keras as keras
from absl import app, flags
from rates import at_best_rate, best_rate
from rows import as_table, read_csv, with_spread, write_csv

from sat_tf.files import written_whole
from sat_tf.messages import RunError, charts
from sat_tf.training.run_folder import RunFolder

RATES = (0.4, 0.8, 1.6)  # of batches of 256 images
_HIGHEST_RATE = 6.4
_SHARES = ("top1", "chosen_on", "not_chosen_on")
_OF_FILE = ("file_bytes", "gzip_bytes", "codes_compared", "codes_differing")
_WEIGHTS = "weights"


class Method(NamedTuple):
    """What quantizes weights and activations.

    Attributes:
        overrides: of the configuration.
        quantizes: what it quantizes, for the table.
    """

    overrides: Sequence[str]
    quantizes: str = "weights and activations"


def _weights(name: str, options: str = "{}") -> list[str]:
    return [f"policy.weight_quantizer={name}", f"policy.weight_options={options}"]


_DOREFA = _weights("dorefa")
_LSQ_ACTIVATIONS = "policy.activation_quantizer=lsq"
_L1 = _weights("l1", "{over_size: false}")
_CHANNEL_BITS = _weights("channel_bits", "{over_size: false, lowest: 1}")
_MOVING_MEANS = _weights("kmeans", "{reassign: true}")


def _alone(overrides: Sequence[str]) -> Method:
    """Weights alone: activations have 8 bits."""
    return Method([*overrides, "policy.activation_bits=8"], _WEIGHTS)


METHODS: Mapping[str, Method] = {
    "PACT": Method([*_DOREFA, "policy.clipping_gradient=pact"]),
    "CG-PACT": Method(_DOREFA),
    "LSQ": Method([*_weights("lsq"), _LSQ_ACTIVATIONS]),
    "LSQ weights + CG-PACT": Method(_weights("lsq")),
    "LSQ weights + SAT's rescaling + CG-PACT": Method(
        [*_weights("lsq"), "policy.rescale=constant"]
    ),
    "SAT's rescaling + CG-PACT": Method([*_DOREFA, "policy.rescale=constant"]),
    "L1 weights + CG-PACT": Method(_L1),
    "L1 weights + SAT's rescaling + CG-PACT": Method([*_L1, "policy.rescale=constant"]),
    "k-means weights that move + CG-PACT": Method(_MOVING_MEANS),
    "LQ-Nets weights + CG-PACT": Method(_weights("lq_nets")),
    "L1 weights, bits per channel + CG-PACT": Method(_CHANNEL_BITS),
    "L1 weights + LSQ": Method([*_L1, _LSQ_ACTIVATIONS]),
    "DoReFa's weights alone": _alone(_DOREFA),
    "LSQ's weights alone": _alone(_weights("lsq")),
    "L1 weights alone": _alone(_L1),
    "L1 weights alone, bits per channel": _alone(_CHANNEL_BITS),
    "k-means weights alone": _alone(_weights("kmeans")),
    "k-means weights alone that move": _alone(_MOVING_MEANS),
    "LQ-Nets' weights alone": _alone(_weights("lq_nets")),
}

_METHODS = flags.DEFINE_list("methods", list(METHODS), "which of them")
_BITS = flags.DEFINE_list("bits", ["2", "4", "3"], "of weights and activations, or of weights")
_TEACHER = flags.DEFINE_boolean("teacher", True, "the float model teaches, in equal parts")
_PICTURE = flags.DEFINE_string("picture", None, "draw the rows there, and run nothing")
_SEEDS = flags.DEFINE_list("seeds", ["0", "1", "2"], "the first of which is searched with")
_WORK = flags.DEFINE_string("work", "runs/peers", "folder for data, float models and runs")
_OUTPUT = flags.DEFINE_string(
    "output", "benchmarks/results/methods_on_glyphs.csv", "where to write rows"
)


def _row(name: str, bits: int, seed: int, rate: float, work: pathlib.Path) -> dict[str, Any]:
    """Trains, measures and certifies one case."""
    case = peer_start.Case(bits=bits, seed=seed, work=work)
    _, test = peer_task.read(str(case.data))
    folder = work / "methods" / f"{name.replace(' ', '_')}_{bits}_{seed}_{rate}"
    keras.backend.clear_session()
    keras.utils.set_random_seed(seed)
    # A schedule of transition rates would hide what a learning rate is worth to a method.
    rates = [f"stages.quantized.base_learning_rate={rate}", "recipes.transition_rate=null"]
    alone = [] if _TEACHER.value else ["recipes.distillation=null"]
    overrides = [*METHODS[name].overrides, *rates, *alone]
    key = {"method": name, "bits": bits, "seed": seed, "rate": rate}
    try:
        result = peer_sat.run(case.start, folder, test, bits=bits, seed=seed, overrides=overrides)
    except RunError as error:
        if "NaN or infinite" not in str(error):
            raise
        nothing = dict.fromkeys(
            ("file_bytes", "gzip_bytes", "codes_compared", "codes_differing"), 0
        )
        return {**key, **dict.fromkeys(_SHARES, "0.00"), **nothing, "seconds": ""}
    certified = json.loads(RunFolder(folder).file("results.json").read_text())
    return {
        **key,
        **{field: f"{result[field]:.2f}" for field in _SHARES},
        **{field: certified[field] for field in _OF_FILE},
        "seconds": f"{result['seconds']:.1f}",
    }


def _summary(rows: Sequence[Mapping[str, Any]]) -> list[dict[str, str]]:
    """A line for each method: at each number of bits the mean over seeds with the best rate."""
    lines = []
    for name in METHODS:
        cells = {}
        for bits in (4, 3, 2):
            values = [float(row["not_chosen_on"]) for row in at_best_rate(rows, name, bits)]
            cells[f"{bits} bits"] = with_spread(values)
        if any(cells.values()):
            lines.append({"method": name, **cells, "quantized": METHODS[name].quantizes})
    return lines


def _draw(rows: Sequence[Mapping[str, Any]], path: pathlib.Path) -> None:
    """Top-1 of each method, weights and activations alike, with the spread of the seeds.

    A strip for each method: a dot at the mean, a line from the lowest to the highest. The strips of
    one number of bits stand above each other, on one axis.
    """
    both = [name for name, method in METHODS.items() if method.quantizes != _WEIGHTS]
    names = sorted(both, key=str.lower)
    with charts.styled():
        picture, panels = charts.canvas(1, 3, size=(7.0, 1.3 + 0.55 * len(names)), sharey=True)
        for axes, bits in zip(panels, (4, 3, 2), strict=True):
            top1 = {}
            for name in names:
                if found := at_best_rate(rows, name, bits):
                    top1[name] = [float(row["not_chosen_on"]) for row in found]
            means = {name: statistics.mean(values) for name, values in top1.items()}
            best = max(means, key=lambda name: means[name], default="")
            for place, name in enumerate(names):
                if name in means:
                    colour = charts.VERMILION if name == best else charts.BLUE
                    axes.plot([min(top1[name]), max(top1[name])], [place] * 2, color=colour)
                    axes.plot(means[name], place, color=colour, marker="o", markersize=8)
            axes.set_title(f"{bits} bits")
            axes.set_yticks([])
            axes.grid(visible=False, axis="y")
            axes.spines["left"].set_visible(False)
            axes.margins(x=0.08)
            axes.locator_params(axis="x", integer=True, nbins=4)
            axes.patch.set_visible(False)  # which would hide long names
        for place, name in enumerate(names):
            # Above its strip, across the panels, which it takes no width from.
            across = panels[0].get_yaxis_transform()
            label = panels[-1].text(0.0, place - 0.34, name, transform=across, va="center")
            label.set_in_layout(False)
        panels[0].set_ylim(len(names) - 0.5, -0.75)
        panels[1].set_xlabel("top-1 on held-out images, %")
        with written_whole(path) as temporary:
            charts.save(picture, temporary)


def main(argv: list[str]) -> None:
    """Runs what is missing, writing the CSV after each row; prints a table."""
    if len(argv) > 1:
        raise app.UsageError(f"received {argv[1:]}, expected flags only.")
    unknown = [name for name in _METHODS.value if name not in METHODS]
    if unknown:
        raise app.UsageError(f"--methods: received {unknown}, expected {', '.join(METHODS)}.")
    peer_task.one_thread()
    work, output = pathlib.Path(_WORK.value), pathlib.Path(_OUTPUT.value)
    console = rich.console.Console()
    seeds = list(map(int, _SEEDS.value))
    rows = read_csv(output)
    if _PICTURE.value:
        _draw(rows, pathlib.Path(_PICTURE.value))
        return
    peer_start.prepare(work, seeds, console)

    def add(name: str, bits: int, seed: int, rate: float) -> None:
        key = (name, str(bits), str(seed), str(rate))
        fields = ("method", "bits", "seed", "rate")
        if key in {tuple(str(row[field]) for field in fields) for row in rows}:
            return
        rows.append(_row(name, bits, seed, rate, work))
        write_csv(rows, output)
        console.print(", ".join(f"{field} {value}" for field, value in rows[-1].items()))

    for bits in map(int, _BITS.value):
        for name in _METHODS.value:
            for rate in RATES:
                add(name, bits, seeds[0], rate)
            rate = max(RATES)
            while best_rate(rows, name, bits) == rate and rate < _HIGHEST_RATE:
                rate *= 2
                add(name, bits, seeds[0], rate)
            best = best_rate(rows, name, bits)
            for seed in seeds[1:]:
                if best is not None:
                    add(name, bits, seed, best)
    console.print(as_table(_summary(rows), "glyphs, 1000 classes: top-1 in percent"))


if __name__ == "__main__":
    app.run(main)
