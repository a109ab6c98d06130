"""Figure S1, the sigmoid's derivative, and Equation 13, the gradient of a clipping level."""

import numpy as np
import pandas as pd
import tensorflow as tf
from matplotlib.figure import Figure as Picture

from benchmarks.paper.figure import Comparison, Figure
from sat_tf.core import pact
from sat_tf.messages import charts
from sat_tf.qat.walk import as_graph


def sigmoid(seed: int = 0) -> pd.DataFrame:
    """The sigmoid and its derivative on [-10, 10]; nothing is drawn at random."""
    del seed
    x = np.linspace(-10.0, 10.0, 401)
    values = 1.0 / (1.0 + np.exp(-x))
    return pd.DataFrame({"x": x, "sigmoid": values, "derivative": values * (1.0 - values)})


def draw_sigmoid(table: pd.DataFrame) -> Picture:
    """Both curves, and where |x| is below 1."""
    picture, panels = charts.canvas(1, 2, size=(8.4, 3.6))
    labels = {"sigmoid": "sigmoid(x)", "derivative": "derivative of the sigmoid"}
    for axes, (column, label) in zip(panels, labels.items(), strict=True):
        axes.axvspan(-1.0, 1.0, color=charts.SKY, alpha=0.25, linewidth=0)
        axes.plot(table["x"], table[column], color=charts.BLUE)
        axes.set_xlabel("x (a logit)")
        axes.set_ylabel(label)
    panels[1].annotate("|x| < 1", (1.3, 0.235), color=charts.BLUE)
    return picture


def compare_sigmoid(table: pd.DataFrame) -> list[Comparison]:
    """Compares with the words of Section S1.1.1."""
    at = dict(zip(table["x"].round(6), table["derivative"], strict=True))
    return [
        Comparison(
            "inputs well below 1",
            "efficient optimization",
            f"derivative {at[0.0]:.3g} at 0, {at[1.0] / at[0.0]:.0%} of it at 1, "
            f"{at[5.0] / at[0.0]:.1%} at 5",
            at[1.0] > 0.75 * at[0.0] > at[5.0],
            "more than three quarters of the largest gradient are left at 1",
        )
    ]


BITS = (2, 3, 4)
# Between the ties of all these grids, whose codes change at odd multiples of 1/6, 1/14 and 1/30.
_POINTS = np.arange(-199.5, 1400.0) / 1000.0


def level_gradient(seed: int = 0) -> pd.DataFrame:
    """∂q/∂α of `core.pact.quantize_activation` for α = 1; nothing is drawn at random."""
    del seed
    panels = [
        pd.DataFrame(
            {
                "bits": bits,
                "x_over_level": _POINTS,
                "pact": level_gradients(_POINTS, 1.0, bits, "pact"),
                "calibrated": level_gradients(_POINTS, 1.0, bits, "calibrated"),
            }
        )
        for bits in BITS
    ]
    return pd.concat(panels, ignore_index=True)


def level_gradients(x: np.ndarray, level: float, bits: int, gradient: str) -> np.ndarray:
    """∂q/∂α for each activation separately.

    Args:
        x: activations, (n,).
        level: the clipping level α.
        bits: of the quantized activations q.
        gradient: a row of `gradients.CLIPPING_GRADIENTS`.
    """

    def each(values: tf.Tensor) -> tf.Tensor:
        alpha = tf.constant(level)

        def of_one(value: tf.Tensor) -> tf.Tensor:
            with tf.GradientTape() as tape:
                tape.watch(alpha)
                quantized = pact.quantize_activation(value[None], alpha, bits, gradient)
            return tape.gradient(quantized, alpha)

        return tf.map_fn(of_one, values)

    return np.asarray(as_graph(each)(tf.constant(x, tf.float32)))


def draw_level_gradient(table: pd.DataFrame) -> Picture:
    """A panel for each number of bits."""
    picture, panels = charts.canvas(1, 3, size=(10.2, 3.9), sharey=True)
    for axes, (bits, line) in zip(panels, table.groupby("bits"), strict=True):
        x = line["x_over_level"]
        axes.plot(x, line["calibrated"], color=charts.BLUE, label="calibrated (CG-PACT)")
        axes.plot(x, line["pact"], color=charts.ORANGE, linestyle="--", label="original (PACT)")
        axes.set_title(f"{bits} bits")
        axes.set_ylim(-0.25, 1.1)
        axes.set_xlabel("x / α")
    panels[0].set_ylabel("∂q / ∂α")
    picture.legend(*panels[0].get_legend_handles_labels(), loc="outside lower center", ncols=2)
    return picture


def compare_level_gradient(table: pd.DataFrame) -> list[Comparison]:
    """Compares with Equation 13, and with the paper's bound on the quantization error in it."""
    above, below = table[table["x_over_level"] > 1.0], table[table["x_over_level"] < 1.0]
    inside = below[below["x_over_level"] > 0.0]
    largest = inside["calibrated"].abs().groupby(inside["bits"]).max()
    bounds = {bits: 0.5 / (2**bits - 1) for bits in BITS}
    return [
        Comparison(
            "x above α",
            "1 in both",
            f"{above['calibrated'].min():g} and {above['pact'].min():g}",
            bool((above[["calibrated", "pact"]] == 1.0).all(axis=None)),
        ),
        Comparison(
            "x below α in the original",
            "0",
            f"{below['pact'].abs().max():g}",
            bool((below["pact"] == 0.0).all()),
        ),
        Comparison(
            "x below α, calibrated: largest magnitude",
            "q/α - x/α, at most half the scale: "
            + ", ".join(f"{bound:.3f}" for bound in bounds.values()),
            ", ".join(f"{largest[bits]:.3f}" for bits in BITS),
            # The points are up to a thousandth of α away from the ties, where the error is largest.
            all(0.0 <= bound - largest[bits] <= 1e-3 for bits, bound in bounds.items()),
            f"for {', '.join(map(str, BITS))} bits",
        ),
    ]


FIGURE_S1 = Figure(
    "Figure S1: the sigmoid and its derivative", sigmoid, draw_sigmoid, compare_sigmoid
)
EQUATION_13 = Figure(
    "Equation 13: gradient of the clipping level, original and calibrated",
    level_gradient,
    draw_level_gradient,
    compare_level_gradient,
)
