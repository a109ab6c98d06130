"""The bits that each layer of a model can have, and which layers share a grid.

What follows the policy's `weight_bits` and `activation_bits` is chosen; what the policy settles
otherwise stays: first and last layers at `first_last_weight_bits`, bits given by overrides, streams
and images. Layers that read one quantized tensor share its grid: their activation bits are equal,
so that the file needs no operator between two grids.
"""

import dataclasses
import glob
import itertools
import math
import warnings
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import tf_keras as keras

from sat_tf.export.lowering.packing import PACKINGS, NothingPackedError
from sat_tf.graph import layer_kinds
from sat_tf.messages import ModelError
from sat_tf.planning.explain import Source, plan_of, read_source
from sat_tf.planning.file_size import FileSizes
from sat_tf.planning.plan import Fate, LayerPlan, Plan
from sat_tf.qat.placement import place
from sat_tf.qat.policy import BitPolicy

Choice = tuple[int | None, int | None]  # weight bits and activation bits; None is float

# Two policies that differ in all bits that are left to be chosen.
_PROBES = (2, 3)


@dataclasses.dataclass(frozen=True, kw_only=True)
class LayerChoices:
    """One quantized linear layer, and the bits that it can have."""

    name: str  # Of the layer.
    kind: str  # Its class.
    num_weights: int  # Of its kernel.
    usual_bits: int | None  # Its weight bits in the policy; None if the kernel is not rounded.
    # To choose from; the usual ones where the policy settles them.
    weight_bits: tuple[int | None, ...]
    activation_bits: tuple[int | None, ...]  # To choose from, of what it reads; None is float.
    chooses_weights: bool  # Whether its weight bits are chosen.
    chooses_activations: bool  # Whether its activation bits are.
    reads_settled: bool  # Whether some call of it reads bits that the policy settles.
    tie: int  # Number of the grid that it shares with others; -1 if it shares none.
    # How many values count for the mean of activation bits; None if unknown.
    values_read: int | None

    @property
    def choices(self) -> list[Choice]:
        """All pairs of weight bits and activation bits."""
        return list(itertools.product(self.weight_bits, self.activation_bits))

    @property
    def chosen(self) -> str:
        """Which bits are chosen: "both", "weights", "activations" or "neither"."""
        if self.chooses_weights:
            return "both" if self.chooses_activations else "weights"
        return "activations" if self.chooses_activations else "neither"


class ModelChoices:
    """The choices that a model leaves open."""

    def __init__(
        self,
        model: keras.Model,
        policy: BitPolicy,
        weight_bits: Sequence[int],
        activation_bits: Sequence[int],
        *,
        pack: str = "auto",
    ) -> None:
        self.policy = policy
        source = read_source(model, processor=policy.processor)
        self.layers = _layers(source, policy, tuple(weight_bits), tuple(activation_bits))
        if all(layer.chosen == "neither" for layer in self.layers):
            raise ModelError(
                model.name,
                f"received {len(self.layers)} quantized linear layers, whose "
                "bits the policy settles all, expected some that follow its weight_bits or "
                "activation_bits: layers beside the first and the last one, or "
                "first_last_weight_bits=None, and no overrides of their bits.",
            )
        for bits in weight_bits:  # a grid or a quantizer may not have them
            uniform = self.policy_at(bits, min(activation_bits))
            place(source.network, source.annotations, uniform, source.kernels)
        self.sizes, self.file_problem = None, ""
        try:
            most = max(activation_bits)
            self.sizes = FileSizes(
                source, lambda bits: self.policy_at(bits, most), weight_bits, pack=pack
            )
        except NothingPackedError:
            raise
        except ValueError as error:
            if PACKINGS[pack].asked_for:
                raise ValueError(
                    f"pack={pack!r}: received a model without a file, of which nothing can be "
                    f"packed, expected one that can be exported; use pack='auto', or: {error}"
                ) from error
            self.file_problem = str(error)

    def policy_of(self, chosen: Mapping[str, Choice]) -> BitPolicy:
        """Returns the policy with some bits in some layers.

        Args:
            chosen: weight bits and activation bits by layer; None, and bits that are not chosen
                for, leave what the policy has.
        """
        overrides: dict[str, Any] = self.policy.to_dict()["overrides"]
        for layer in self.layers:
            weight_bits, activation_bits = chosen.get(layer.name, (None, None))
            fields: dict[str, Any] = {}
            if layer.chooses_weights and weight_bits not in (None, layer.usual_bits):
                fields["weight_bits"] = weight_bits
            usual = self.policy.activation_bits
            if layer.chooses_activations and activation_bits not in (None, usual):
                fields["activation_bits"] = activation_bits
                if layer.reads_settled and not self.policy.requantize_streams:
                    # Bits that are given for a layer would hold for the streams that it reads too.
                    fields["requantize_streams"] = False
            if fields:
                pattern = glob.escape(layer.name)
                # They stand behind the policy's own, because later patterns win.
                overrides[pattern] = {**overrides.pop(pattern, {}), **fields}
        return _changed(self.policy, overrides=overrides)

    def policy_at(self, weight_bits: int | None, activation_bits: int | None) -> BitPolicy:
        """Returns the policy with the same bits in all layers that are chosen for."""
        return self.policy_of({layer.name: (weight_bits, activation_bits) for layer in self.layers})


