"""Table S1: κ₀ of four classifiers, vanilla and clamped."""

import dataclasses
import math
from typing import TYPE_CHECKING

import numpy as np

from sat_tf.figures import palette
from sat_tf.figures.draws import gaussian
from sat_tf.figures.figure import Advance, Claim
from sat_tf.figures.table import Table, Value
from sat_tf.figures.variances import Spread, clamping_ratio

if TYPE_CHECKING:
    import tf_keras as keras
    from matplotlib.figure import Figure as Picture

SAMPLES = 100
# Weights of the layer whose ratio gives the table as it is printed; see `Printed`.
ONE_RATIO_WEIGHTS = (100, 1000)
COLUMNS = (
    *("model", "n_L", "n_hat_L", "k_pool", "samples", "seed"),
    *("printed_vanilla", "vanilla_mean", "vanilla_std"),
    *("printed_clamp", "clamp_mean", "clamp_std", "one_ratio_mean", "one_ratio_std"),
)


@dataclasses.dataclass(frozen=True)
class Printed:
    """A column of the paper's table.

    The paper's clamped values are 50 times its vanilla ones for all four models, though the ratio
    depends on the largest of n_L · n̂_L weights, and falls with their number: 50 is what a layer of
    100 000 weights gives on average.

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
    "resnet18": Printed("ResNet-18", 512, 1000, 7, "0.01", "0.5"),
    "resnet50": Printed("ResNet-50", 2048, 1000, 7, "0.04", "2"),
    "mobilenet_v1": Printed("MobileNet-V1", 1024, 1000, 7, "0.02", "1"),
    "mobilenet_v2": Printed("MobileNet-V2", 1280, 1000, 7, "0.026", "1.3"),
}


def measure(seed: int, advance: Advance, *, samples: int = SAMPLES) -> Table:
    """κ₀ of sat-tf's models at 224 pixels, with weights of the classifier drawn from N(0, 1/n̂_L).

    Args:
        seed: of the weights.
        advance: see `figure.Advance`.
        samples: draws of every classifier, at least 2.
    """
    one_ratio = [
        clamping_ratio(gaussian(ONE_RATIO_WEIGHTS, 1e-3, seed, 0, sample))
        for sample in range(samples)
    ]
    rows: list[tuple[Value, ...]] = []
    for number, (name, printed) in enumerate(PRINTED.items(), start=1):
        from sat_tf import models

        model = models.build(name, image_size=224, num_classes=1000, seed=seed)
        advance(0.1)
        classifier = model.get_layer("classifier")
        features, classes = classifier.kernel.shape
        vanilla, clamp = _kappas(model, (seed, number), samples)
        estimates = np.multiply(one_ratio, vanilla.mean)
        read = Spread.of(estimates)
        rows.append(
            (
                *(name, features, classes, int(model.get_layer("pool").input_shape[1])),
                *(samples, seed),
                *(float(printed.vanilla), vanilla.mean, vanilla.deviation),
                *(float(printed.clamp), clamp.mean, clamp.deviation),
                *(read.mean, read.deviation),
            )
        )
        advance(0.15)
    return Table(COLUMNS, tuple(rows))


def _kappas(model: "keras.Model", key: tuple[int, int], samples: int) -> tuple[Spread, Spread]:
    """κ₀ over many draws of a model's classifier: as drawn, and clamped."""
    from sat_tf.analysis.kappa import kappa_0
    from sat_tf.core import dorefa

    kernel = model.get_layer("classifier").kernel
    found: list[list[float]] = [[], []]
    for sample in range(samples):
        weights = gaussian(kernel.shape, 1.0 / kernel.shape[1], *key, sample)
        for kappas, effective in zip(
            found, (weights, dorefa.clamp_weights(weights)), strict=True
        ):
            kernel.assign(effective)
            kappa = kappa_0(model)
            if kappa is None:
                raise ValueError(f"{model.name}: no classifier was found, expected a dense layer.")
            kappas.append(kappa)
    return Spread.of(found[0]), Spread.of(found[1])


