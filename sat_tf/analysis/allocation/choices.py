"""The bits that each layer of a model can have, what they use, and which layers share a grid.

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
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import tf_keras as keras

from sat_tf.analysis.allocation.budget import Choice
from sat_tf.export.lowering.packing import PACKINGS, NothingPackedError
from sat_tf.graph import layer_kinds
from sat_tf.messages import ProblemsError
from sat_tf.planning.deployment import FLOAT_BITS
from sat_tf.planning.explain import Source, plan_of, read_source
from sat_tf.planning.file_size import FileSizes
from sat_tf.planning.layer_plan import Fate, LayerPlan
from sat_tf.planning.plan import Plan
from sat_tf.qat.placement import place
from sat_tf.qat.policy import BitPolicy

# Two policies that differ in all bits that are left to be chosen.
_PROBES = (2, 3)


@dataclasses.dataclass(frozen=True, kw_only=True)
class LayerChoices:
    """One quantized linear layer, and the bits that it can have.

    Attributes:
        name: of the layer.
        kind: its class.
        num_weights: of its kernel.
        usual_bits: its weight bits in the policy; None if the kernel is not rounded.
        weight_bits: to choose from; the usual ones where the policy settles them.
        activation_bits: to choose from, of what it reads; None is float.
        chooses_weights: whether its weight bits are chosen.
        chooses_activations: whether its activation bits are.
        tie: number of the grid that it shares with others; -1 if it shares none.
        products: multiply-adds of the calls that read chosen activations; None if unknown.
        settled: those of other calls, times the bits that these read.
        values_read: how many values count for the mean of activation bits; None if unknown.
    """

    name: str
    kind: str
    num_weights: int
    usual_bits: int | None
    weight_bits: tuple[int | None, ...]
    activation_bits: tuple[int | None, ...]
    chooses_weights: bool
    chooses_activations: bool
    tie: int
    products: int | None
    settled: int
    values_read: int | None

    @property
    def choices(self) -> list[Choice]:
        """All pairs of weight bits and activation bits."""
        return list(itertools.product(self.weight_bits, self.activation_bits))

    def bit_operations(self, choice: Choice) -> float:
        """Multiply-adds · weight bits · activation bits; NaN if unknown."""
        if self.products is None:
            return math.nan
        weight_bits, activation_bits = (bits or FLOAT_BITS for bits in choice)
        return float(weight_bits * (self.products * activation_bits + self.settled))

    def ideal_bytes(self, choice: Choice) -> float:
        """Weights · bits / 8."""
        return self.num_weights * (choice[0] or FLOAT_BITS) / 8


class ModelChoices:
    """The choices that a model leaves open.

    Attributes:
        layers: the quantized linear layers, in graph order.
        settled_bit_operations: those of layers that are not quantized; NaN if unknown.
        file_problem: why there is no file; "" if there is one.
        base_bytes: of the file, whatever is chosen.

    Args:
        model: a float model.
        policy: what settles the rest.
        weight_bits: to choose from.
        activation_bits: to choose from.
        pack: as for `export_tflite`.

    Raises:
        ValueError: the model cannot be quantized, or has nothing to choose; or `pack` packs no
            kernel whatever is chosen, which is an error of the export.
    """

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
        reading = _Reading(source, policy, tuple(weight_bits), tuple(activation_bits))
        self.layers = reading.layers()
        self.settled_bit_operations = reading.settled_bit_operations()
        chosen = [layer.name for layer in self.layers if layer.chooses_weights]
        if not chosen and not any(layer.chooses_activations for layer in self.layers):
            raise ValueError(
                f"model {model.name!r}: received {len(self.layers)} quantized linear layers, whose "
                "bits the policy settles all, expected some that follow its weight_bits or "
                "activation_bits: layers beside the first and the last one, or "
                "first_last_weight_bits=None, and no overrides of their bits."
            )
        for bits in weight_bits:  # a grid or a quantizer may not have them
            policy = self.policy_at(bits, min(activation_bits))
            place(source.network, source.annotations, policy, source.kernels)
        self.file_problem, self.base_bytes = "", 0
        self._added: dict[tuple[str, int], int] = {}
        try:
            self._sizes = FileSizes(
                source,
                lambda bits: self.policy_of(dict.fromkeys(chosen, (bits, None))),
                weight_bits,
                pack=pack,
            )
            self.base_bytes, self._added = self._sizes.marginal(chosen)
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
        """The policy with some bits in some layers.

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
                if layer.settled and not self.policy.requantize_streams:
                    # Bits that are given for a layer would hold for the streams that it reads too.
                    fields["requantize_streams"] = False
            if fields:
                pattern = glob.escape(layer.name)
                # They stand behind the policy's own, because later patterns win.
                overrides[pattern] = {**overrides.pop(pattern, {}), **fields}
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of its grids, which the policy has warned of
            return dataclasses.replace(self.policy, overrides=overrides)

    def policy_at(self, weight_bits: int, activation_bits: int) -> BitPolicy:
        """The policy with the same bits in all layers that are chosen for."""
        return self.policy_of({layer.name: (weight_bits, activation_bits) for layer in self.layers})

    def tensors(self, layer: LayerChoices) -> list[str]:
        """The tensors of the file that a layer's linear operations make; [] without a file."""
        return [] if self.file_problem else self._sizes.tensors(layer.name)

    def stored_bits(self, layer: LayerChoices, bits: int | None) -> int | None:
        """How many bits of the file each weight of a layer takes; None without a file."""
        return None if self.file_problem else self._sizes.stored_bits(layer.name, bits)

    def kernel_bytes(self, layer: LayerChoices, bits: int | None) -> int | None:
        """The bytes of a layer's codes in the file; None without a file."""
        return None if self.file_problem else self._sizes.kernel_bytes(layer.name, bits)

    def added_bytes(self, layer: LayerChoices, bits: int | None) -> float:
        """The bytes of the file that hang on a layer's weight bits; NaN without a file."""
        if self.file_problem:
            return math.nan
        return float(self._added.get((layer.name, bits or 0), 0))


