"""The choices of bits with their costs and limits as a knapsack, and its solution as bits."""

import dataclasses
import functools
import math
from collections.abc import Iterator, Mapping, Sequence

import numpy as np

from sat_tf.analysis.allocation.budget import LIMITS, share_of, shown
from sat_tf.analysis.allocation.choices import Choice, ModelChoices
from sat_tf.analysis.allocation.knapsack import Knapsack
from sat_tf.analysis.allocation.result import AllocatedLayer, Total
from sat_tf.messages import ProblemsError

# A tensor of fewer bits is clipped by its operator, which has an option more in the file.
_UNCLIPPED_BITS, _CLIPPING_BYTES = 8, 4
_CHOSEN = {
    (True, True): "both",
    (True, False): "weights",
    (False, True): "activations",
    (False, False): "neither",
}


@dataclasses.dataclass(frozen=True, eq=False)
class BitProblem:
    """The knapsack of a model."""

    choices: ModelChoices  # What can be chosen.
    # An item for each layer, and a row for each quantity that is known. What is used whatever is
    # chosen counts with the first item.
    knapsack: Knapsack
    names: tuple[str, ...]  # Of these quantities, as in `LIMITS`.
    units: tuple[float, ...]  # What they are counted in: means of bits in weights and values.

    @functools.cached_property
    def options(self) -> list[Choice]:
        """The weight bits and activation bits of the knapsack's options."""
        return [choice for layer in self.choices.layers for choice in layer.choices]

    @property
    def byte_limit(self) -> float:
        """The limit on file bytes; infinite where there is none."""
        limits = dict(zip(self.names, self.knapsack.limits, strict=True))
        return float(limits.get("bytes", math.inf))

    def chosen(self, options: np.ndarray) -> dict[str, Choice]:
        """Returns the bits of each layer."""
        names = (layer.name for layer in self.choices.layers)
        return dict(zip(names, (self.options[option] for option in options), strict=True))

    def raised(self, count: int) -> Knapsack:
        """Returns the knapsack with a limit on bytes that is higher by so many."""
        more = np.array([count if name == "bytes" else 0.0 for name in self.names])
        return dataclasses.replace(self.knapsack, limits=self.knapsack.limits + more)

    def rows(self, options: np.ndarray) -> Iterator[AllocatedLayer]:
        """Yields the layers with the options that are chosen."""
        layers, sizes = self.choices.layers, self.choices.sizes
        usage = dict(zip(self.names, self.knapsack.usage, strict=True))
        milliseconds = usage.get("milliseconds")
        for layer, option in zip(layers, options, strict=True):
            own, read = self.options[option]
            tied = [other.name for other in layers if other.tie == layer.tie >= 0]
            yield AllocatedLayer(
                name=layer.name,
                kind=layer.kind,
                weight_bits=own,
                activation_bits=read,
                chosen=_CHOSEN[layer.chooses_weights, layer.chooses_activations],
                tied=", ".join(name for name in tied if name != layer.name),
                num_weights=layer.num_weights,
                bytes=None if sizes is None else sizes.kernel_bytes(layer.name, own),
                milliseconds=None if milliseconds is None else float(milliseconds[option]),
                cost=float(self.knapsack.cost[option]),
            )

    def totals(self, options: np.ndarray, length: int | None) -> dict[str, Total]:
        """Returns what the options use, with the bytes of the real file."""
        used = self.knapsack.used(options)
        totals = {}
        for row, (name, unit) in enumerate(zip(self.names, self.units, strict=True)):
            fewest, most = self.knapsack.ends(row)
            value = used[row] if name != "bytes" or length is None else length
            limit = float(self.knapsack.limits[row])
            totals[name] = Total(
                name=name,
                value=float(value / unit),
                limit=limit / unit if math.isfinite(limit) else None,
                fewest=min(fewest, value) / unit,
                most=max(most, value) / unit,
            )
        return totals

    def unreachable(self) -> ValueError:
        """Returns the error for limits that no choice keeps, with the smallest value of each."""
        limits = self.knapsack.limits
        limited = [row for row, limit in enumerate(limits) if math.isfinite(limit)]
        least = {row: self.knapsack.ends(row)[0] for row in limited}
        too_low = [row for row in limited if least[row] > limits[row]]
        problems = []
        for row in too_low or limited:
            name, unit = self.names[row], self.units[row]
            problems.append(
                f"{name}={shown(name, limits[row] / unit)}: the smallest possible is "
                f"{shown(name, least[row] / unit)}{'' if too_low else ', without the others'}"
                f"{' (some bytes more or less)' if name == 'bytes' else ''}."
            )
        return ProblemsError(
            "budget: received limits that no choice of bits keeps",
            problems,
            "Expected at least these; raise them, allow fewer weight_bits (or activation_bits, "
            "which hardly change the bytes of a file), or let the ends be chosen for too, by "
            "first_last_weight_bits=None.",
        )


