"""The cost of a choice of bits for each layer: by sensitivity, or by a table.

Costs of layers are added up, and so are those of a layer's kernel and of what it reads: whoever
takes them for the whole model assumes that rounding errors do not meet.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import tf_keras as keras

from sat_tf.analysis.allocation.choices import LayerChoices
from sat_tf.analysis.allocation.tables import LayerTable, Wanted, read_values
from sat_tf.analysis.sensitivity.measured_model import Sensitivity
from sat_tf.analysis.sensitivity.sensitivity import sensitivity
from sat_tf.graph.network import layer_of_call
from sat_tf.messages import list_problems
from sat_tf.qat.policy import BitPolicy

Costs = list[list[float]]
# {layer: {bits: cost}}
BitCosts = dict[str, dict[int, float]]
_MOST_BITS = 8


def of_table(table: LayerTable, layers: Sequence[LayerChoices]) -> Costs:
    """The costs of a user's own table; see `tables.read_values`."""
    wanted = [Wanted(layer.name, layer.choices, not _chooses(layer)) for layer in layers]
    return read_values(table, wanted, name="cost", unit="cost")


def of_latency(table: LayerTable, layers: Sequence[LayerChoices]) -> Costs:
    """The milliseconds of each layer's choices; all layers have to be in the table."""
    wanted = [Wanted(layer.name, layer.choices) for layer in layers]
    return read_values(table, wanted, name="latency", unit="milliseconds")


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


def measured(
    model: keras.Model,
    dataset: Any,
    policy: BitPolicy,
    layers: Sequence[LayerChoices],
    *,
    num_images: int,
    progress: bool,
) -> Costs:
    """The estimated losses, measured on images.

    Args:
        model: a float model.
        dataset: as for `sat_tf.sensitivity`.
        policy: with the fewest bits of the choices.
        layers: with their choices.
        num_images: how many images to take at most.
        progress: show bars.

    Raises:
        ValueError: the data do not fit, are a single image, or give NaN.
    """
    losses = sensitivity(model, dataset, policy, num_images=num_images, progress=progress)
    found = of_sensitivity(losses, layers)
    if not any(cost for layer in found for cost in layer):
        raise ValueError(
            "cost='sensitivity': received images on which no number of bits changes anything, by "
            "which all bits would cost the same; give images as the model is used with."
        )
    return found


def combined(layers: Sequence[LayerChoices], weights: BitCosts, activations: BitCosts) -> Costs:
    """The sum of both for each choice; what is not chosen costs the same, and counts as 0.

    Raises:
        ValueError: the cost of a number of bits is missing; lists all of them.
    """
    problems: list[str] = []
    costs: Costs = []
    for layer in layers:
        parts = (
            (layer.chooses_weights, weights, layer.weight_bits, "weight_bits"),
            (layer.chooses_activations, activations, layer.activation_bits, "activation_bits"),
        )
        for chosen, known, bits, field in parts:
            missing = [b for b in bits if b not in known.get(layer.name, {})] if chosen else []
            if missing:
                problems.append(
                    f"{layer.name}: received no {field}={missing[0]} among what was measured, "
                    "expected the fewest bits of the choices and more; measure a policy with "
                    f"{field}={missing[0]} there, or leave those bits out."
                )
        costs.append(
            [
                _at(weights, layer.name, own if layer.chooses_weights else None)
                + _at(activations, layer.name, read if layer.chooses_activations else None)
                for own, read in layer.choices
            ]
        )
    if problems:
        raise ValueError(list_problems("cost", problems))
    return costs


def _at(costs: Mapping[str, Mapping[int, float]], layer: str, bits: int | None) -> float:
    return 0.0 if bits is None else costs.get(layer, {}).get(bits, 0.0)


def _chooses(layer: LayerChoices) -> bool:
    return layer.chooses_weights or layer.chooses_activations
