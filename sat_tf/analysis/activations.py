"""Quantized activations: how much of them is clipped, and which codes they use."""

import dataclasses
from typing import Any

import numpy as np
import tensorflow as tf
import tf_keras as keras

from sat_tf.analysis.measurement import as_graph
from sat_tf.graph.network import Network, Node, call_in_inference
from sat_tf.qat.layout import call_name
from sat_tf.qat.wrapper import QuantizedLayer
from sat_tf.quantizers.protocol import ActivationQuantizer
from sat_tf.quantizers.settings import CLIPPING_LEVEL


@dataclasses.dataclass(frozen=True)
class ActivationUse:
    """How one quantizer treats the images it was measured on.

    Attributes:
        clipped: share of the tensor's values at or beyond the clipping level, in [0, 1].
        code_counts: how often each code occurs, from the lowest on: 2^b codes, or 2^b - 1 if the
            range is symmetric.
    """

    clipped: float
    code_counts: tuple[int, ...]

    @property
    def codes_used(self) -> int:
        """How many different codes occur."""
        return sum(count > 0 for count in self.code_counts)


def clipping_levels(model: keras.Model) -> dict[str, tf.Variable]:
    """The trainable clipping levels of a model, by the name of the user's layer, in graph order.

    Empty for a model that is not quantized.

    Raises:
        ValueError: the model is not a graph.
    """
    return {
        name: layer.output_variables[CLIPPING_LEVEL]
        for name, layer in clipping_layers(model).items()
    }


def clipping_layers(model: keras.Model) -> dict[str, QuantizedLayer]:
    """The layers with clipping levels, likewise."""
    return {call_name(node): node.layer for node in Network(model) if _clips(node)}


class ActivationProbe:
    """Measures all clipping quantizers of a model on the same images each time it is called.

    A call costs about one forward pass over the images in inference; the first one compiles it.

    Args:
        model: a model quantized by sat-tf; others have nothing to measure. Its variables are read
            when the probe is called.
        images: one batch, (n, rows, columns, channels).

    Raises:
        ValueError: the model is not a graph of calls.
    """

    def __init__(self, model: keras.Model, images: np.ndarray) -> None:
        self._network = Network(model)
        self._network.refuse_problems()
        self._images = tf.cast(images, tf.float32)
        self._needed = {
            name
            for node in self._network
            if _clips(node)
            for name in (node.name, *self._network.before(node.name))
        }
        self._measure = as_graph(self._run)

    def __call__(self) -> dict[str, ActivationUse]:
        """The current use of each quantizer, by the name of the user's layer, in graph order."""
        if not self._needed:
            return {}
        return {
            name: ActivationUse(float(clipped), tuple(counts.numpy().tolist()))
            for name, (clipped, counts) in self._measure(self._images).items()
        }

    def _run(self, images: tf.Tensor) -> dict[str, tuple[tf.Tensor, tf.Tensor]]:
        tensors: dict[str, Any] = {self._network.input: images}
        found = {}
        for node in self._network:
            if node.name in tensors or node.name not in self._needed:
                continue
            inputs = [tensors[name] for name in node.inputs]
            tensors[node.name] = call_in_inference(node, node.layer, inputs)
            if _clips(node):
                # Not computed twice: TensorFlow merges equal operations.
                before = node.layer.before_quantization(inputs if node.takes_list else inputs[0])
                found[call_name(node)] = _measured(node.layer, before, tensors[node.name])
        return found


def _clips(node: Node) -> bool:
    return isinstance(node.layer, QuantizedLayer) and clipping_quantizer(node.layer) is not None


def clipping_quantizer(layer: QuantizedLayer) -> ActivationQuantizer | None:
    """The quantizer of a layer's output, if it is one with a clipping level."""
    quantizer = layer.quantize_config.output
    if isinstance(quantizer, ActivationQuantizer) and quantizer.has_clipping_level:
        return quantizer
    return None


def _measured(
    layer: QuantizedLayer, before: tf.Tensor, after: tf.Tensor
) -> tuple[tf.Tensor, tf.Tensor]:
    """Share of `before` that is clipped, and counts of the codes of `after`."""
    quantizer: Any = clipping_quantizer(layer)
    codes = quantizer.code_range(layer.output_variables)
    scale, lowest, intervals = codes.scale, codes.lowest, codes.intervals
    before, after = tf.cast(before, tf.float32), tf.cast(after, tf.float32)
    beyond = before >= (lowest + intervals) * scale
    if quantizer.signed:
        beyond |= before <= lowest * scale
    indices = tf.clip_by_value(tf.cast(tf.round(after / scale) - lowest, tf.int32), 0, intervals)
    # A float32 sum would stop counting at 2^24.
    share = tf.reduce_sum(tf.cast(beyond, tf.float64)) / tf.cast(tf.size(beyond), tf.float64)
    length = intervals + 1
    counts = tf.math.bincount(tf.reshape(indices, [-1]), minlength=length, maxlength=length)
    return share, counts
