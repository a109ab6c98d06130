"""Figure S1: the sigmoid and its derivative, a softmax of two classes."""

from typing import TYPE_CHECKING

import numpy as np

from sat_tf.presentation import palette
from sat_tf.reproduction.figures.figure import Advance, Comparison, Numbers

if TYPE_CHECKING:
    from matplotlib.figure import Figure as Picture

COLUMNS = ("x", "sigmoid", "derivative")


def measure(seed: int, advance: Advance) -> Numbers:
    """The function and its derivative on [-10, 10]; nothing is drawn at random."""
    del seed
    x = np.linspace(-10.0, 10.0, 401)
    sigmoid = 1.0 / (1.0 + np.exp(-x))
    derivative = sigmoid * (1.0 - sigmoid)
    advance(1.0)
    rows = zip(x.tolist(), sigmoid.tolist(), derivative.tolist(), strict=True)
    return Numbers(COLUMNS, tuple(rows))


def draw(table: Numbers) -> "Picture":
    """Both curves, and where |x| is below 1."""
    picture, panels = palette.canvas(1, 2, size=(8.4, 3.6))
    labels = ("sigmoid(x)", "derivative of the sigmoid")
    for axes, column, label in zip(panels, COLUMNS[1:], labels, strict=True):
        axes.axvspan(-1.0, 1.0, color=palette.SKY, alpha=0.25, linewidth=0)
        axes.plot(table["x"], table[column], color=palette.BLUE)
        axes.set_xlabel("x (a logit)")
        axes.set_ylabel(label)
    panels[1].annotate("|x| < 1", (1.3, 0.235), color=palette.BLUE)
    return picture


def compare(table: Numbers) -> list[Comparison]:
    """The words of Section S1.1.1."""
    at = dict(zip(table["x"].round(6), table["derivative"], strict=True))
    return [
        Comparison(
            about="inputs well below 1",
            paper="efficient optimization",
            ours=f"derivative {at[0.0]:.3g} at 0, {at[1.0] / at[0.0]:.0%} of it at 1, "
            f"{at[5.0] / at[0.0]:.1%} at 5",
            holds=at[1.0] > 0.75 * at[0.0] > at[5.0],
            reason="more than three quarters of the largest gradient are left at 1",
        )
    ]
