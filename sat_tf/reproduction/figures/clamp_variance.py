"""Figure 2a: the factor by which clamping enlarges the variance of weights, by layer size."""

from typing import TYPE_CHECKING

import numpy as np

from sat_tf.presentation import palette
from sat_tf.reproduction.figures.figure import Advance, Comparison, Numbers
from sat_tf.reproduction.figures.variances import SampleSummary, clamping_ratio, gaussian

if TYPE_CHECKING:
    from matplotlib.figure import Figure as Picture

NEURONS = (16, 32, 64, 128, 256, 512, 1000, 2048, 4096)
SAMPLES = 100
COLUMNS = ("neurons", "samples", "seed", "ratio_mean", "ratio_std", "ratio_min", "ratio_max")
# The printed value of Table S1 for clamped models over that for vanilla ones, n = 1000.
IMPLIED_RATIO = 50.0


def measure(
    seed: int,
    advance: Advance,
    *,
    neurons: tuple[int, ...] = NEURONS,
    samples: int = SAMPLES,
) -> Numbers:
    """VAR[Ŵ] / VAR[W] of square layers of n x n weights W ~ N(0, 1/n).

    Args:
        seed: of the weights.
        advance: see `figure.Advance`.
        neurons: the sizes n.
        samples: layers of each size, at least 2.
    """
    weights_in_all = samples * sum(size**2 for size in neurons)
    rows = []
    for size in neurons:
        buffer = np.empty((size, size), np.float32)
        ratios = []
        for sample in range(samples):
            gaussian(buffer.shape, 1.0 / size, seed, size, sample, out=buffer)
            ratios.append(clamping_ratio(buffer))
            advance(size**2 / weights_in_all)
        spread = SampleSummary.of(ratios)
        rows.append(
            (
                *(size, samples, seed),
                *(spread.mean, spread.deviation, spread.smallest, spread.largest),
            )
        )
    return Numbers(COLUMNS, tuple(rows))


def draw(table: Numbers) -> "Picture":
    """The mean, its standard deviation as a band, and the extremes, on logarithmic axes."""
    picture, axes = palette.canvas()
    neurons, mean, deviation = table["neurons"], table["ratio_mean"], table["ratio_std"]
    axes.fill_between(
        neurons, table["ratio_min"], table["ratio_max"], color=palette.SKY, alpha=0.25, linewidth=0
    )
    axes.fill_between(
        neurons, mean - deviation, mean + deviation, color=palette.SKY, alpha=0.6, linewidth=0
    )
    axes.plot(neurons, mean, color=palette.BLUE, marker="o", label="mean")
    axes.plot(1000, IMPLIED_RATIO, marker="*", markersize=15, color=palette.VERMILION, linestyle="")
    axes.annotate(
        "50, which Table S1\nimplies for 1000",
        (1000, IMPLIED_RATIO),
        xytext=(-14, 22),
        textcoords="offset points",
        ha="right",
        color=palette.VERMILION,
    )
    axes.set_xscale("log", base=2)
    axes.set_yscale("log")
    palette.plain_ticks(axes.xaxis, [16, 64, 256, 1000, 4096])
    palette.plain_ticks(axes.yaxis, [2, 5, 10, 20, 50, 100, 200])
    axes.set_xlabel("number of neurons n (layer of n × n weights)")
    axes.set_ylabel("VAR[clamped] / VAR[original]")
    samples = int(table["samples"][0])
    axes.text(
        *(0.97, 0.04, f"line: mean of {samples}\ndark band: ± 1 std\nlight band: min to max"),
        transform=axes.transAxes,
        ha="right",
        va="bottom",
        color=palette.GREY,
    )
    return picture


def compare(table: Numbers) -> list[Comparison]:
    """The words of Section 3.3.1, and the ratio that Table S1 implies."""
    large = table["ratio_mean"][table["neurons"] >= 512]
    at_1000 = table.row(neurons=1000)
    mean, deviation = at_1000["ratio_mean"], at_1000["ratio_std"]
    smallest, largest = at_1000["ratio_min"], at_1000["ratio_max"]
    return [
        Comparison(
            about="the variance for large neuron numbers (512 and more)",
            paper="enlarged to tens of the original",
            ours=f"{large.min():.0f} to {large.max():.0f} times",
            holds=bool(large.min() >= 10.0),
        ),
        Comparison(
            about="ratio for a layer of 1000 neurons",
            paper=f"{IMPLIED_RATIO:g} (Table S1, κ₀ clamped over vanilla)",
            ours=f"{mean:.3g} ± {deviation:.2g}, {smallest:.3g} to {largest:.3g}",
            holds=smallest <= IMPLIED_RATIO <= largest,
            reason="the paper draws one sample: the smallest and the largest of ours; see Table S1",
        ),
    ]
