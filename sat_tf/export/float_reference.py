"""The float model for comparisons with a file, on the inputs of the quantized model."""

import functools
import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import tensorflow as tf
import tf_keras as keras

from sat_tf.exact.certificate.outputs import Output, separated
from sat_tf.exact.operations.graph import Graph
from sat_tf.exact.operations.native import softmax
from sat_tf.exact.tflite.tensors import Pixels, arrays_of, joined
from sat_tf.graph import layer_kinds
from sat_tf.graph.network import Network
from sat_tf.graph.rewrite import network_of_layers
from sat_tf.messages import kind_of
from sat_tf.qat.layout import inner_layer


class FloatReference:
    """A tf_keras model with the inputs and outputs of a file, run on the quantized model's inputs.

    Its pixels are in the quantized model's range.
    """

    def __init__(self, model: Any, graph: Graph) -> None:
        if problem := float_model_problem(model, graph):
            raise ValueError(f"float_model: {problem}.")
        self._model, self._graph = model, graph
        self.name = str(model.name)

    @property
    def loss(self) -> str:
        """How a single output is known to be classes: "loss" for a loss of classes, or ""."""
        loss = getattr(self._model, "loss", None)
        name = loss if isinstance(loss, str) else getattr(loss, "name", None) or ""
        is_known = isinstance(name, str) and name.endswith("categorical_crossentropy")
        return "loss" if is_known and len(self._model.outputs) == 1 else ""

    @functools.cached_property
    def network(self) -> Network:
        """The graph of the model, flat; ValueError where it has none."""
        try:
            return network_of_layers(self._model)
        except ValueError:  # it cannot be made flat, which quantizing it tells better
            return Network(self._model)

    @functools.cached_property
    def softmaxes(self) -> list[str]:
        """The function that makes each output: "softmax", or "" for anything else."""
        layers = [inner_layer(self.network[name].layer) for name in self.network.outputs]
        return ["softmax" if layer_kinds.is_softmax(layer) else "" for layer in layers]

    def as_given(self, values: np.ndarray, outputs: Sequence[Output]) -> np.ndarray:
        """Returns the file's outputs in this model's form: probabilities where it has a softmax."""
        pieces = zip(separated(values, outputs), outputs, self.softmaxes, strict=True)
        return joined(
            [
                softmax(piece) if ends and output.classes_by != "softmax" else piece
                for piece, output, ends in pieces
            ]
        )

    def run(self, images: Pixels) -> np.ndarray:
        """Returns the model's outputs for a batch, as one array."""
        pixels = []
        for array, image in zip(arrays_of(images), self._graph.images, strict=True):
            if image.range is not None or image.type != "uint8" or image.scale is None:
                pixels.append(tf.constant(image.fed(array)))
            else:  # a graph read from a file: pixels on the grid of its kernels
                zeroed = array.astype(np.float32) - np.float32(image.zero_point)
                pixels.append(tf.constant(zeroed * image.scale))
        structure = getattr(self._model, "_nested_inputs", None)
        inputs = pixels[0] if len(pixels) == 1 else pixels
        if structure is not None:
            inputs = tf.nest.pack_sequence_as(structure, pixels)
        outputs = tf.nest.flatten(self._model(inputs, training=False))
        return joined([np.asarray(output, np.float32) for output in outputs])


def float_model_problem(model: Any, graph: Graph) -> str | None:
    """Says why a model cannot be compared with the file of a graph; None where it can."""
    if not isinstance(model, keras.Model):
        return (
            f"received {kind_of(model)}, expected a tf_keras model; sat_tf.from_keras3 makes one "
            "of a Keras 3 model, and a file is to be loaded first"
        )
    if not model.built or model.inputs is None:
        return (
            "received a model without a known input, expected a built one; call it once on images"
        )
    for role, tensors, expected in (
        ("inputs", model.inputs, [tuple(image.shape) for image in graph.images]),
        ("outputs", model.outputs, [tuple(graph.tensors[name].shape) for name in graph.outputs]),
    ):
        shapes = [tuple(tensor.shape[1:]) for tensor in tensors]
        fits = len(shapes) == len(expected) and all(
            None in shape or math.prod(shape) == math.prod(file_shape)
            for shape, file_shape in zip(shapes, expected, strict=True)
        )
        if not fits:
            return (
                f"received a model whose {role} have the shapes {shapes}, expected those of the "
                f"file, {expected}; pass the float model that the quantized one was made of"
            )
    return None
