"""The bits of each layer, chosen within a budget: the result, as tables and as a curve."""

import dataclasses
import os
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

import yaml
from rich.console import Console

from sat_tf.analysis.allocation.budget import LIMITS, shown
from sat_tf.analysis.allocation.knapsack import pareto
from sat_tf.analysis.allocation.problem import BitProblem
from sat_tf.arguments import Rule, check, is_integer
from sat_tf.atomic_file import write_text
from sat_tf.messages import did_you_mean, first_ones, say
from sat_tf.presentation import palette
from sat_tf.presentation.tables import Column, RowTable, Table, digits
from sat_tf.qat.policy import BitPolicy

if TYPE_CHECKING:
    from matplotlib.figure import Figure as Picture

_NONE = "-"
# Narrower terminals have no columns for the kind and the ties; the CSV has them.
_WIDE = 100
_UNIFORM = range(1, 9)


@dataclasses.dataclass(frozen=True, kw_only=True)
class AllocatedLayer:
    """The bits of one linear layer, and what they use.

    Attributes:
        name: of the layer.
        kind: its class.
        weight_bits: of its kernel; None if that is not rounded.
        activation_bits: of what it reads; None if that is float.
        chosen: which of them were chosen: "both", "weights", "activations" or "neither".
        tied: the other layers that read the same grid, with commas between them.
        num_weights: of its kernel.
        bytes: of its codes in the file; None without a file.
        ideal_bytes: weights · bits / 8.
        bit_operations: multiply-adds · weight bits · activation bits; None if unknown.
        milliseconds: from the table; None without one.
        cost: estimated loss of this choice.
    """

    name: str
    kind: str
    weight_bits: int | None
    activation_bits: int | None
    chosen: str
    tied: str
    num_weights: int
    bytes: int | None
    ideal_bytes: float
    bit_operations: float | None
    milliseconds: float | None
    cost: float


@dataclasses.dataclass(frozen=True, kw_only=True)
class Total:
    """The sum of one quantity over the whole model.

    Attributes:
        name: as in a budget.
        value: of the chosen policy; file bytes are those of the real file.
        limit: what was allowed; None without a limit.
        fewest: with the fewest bits everywhere.
        most: with the most bits everywhere.
    """

    name: str
    value: float
    limit: float | None
    fewest: float
    most: float


@dataclasses.dataclass(frozen=True, kw_only=True)
class Proof:
    """Why no other choice is better.

    Attributes:
        status: "optimal", or "stopped" where the time was over before that was proven.
        cost: of the choice.
        bound: no choice within the limits costs less.
        gap: (cost - bound) / |cost|; 0 is a proven optimum.
        margin: bytes by which the limit on file bytes was lowered, because a file has entries that
            the sum over its layers does not count; the proof holds for the lowered limit.
    """

    status: str
    cost: float
    bound: float
    gap: float
    margin: int = 0


def _of(field: str) -> Callable[[Total], str]:
    return lambda total: shown(total.name, getattr(total, field), _NONE)


_bits = digits("", "float")
_LAYER: list[Column[AllocatedLayer]] = [
    Column("layer", lambda layer: layer.name, wrap="never"),
    Column("kind", lambda layer: layer.kind, wrap="never", least_width=_WIDE),
    Column("weights", lambda layer: layer.weight_bits, _bits, number=True),
    Column("activations", lambda layer: layer.activation_bits, _bits, number=True),
    Column("chosen", lambda layer: layer.chosen, wrap="never", least_width=_WIDE),
    Column("kernel bytes", lambda layer: layer.bytes, digits(",", _NONE), number=True),
    Column(
        "bit operations", lambda layer: layer.bit_operations, digits(",.0f", _NONE), number=True
    ),
    Column("ms", lambda layer: layer.milliseconds, digits(".3g", _NONE), number=True),
    Column("cost", lambda layer: layer.cost, digits(".3g"), number=True),
    Column("same grid as", lambda layer: layer.tied or _NONE, least_width=_WIDE),
]
_TOTAL: list[Column[Total]] = [
    Column("", lambda total: LIMITS[total.name].title, wrap="never"),
    Column("used", _of("value"), number=True),
    Column("limit", _of("limit"), number=True),
    Column("fewest bits", _of("fewest"), number=True),
    Column("most bits", _of("most"), number=True),
]


