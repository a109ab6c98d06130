"""The bits of each layer of a model, chosen within a budget: plain data."""

import dataclasses
from collections.abc import Mapping

import yaml

from sat_tf.analysis.allocation.knapsack import Solution, pareto
from sat_tf.analysis.allocation.problem import BitProblem
from sat_tf.arguments import Rule, check, is_integer
from sat_tf.messages import did_you_mean
from sat_tf.qat.policy import BitPolicy


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


@dataclasses.dataclass(frozen=True, kw_only=True)
class AllocatedModel:
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
        solution: its solution.
    """

    model: str
    policy: BitPolicy
    layers: tuple[AllocatedLayer, ...]
    totals: Mapping[str, Total]
    proof: Proof
    cost_kind: str
    pack: str
    problem: BitProblem = dataclasses.field(repr=False, compare=False)
    solution: Solution = dataclasses.field(repr=False, compare=False)

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
