"""An allocation, as a table on the screen and as the picture of its curve."""

import os
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from rich.console import Console

from sat_tf.analysis.allocation.allocated_model import AllocatedLayer, AllocatedModel, Total
from sat_tf.analysis.allocation.budget import LIMITS, shown
from sat_tf.messages import first_ones, say
from sat_tf.presentation import palette
from sat_tf.presentation.tables import Column, Table, digits

if TYPE_CHECKING:
    from matplotlib.figure import Figure as Picture

_NONE = "-"
# Narrower terminals have no columns for the kind and the ties; the CSV has them.
_WIDE = 100
_UNIFORM = range(1, 9)
_WIDE_RANGE = 30.0


def print_allocation(found: AllocatedModel, console: Console) -> None:
    """Prints the layers, the totals against their limits, and the proof.

    Args:
        found: what was chosen.
        console: where to print.
    """
    wide = console.width >= _WIDE
    for title, table in tables(found, wide=wide).items():
        console.print(table.to_rich(title=title, title_justify="left"))
    for line in proof_lines(found):
        say(console, line)


def tables(found: AllocatedModel, *, wide: bool = True) -> dict[str, Table[Any]]:
    """The layers, and the totals against their limits, by their titles."""
    layers = Table(columns=_layer_columns(wide=wide), rows=found.layers)
    return {
        f"{found.model}: bits by {found.cost_kind}": layers.without_empty(_NONE),
        "the whole model": Table(columns=_total_columns(), rows=list(found.totals.values())),
    }


def limits_text(found: AllocatedModel) -> str:
    """The use of each limit, in a line."""
    return ", ".join(
        f"{LIMITS[name].title} {shown(name, total.value)} of {shown(name, total.limit)}"
        for name, total in found.totals.items()
        if total.limit is not None
    )


def _layer_columns(*, wide: bool) -> list[Column[AllocatedLayer]]:
    bits = digits("", "float")
    columns: list[Column[AllocatedLayer]] = [
        Column("layer", lambda layer: layer.name, wrap="never"),
        Column("kind", lambda layer: layer.kind, wrap="never"),
        Column("weights", lambda layer: layer.weight_bits, bits, number=True),
        Column("activations", lambda layer: layer.activation_bits, bits, number=True),
        Column("chosen", lambda layer: layer.chosen, wrap="never"),
        Column("kernel bytes", lambda layer: layer.bytes, digits(",", _NONE), number=True),
        Column(
            "bit operations",
            lambda layer: layer.bit_operations,
            digits(",.0f", _NONE),
            number=True,
        ),
        Column("ms", lambda layer: layer.milliseconds, digits(".3g", _NONE), number=True),
        Column("cost", lambda layer: layer.cost, digits(".3g"), number=True),
        Column("same grid as", lambda layer: layer.tied or _NONE),
    ]
    return columns if wide else [one for one in columns if one.title not in _WIDE_ONLY]


_WIDE_ONLY = ("kind", "chosen", "same grid as")


def _total_columns() -> list[Column[Total]]:
    def of(field: str) -> Callable[[Any], str]:
        return lambda total: shown(total.name, getattr(total, field), _NONE)

    return [
        Column("", lambda total: LIMITS[total.name].title, wrap="never"),
        Column("used", of("value"), number=True),
        Column("limit", of("limit"), number=True),
        Column("fewest bits", of("fewest"), number=True),
        Column("most bits", of("most"), number=True),
    ]


def proof_lines(found: AllocatedModel) -> list[str]:
    """The proof of an allocation, in words."""
    proof = found.proof
    line = f"cost {proof.cost:.6g}; no choice within the limits costs less than {proof.bound:.6g}"
    if proof.status == "optimal":
        lines = [f"{line}: proven optimal (gap {proof.gap:.2g})."]
    else:
        lines = [f"{line}: gap {proof.gap:.2g}, stopped before the proof was complete."]
    if proof.margin:
        lines.append(
            f"The proof holds for a limit on file bytes that is lower by {proof.margin}: a file "
            "has entries that the sum over its layers does not count."
        )
    return lines


def write_curve(
    found: AllocatedModel,
    name: str,
    curve: Callable[[], list[dict[str, float]]],
    path: str | os.PathLike[str],
) -> None:
    """Draws the curve, as `Allocation.write_picture` says; the path is checked first."""
    palette.write(lambda: _draw(found, name, curve()), path)


def _draw(found: AllocatedModel, name: str, points: list[dict[str, float]]) -> "Picture":
    picture, axes = palette.canvas(size=(7.2, 4.6))
    across, up = [one[name] for one in points], [one["cost"] for one in points]
    axes.step(across, up, where="post", color=palette.BLUE, label="least cost", zorder=2)
    axes.scatter(across, up, color=palette.BLUE, s=18, zorder=2)
    same = list(_same_bits(found, name))
    if same:
        axes.scatter(
            [at for at, _, _ in same],
            [cost for _, cost, _ in same],
            label="same bits everywhere",
            color=palette.ORANGE,
            marker="s",
            s=36,
            zorder=3,
        )
        for at, cost, bits in same:
            axes.annotate(bits, (at, cost), xytext=(5, 4), textcoords="offset points", fontsize=11)
    axes.scatter(
        [found.totals[name].value],
        [found.proof.cost],
        label="this choice",
        facecolors="none",
        edgecolors=palette.BLACK,
        marker="D",
        s=90,
        zorder=4,
    )
    values = [*up, *(cost for _, cost, _ in same)]
    if min(values) > 0.0 and max(values) > _WIDE_RANGE * min(values):
        axes.set_yscale("log")
    axes.set_xlabel(LIMITS[name].title)
    axes.set_ylabel("estimated loss" if found.cost_kind != "table" else "cost")
    others = [
        f"{LIMITS[other].title} <= {shown(other, total.limit)}"
        for other, total in found.totals.items()
        if total.limit is not None and other != name
    ]
    title = f"{found.model}: bits by {found.cost_kind}"
    picture.suptitle(f"{title}\n{first_ones(others, 2)}" if others else title, fontsize=13)
    picture.legend(loc="outside lower center", ncols=3)
    return picture


def _same_bits(found: AllocatedModel, name: str) -> list[tuple[float, float, str]]:
    """The use and the cost of the same bits everywhere, as far as they may be chosen."""
    problem = found.problem
    row = problem.names.index(name)
    marks = []
    for bits in _UNIFORM:
        chosen = problem.uniform(bits)
        if chosen is not None:
            used = float(problem.knapsack.used(chosen)[row])
            marks.append((used, problem.knapsack.costs(chosen), f"{bits} bits"))
    return marks
