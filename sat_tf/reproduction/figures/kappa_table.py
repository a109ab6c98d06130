"""Table S1: κ₀ of four classifiers, vanilla and clamped."""

import dataclasses
from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from sat_tf.presentation import palette
from sat_tf.reproduction.figures.figure import Advance, Comparison, Numbers, Value
from sat_tf.reproduction.figures.variances import SampleSummary, clamping_ratio, gaussian

if TYPE_CHECKING:
    import tf_keras as keras
    from matplotlib.figure import Figure as Picture

SAMPLES = 100
# The shape of the layer whose ratio gives the printed table; see `PrintedKappas`.
ONE_RATIO_WEIGHTS = (100, 1000)
COLUMNS = (
    *("model", "n_L", "n_hat_L", "k_pool", "samples", "seed"),
    *("vanilla_printed", "vanilla_mean", "vanilla_std", "vanilla_round_to_printed"),
    *("clamp_printed", "clamp_mean", "clamp_std", "clamp_round_to_printed"),
    *("one_ratio_mean", "one_ratio_std", "one_ratio_round_to_printed"),
)
# A printed value is one draw. It agrees if at least one in twenty of our draws rounds to it.
FEWEST_DRAWS = 0.05


@dataclasses.dataclass(frozen=True)
class PrintedKappas:
    """A column of the paper's table.

    The paper's clamped values are 50 times its vanilla ones for all four models, although the ratio
    depends on the largest of n_L · n̂_L weights, and falls with their number: 50 is the average
    ratio of a layer of 100 000 weights.

    Attributes:
        title: of the model.
        features: n_L.
        classes: n̂_L.
        pool: rows, and columns, of the pooled map.
        vanilla: κ₀ as printed.
        clamp: κ₀ as printed for clamped weights.
    """

    title: str
    features: int
    classes: int
    pool: int
    vanilla: str
    clamp: str


PRINTED = {
    "resnet18": PrintedKappas("ResNet-18", 512, 1000, 7, "0.01", "0.5"),
    "resnet50": PrintedKappas("ResNet-50", 2048, 1000, 7, "0.04", "2"),
    "mobilenet_v1": PrintedKappas("MobileNet-V1", 1024, 1000, 7, "0.02", "1"),
    "mobilenet_v2": PrintedKappas("MobileNet-V2", 1280, 1000, 7, "0.026", "1.3"),
}


def measure(seed: int, advance: Advance, *, samples: int = SAMPLES) -> Numbers:
    """κ₀ of sat-tf's models at 224 pixels, with weights of the classifier drawn from N(0, 1/n̂_L).

    Args:
        seed: of the weights.
        advance: see `figure.Advance`.
        samples: draws of every classifier, at least 2.
    """
    from sat_tf import models

    ratios = [
        clamping_ratio(gaussian(ONE_RATIO_WEIGHTS, 1e-3, seed, 0, sample))
        for sample in range(samples)
    ]
    rows = []
    for number, (name, printed) in enumerate(PRINTED.items(), start=1):
        model = models.build(name, image_size=224, num_classes=1000, seed=seed)
        advance(0.1)
        features, classes = model.get_layer("classifier").kernel.shape
        pool = int(model.get_layer("pool").input_shape[1])
        vanilla, clamp = _kappas(model, (seed, number), samples)
        by_one_ratio = np.mean(vanilla) * np.array(ratios)
        rows.append(
            (
                *(name, features, classes, pool, samples, seed),
                *(float(printed.vanilla), *_summary(vanilla, printed.vanilla)),
                *(float(printed.clamp), *_summary(clamp, printed.clamp)),
                *_summary(by_one_ratio, printed.clamp),
            )
        )
        advance(0.15)
    return Numbers(COLUMNS, tuple(rows))


def round_to_printed(values: Sequence[float] | np.ndarray, printed: str) -> float:
    """The share of values that round to the printed one.

    >>> round_to_printed([0.44, 0.46, 0.5, 0.56], "0.5")
    0.5
    """
    decimals = len(printed.partition(".")[2])
    return sum(f"{value:.{decimals}f}" == printed for value in values) / len(values)


def _summary(values: Sequence[float] | np.ndarray, printed: str) -> tuple[Value, ...]:
    spread = SampleSummary.of(values)
    return spread.mean, spread.deviation, round_to_printed(values, printed)


