"""The layers of a quantized model: their bits, and the codes that they use."""

import dataclasses
import math
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf
import tf_keras as keras

from sat_tf.graph import layer_kinds
from sat_tf.graph.network import Network
from sat_tf.qat.layout import call_name, inner_layer
from sat_tf.qat.walk import as_graph
from sat_tf.qat.wrapper import QuantizedLayer, clipping_quantizer
from sat_tf.quantizers.protocol import CLIPPING_LEVEL

# The number of images that activations are measured on.
SAMPLE = 32
# Images are measured in parts whose largest tensor has so many values, or one by one.
_VALUES_AT_ONCE = 2**21


class ActivationUse(NamedTuple):
    """How one quantizer treats the images it was measured on."""

    clipped: float  # Share of the tensor's values at or beyond the clipping level, in [0, 1].
    # How often each code occurs, from the lowest on: 2^b codes, or 2^b - 1 if the range is
    # symmetric.
    code_counts: tuple[int, ...]

    @property
    def codes_used(self) -> int:
        """How many different codes occur."""
        return sum(count > 0 for count in self.code_counts)


def clipping_levels(model: keras.Model) -> dict[str, tf.Variable]:
    """The trainable clipping levels of a model, by the name of the user's layer, in graph order."""
    return {
        name: layer.output_variables[CLIPPING_LEVEL]
        for name, layer in clipping_layers(model).items()
    }


def clipping_layers(model: keras.Model) -> dict[str, QuantizedLayer]:
    """The layers with clipping levels, by the same names; none in an unquantized model."""
    return {
        call_name(node): node.layer
        for node in Network(model)
        if clipping_quantizer(node.layer) is not None
    }


class ActivationProbe:
    """Measures all clipping quantizers of a model on the same images each time it is called.

    A call costs about one forward pass over the images in inference; the first one compiles it.
    """

    def __init__(self, model: keras.Model, images: np.ndarray) -> None:
        self.network = Network(model)
        self.network.refuse_problems()
        largest = max(math.prod(size or 1 for size in node.shape) for node in self.network)
        at_once = max(_VALUES_AT_ONCE // largest, 1)
        starts = range(0, len(images), at_once)
        self._parts = [tf.cast(images[start : start + at_once], tf.float32) for start in starts]
        self._clipping = [
            node for node in self.network if clipping_quantizer(node.layer) is not None
        ]
        self._measure = as_graph(self._counts)

    def __call__(self) -> dict[str, ActivationUse]:
        """The current use of each quantizer, by the name of the user's layer, in graph order."""
        if not self._clipping:
            return {}
        tallies = [self._measure(images) for images in self._parts]
        uses = {}
        for name in map(call_name, self._clipping):
            clipped, *counts = np.sum([tally[name].numpy() for tally in tallies], axis=0).tolist()
            uses[name] = ActivationUse(clipped / sum(counts), tuple(counts))
        return uses

    def _counts(self, images: tf.Tensor) -> dict[str, tf.Tensor]:
        tensors = dict(self.network.computed({self.network.input: images}))
        counts = {}
        for node in self._clipping:
            inputs = [tensors[name] for name in node.inputs]
            # This is not computed twice: TensorFlow merges equal operations.
            before = node.layer.before_quantization(inputs if node.takes_list else inputs[0])
            counts[call_name(node)] = _measured_activation(node.layer, before, tensors[node.name])
        return counts


def _measured_activation(layer: QuantizedLayer, before: tf.Tensor, after: tf.Tensor) -> tf.Tensor:
    """Counts the clipped values of `before`, followed by the values of `after` with each code."""
    quantizer: Any = clipping_quantizer(layer)
    codes = quantizer.code_range(layer.output_variables)
    scale, lowest, intervals = codes.scale, codes.lowest, tf.cast(codes.intervals, tf.int32)
    before, after = tf.cast(before, tf.float32), tf.cast(after, tf.float32)
    beyond = before >= (lowest + tf.cast(intervals, tf.float32)) * scale
    if quantizer.signed:
        beyond |= before <= lowest * scale
    indices = tf.clip_by_value(tf.cast(tf.round(after / scale) - lowest, tf.int32), 0, intervals)
    length = intervals + 1
    counts = tf.math.bincount(tf.reshape(indices, [-1]), minlength=length, maxlength=length)
    clipped = tf.math.count_nonzero(beyond, dtype=tf.int64)
    return tf.concat([[clipped], tf.cast(counts, tf.int64)], axis=0)


@dataclasses.dataclass(frozen=True, kw_only=True)
class LayerRow:
    """The facts of one layer; None stands for those that it does not have."""

    name: str  # The user's layer, or an inserted quantizer.
    kind: str  # Class of the layer; "quantizer" for an inserted one.
    parameters: int  # How many the layer has, without those of quantizers.
    weight_bits: int | None = None
    weight_grid: str | None = None  # The name of the grid.
    weight_codes: int | None = None  # How many codes that grid has.
    weight_codes_used: int | None = None  # How many of them occur in the kernel.
    rescale: str | None = None  # SAT's rescaling of the kernel, by name.
    # The factor on the kernel, gain included; the mean over channels if these have their own gains.
    rescale_constant: float | None = None
    activation_bits: int | None = None  # The output's bits; the next fields are about it too.
    clipping_level: float | None = None  # The level, on both sides if the output can be negative.
    activation_codes: int | None = None  # How many codes its grid has.
    activation_codes_used: int | None = None  # How many of them occurred on the images.
    clipped: float | None = None  # Share of the values at or beyond the clipping level.


def layer_rows(model: keras.Model, images: np.ndarray) -> list[LayerRow]:
    """A row for every layer with parameters or quantizers, in graph order."""
    probe = ActivationProbe(model, images)
    uses, rows = probe(), []
    for node in probe.network:
        if node.name != node.layer.name:  # another call of a layer that already has a row
            continue
        layer, inner = node.layer, inner_layer(node.layer)
        row_kind, facts = type(inner).__name__, {}
        if isinstance(layer, QuantizedLayer):
            row_kind = "quantizer" if layer.quantize_config.inserted else row_kind
            facts = _facts_of_kernel(layer)
            output, use = clipping_quantizer(layer), uses.get(inner.name)
            if output is not None and use is not None:
                facts |= {
                    "activation_bits": output.num_bits,
                    "clipping_level": float(layer.output_variables[CLIPPING_LEVEL].numpy()),
                    "activation_codes": len(use.code_counts),
                    "activation_codes_used": use.codes_used,
                    "clipped": use.clipped,
                }
        row = LayerRow(name=inner.name, kind=row_kind, parameters=inner.count_params(), **facts)
        if row.parameters or row.weight_bits or row.activation_bits:
            rows.append(row)
    return rows


def _facts_of_kernel(layer: QuantizedLayer) -> dict[str, Any]:
    quantizer = layer.quantize_config.weights
    if quantizer is None:
        return {}
    latent = tf.cast(tf.convert_to_tensor(layer_kinds.kernel_of(layer.layer)), tf.float32)
    variables = layer.kernel_variables
    facts: dict[str, Any] = {
        "rescale": quantizer.rescale,
        "rescale_constant": quantizer.rescale_constant(latent, variables),
    }
    if quantizer.num_bits is not None:
        facts |= {
            "weight_bits": quantizer.num_bits,
            "weight_grid": quantizer.grid_name,
            "weight_codes": quantizer.code_count(variables),
            "weight_codes_used": len(np.unique(quantizer.units(latent, variables))),
        }
    return facts
