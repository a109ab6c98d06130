"""The choices of bits with their costs and limits as a knapsack, and its solution as bits."""

import dataclasses
import itertools
import math
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from sat_tf.analysis.allocation.budget import LIMITS, TABLES, Choice, Share, shown
from sat_tf.analysis.allocation.choices import LayerChoices, ModelChoices
from sat_tf.analysis.allocation.knapsack import Knapsack, fewest
from sat_tf.analysis.sensitivity.measured_model import Sensitivity
from sat_tf.graph.network import layer_of_call
from sat_tf.messages import ProblemsError

# The cost of each choice of each layer.
Costs = list[list[float]]


class Usage(NamedTuple):
    """The use that choices make of a limit of which nothing but a table is known.

    Attributes:
        values: of each choice of each layer.
        base: what is used whatever is chosen.
    """

    values: Costs
    base: float = 0.0


# {layer: {bits: cost}}
BitCosts = dict[str, dict[int, float]]
_MOST_BITS = 8


@dataclasses.dataclass(frozen=True, eq=False)
class BitProblem:
    """The knapsack of a model.

    Attributes:
        knapsack: an item for each layer, and a row for each quantity that is known.
        names: of these quantities, as in `LIMITS`.
        choices: of each option: weight bits and activation bits.
        layers: of the items.
    """

    knapsack: Knapsack
    names: tuple[str, ...]
    choices: tuple[Choice, ...]
    layers: tuple[str, ...]

    @property
    def bits(self) -> np.ndarray:
        """(n, 2) weight bits and activation bits of each option; 0 for float."""
        return np.array([[own or 0, read or 0] for own, read in self.choices])

    def chosen(self, options: np.ndarray) -> dict[str, Choice]:
        """The bits of each layer."""
        return {
            layer: self.choices[option] for layer, option in zip(self.layers, options, strict=True)
        }

    def uniform(self, number: int) -> np.ndarray | None:
        """Chooses the same bits for each layer that has a choice; None if some layer lacks them."""
        chosen = []
        for item in range(self.knapsack.num_items):
            options = self.knapsack.options(item)
            bits = self.bits[options]
            settled = bits.min(axis=0) == bits.max(axis=0)
            found = options[((bits == number) | settled).all(axis=1)]
            if not len(found):
                return None
            chosen.append(found[0])
        return np.array(chosen)

    def with_limit(self, name: str, value: float) -> "BitProblem":
        """The same with another value of one limit."""
        limits = self.knapsack.limits.copy()
        limits[self.names.index(name)] = value
        return dataclasses.replace(self, knapsack=self.knapsack.with_limits(limits))


def make_problem(
    choices: ModelChoices,
    costs: Sequence[Sequence[float]],
    limits: Mapping[str, float | Share],
    tables: Mapping[str, Usage],
) -> BitProblem:
    """The knapsack of a model.

    Args:
        choices: what can be chosen.
        costs: of each layer's choices.
        limits: from `read_budget`.
        tables: of limits that are known by a table, such as milliseconds.

    Raises:
        ValueError: a limit is on what is not known; lists all of them.
    """
    layers = choices.layers
    options = [(index, choice) for index, layer in enumerate(layers) for choice in layer.choices]
    rows, base = _usage(choices, options, tables)
    unknown = [name for name in LIMITS if not _is_known(rows[name], base[name])]
    problems = [f"{name}: {_reason(name, choices)}" for name in limits if name in unknown]
    if problems:
        raise ProblemsError("budget", problems)
    names = tuple(name for name in LIMITS if name not in unknown)
    items = np.array([index for index, _ in options])
    usage = np.array([rows[name] for name in names])
    values = [
        _limit(limits.get(name), rows[name], base[name], items, len(layers)) for name in names
    ]
    knapsack = Knapsack(
        item=items,
        cost=np.array([cost for layer in costs for cost in layer], np.float64),
        usage=usage,
        limits=np.array(values),
        base=np.array([base[name] for name in names]),
        level=np.array([read or 0 for _, (_, read) in options]),
        tie=np.array([layer.tie if layer.chooses_activations else -1 for layer in layers]),
    )
    return BitProblem(
        knapsack=knapsack,
        names=names,
        choices=tuple(choice for _, choice in options),
        layers=tuple(layer.name for layer in layers),
    )


def _usage(
    choices: ModelChoices,
    options: Sequence[tuple[int, Choice]],
    tables: Mapping[str, Usage],
) -> tuple[dict[str, np.ndarray], dict[str, float]]:
    """The use of each quantity by each option, and what is used anyway; NaN if it is unknown."""
    layers: list[LayerChoices] = [choices.layers[index] for index, _ in options]
    pairs = [choice for _, choice in options]
    both = list(zip(layers, pairs, strict=True))
    weights = sum(layer.num_weights for layer in choices.layers if layer.usual_bits)
    values: float = math.fsum(
        math.nan if layer.values_read is None else layer.values_read for layer in choices.layers
    )
    rows = {
        "bytes": [choices.added_bytes(layer, own) for layer, (own, _) in both],
        "ideal_bytes": [layer.ideal_bytes(choice) for layer, choice in both],
        "bit_operations": [layer.bit_operations(choice) for layer, choice in both],
        "average_weight_bits": [
            layer.num_weights * (own or 0) / weights if weights else 0.0 for layer, (own, _) in both
        ],
        "average_activation_bits": [
            (layer.values_read or 0) * (read or 0) / values if values else 0.0
            for layer, (_, read) in both
        ],
    }
    for name in TABLES:
        known = tables.get(name)
        rows[name] = [math.nan] * len(both) if known is None else [*itertools.chain(*known.values)]
    if math.isnan(values) or choices.policy.activation_bits is None:
        rows["average_activation_bits"] = [math.nan] * len(both)
    base = dict.fromkeys(LIMITS, 0.0)
    base["bytes"] = math.nan if choices.file_problem else float(choices.base_bytes)
    base["bit_operations"] = choices.settled_bit_operations
    base |= {name: table.base for name, table in tables.items()}
    return {name: np.array(row, np.float64) for name, row in rows.items()}, base


