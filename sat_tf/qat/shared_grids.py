"""Grids that serve values of very different sizes, and leave some of them only a few codes.

The features of an input, the parts of a concatenation and the channels of an output share one
scale: a file has one for each tensor. The largest of them sets it.
"""

import dataclasses
import itertools
import math
from collections.abc import Collection, Iterator
from typing import Any

import numpy as np
import tf_keras as keras

from sat_tf.core.grid import WIDE_BITS, observed_ends
from sat_tf.graph import layer_kinds
from sat_tf.graph.layers.kind import Combination, Role
from sat_tf.graph.network import Network, Node
from sat_tf.messages import first_ones, warn
from sat_tf.qat.layout import call_name, inner_layer, maker_of_codes, name_in_front_of_insertions
from sat_tf.qat.model_class import processor_of
from sat_tf.qat.walk import call_unrounded
from sat_tf.qat.wrapper import QuantizedLayer, output_quantizer
from sat_tf.quantizers.protocol import CLIPPING_LEVEL, ActivationQuantizer, Quantizer
from sat_tf.quantizers.values import COUNT, ENDS

_CODES_OF_INT8 = 256
# The root mean square error of a normalization, as a share of its output, above which it warns.
_LARGEST_ERROR = 0.05
# The units in the last place that a level may move until float32 has the ends of its scale.
_MOST_UNITS = 64


class CoarseValuesWarning(UserWarning):
    """Some of the values that share a grid get only a few of its codes."""


@dataclasses.dataclass(frozen=True)
class _SharedGrid:
    """A tensor with one grid."""

    holder: str  # The quantized layer with the grid.
    called: str  # The name of the parts in messages.
    # The slices of the parts, which may differ in size, along one axis, by the parts' names.
    parts: dict[str, slice]
    axis: int  # The axis of the parts, without the batch.
    fix: str  # The advice for parts that get few codes.


@dataclasses.dataclass(frozen=True)
class _SeenValues:
    """The values that a batch has in a tensor with one grid."""

    real: np.ndarray  # The smallest and the largest value.
    ends: dict[str, np.ndarray]  # The smallest and the largest value of each part to become codes.
    distinct: dict[str, int]  # How many different values each part has.
    step: float | None  # The step between codes; None where its range is still to be observed.


class SharedGrids:
    """Finds, while a quantized model runs on data, the values that get too few codes of a grid."""

    def __init__(self, network: Network) -> None:
        grids = (*_inputs(network), *_concatenations(network), *_outputs(network))
        self._network, self._grids = network, {grid.holder: grid for grid in grids}
        self._seen: dict[str, _SeenValues] = {}
        # The nodes of each normalization, by its last node, with their unrounded outputs.
        self._forms: dict[str, dict[str, Any]] = dict(_normalizations(network))
        self._errors: dict[str, float] = {}

    @property
    def holders(self) -> Collection[str]:
        """The nodes to be called with a whole batch: those with such grids, until they were."""
        return (self._grids.keys() - self._seen.keys()).union(*self._forms.values())

    def look_at(self, node: Node, inputs: Any, made: Any) -> None:
        """Takes in the output of one of the holders on a batch."""
        for last, exact in [*self._forms.items()]:
            if node.name not in exact:
                continue
            read = zip(node.inputs, inputs if node.takes_list else [inputs], strict=True)
            known = [exact.get(name, values) for name, values in read]
            exact[node.name] = call_unrounded(node, known if node.takes_list else known[0])
            if node.name == last:
                maker, real = call_name(self._network[next(iter(exact))]), np.asarray(exact[last])
                error = np.linalg.norm(made - real) / np.maximum(np.linalg.norm(real), 1e-30)
                self._errors[f"{call_name(node)}, which reads {maker}"] = float(error)
                del self._forms[last]
        if node.name not in self._grids.keys() - self._seen.keys():
            return
        grid, layer = self._grids[node.name], node.layer
        real, step = np.asarray(layer.before_quantization(inputs)), None
        values = real
        if isinstance(layer.quantize_config.output, ActivationQuantizer):
            values = np.asarray(made)
            step = np.min(np.diff(np.unique(values)), initial=np.inf)
        axes = (slice(None),) * (grid.axis + 1)
        self._seen[node.name] = _SeenValues(
            _ends(real),
            {name: _ends(values[(*axes, span)]) for name, span in grid.parts.items()},
            {name: len(np.unique(real[(*axes, span)])) for name, span in grid.parts.items()},
            step,
        )

    def warn(self) -> None:
        """Warns of all that was found, once ranges are observed."""
        for grid in self._grids.values():
            if (seen := self._seen.get(grid.holder)) is None:
                continue
            layer, step = self._network[grid.holder].layer, seen.step
            num_codes = 2**layer.quantize_config.output.num_bits
            if step is None:
                lowest, highest = (float(layer.output_variables[end].numpy()) for end in ENDS)
                if num_codes > _CODES_OF_INT8:  # around 0
                    highest = max(highest, -lowest)
                    lowest = -highest
                step = max(highest - lowest, 1e-30) / (num_codes - 1)
            few = math.isqrt(min(num_codes, _CODES_OF_INT8))  # half of the bits
            counts = {n: int(np.ptp(np.rint(ends / step))) + 1 for n, ends in seen.ends.items()}
            coarse = [n for n, codes in counts.items() if codes < min(few, seen.distinct[n] / 2)]
            if coarse:
                listed = first_ones(f"{name}: {counts[name]}" for name in coarse)
                warn(
                    f"calibrate: {grid.called}: {len(coarse)} of {len(grid.parts)} get fewer than "
                    f"{few} of the {num_codes} codes ({listed}), because one scale serves all "
                    f"values, which range from {seen.real[0]:.4g} to {seen.real[1]:.4g}; "
                    f"{grid.fix}.",
                    CoarseValuesWarning,
                )
        off = [f"{n}: {error:.0%}" for n, error in self._errors.items() if error > _LARGEST_ERROR]
        if off:
            is_wide = processor_of(self._network.model).wide
            fix = "give what they read stream_bits=16 by overrides, or input_type='int16'"
            fix = fix if is_wide else "choose 'ethos-u55', with 16 bits, or 'litert', with float32"
            warn(
                f"calibrate: normalizations on codes are off by more than {_LARGEST_ERROR:.0%} "
                f"({first_ones(off)}), because some rows or channels are much larger than others; "
                f"{fix}.",
                CoarseValuesWarning,
            )