def _changed(policy: BitPolicy, **fields: Any) -> BitPolicy:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of its grids, which the policy has warned of
        return dataclasses.replace(policy, **fields)


def _layers(
    source: Source,
    policy: BitPolicy,
    weight_bits: tuple[int, ...],
    activation_bits: tuple[int, ...],
) -> tuple[LayerChoices, ...]:
    """Returns the choices of each layer, by three plans: what follows the policy's bits differs."""
    named = ("weight_bits", "activation_bits")
    rounded = [name for name in named if getattr(policy, name) is not None]
    probes = [_changed(policy, **dict.fromkeys(rounded, bits)) for bits in _PROBES]
    usual, low, high = plans = [plan_of(source, each) for each in (policy, *probes)]
    for plan in plans:
        if plan.problems:
            raise ModelError(plan.model, plan.problems)
    calls: dict[str, list[LayerPlan]] = {}
    for row in low.layers:
        if row.weights is not None:
            calls.setdefault(source.network[row.name].layer.name, []).append(row)
    following = {
        name: [row for row in rows if row.reading_bits != high[row.name].reading_bits]
        for name, rows in calls.items()
    }
    ties = _ties(low, following)
    layers = []
    for name, rows in calls.items():
        first, free = rows[0].name, following[name]
        low_weights, high_weights, weights = (plan[first].weights for plan in (low, high, usual))
        follows = bool(low_weights and high_weights and low_weights.bits != high_weights.bits)
        usual_bits = weights.bits if weights else None
        kernel = layer_kinds.kernel_of(source.network[first].layer)
        layers.append(
            LayerChoices(
                name=name,
                kind=rows[0].kind,
                num_weights=int(np.prod(kernel.shape)),
                usual_bits=usual_bits,
                weight_bits=weight_bits if follows else (usual_bits,),
                activation_bits=activation_bits if free else (usual[first].reading_bits,),
                chooses_weights=follows,
                chooses_activations=bool(free),
                reads_settled=len(free) < len(rows),
                tie=ties.get(name, -1),
                values_read=_values_read(source, low, rows),
            )
        )
    return tuple(layers)


def _quantized_source(plan: Plan, row: LayerPlan) -> LayerPlan:
    """Returns the row whose quantizer made the codes that a layer reads, past data movement."""
    source = plan[row.reads[0]]
    while source.activation is None and source.reads:
        source = plan[source.reads[0]]
    return source


def _ties(plan: Plan, following: Mapping[str, Sequence[LayerPlan]]) -> dict[str, int]:
    """Returns numbers of the grids that several layers read, directly or through others."""
    groups: list[tuple[set[str], set[str]]] = []  # layers, and the tensors that they read
    for name, rows in following.items():
        layers, tensors = {name}, {_quantized_source(plan, row).name for row in rows}
        for group in [group for group in groups if group[1] & tensors]:
            groups.remove(group)
            layers, tensors = layers | group[0], tensors | group[1]
        groups.append((layers, tensors))
    shared = [layers for layers, _ in groups if len(layers) > 1]
    return {name: number for number, layers in enumerate(shared) for name in layers}


def _values_read(source: Source, plan: Plan, rows: Sequence[LayerPlan]) -> int | None:
    """Returns how many values the rows read that are activations, neither images nor streams."""
    shapes = []
    for row in rows:
        quantized = _quantized_source(plan, row)
        is_activation = quantized.activation is not None and not quantized.activation.stream
        if is_activation and all(plan[name].fate is not Fate.INPUT for name in quantized.reads):
            network = source.network
            shapes.append(network[network[row.name].inputs[0]].shape)
    if any(None in shape for shape in shapes):
        return None
    return sum(math.prod(size or 0 for size in shape) for shape in shapes)