def _is_known(row: np.ndarray, base: float) -> bool:
    return bool(np.all(np.isfinite(row))) and math.isfinite(base)


def _reason(name: str, choices: ModelChoices) -> str:
    if name == "bytes":
        return f"there is no file: {choices.file_problem}"
    if name == "average_activation_bits" and choices.policy.activation_bits is None:
        return (
            "received a policy with activation_bits=None, whose activations are float, expected "
            "bits; set activation_bits, or limit average_weight_bits."
        )
    return (
        "received a model of open image sizes, or with layers of unknown multiply-adds, expected "
        "one whose operations and values can be counted; build it for one size, or leave this "
        "limit out."
    )


def _limit(
    given: float | Share | None, row: np.ndarray, base: float, items: np.ndarray, count: int
) -> float:
    if given is None:
        return math.inf
    if isinstance(given, Share):
        return given.share * (base + math.fsum(row[items == item].max() for item in range(count)))
    return given


def unreachable(problem: BitProblem) -> ValueError:
    """The error for limits that no choice of bits keeps: says the smallest value of each."""
    limits = problem.knapsack.limits
    rows = [index for index, limit in enumerate(limits) if math.isfinite(limit)]
    problems = []
    alone = {row: fewest(problem.knapsack, row) or 0.0 for row in rows}
    # If each can be kept by itself, it is the others that exclude every choice.
    together = len(rows) > 1 and all(alone[row] <= limits[row] for row in rows)
    at_fault = rows if together else [row for row in rows if alone[row] > limits[row]]
    for row in at_fault or rows:
        name = problem.names[row]
        line = f"{name}={shown(name, limits[row])}: the smallest possible is "
        line += shown(name, alone[row])
        # The sum over layers, which is off by the alignment of the file.
        line += " (some bytes more or less)" if name == "bytes" else ""
        kept = fewest(problem.knapsack, row, keep_others=True) if together else None
        if kept is not None:
            line += f", and within the other limits {shown(name, kept)}"
        problems.append(f"{line}.")
    return ProblemsError(
        "budget: received limits that no choice of bits keeps",
        problems,
        "Expected at least these; raise them, allow fewer weight_bits (or "
        "activation_bits, which hardly change the bytes of a file), or let the ends be chosen for "
        "too, by first_last_weight_bits=None.",
    )


def of_sensitivity(found: Sensitivity, layers: Sequence[LayerChoices]) -> Costs:
    """The estimated losses from a measured model, in units that add up.

    What a tensor loses at the measured bits is taken to fall with the power of its rounding error,
    which is known for all bits from the measured ones to 8. Of a classifier it is the divergence of
    the classes, else the squared distance of the outputs.

    Args:
        found: measured at the fewest bits of the choices.
        layers: with their choices.

    Raises:
        ValueError: it was measured at more bits, or lacks a layer; lists all of them.
    """
    weights: BitCosts = {}
    activations: BitCosts = {}
    fields = {"weight_bits": weights, "activation_bits": activations}
    for layer in found.layers:
        for width in layer.widths():
            if width.field in fields:
                own = fields[width.field].setdefault(layer_of_call(layer.name), {})
                metric = "distance" if width.damage.divergence is None else "divergence"
                for bits in range(width.bits, _MOST_BITS + 1):
                    own[bits] = own.get(bits, 0.0) + width.loss(metric, bits)
    return combined(layers, weights, activations)


def combined(layers: Sequence[LayerChoices], weights: BitCosts, activations: BitCosts) -> Costs:
    """The sum of both for each choice; what is not chosen costs the same, and counts as 0.

    Costs of layers are added up, and so are those of a layer's kernel and of what it reads: whoever
    takes them for the whole model assumes that rounding errors do not meet.

    Raises:
        ValueError: the cost of a number of bits is missing; lists all of them.
    """
    problems: list[str] = []
    costs: Costs = []
    for layer in layers:
        parts = (
            ("weight_bits", layer.chooses_weights, weights, layer.weight_bits),
            ("activation_bits", layer.chooses_activations, activations, layer.activation_bits),
        )
        found: list[dict[int | None, float]] = []
        for field, chosen, costs_of, bits in parts:
            known: Mapping[Any, float] = costs_of.get(layer.name, {}) if chosen else {}
            missing = [one for one in bits if one not in known] if chosen else []
            if missing:
                problems.append(
                    f"{layer.name}: received no {field}={missing[0]} among what was measured, "
                    "expected the fewest bits of the choices and more; measure a policy with "
                    f"{field}={missing[0]} there, or leave those bits out."
                )
            found.append({one: known.get(one, 0.0) for one in bits})
        costs.append([found[0][own] + found[1][read] for own, read in layer.choices])
    if problems:
        raise ProblemsError("cost", problems)
    return costs