def give_inputs_their_grids(network: Network) -> None:
    """Gives inputs that concatenations alone read, as the states of a streaming model, their grid.

    A state that leaves a file as a part of the concatenation can then be fed back as it is. Where
    float32 has no ends for the very scale, the level of the concatenation moves by a unit in the
    last place.
    """
    for node in network:
        quantizer = _quantizer(node)
        if quantizer is None or quantizer.input_type is None or quantizer.is_fixed:
            continue
        holder, *others = set(_readers_grids(network, node.name)) or {""}
        if holder and not others and (ends := _ends_of_grid(network[holder].layer)) is not None:
            variables = node.layer.output_variables
            batches = float(variables[COUNT].numpy())
            node.layer.quantize_config.output.remember(*ends, variables, batches)


def _ends_of_grid(layer: QuantizedLayer) -> tuple[np.float32, np.float32] | None:
    """The ends of an observed range with the grid of a layer; None without any."""
    quantizer: Any = layer.quantize_config.output
    if quantizer.num_bits == WIDE_BITS:  # inputs keep their own
        return None
    if quantizer.is_fixed:
        low, high = (np.float32(layer.output_variables[end].numpy()) for end in ENDS)
        return low, high
    level = layer.output_variables.get(CLIPPING_LEVEL)
    for _ in range(_MOST_UNITS):
        grid = quantizer.code_range(layer.output_variables)
        ends = observed_ends(np.float32(grid.scale), grid.zero_point)
        if ends is not None or level is None:
            return ends
        level.assign(np.nextafter(level.numpy(), np.float32(np.inf)))
    return None


def _readers_grids(network: Network, name: str) -> Iterator[str]:
    """The layers with the grids of the concatenations that read a tensor; "" for other readers."""
    if name in network.outputs:
        yield ""
    for reader in network.consumers(name):
        layer = inner_layer(reader.layer)
        is_moved = layer_kinds.role_of(layer).keeps_codes and _quantizer(reader) is None
        if layer_kinds.combination_of(layer) is Combination.JOINED:
            holder, *others = [*_holders(network, reader)] or [""]
            quantizer = _quantizer(network[holder]) if holder else None
            clips = isinstance(quantizer, ActivationQuantizer)
            is_known = clips or (quantizer is not None and quantizer.is_fixed)
            yield holder if is_known and not others else ""
        elif is_moved:
            yield from _readers_grids(network, reader.name)
        else:
            yield ""


