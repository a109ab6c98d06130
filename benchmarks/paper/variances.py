"""Figures 2a and S3: how clamping and quantization change the variance of weights."""

import functools
from collections.abc import Callable, Sequence

import numpy as np
import numpy.typing as npt
import pandas as pd
import tensorflow as tf
from matplotlib.figure import Figure as Picture

from benchmarks.paper.figure import Comparison, Figure, plain_ticks
from sat_tf.core import dorefa
from sat_tf.core.grid import GRIDS
from sat_tf.messages import charts

NEURONS = (16, 32, 64, 128, 256, 512, 1000, 2048, 4096)
SAMPLES = 100
# The printed value of Table S1 for clamped models over that for vanilla ones, n = 1000.
IMPLIED_RATIO = 50.0


def gaussian(
    shape: Sequence[int], variance: float, *key: int, out: npt.NDArray[np.float32] | None = None
) -> npt.NDArray[np.float32]:
    """Normal weights of mean 0.

    From NumPy, because TensorFlow's normal generator never exceeds 5.7 standard deviations, while
    the largest of the 16 million weights of a 4096 x 4096 layer often does.

    Args:
        shape: of the weights.
        variance: of each of them.
        *key: integers that seed the generator.
        out: an array of this shape to write to.

    >>> gaussian((2, 2), 1.0, 0, 7).tolist() == gaussian((2, 2), 1.0, 0, 7).tolist()
    True
    """
    weights = np.empty(shape, np.float32) if out is None else out
    np.random.Generator(np.random.PCG64(list(key))).standard_normal(out=weights, dtype=np.float32)
    weights *= np.float32(np.sqrt(variance))
    return weights


def clamping_ratio(weights: npt.NDArray[np.float32]) -> float:
    """VAR[Ŵ] / VAR[W]: the factor by which clamping (Eq. 5 and 6) enlarges the variance of weights.

    The variance is the mean of squares, as in the paper: Gaussian weights have mean 0.

    Args:
        weights: latent weights W, any shape, not all zero.

    >>> round(clamping_ratio(np.array([0.5, -0.5], np.float32)), 3)
    4.0
    """
    return float(_clamping_ratio()(weights.reshape(-1)))


def quantization_ratios(
    weights: npt.NDArray[np.float32], num_bits: int, grid: str
) -> tuple[float, float]:
    """How quantization (Eq. 9) changes the magnitude of clamped weights Ŵ.

    Args:
        weights: latent weights W, any shape.
        num_bits: of the quantized weights Q.
        grid: name of their grid.

    Returns:
        The standard deviation of Q over that of Ŵ, and the same for the root mean square, which
        differs if a grid shifts the mean.
    """
    deviation, root_mean_square = _quantization_ratios(num_bits, grid)(weights.reshape(-1))
    return float(deviation), float(root_mean_square)


@functools.cache
def _clamping_ratio() -> Callable[[npt.NDArray[np.float32]], tf.Tensor]:
    def ratio(weights: tf.Tensor) -> tf.Tensor:
        clamped = dorefa.clamp_weights(weights)
        return tf.reduce_mean(tf.square(clamped)) / tf.reduce_mean(tf.square(weights))

    return tf.function(ratio, autograph=False, input_signature=[tf.TensorSpec([None])])