def _kappas(
    model: "keras.Model", key: tuple[int, int], samples: int
) -> tuple[list[float], list[float]]:
    """κ₀ over many draws of a model's classifier: as drawn, and clamped."""
    from sat_tf.core import dorefa

    kernel = model.get_layer("classifier").kernel
    vanilla, clamp = [], []
    for sample in range(samples):
        weights = gaussian(kernel.shape, 1.0 / kernel.shape[1], *key, sample)
        kernel.assign(weights)
        vanilla.append(_kappa_0(model))
        kernel.assign(dorefa.clamp_weights(weights))
        clamp.append(_kappa_0(model))
    return vanilla, clamp


def _kappa_0(model: "keras.Model") -> float:
    from sat_tf.analysis.kappa import kappa_0

    kappa = kappa_0(model)
    if kappa is None:
        raise ValueError(f"{model.name}: received a model without a classifier, expected one.")
    return kappa


def draw(table: Numbers) -> "Picture":
    """Our values as dots with a standard deviation, the paper's as stars, the limits of rule I."""
    picture, axes = palette.canvas(size=(7.6, 4.4))
    places = np.arange(len(table.rows), dtype=float)
    axes.axhspan(1.0, 5.0, color=palette.VERMILION, alpha=0.10, linewidth=0)
    axes.axhspan(0.004, 0.1, color=palette.GREEN, alpha=0.12, linewidth=0)
    for column, label, color, marker, shift in (
        ("vanilla", "vanilla", palette.BLUE, "o", -0.12),
        ("clamp", "clamped", palette.ORANGE, "s", -0.12),
        ("one_ratio", "clamped, by one ratio", palette.PURPLE, "D", 0.12),
    ):
        axes.errorbar(
            *(places + shift, table[f"{column}_mean"], table[f"{column}_std"]),
            linestyle="",
            capsize=5,
            label=label,
            color=color,
            marker=marker,
        )
    for column, label in (("vanilla_printed", "printed"), ("clamp_printed", "_nolegend_")):
        axes.plot(
            *(places, table[column]),
            linestyle="",
            marker="*",
            markersize=13,
            color=palette.BLACK,
            label=label,
        )
    axes.set_yscale("log")
    axes.set_ylim(0.004, 5.0)
    palette.plain_ticks(axes.yaxis, [0.01, 0.1, 1])
    axes.set_xlim(-0.5, len(places) - 0.5)
    axes.set_xticks(places, [PRINTED[str(name)].title for name in table.values("model")])
    axes.set_ylabel(r"$\kappa_0$", fontsize=16)
    axes.text(3.45, 0.079, "rule I: below 0.1", ha="right", va="top", color=palette.GREY)
    axes.text(3.45, 4.6, "saturating", ha="right", va="top", color=palette.GREY)
    picture.legend(loc="outside lower center", ncols=4, handletextpad=0.2, columnspacing=1.2)
    return picture


def compare(table: Numbers) -> list[Comparison]:
    """Every number of the table."""
    claims = []
    for name, printed in PRINTED.items():
        row = table.row(model=name)
        sizes = [int(row[column]) for column in ("n_L", "n_hat_L", "k_pool")]
        expected = [printed.features, printed.classes, printed.pool]
        claims.append(
            Comparison(
                about=f"{printed.title}: n_L, n̂_L, k_pool",
                paper=", ".join(map(str, expected)),
                ours=", ".join(map(str, sizes)),
                holds=sizes == expected,
            )
        )
        for column, about, value, digits, reason in (
            ("vanilla", "vanilla", printed.vanilla, 5, ""),
            ("clamp", "clamped", printed.clamp, 2, "; the largest of n_L · 1000 weights"),
            (
                *("one_ratio", "clamped, by one ratio", printed.clamp, 2),
                "; vanilla times the ratio of 100 000 weights",
            ),
        ):
            share = row[f"{column}_round_to_printed"]
            claims.append(
                Comparison(
                    about=f"{printed.title}: κ₀ {about}",
                    paper=value,
                    ours=f"{row[f'{column}_mean']:.{digits}f} ± {row[f'{column}_std']:.{digits}f}",
                    holds=share >= FEWEST_DRAWS,
                    reason=f"{share:.0%} of the draws round to it{reason}",
                )
            )
    return claims
