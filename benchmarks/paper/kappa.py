"""Table S1, κ₀ of four classifiers, and Figure S2, κ₀ and κ₁ while a network is trained."""

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
import tf_keras as keras
from matplotlib.cm import ScalarMappable
from matplotlib.figure import Figure as Picture

from benchmarks.drawn_glyphs import load_glyphs
from benchmarks.paper.figure import Comparison, Figure, depths, plain_ticks
from benchmarks.paper.variances import SAMPLES, clamping_ratio, gaussian
from sat_tf.analysis.labelled_images import LabelledImages
from sat_tf.core import dorefa
from sat_tf.messages import charts
from sat_tf.training import models
from sat_tf.training.audit.audit import Auditor
from sat_tf.training.audit.kappa import kappa_0
from sat_tf.training.data.source import ImageSet

# The layer whose ratio of variances gives the printed clamped values; see `Printed`.
_ONE_RATIO_WEIGHTS = (100, 1000)
# A printed value is one draw. It agrees if at least one in twenty of our draws rounds to it.
_FEWEST_DRAWS = 0.05


class Printed(NamedTuple):
    """A column of the paper's table.

    The paper's clamped values are 50 times its vanilla ones for all four models, although the ratio
    depends on the largest of n_L · n̂_L weights, and falls with their number: 50 is the average
    ratio of a layer of 100 000 weights.

    Attributes:
        title: of the model.
        features: n_L.
        vanilla: κ₀ as printed.
        clamp: κ₀ as printed for clamped weights.
        classes: n̂_L.
        pool: rows, and columns, of the pooled map.
    """

    title: str
    features: int
    vanilla: str
    clamp: str
    classes: int = 1000
    pool: int = 7


PRINTED = {
    "resnet18": Printed("ResNet-18", 512, "0.01", "0.5"),
    "resnet50": Printed("ResNet-50", 2048, "0.04", "2"),
    "mobilenet_v1": Printed("MobileNet-V1", 1024, "0.02", "1"),
    "mobilenet_v2": Printed("MobileNet-V2", 1280, "0.026", "1.3"),
}


def kappa_table(seed: int, *, samples: int = SAMPLES) -> pd.DataFrame:
    """κ₀ of sat-tf's models at 224 pixels, with weights of the classifier drawn from N(0, 1/n̂_L).

    Args:
        seed: of the weights.
        samples: draws of every classifier, at least 2.
    """
    ratios = [
        clamping_ratio(gaussian(_ONE_RATIO_WEIGHTS, 1e-3, seed, 0, sample))
        for sample in range(samples)
    ]
    rows = []
    for number, (name, printed) in enumerate(PRINTED.items(), start=1):
        model = models.build(name, image_size=224, num_classes=1000, seed=seed)
        kernel = model.get_layer("classifier").kernel
        features, classes = kernel.shape
        found: dict[str, list[float]] = {"vanilla": [], "clamp": []}
        for sample in range(samples):
            weights = gaussian(kernel.shape, 1.0 / classes, seed, number, sample)
            for kind, used in (("vanilla", weights), ("clamp", dorefa.clamp_weights(weights))):
                kernel.assign(used)
                found[kind].append(float(kappa_0(model)))
        found["one_ratio"] = list(np.mean(found["vanilla"]) * np.array(ratios))
        row = {
            "model": name,
            "n_L": features,
            "n_hat_L": classes,
            "k_pool": model.get_layer("pool").input_shape[1],
            "samples": samples,
            "seed": seed,
        }
        for kind, values in found.items():
            told = printed.vanilla if kind == "vanilla" else printed.clamp
            row |= {
                f"{kind}_printed": float(told),
                f"{kind}_mean": np.mean(values),
                f"{kind}_std": np.std(values, ddof=1),
                f"{kind}_round_to_printed": round_to_printed(values, told),
            }
        rows.append(row)
    return pd.DataFrame(rows)


def round_to_printed(values: Sequence[float], printed: str) -> float:
    """The share of values that round to the printed one.

    >>> round_to_printed([0.44, 0.46, 0.5, 0.56], "0.5")
    0.5
    """
    decimals = len(printed.partition(".")[2])
    return sum(f"{value:.{decimals}f}" == printed for value in values) / len(values)