@functools.cache
def _quantization_ratios(
    num_bits: int, grid: str
) -> Callable[[npt.NDArray[np.float32]], tuple[tf.Tensor, tf.Tensor]]:
    def ratios(weights: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        clamped = dorefa.clamp_weights(weights)
        quantized = dorefa.quantize_weights(weights, num_bits, grid)
        deviation = tf.math.reduce_std(quantized) / tf.math.reduce_std(clamped)
        squares = [tf.reduce_mean(tf.square(values)) for values in (quantized, clamped)]
        return deviation, tf.sqrt(squares[0] / squares[1])

    # A partial function, as in `as_graph`: one of each grid is no reason to warn of retracing.
    traced = functools.partial(ratios)
    return tf.function(traced, autograph=False, input_signature=[tf.TensorSpec([None])])


def clamp_variance(
    seed: int, *, neurons: Sequence[int] = NEURONS, samples: int = SAMPLES
) -> pd.DataFrame:
    """VAR[Ŵ] / VAR[W] of square layers of n x n weights W ~ N(0, 1/n).

    Args:
        seed: of the weights.
        neurons: the sizes n.
        samples: layers of each size, at least 2.
    """
    rows = []
    for size in neurons:
        buffer = np.empty((size, size), np.float32)
        ratios = pd.Series(
            [
                clamping_ratio(gaussian(buffer.shape, 1.0 / size, seed, size, sample, out=buffer))
                for sample in range(samples)
            ]
        )
        found = ratios.agg(["mean", "std", "min", "max"]).add_prefix("ratio_")
        rows.append({"neurons": size, "samples": samples, "seed": seed, **found})
    return pd.DataFrame(rows)


def draw_clamp_variance(table: pd.DataFrame) -> Picture:
    """The mean, its standard deviation as a band, and the extremes, on logarithmic axes."""
    picture, axes = charts.canvas()
    neurons, mean, deviation = table["neurons"], table["ratio_mean"], table["ratio_std"]
    band = {"color": charts.SKY, "linewidth": 0}
    axes.fill_between(neurons, table["ratio_min"], table["ratio_max"], alpha=0.25, **band)
    axes.fill_between(neurons, mean - deviation, mean + deviation, alpha=0.6, **band)
    axes.plot(neurons, mean, color=charts.BLUE, marker="o", label="mean")
    axes.plot(1000, IMPLIED_RATIO, marker="*", markersize=15, color=charts.VERMILION, linestyle="")
    axes.annotate(
        "50, which Table S1\nimplies for 1000",
        (1000, IMPLIED_RATIO),
        xytext=(-14, 22),
        textcoords="offset points",
        ha="right",
        color=charts.VERMILION,
    )
    axes.set_xscale("log", base=2)
    axes.set_yscale("log")
    plain_ticks(axes.xaxis, [16, 64, 256, 1000, 4096])
    plain_ticks(axes.yaxis, [2, 5, 10, 20, 50, 100, 200])
    axes.set_xlabel("number of neurons n (layer of n × n weights)")
    axes.set_ylabel("VAR[clamped] / VAR[original]")
    axes.text(
        *(0.97, 0.04, f"line: mean of {table['samples'][0]}\ndark: ± 1 std\nlight: min to max"),
        transform=axes.transAxes,
        ha="right",
        va="bottom",
        color=charts.GREY,
    )
    return picture


def compare_clamp_variance(table: pd.DataFrame) -> list[Comparison]:
    """Compares with the words of Section 3.3.1, and the ratio that Table S1 implies."""
    large = table["ratio_mean"][table["neurons"] >= 512]
    _, _, _, mean, deviation, least, most = table[table["neurons"] == 1000].iloc[0]
    return [
        Comparison(
            "the variance for large neuron numbers (512 and more)",
            "enlarged to tens of the original",
            f"{large.min():.0f} to {large.max():.0f} times",
            bool(large.min() >= 10.0),
        ),
        Comparison(
            "ratio for a layer of 1000 neurons",
            f"{IMPLIED_RATIO:g} (Table S1, κ₀ clamped over vanilla)",
            f"{mean:.3g} ± {deviation:.2g}, {least:.3g} to {most:.3g}",
            bool(least <= IMPLIED_RATIO <= most),
            "the paper draws one sample: the smallest and the largest of ours; see Table S1",
        ),
    ]


def quantized_deviation(
    seed: int, *, channels: Sequence[int] = (16, 64, 256, 1024), samples: int = 10
) -> pd.DataFrame:
    """std[Q] / std[Ŵ] of square layers of n x n weights W ~ N(0, 1/n), by grid, n and bits.

    Args:
        seed: of the weights, which all grids and bits share.
        channels: the sizes n.
        samples: layers of each size, at least 2.
    """
    rows = [
        {"grid": grid, "channels": size, "bits": bits, "std": deviation, "rms": root_mean_square}
        for size in channels
        for weights in (gaussian((size, size), 1 / size, seed, size, n) for n in range(samples))
        for grid, row in GRIDS.items()
        for bits in range(row.fewest_bits, 9)
        for deviation, root_mean_square in [quantization_ratios(weights, bits, grid)]
    ]
    return (
        pd.DataFrame(rows)
        .groupby(["grid", "channels", "bits"], as_index=False)
        .agg(std_ratio=("std", "mean"), std_ratio_std=("std", "std"), rms_ratio=("rms", "mean"))
    )


def draw_quantized_deviation(table: pd.DataFrame) -> Picture:
    """A panel for each grid, a line for each number of channels."""
    grids = table.groupby("grid")
    down = -(-len(grids) // 2)
    picture, panels = charts.canvas(down, 2, size=(8.4, 3.1 * down), sharex=True, sharey=True)
    for axes in panels.flat[len(grids) :]:
        axes.set_visible(False)
    for axes, (grid, lines) in zip(panels.flat, grids, strict=False):
        for (size, line), style in zip(lines.groupby("channels"), charts.SERIES, strict=False):
            axes.plot(line["bits"], line["std_ratio"], label=f"{size} channels", **style)
        axes.set_title("DoReFa (the paper's)" if grid == "dorefa" else str(grid))
        axes.set_yscale("log")
        axes.set_ylim(0.45, 6.5)
        plain_ticks(axes.yaxis, [0.5, 1, 2, 5])
        axes.set_xticks(range(1, 9))
        axes.set_xlim(0.7, 8.3)
        axes.axhline(1.0, color=charts.GREY, linewidth=1)
    panels[0, 0].legend()
    picture.supxlabel("bits", fontsize=13)
    picture.supylabel("std[quantized] / std[clamped]", fontsize=13)
    return picture


def compare_quantized_deviation(table: pd.DataFrame) -> list[Comparison]:
    """Compares the grid of the paper with the words of Section S2."""
    paper = table[table["grid"] == "dorefa"]
    fine = paper["std_ratio"][paper["bits"] > 3]
    coarse = {bits: paper["std_ratio"][paper["bits"] == bits] for bits in (1, 2, 3)}
    ranges = {bits: f"{found.min():.2f} to {found.max():.2f}" for bits, found in coarse.items()}
    return [
        Comparison(
            "more than 3 bits",
            "nearly the same variance",
            f"std ratio {fine.min():.3f} to {fine.max():.3f}",
            bool(abs(fine - 1.0).max() < 0.05),
            "within 5 %",
        ),
        Comparison(
            "1 or 2 bits",
            "the discrepancy increases significantly",
            f"std ratio {ranges[2]} at 2 bits, {ranges[1]} at 1",
            bool(min(coarse[1].min(), coarse[2].min()) > coarse[3].max()),
            "farther from 1 than any ratio at 3 bits",
        ),
        Comparison(
            "different channel numbers",
            "give similar results",
            f"{ranges[3]} at 3 bits, {ranges[2]} at 2, {ranges[1]} at 1",
            all(found.max() < 1.1 * found.min() for found in coarse.values()),
            "within 10 % of each other at each number of bits",
        ),
    ]


FIGURE_2A = Figure(
    "Figure 2a: variance of clamped over original weights, by the number of neurons",
    clamp_variance,
    draw_clamp_variance,
    compare_clamp_variance,
)
FIGURE_S3 = Figure(
    "Figure S3: standard deviation of quantized over clamped weights, by bits",
    quantized_deviation,
    draw_quantized_deviation,
    compare_quantized_deviation,
)