def draw(table: Table) -> "Picture":
    """Ours as dots with a standard deviation, printed as stars, and the limits of rule I."""
    picture, axes = palette.canvas(size=(7.6, 4.4))
    places = np.arange(len(table.rows), dtype=float)
    axes.axhspan(1.0, 5.0, color=palette.VERMILION, alpha=0.10, linewidth=0)
    axes.axhspan(0.004, 0.1, color=palette.GREEN, alpha=0.12, linewidth=0)
    for column, label, style, shift in (
        ("vanilla", "vanilla", {"color": palette.BLUE, "marker": "o"}, -0.12),
        ("clamp", "clamped", {"color": palette.ORANGE, "marker": "s"}, -0.12),
        ("one_ratio", "clamped, by one ratio", {"color": palette.PURPLE, "marker": "D"}, 0.12),
    ):
        axes.errorbar(
            places + shift,
            table[f"{column}_mean"],
            yerr=table[f"{column}_std"],
            linestyle="",
            capsize=5,
            label=label,
            **style,
        )
    for column in ("printed_vanilla", "printed_clamp"):
        label = "printed" if column == "printed_vanilla" else None
        axes.plot(
            places, table[column], linestyle="", marker="*", markersize=13, color="k", label=label
        )
    axes.set_yscale("log")
    axes.set_ylim(0.004, 5.0)
    palette.plain_ticks(axes.yaxis, [0.01, 0.1, 1])
    axes.set_xlim(-0.5, len(places) - 0.5)
    axes.set_xticks(places, [PRINTED[str(name)].title for name in table.values("model")])
    axes.set_ylabel("κ₀")
    axes.text(3.45, 0.079, "rule I: below 0.1", ha="right", va="top", color=palette.GREY)
    axes.text(3.45, 4.6, "saturating", ha="right", va="top", color=palette.GREY)
    picture.legend(loc="outside lower center", ncols=4, handletextpad=0.2, columnspacing=1.2)
    return picture


def compare(table: Table) -> list[Claim]:
    """Every number of the table."""
    claims = []
    for name, printed in PRINTED.items():
        row = table.row(model=name)
        sizes = [int(row[column]) for column in ("n_L", "n_hat_L", "k_pool")]
        expected = [printed.features, printed.classes, printed.pool]
        claims.append(
            Claim(
                about=f"{printed.title}: n_L, n̂_L, k_pool",
                paper=", ".join(map(str, expected)),
                ours=", ".join(map(str, sizes)),
                holds=sizes == expected,
            )
        )
        rounded = f"{row['vanilla_mean']:.{_decimals(printed.vanilla)}f}"
        claims.append(
            Claim(
                about=f"{printed.title}: κ₀ vanilla",
                paper=printed.vanilla,
                ours=f"{row['vanilla_mean']:.4f} ± {row['vanilla_std']:.4f}",
                holds=rounded == printed.vanilla,
                reason="the same to the digits printed",
            )
        )
        for column, about, reason in _CLAMPED:
            mean, deviation = row[f"{column}_mean"], row[f"{column}_std"]
            half_a_digit = 0.5 * 10.0 ** -_decimals(printed.clamp)
            away = max(abs(mean - float(printed.clamp)) - half_a_digit, 0.0) / deviation
            claims.append(
                Claim(
                    about=f"{printed.title}: κ₀ clamped{about}",
                    paper=printed.clamp,
                    ours=f"{mean:.2f} ± {deviation:.2f}",
                    holds=away <= 3.0,
                    reason=f"{reason}; {away:.1f} standard deviations of one draw away from what "
                    "rounds to it",
                )
            )
    return claims


_CLAMPED = (
    ("clamp", "", "the largest of n_L · 1000 weights"),
    ("one_ratio", ", by one ratio", "vanilla times one ratio, that of 100 000 weights"),
)


def _decimals(printed: str) -> int:
    """Digits behind the point.

    >>> _decimals("0.026"), _decimals("2")
    (3, 0)
    """
    return len(printed.partition(".")[2])


def ratio_of_printed() -> float:
    """How many times the printed vanilla values the printed clamped ones are: the same for all."""
    ratios = {float(row.clamp) / float(row.vanilla) for row in PRINTED.values()}
    return math.fsum(ratios) / len(ratios)
