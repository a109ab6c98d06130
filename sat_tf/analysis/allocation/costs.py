"""What the choices of bits cost: measured losses, or a table of the user's own."""

from collections.abc import Mapping, Sequence
from typing import Any

from sat_tf.analysis.allocation.choices import LayerChoices
from sat_tf.analysis.sensitivity.damage import MOST_BITS
from sat_tf.analysis.sensitivity.measured_model import Sensitivity
from sat_tf.graph.network import layer_of_call
from sat_tf.messages import ProblemsError, did_you_mean, first_ones
from sat_tf.validation import is_integer, is_number

# The cost of each choice of each layer.
Costs = list[list[float]]
# {layer: {bits: cost}}
BitCosts = dict[str, dict[int | None, float]]
_LARGEST = 1e300  # so that sums of many are finite


def of_sensitivity(measured: Sensitivity, layers: Sequence[LayerChoices]) -> Costs:
    """Returns the estimated losses from a measured model, in units that add up.

    What a tensor loses at the measured bits is taken to fall with the power of its rounding error,
    which is known for all bits from the measured ones to 8. Of a classifier it is the divergence of
    the classes, else the squared distance of the outputs.
    """
    costs: dict[str, BitCosts] = {"weight_bits": {}, "activation_bits": {}}
    for layer in measured.layers:
        for width in layer.widths():
            if width.field in costs:
                of_bits = costs[width.field].setdefault(layer_of_call(layer.name), {})
                metric = "distance" if width.damage.divergence is None else "divergence"
                for bits in range(width.bits, MOST_BITS + 1):
                    of_bits[bits] = of_bits.get(bits, 0.0) + width.loss(metric, bits)
    return combined(layers, costs["weight_bits"], costs["activation_bits"])


def combined(layers: Sequence[LayerChoices], weights: BitCosts, activations: BitCosts) -> Costs:
    """Returns the sum of both for each choice; what is not chosen counts as 0.

    Costs of layers are added up, and so are those of a layer's kernel and of what it reads: whoever
    takes them for the whole model assumes that rounding errors do not meet.
    """
    problems: list[str] = []
    costs: Costs = []
    for layer in layers:
        of_weights = weights.get(layer.name, {}) if layer.chooses_weights else None
        of_activations = activations.get(layer.name, {}) if layer.chooses_activations else None
        for field, measured in (("weight_bits", of_weights), ("activation_bits", of_activations)):
            missing = [bits for bits in getattr(layer, field) if bits not in (measured or {})]
            if measured is not None and missing:
                problems.append(
                    f"{layer.name}: received no {field}={missing[0]} among what was measured, "
                    "expected the fewest bits of the choices and more; measure a policy with "
                    f"{field}={missing[0]} there, or leave those bits out."
                )
        costs.append(
            [
                (of_weights or {}).get(weight_bits, 0.0) + (of_activations or {}).get(bits, 0.0)
                for weight_bits, bits in layer.choices
            ]
        )
    if problems:
        raise ProblemsError("cost", problems)
    return costs


def of_table(table: Mapping[Any, Any], layers: Sequence[LayerChoices]) -> Costs:
    """Returns the costs in a table {layer: {(weight bits, activation bits): cost}}.

    Keys may be weight bits alone, where the cost is the same for all activation bits; None, or a
    number in place of a mapping, is for every choice. Layers without a choice may be left out.
    """
    names = [layer.name for layer in layers]
    problems = [
        f"{name!r} is not a quantized linear layer of the model. {did_you_mean(str(name), names)}"
        for name in table
        if name not in names
    ]
    costs: list[list[Any]] = []
    for layer in layers:
        cost_of = table.get(layer.name, None if layer.chosen != "neither" else 0.0)
        if cost_of is None:
            problems.append(f"{layer.name}: received nothing, expected its cost.")
            continue
        if not isinstance(cost_of, Mapping):
            cost_of = dict.fromkeys(layer.choices, cost_of)
        for key, cost in cost_of.items():
            pair = key if isinstance(key, tuple) and len(key) == 2 else (key,)
            if not all(bits is None or is_integer(bits, lowest=1, limit=9) for bits in pair):
                problems.append(
                    f"{layer.name}[{key!r}]: expected (weight bits, activation bits), or weight "
                    "bits; write {(4, 8): ...} or {4: ...}."
                )
            elif not is_number(cost) or not 0.0 <= float(cost) <= _LARGEST:
                problems.append(
                    f"{layer.name}[{key!r}]: received {cost!r}, expected a finite number of 0 or "
                    "more."
                )
        of_choices = {
            choice: cost_of.get(choice, cost_of.get(choice[0], cost_of.get(None)))
            for choice in layer.choices
        }
        if missing := [choice for choice, cost in of_choices.items() if cost is None]:
            problems.append(
                f"{layer.name}: received no number for {first_ones(missing, 4)}, expected one for "
                "each choice of bits; add them, or allow fewer bits."
            )
        costs.append(list(of_choices.values()))
    if problems:
        raise ProblemsError("cost", problems)
    return [[float(cost) for cost in of_layer] for of_layer in costs]