def make_problem(
    choices: ModelChoices,
    costs: Sequence[Sequence[float]],
    limits: Mapping[str, float | str],
    milliseconds: Sequence[float] | None = None,
) -> BitProblem:
    """Returns the knapsack of a model.

    Args:
        choices: what can be chosen.
        costs: of each layer's choices.
        limits: from `read_budget`.
        milliseconds: of each option; None where they are unknown.

    Raises:
        ValueError: a limit is on what is not known; lists all of them.
    """
    layers = choices.layers
    usage = _usage(choices)
    if milliseconds is not None:
        usage["milliseconds"] = list(milliseconds), 1.0
    if unknown := [f"{name}: {_reason(name, choices)}" for name in limits if name not in usage]:
        raise ProblemsError("budget", unknown)
    names = tuple(name for name in LIMITS if name in usage)
    units = tuple(usage[name][1] for name in names)
    options = [(index, read) for index, one in enumerate(layers) for _, read in one.choices]
    knapsack = Knapsack(
        item=np.array([index for index, _ in options]),
        cost=np.array([cost for layer in costs for cost in layer], np.float64),
        usage=np.array([usage[name][0] for name in names], np.float64),
        limits=np.full(len(names), np.inf),
        level=np.array([read or 0 for _, read in options]),
        tie=np.array([layer.tie if layer.chooses_activations else -1 for layer in layers]),
    )
    for name, limit in limits.items():
        row = names.index(name)
        if isinstance(limit, str):
            knapsack.limits[row] = share_of(limit) * knapsack.ends(row)[1]
        else:
            knapsack.limits[row] = limit * units[row]
    return BitProblem(choices, knapsack, names, units)


def _usage(choices: ModelChoices) -> dict[str, tuple[list[float], float]]:
    """Returns the use that each option makes of what is known, and the unit of a limit on it."""
    layers, sizes = choices.layers, choices.sizes
    options = [(layer, *choice) for layer in layers for choice in layer.choices]
    usage: dict[str, tuple[list[float], float]] = {}
    if sizes is not None:
        free = [layer for layer in layers if layer.chooses_activations]
        # The clipping of a tensor with several readers counts with the first one.
        first = {layer.tie if layer.tie >= 0 else layer.name: layer for layer in reversed(free)}
        clipped = [layer for layer in first.values() if _UNCLIPPED_BITS in layer.activation_bits]
        usage["bytes"] = (
            [
                sizes.added(layer.name, own)
                + (sizes.base if layer is layers[0] else 0)
                + _CLIPPING_BYTES * (layer in clipped and read != _UNCLIPPED_BITS)
                for layer, own, read in options
            ],
            1.0,
        )
    weights = sum(layer.num_weights for layer in layers if layer.usual_bits)
    by_weights = [float(layer.num_weights * (own or 0)) for layer, own, _ in options]
    usage["average_weight_bits"] = by_weights, float(weights or 1)
    values = [layer.values_read for layer in layers]
    if None not in values and choices.policy.activation_bits is not None:
        by_values = [float((layer.values_read or 0) * (read or 0)) for layer, _, read in options]
        usage["average_activation_bits"] = by_values, float(sum(filter(None, values)) or 1)
    return usage


def _reason(name: str, choices: ModelChoices) -> str:
    """Returns why a quantity is not known of a model."""
    if name == "bytes":
        return f"there is no file: {choices.file_problem}"
    if choices.policy.activation_bits is None:
        return (
            "received a policy with activation_bits=None, whose activations are float, expected "
            "bits; set activation_bits, or limit average_weight_bits."
        )
    return (
        "received a model of open image sizes, expected one whose values can be counted; build it "
        "for one size, or leave this limit out."
    )