@dataclasses.dataclass(frozen=True, kw_only=True, repr=False)
class Allocation(RowTable):
    """The bits of each layer of a model, chosen within a budget.

    Attributes:
        model: its name.
        policy: to quantize the model by; its overrides are the choice.
        layers: the quantized linear layers, in graph order.
        totals: what the model uses, by the names of limits.
        proof: why no other choice is better.
        cost_kind: what was minimized: "sensitivity" or "table".
        pack: how the file stores kernels.
        problem: the knapsack, for curves.
    """

    COLUMNS = tuple(field.name for field in dataclasses.fields(AllocatedLayer))

    model: str
    policy: BitPolicy
    layers: tuple[AllocatedLayer, ...]
    totals: Mapping[str, Total]
    proof: Proof
    cost_kind: str
    pack: str
    problem: BitProblem = dataclasses.field(repr=False, compare=False)

    def __getitem__(self, name: str) -> AllocatedLayer:
        for layer in self.layers:
            if layer.name == name:
                return layer
        hint = did_you_mean(name, [layer.name for layer in self.layers])
        raise KeyError(f"{name!r} is not a quantized linear layer. {hint}")

    def curve(self, over: str | None = None, *, points: int = 25) -> list[dict[str, float]]:
        """The least cost at every value of one limit, while the others stay.

        Args:
            over: the limit that is swept; by default the tightest. File bytes are the
                sum over layers here, some tens of bytes off the file's.
            points: how many values of it to try.

        Returns:
            {"cost": ..., and what the whole model uses by the names of limits}, ascending in what
            is swept; choices that another one beats in both are left out.

        Raises:
            ValueError: there is no such limit, or nothing is known of it.
        """
        row = self.row_of(over)
        check(
            "curve",
            [Rule("points", points, is_integer(points, lowest=2), "2 or more", "pass 25")],
        )
        return [
            {"cost": one.cost, **dict(zip(self.problem.names, map(float, one.used), strict=True))}
            for one in pareto(self.problem.knapsack, row, points=points)
        ]

    def policy_yaml(self) -> str:
        """The fields of the policy as YAML; `BitPolicy(**yaml.safe_load(text))` is the policy."""
        named = {"weight_bits", "activation_bits", "overrides", *self.policy.changes()}
        fields = {name: one for name, one in self.policy.to_dict().items() if name in named}
        return yaml.safe_dump(fields, sort_keys=False, allow_unicode=True)

    def row_of(self, over: str | None) -> int:
        """The row of a limit in the knapsack; see `curve`."""
        names = self.problem.names
        if over is None:
            limited = [total for total in self.totals.values() if total.limit]
            tightest = max(limited, key=lambda total: total.value / (total.limit or 1.0))
            return names.index(tightest.name)
        if over not in names:
            raise ValueError(
                f"over={over!r}: expected a limit that is known of this model. "
                f"{did_you_mean(str(over), names)}"
            )
        return names.index(over)

    def to_rows(self) -> list[dict[str, Any]]:
        """A row for each layer, all with the same keys, in graph order."""
        return [dataclasses.asdict(layer) for layer in self.layers]

    def print_to(self, console: Console) -> None:
        """Prints the layers, the totals against their limits, and the proof."""
        for title, table in self._tables().items():
            fitting = table.for_width(console.width)
            console.print(fitting.to_rich(title=title, title_justify="left"))
        for line in self._notes():
            say(console, line)

    def _headline(self) -> str:
        limits = ", ".join(
            f"{LIMITS[name].title} {shown(name, total.value)} of {shown(name, total.limit)}"
            for name, total in self.totals.items()
            if total.limit is not None
        )
        return f"{self.model}: {limits}; cost {self.proof.cost:.4g}, {self.proof.status}"

    def _tables(self) -> dict[str, Table[Any]]:
        layers = Table(columns=_LAYER, rows=self.layers)
        return {
            f"{self.model}: bits by {self.cost_kind}": layers.without_empty(_NONE),
            "the whole model": Table(columns=_TOTAL, rows=list(self.totals.values())),
        }

    def _notes(self) -> list[str]:
        """The proof, in words."""
        proof = self.proof
        line = (
            f"cost {proof.cost:.6g}; no choice within the limits costs less than {proof.bound:.6g}"
        )
        if proof.status == "optimal":
            lines = [f"{line}: proven optimal (gap {proof.gap:.2g})."]
        else:
            lines = [f"{line}: gap {proof.gap:.2g}, stopped before the proof was complete."]
        if proof.margin:
            lines.append(
                f"The proof holds for a limit on file bytes that is lower by {proof.margin}: a "
                "file has entries that the sum over its layers does not count."
            )
        return lines

    def write_picture(
        self, path: str | os.PathLike[str], over: str | None = None, *, points: int = 25
    ) -> None:
        """Draws the curve, with this choice and the same bits everywhere beside it.

        Args:
            path: ends in .png or .svg; it appears whole, or not at all.
            over: see `curve`.
            points: see `curve`.

        Raises:
            ValueError: the path cannot be written or has another suffix; see `curve`.
        """
        name = self.problem.names[self.row_of(over)]
        # The path is checked before the curve is solved.
        palette.write(lambda: _draw(self, name, self.curve(name, points=points)), path)

    def write_policy(self, path: str | os.PathLike[str]) -> None:
        """Writes the policy as YAML; the file appears whole, or not at all.

        Raises:
            ValueError: the path cannot be written.
        """
        write_text(path, self.policy_yaml())


def _draw(found: Allocation, name: str, points: list[dict[str, float]]) -> "Picture":
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
    if palette.is_wide(values):
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


def _same_bits(found: Allocation, name: str) -> list[tuple[float, float, str]]:
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