class _Reading:
    """Reads the plans of a model: what follows the policy's bits, and who reads what."""

    def __init__(
        self,
        source: Source,
        policy: BitPolicy,
        weight_bits: tuple[int, ...],
        activation_bits: tuple[int, ...],
    ) -> None:
        self.network = source.network
        self.weight_bits, self.activation_bits = weight_bits, activation_bits
        self.usual = _plan(source, policy)
        self.low, self.high = (_plan(source, _probe(policy, bits)) for bits in _PROBES)
        self.calls: dict[str, list[LayerPlan]] = {}
        for row in self.low.layers:
            if row.weights is not None:
                self.calls.setdefault(self.network[row.name].layer.name, []).append(row)

    def layers(self) -> tuple[LayerChoices, ...]:
        grids = _Grids()
        for name, rows in self.calls.items():
            for row in filter(self._follows, rows):
                grids.join(name, _source(self.low, row).name)
        ties = grids.shared(self.calls)
        return tuple(self._layer(name, rows, ties[name]) for name, rows in self.calls.items())

    def settled_bit_operations(self) -> float:
        others = [row for row in self.usual.layers if row.weights is None]
        counts = [row.bit_operations for row in others]
        return math.nan if None in counts else float(sum(count or 0 for count in counts))

    def _follows(self, row: LayerPlan) -> bool:
        """Whether the bits that a call reads are those that the policy gives all activations."""
        return row.reading_bits != self.high[row.name].reading_bits

    def _layer(self, name: str, rows: Sequence[LayerPlan], tie: int) -> LayerChoices:
        first, usual = rows[0], self.usual[rows[0].name]
        own, other = (plan[first.name].weights for plan in (self.low, self.high))
        follows = own is not None and other is not None and own.bits != other.bits
        usual_bits = usual.weights.bits if usual.weights else None
        layer = self.network[first.name].layer
        free = [row for row in rows if self._follows(row)]
        settled = [self.usual[row.name] for row in rows if row not in free]
        unknown = any(row.multiply_adds is None for row in rows)
        return LayerChoices(
            name=name,
            kind=first.kind,
            num_weights=int(np.prod(layer_kinds.kernel_of(layer).shape)),
            usual_bits=usual_bits,
            weight_bits=self.weight_bits if follows else (usual_bits,),
            activation_bits=self.activation_bits if free else (usual.reading_bits,),
            chooses_weights=follows,
            chooses_activations=bool(free),
            tie=tie,
            products=None if unknown else sum(row.multiply_adds or 0 for row in free),
            settled=sum(
                (row.multiply_adds or 0) * (row.reading_bits or FLOAT_BITS) for row in settled
            ),
            values_read=self._values(rows),
        )

    def _values(self, rows: Sequence[LayerPlan]) -> int | None:
        """How many values the rows read that are activations, and neither images nor streams."""
        shapes = []
        for row in rows:
            source = _source(self.low, row)
            is_activation = source.activation is not None and not source.activation.stream
            if is_activation and all(self.low[n].fate is not Fate.INPUT for n in source.reads):
                shapes.append(self.network[self.network[row.name].inputs[0]].shape)
        if any(None in shape for shape in shapes):
            return None
        return sum(math.prod(size or 0 for size in shape) for shape in shapes)


def _plan(source: Source, policy: BitPolicy) -> Plan:
    plan = plan_of(source, policy)
    if plan.problems:
        raise ProblemsError(f"model {plan.model!r}", plan.problems)
    return plan


def _probe(policy: BitPolicy, bits: int) -> BitPolicy:
    """The policy with other bits, where it rounds at all."""
    named = ("weight_bits", "activation_bits")
    fields: dict[str, Any] = {name: bits for name in named if getattr(policy, name) is not None}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return dataclasses.replace(policy, **fields)


def _source(plan: Plan, row: LayerPlan) -> LayerPlan:
    """The row whose quantizer made the codes that a layer reads, past data movement."""
    source = plan[row.reads[0]]
    while source.activation is None and source.reads:
        source = plan[source.reads[0]]
    return source


class _Grids:
    """The quantized tensors that each layer reads, directly or through others."""

    def __init__(self) -> None:
        self._parents: dict[str, str] = {}

    def join(self, layer: str, tensor: str) -> None:
        """Says that a layer reads a tensor."""
        one, other = self._root(f"layer {layer}"), self._root(f"tensor {tensor}")
        self._parents[max(one, other)] = min(one, other)

    def shared(self, layers: Iterable[str]) -> dict[str, int]:
        """For each layer the number of its grid; -1 where no other layer reads it."""
        roots = {
            name: self._root(f"layer {name}") for name in layers if f"layer {name}" in self._parents
        }
        readers = list(roots.values())
        several = list(dict.fromkeys(root for root in readers if readers.count(root) > 1))
        return {
            name: several.index(roots[name]) if roots.get(name) in several else -1
            for name in layers
        }

    def _root(self, name: str) -> str:
        while self._parents.setdefault(name, name) != name:
            name = self._parents[name]
        return name