def draw_table(table: pd.DataFrame) -> Picture:
    """Our values as dots with a standard deviation, the paper's as stars, the limits of rule I."""
    picture, axes = charts.canvas(size=(7.6, 4.4))
    places = np.arange(len(table), dtype=float)
    axes.axhspan(1.0, 5.0, color=charts.VERMILION, alpha=0.10, linewidth=0)
    axes.axhspan(0.004, 0.1, color=charts.GREEN, alpha=0.12, linewidth=0)
    for column, label, color, marker, shift in (
        ("vanilla", "vanilla", charts.BLUE, "o", -0.12),
        ("clamp", "clamped", charts.ORANGE, "s", -0.12),
        ("one_ratio", "clamped, by one ratio", charts.PURPLE, "D", 0.12),
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
        stars = {"linestyle": "", "marker": "*", "markersize": 13, "color": charts.BLACK}
        axes.plot(places, table[column], label=label, **stars)
    axes.set_yscale("log")
    axes.set_ylim(0.004, 5.0)
    plain_ticks(axes.yaxis, [0.01, 0.1, 1])
    axes.set_xlim(-0.5, len(places) - 0.5)
    axes.set_xticks(places, [PRINTED[name].title for name in table["model"]])
    axes.set_ylabel(r"$\kappa_0$", fontsize=16)
    axes.text(3.45, 0.079, "rule I: below 0.1", ha="right", va="top", color=charts.GREY)
    axes.text(3.45, 4.6, "saturating", ha="right", va="top", color=charts.GREY)
    picture.legend(loc="outside lower center", ncols=4, handletextpad=0.2, columnspacing=1.2)
    return picture


def compare_table(table: pd.DataFrame) -> list[Comparison]:
    """Compares every number of the table."""
    found = []
    for name, printed in PRINTED.items():
        row = table[table["model"] == name].iloc[0]
        sizes = [int(row[column]) for column in ("n_L", "n_hat_L", "k_pool")]
        expected = [printed.features, printed.classes, printed.pool]
        found.append(
            Comparison(
                f"{printed.title}: n_L, n̂_L, k_pool",
                ", ".join(map(str, expected)),
                ", ".join(map(str, sizes)),
                sizes == expected,
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
            found.append(
                Comparison(
                    f"{printed.title}: κ₀ {about}",
                    value,
                    f"{row[f'{column}_mean']:.{digits}f} ± {row[f'{column}_std']:.{digits}f}",
                    share >= _FEWEST_DRAWS,
                    f"{share:.0%} of the draws round to it{reason}",
                )
            )
    return found


_BATCH_SIZE = 64
_MEASURED_IMAGES = 128
_PEAK_RATE = 0.1
FIRST, SHORTCUT = "stem_conv", "shortcut"
COLUMNS = ["step", "seed", "quantity", "layer", "value"]


def kappa_training(seed: int) -> pd.DataFrame:
    """Trains a quarter-wide ResNet-18 on a thousand printed characters of 24 x 24 pixels.

    As many classes as ImageNet, because κ₀ depends on their number.

    Args:
        seed: of weights and order of images.
    """
    images = load_glyphs(train_per_class=8, test_per_class=1)
    small: dict[str, Any] = {"stem_kernel_size": 3, "stem_stride": 1, "stem_pool": False}
    model = models.resnet18(
        images.image_size, images.num_classes, width_multiplier=0.25, seed=seed, **small
    )
    return record(model, images, seed, steps=320, every=10)


def record(
    model: keras.Model, images: ImageSet, seed: int, *, steps: int, every: int
) -> pd.DataFrame:
    """Trains a model by SGD with Nesterov momentum, and measures it every `every` steps.

    The learning rate falls as a cosine; there is no weight decay. κ₁ is that of Eq. S17, with
    gradients of 128 training images, the same throughout.

    Args:
        model: from images to logits.
        images: to train on.
        seed: of their order.
        steps: of training.
        every: how many steps lie between two measurements.
    """
    rate = keras.optimizers.schedules.CosineDecay(_PEAK_RATE, steps)
    model.compile(
        keras.optimizers.SGD(rate, momentum=0.9, nesterov=True),
        keras.losses.SparseCategoricalCrossentropy(from_logits=True),
    )
    batches = _batches(images, _BATCH_SIZE, seed)
    chosen = np.random.RandomState([seed, 1]).permutation(len(images.train_labels))
    chosen = chosen[:_MEASURED_IMAGES]
    sample = LabelledImages(images.train_images[chosen], images.train_labels[chosen])
    audit = Auditor(model, sample, compiled=True)
    rows: list[tuple[int, int, str, str, float | None]] = []
    for step in range(steps + 1):
        if step % every == 0 or step == steps:
            flow = audit()
            rows.append((step, seed, "loss", "", flow.loss))
            rows.append((step, seed, "kappa_0", flow.layers[-1].name, kappa_0(model)))
            rows += [(step, seed, "kappa_1", layer.name, layer.kappa_1) for layer in flow.layers]
        if step < steps:
            model.train_on_batch(*next(batches))
    return pd.DataFrame(rows, columns=COLUMNS).dropna(ignore_index=True)


def _batches(images: ImageSet, size: int, seed: int) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Endless batches, in a new order every epoch."""
    order = np.random.RandomState([seed, 0])
    while True:
        places = order.permutation(len(images.train_labels))
        for start in range(0, max(len(places) - size, 0) + 1, size):
            chosen = places[start : start + size]
            yield images.train_images[chosen].astype(np.float32), images.train_labels[chosen]


def draw_training(table: pd.DataFrame) -> Picture:
    """κ₀ on the left; on the right κ₁ of every convolution, coloured by its depth."""
    picture, (left, right) = charts.canvas(1, 2, size=(10.2, 4.2))
    classifier = table[table["quantity"] == "kappa_0"]
    left.axhspan(1e-3, 0.1, color=charts.GREEN, alpha=0.12, linewidth=0)
    left.plot(classifier["step"], classifier["value"], color=charts.BLUE)
    left.set_ylim(3e-3, 2.0)
    left.axhline(1.0, color=charts.VERMILION, linestyle="--", linewidth=1.2)
    left.text(0, 1.1, "saturating above 1", va="bottom", color=charts.VERMILION)
    left.text(0, 0.085, "rule I: below 0.1", va="top", color=charts.GREY)
    left.set_ylabel(r"$\kappa_0$", fontsize=16)

    flow = table[table["quantity"] == "kappa_1"]
    layers = list(flow["layer"].unique())
    colours, depth = depths(len(layers))
    for number, layer in enumerate(layers, start=1):
        line = flow[flow["layer"] == layer]
        style: dict[str, Any] = {"color": colours(depth(number)), "linewidth": 1.5}
        if layer == FIRST:
            style = {"color": charts.VERMILION, "linestyle": "--", "label": "first layer"}
        elif SHORTCUT in layer:
            style |= {"linestyle": ":", "linewidth": 2.2}
        right.plot(line["step"], line["value"], **style)
    right.axhline(1.0, color=charts.GREY, linewidth=1)
    right.set_ylim(min(0.09, 0.8 * flow["value"].min()), max(11.0, 1.25 * flow["value"].max()))
    right.set_ylabel(r"$\kappa_1$", fontsize=16)
    if FIRST in layers:
        right.legend(loc="upper right")
    right.text(0.02, 0.97, "dotted: shortcuts", transform=right.transAxes, va="top")
    bar = picture.colorbar(ScalarMappable(depth, colours), ax=right)
    bar.set_label("convolution, from the image on")
    bar.set_ticks([1, *range(5, len(layers) + 1, 5)])
    bar.ax.invert_yaxis()
    for axes in (left, right):
        axes.set_yscale("log")
        axes.set_xlabel("training step")
    plain_ticks(left.yaxis, [0.01, 0.1, 1])
    plain_ticks(right.yaxis, [0.1, 0.2, 0.5, 1, 2, 5, 10])
    return picture


def compare_training(table: pd.DataFrame) -> list[Comparison]:
    """Compares with the words of Section S1.2; κ₁ is of order 1 from 0.1 to 10."""
    of_quantity = dict(iter(table.groupby("quantity")))
    kappas_0, loss = of_quantity["kappa_0"]["value"], of_quantity["loss"]["value"]
    flow = of_quantity["kappa_1"]
    others, first = flow[flow["layer"] != FIRST], flow["value"][flow["layer"] == FIRST]
    start, whole = others["value"][others["step"] == 0], others["value"]
    found = [
        Comparison(
            "κ₀ during the whole training",
            "≪ 1",
            f"{kappas_0.min():.3f} to {kappas_0.max():.3f}",
            bool(kappas_0.max() < 0.1),
            f"below 0.1; the loss goes from {loss.iloc[0]:.2f} to {loss.iloc[-1]:.2f}",
        ),
        Comparison(
            "κ₁ before training, first layer excepted",
            "of order 1",
            f"{start.min():.2f} to {start.max():.2f}",
            _of_order_one(start),
            "from 0.1 to 10",
        ),
        Comparison(
            "κ₁ during the whole training, first layer excepted",
            "of order 1",
            f"{whole.min():.2f} to {whole.max():.2f}, median {whole.median():.2f}",
            _of_order_one(whole),
            "from 0.1 to 10",
        ),
    ]
    if len(first):
        found.append(
            Comparison(
                "κ₁ of the first layer",
                "the discrepancy is not large",
                f"{first.min():.2f} to {first.max():.2f}",
                _of_order_one(first),
                "from 0.1 to 10; here without the paper's maximum pooling",
            )
        )
    return found


def _of_order_one(values: pd.Series) -> bool:
    return bool(values.between(0.1, 10.0, inclusive="neither").all())


TABLE_S1 = Figure(
    "Table S1: κ₀ of four classifiers, vanilla and clamped", kappa_table, draw_table, compare_table
)
FIGURE_S2 = Figure(
    "Figure S2: κ₀ and κ₁ while a ResNet-18 is trained",
    kappa_training,
    draw_training,
    compare_training,
)