def _ends(values: np.ndarray) -> np.ndarray:
    return np.array([np.min(values), np.max(values)])


def _quantizer(node: Node) -> Quantizer | None:
    """The quantizer that gives a tensor its grid."""
    quantizer = output_quantizer(node.layer)
    clips = isinstance(quantizer, ActivationQuantizer)
    return quantizer if clips or (quantizer is not None and quantizer.observes_range) else None


def _of_channels(node: Node, called: str, fix: str) -> _SharedGrid:
    """The grid of a tensor whose channels are the parts."""
    slices = {str(index): slice(index, index + 1) for index in range(node.shape[-1] or 0)}
    return _SharedGrid(node.name, called, slices, len(node.shape) - 1, fix)


def _inputs(network: Network) -> Iterator[_SharedGrid]:
    """The inputs of real values that nothing preprocesses."""
    for node in network:
        quantizer = _quantizer(node)
        if quantizer is None or quantizer.input_type is None or not quantizer.observes_range:
            continue
        (name,) = node.inputs
        if name in network.inputs and node.shape:
            fix = (
                "standardize them, or put a Normalization layer in front and set "
                "BitPolicy(input_type='float32')"
            )
            yield _of_channels(node, f"features of the input {name}", fix)


def _concatenations(network: Network) -> Iterator[_SharedGrid]:
    for node in network:
        layer = inner_layer(node.layer)
        if layer_kinds.combination_of(layer) is not Combination.JOINED:
            continue
        axis = layer.axis % (len(node.shape) + 1) - 1
        sizes = [network[name].shape[axis] for name in node.inputs] if axis >= 0 else [None]
        if None in sizes:
            continue
        ends = itertools.pairwise(np.cumsum([0, *sizes]).tolist())
        names = [name_in_front_of_insertions(network, name) for name in node.inputs]
        slices = {
            f"{name} ({place})" if names.count(name) > 1 else name: slice(*both)
            for place, (name, both) in enumerate(zip(names, ends, strict=True))
        }
        fix = (
            "make the parts alike in size, as with a BatchNormalization after each, or let a "
            "layer of its own read each part, and add what these make"
        )
        for holder in _holders(network, node):
            yield _SharedGrid(holder, f"parts of {call_name(node)}", slices, axis, fix)


def _holders(network: Network, node: Node) -> Iterator[str]:
    """The layers that give a tensor its grid: its own, or rectifiers and identities after it."""
    if _quantizer(node) is not None:
        yield node.name
        return
    for reader in network.consumers(node.name):
        layer: keras.layers.Layer = inner_layer(reader.layer)
        if layer_kinds.rectifies(layer) or layer_kinds.role_of(layer) is Role.IDENTITY:
            yield from _holders(network, reader)


def _normalizations(network: Network) -> Iterator[tuple[str, dict[str, Any]]]:
    """The last node of each normalization in integers, and its nodes from the input's maker on."""
    for node in network:
        native = layer_kinds.native_of(inner_layer(node.layer))
        if native is None or native.operator != "RSQRT":
            continue
        last = node
        while last.shape == node.shape and (readers := network.consumers(last.name)):
            last = readers[-1]  # from one of Newton's steps to the next
        if layer_kinds.role_of(inner_layer(last.layer)) is not Role.PRODUCT:  # rows of one value
            continue
        source, before = network[last.inputs[0]], network.before(last.name) | {last.name}
        if layer_kinds.combination_of(inner_layer(source.layer)) is Combination.DIFFERENCE:
            source = network[source.inputs[0]]
        nodes = dict.fromkeys([maker_of_codes(network, source.name).name])
        for reader in network:
            if reader.name in before and not nodes.keys().isdisjoint(reader.inputs):
                nodes[reader.name] = None
        yield last.name, nodes


def _outputs(network: Network) -> Iterator[_SharedGrid]:
    """The outputs, and what functions at the end and float layers read, of several channels."""
    for node in network:
        quantizer, size = _quantizer(node), node.shape[-1] if node.shape else None
        if quantizer is None or not quantizer.observes_range or (size or 0) < 2:
            continue
        if quantizer.is_fixed:  # a state
            continue
        is_read_float = quantizer.rounds and not quantizer.trains_float
        if quantizer.input_type is not None or not (node.name in network.outputs or is_read_float):
            continue
        fix = (
            "give them outputs of their own, a layer for each, or train the model on targets of "
            "like size"
        )
        what = "the output " if node.name in network.outputs else ""
        yield _of_channels(node, f"channels of {what}{call_name(node)}", fix)
