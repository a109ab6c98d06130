"""Equation 13: the gradient of a clipping level, original and calibrated."""

from typing import TYPE_CHECKING

import numpy as np

from sat_tf.presentation import palette
from sat_tf.reproduction.figures.figure import Advance, Comparison, Numbers

if TYPE_CHECKING:
    from matplotlib.figure import Figure as Picture

BITS = (2, 3, 4)
COLUMNS = ("bits", "x_over_level", "pact", "calibrated")
# Between the ties of all these grids, whose codes change at odd multiples of 1/6, 1/14 and 1/30.
_POINTS = np.arange(-199.5, 1400.0) / 1000.0


def measure(seed: int, advance: Advance) -> Numbers:
    """∂q/∂α of `core.pact.quantize_activation` for α = 1; nothing is drawn at random."""
    del seed
    rows = []
    for bits in BITS:
        gradients = [level_gradients(_POINTS, 1.0, bits, name) for name in ("pact", "calibrated")]
        advance(1.0 / len(BITS))
        for x, original, calibrated in zip(_POINTS, *gradients, strict=True):
            rows.append((bits, float(x), float(original), float(calibrated)))
    return Numbers(COLUMNS, tuple(rows))


def level_gradients(x: np.ndarray, level: float, bits: int, gradient: str) -> np.ndarray:
    """∂q/∂α for each activation separately.

    Args:
        x: activations, (n,).
        level: the clipping level α.
        bits: of the quantized activations q.
        gradient: a row of `clipping_gradients`.
    """
    import tensorflow as tf

    from sat_tf.analysis.measurement import as_graph
    from sat_tf.core import pact

    def each(values: tf.Tensor) -> tf.Tensor:
        alpha = tf.constant(level)

        def of_one(value: tf.Tensor) -> tf.Tensor:
            with tf.GradientTape() as tape:
                tape.watch(alpha)
                quantized = pact.quantize_activation(value[None], alpha, bits, gradient)
            return tape.gradient(quantized, alpha)

        return tf.map_fn(of_one, values)

    return np.asarray(as_graph(each)(tf.constant(x, tf.float32)))


def draw(table: Numbers) -> "Picture":
    """A panel for each number of bits."""
    picture, panels = palette.canvas(1, 3, size=(10.2, 3.9), sharey=True)
    for axes, bits in zip(panels, table.distinct("bits"), strict=True):
        line = table.where(bits=bits)
        x = line["x_over_level"]
        axes.plot(x, line["calibrated"], color=palette.BLUE, label="calibrated (CG-PACT)")
        axes.plot(*(x, line["pact"]), color=palette.ORANGE, linestyle="--", label="original (PACT)")
        axes.set_title(f"{bits} bits")
        axes.set_ylim(-0.25, 1.1)
        axes.set_xlabel("x / α")
    panels[0].set_ylabel("∂q / ∂α")
    picture.legend(*panels[0].get_legend_handles_labels(), loc="outside lower center", ncols=2)
    return picture


def compare(table: Numbers) -> list[Comparison]:
    """Equation 13, and the paper's bound on the quantization error in it."""
    x, original, calibrated = table["x_over_level"], table["pact"], table["calibrated"]
    inside = (x > 0.0) & (x < 1.0)
    largest = {
        bits: float(np.abs(calibrated[inside & (table["bits"] == bits)]).max()) for bits in BITS
    }
    return [
        Comparison(
            about="x above α",
            paper="1 in both",
            ours=f"{calibrated[x > 1].min():g} and {original[x > 1].min():g}",
            holds=bool((calibrated[x > 1] == 1.0).all() and (original[x > 1] == 1.0).all()),
        ),
        Comparison(
            about="x below α in the original",
            paper="0",
            ours=f"{np.abs(original[x < 1]).max():g}",
            holds=bool((original[x < 1] == 0.0).all()),
        ),
        Comparison(
            about="x below α, calibrated: largest magnitude",
            paper="q/α - x/α, at most half the scale: "
            + ", ".join(f"{0.5 / (2**bits - 1):.3f}" for bits in BITS),
            ours=", ".join(f"{largest[bits]:.3f}" for bits in BITS),
            # The points are up to a thousandth of α away from the ties, where the error is largest.
            holds=all(0.0 <= 0.5 / (2**bits - 1) - largest[bits] <= 1e-3 for bits in BITS),
            reason=f"for {', '.join(map(str, BITS))} bits",
        ),
    ]
