"""Figure S3: how quantization changes the standard deviation of clamped weights."""

from typing import TYPE_CHECKING

from sat_tf.core.grid_table import GRIDS
from sat_tf.presentation import palette
from sat_tf.reproduction.figures.figure import Advance, Comparison, Numbers
from sat_tf.reproduction.figures.variances import SampleSummary, gaussian, quantization_ratios

if TYPE_CHECKING:
    from matplotlib.figure import Figure as Picture

CHANNELS = (16, 64, 256, 1024)
SAMPLES = 10
COLUMNS = ("grid", "channels", "bits", "samples", "seed", "std_ratio", "std_ratio_std", "rms_ratio")


def measure(
    seed: int, advance: Advance, *, channels: tuple[int, ...] = CHANNELS, samples: int = SAMPLES
) -> Numbers:
    """std[Q] / std[Ŵ] of square layers of n x n weights W ~ N(0, 1/n), by grid, n and bits.

    Args:
        seed: of the weights, which all grids and bits share.
        advance: see `figure.Advance`.
        channels: the sizes n.
        samples: layers of each size, at least 2.
    """
    pairs = [(name, bits) for name, row in GRIDS.items() for bits in range(row.fewest_bits, 9)]
    weights_in_all = samples * len(pairs) * sum(size**2 for size in channels)
    found: dict[tuple[str, int, int], list[tuple[float, float]]] = {}
    for size in channels:
        for sample in range(samples):
            weights = gaussian((size, size), 1.0 / size, seed, size, sample)
            for name, bits in pairs:
                ratios = quantization_ratios(weights, bits, name)
                found.setdefault((name, size, bits), []).append(ratios)
                advance(size**2 / weights_in_all)
    rows = []
    for grid, size, bits in sorted(found, key=lambda key: (list(GRIDS).index(key[0]), *key[1:])):
        deviations, root_mean_squares = zip(*found[grid, size, bits], strict=True)
        spread = SampleSummary.of(deviations)
        rms = SampleSummary.of(root_mean_squares).mean
        rows.append((grid, size, bits, samples, seed, spread.mean, spread.deviation, rms))
    return Numbers(COLUMNS, tuple(rows))


def draw(table: Numbers) -> "Picture":
    """A panel for each grid, a line for each number of channels."""
    grids = table.distinct("grid")
    down = -(-len(grids) // 2)
    picture, panels = palette.canvas(down, 2, size=(8.4, 3.1 * down), sharex=True, sharey=True)
    for axes in panels.flat[len(grids) :]:
        axes.set_visible(False)
    for axes, grid in zip(panels.flat, grids, strict=False):
        for size, style in zip(table.distinct("channels"), palette.SERIES, strict=False):
            line = table.where(grid=grid, channels=size)
            axes.plot(line["bits"], line["std_ratio"], label=f"{size} channels", **style)
        axes.set_title("DoReFa (the paper's)" if grid == "dorefa" else str(grid))
        axes.set_yscale("log")
        axes.set_ylim(0.45, 6.5)
        palette.plain_ticks(axes.yaxis, [0.5, 1, 2, 5])
        axes.set_xticks(range(1, 9))
        axes.set_xlim(0.7, 8.3)
        axes.axhline(1.0, color=palette.GREY, linewidth=1)
    panels[0, 0].legend()
    picture.supxlabel("bits", fontsize=13)
    picture.supylabel("std[quantized] / std[clamped]", fontsize=13)
    return picture


def compare(table: Numbers) -> list[Comparison]:
    """The words of Section S2, on the grid of the paper."""
    paper = table.where(grid="dorefa")
    fine = paper["std_ratio"][paper["bits"] > 3]
    coarse = {bits: paper.where(bits=bits)["std_ratio"] for bits in (1, 2, 3)}
    ranges = {bits: f"{found.min():.2f} to {found.max():.2f}" for bits, found in coarse.items()}
    return [
        Comparison(
            about="more than 3 bits",
            paper="nearly the same variance",
            ours=f"std ratio {fine.min():.3f} to {fine.max():.3f}",
            holds=bool(abs(fine - 1.0).max() < 0.05),
            reason="within 5 %",
        ),
        Comparison(
            about="1 or 2 bits",
            paper="the discrepancy increases significantly",
            ours=f"std ratio {ranges[2]} at 2 bits, {ranges[1]} at 1",
            holds=bool(min(coarse[1].min(), coarse[2].min()) > coarse[3].max()),
            reason="farther from 1 than any ratio at 3 bits",
        ),
        Comparison(
            about="different channel numbers",
            paper="give similar results",
            ours=f"{ranges[3]} at 3 bits, {ranges[2]} at 2, {ranges[1]} at 1",
            holds=all(found.max() < 1.1 * found.min() for found in coarse.values()),
            reason="within 10 % of each other at each number of bits",
        ),
    ]
