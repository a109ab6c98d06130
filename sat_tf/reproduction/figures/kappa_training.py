"""Figure S2: κ₀ and κ₁ while a ResNet-18 is trained."""

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import numpy as np

from sat_tf.presentation import palette
from sat_tf.reproduction.figures.figure import Advance, Comparison, Numbers, Value

if TYPE_CHECKING:
    import tf_keras as keras
    from matplotlib.figure import Figure as Picture

    from sat_tf.data.images import ImageSet

STEPS = 320
EVERY = 10
BATCH_SIZE = 64
MEASURED_IMAGES = 128
PEAK_RATE = 0.1
COLUMNS = ("step", "seed", "quantity", "layer", "value")
FIRST, SHORTCUT = "stem_conv", "shortcut"


def measure(seed: int, advance: Advance) -> Numbers:
    """Trains a quarter-wide ResNet-18 on a thousand printed characters of 24 x 24 pixels.

    As many classes as ImageNet, because κ₀ depends on their number.

    Args:
        seed: of weights and order of images.
        advance: see `figure.Advance`.
    """
    from sat_tf import data, models

    images = data.load_glyphs(train_per_class=8, test_per_class=1)
    advance(0.1)
    small: dict[str, Any] = {"stem_kernel_size": 3, "stem_stride": 1, "stem_pool": False}
    model = models.resnet18(
        images.image_size, images.num_classes, width_multiplier=0.25, seed=seed, **small
    )
    return record(model, images, seed, lambda share: advance(0.9 * share), steps=STEPS, every=EVERY)


def record(
    model: "keras.Model",
    images: "ImageSet",
    seed: int,
    advance: Advance,
    *,
    steps: int,
    every: int,
) -> Numbers:
    """Trains a model by SGD with Nesterov momentum, and measures it every `every` steps.

    The learning rate falls as a cosine; there is no weight decay. κ₁ is that of Eq. S17, with
    gradients of `MEASURED_IMAGES` training images, the same throughout.

    Args:
        model: from images to logits.
        images: to train on.
        seed: of their order.
        advance: see `figure.Advance`.
        steps: of training.
        every: how many steps lie between two measurements.
    """
    import tf_keras as keras

    from sat_tf.analysis.audit.kappa_1 import GradientProbe
    from sat_tf.analysis.kappa import kappa_0
    from sat_tf.analysis.labelled_images import LabelledImages

    rate = keras.optimizers.schedules.CosineDecay(PEAK_RATE, steps)
    model.compile(
        keras.optimizers.SGD(rate, momentum=0.9, nesterov=True),
        keras.losses.SparseCategoricalCrossentropy(from_logits=True),
    )
    batches = _batches(images, BATCH_SIZE, seed)
    chosen = np.random.RandomState([seed, 1]).permutation(len(images.train_labels))
    chosen = chosen[:MEASURED_IMAGES]
    sample = LabelledImages(images.train_images[chosen], images.train_labels[chosen])
    probe = GradientProbe(model, sample, compiled=True)
    rows: list[tuple[Value, ...]] = []

    def add(step: int, quantity: str, layer: str, value: float | None) -> None:
        if value is not None:
            rows.append((step, seed, quantity, layer, float(value)))

    for step in range(steps + 1):
        if step % every == 0 or step == steps:
            flow = probe()
            add(step, "loss", "", flow.loss)
            add(step, "kappa_0", flow.layers[-1].name, kappa_0(model))
            for layer in flow.layers:
                add(step, "kappa_1", layer.name, layer.kappa_1)
        if step < steps:
            model.train_on_batch(*next(batches))
            advance(1.0 / steps)
    return Numbers(COLUMNS, tuple(rows))


def _batches(images: "ImageSet", size: int, seed: int) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Endless batches, in a new order every epoch."""
    order = np.random.RandomState([seed, 0])
    while True:
        places = order.permutation(len(images.train_labels))
        for start in range(0, max(len(places) - size, 0) + 1, size):
            chosen = places[start : start + size]
            yield images.train_images[chosen].astype(np.float32), images.train_labels[chosen]


def draw(table: Numbers) -> "Picture":
    """κ₀ on the left; on the right κ₁ of every convolution, coloured by its depth."""
    from matplotlib.cm import ScalarMappable

    picture, (left, right) = palette.canvas(1, 2, size=(10.2, 4.2))
    classifier = table.where(quantity="kappa_0")
    left.axhspan(1e-3, 0.1, color=palette.GREEN, alpha=0.12, linewidth=0)
    left.plot(classifier["step"], classifier["value"], color=palette.BLUE)
    left.set_ylim(3e-3, 2.0)
    left.axhline(1.0, color=palette.VERMILION, linestyle="--", linewidth=1.2)
    left.text(0, 1.1, "saturating above 1", va="bottom", color=palette.VERMILION)
    left.text(0, 0.085, "rule I: below 0.1", va="top", color=palette.GREY)
    left.set_ylabel(r"$\kappa_0$", fontsize=16)

    flow = table.where(quantity="kappa_1")
    layers = flow.distinct("layer")
    colours, depth = palette.depths(len(layers))
    for number, layer in enumerate(layers, start=1):
        line = flow.where(layer=layer)
        style: dict[str, Any] = {"color": colours(depth(number)), "linewidth": 1.5}
        if layer == FIRST:
            style = {"color": palette.VERMILION, "linestyle": "--", "label": "first layer"}
        elif SHORTCUT in str(layer):
            style |= {"linestyle": ":", "linewidth": 2.2}
        right.plot(line["step"], line["value"], **style)
    right.axhline(1.0, color=palette.GREY, linewidth=1)
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
    palette.plain_ticks(left.yaxis, [0.01, 0.1, 1])
    palette.plain_ticks(right.yaxis, [0.1, 0.2, 0.5, 1, 2, 5, 10])
    return picture


def compare(table: Numbers) -> list[Comparison]:
    """The words of Section S1.2."""
    kappa_0 = table.where(quantity="kappa_0")["value"]
    flow = table.where(quantity="kappa_1")
    is_first = np.array([layer == FIRST for layer in flow.values("layer")])
    at_start = flow["step"] == 0
    others, first = flow["value"][~is_first], flow["value"][is_first]
    inside = (others > 0.1) & (others < 10.0)
    loss = table.where(quantity="loss")["value"]
    claims = [
        Comparison(
            about="κ₀ during the whole training",
            paper="≪ 1",
            ours=f"{kappa_0.min():.3f} to {kappa_0.max():.3f}",
            holds=bool(kappa_0.max() < 0.1),
            reason=f"below 0.1; the loss goes from {loss[0]:.2f} to {loss[-1]:.2f}",
        ),
        Comparison(
            about="κ₁ before training, first layer excepted",
            paper="of order 1",
            ours=_range(flow["value"][at_start & ~is_first]),
            holds=bool(inside[at_start[~is_first]].all()),
            reason="from 0.1 to 10",
        ),
        Comparison(
            about="κ₁ during the whole training, first layer excepted",
            paper="of order 1",
            ours=f"{_range(others)}, median {np.median(others):.2f}",
            holds=bool(inside.all()),
            reason=f"from 0.1 to 10: {inside.mean():.1%} of the values",
        ),
    ]
    if len(first):
        claims.append(
            Comparison(
                about="κ₁ of the first layer",
                paper="the discrepancy is not large",
                ours=_range(first),
                holds=bool(first.min() > 0.1 and first.max() < 10.0),
                reason="from 0.1 to 10; here without the paper's maximum pooling",
            )
        )
    return claims


def _range(values: np.ndarray) -> str:
    return f"{values.min():.2f} to {values.max():.2f}"
