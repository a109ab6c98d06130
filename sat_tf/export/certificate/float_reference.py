"""The float model that a file is compared with, on the same images."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from sat_tf.export.certificate.outputs import Output, separated
from sat_tf.export.operations.graph import Graph
from sat_tf.export.operations.pointwise import softmax
from sat_tf.export.tflite.images import Pixels, arrays_of, joined
from sat_tf.export.tflite.tensors import Image
from sat_tf.messages import kind_of


class FloatReference:
    """A Keras model that is fed what the quantized model is fed.

    Args:
        model: any tf_keras model with the inputs and outputs of the file: pixels in the range that
            the quantized model takes, and as many numbers of each image.
        graph: of the file.

    Raises:
        ValueError: it has other inputs or outputs.
    """

    def __init__(self, model: Any, graph: Graph) -> None:
        problem = _problem(model, graph)
        if problem:
            raise ValueError(f"float_model: {problem}.")
        self._model, self._graph = model, graph
        self.name = str(model.name)

    @property
    def loss(self) -> str:
        """The meaning of one output by the loss it was compiled with: "loss" of classes, or ""."""
        loss = getattr(self._model, "loss", None)
        name = loss if isinstance(loss, str) else getattr(loss, "name", None) or ""
        is_known = isinstance(name, str) and name.endswith("categorical_crossentropy")
        return "loss" if is_known and len(self._model.outputs) == 1 else ""

    @property
    def softmaxes(self) -> list[str]:
        """The function that makes each output: "softmax", or "" for anything else."""
        from sat_tf.graph import layer_kinds
        from sat_tf.graph.network import Network
        from sat_tf.qat.layout import inner_layer

        network = Network(self._model)
        layers = [inner_layer(network[name].layer) for name in network.outputs]
        return ["softmax" if layer_kinds.is_softmax(layer) else "" for layer in layers]

    def as_given(self, values: np.ndarray, outputs: Sequence[Output]) -> np.ndarray:
        """The outputs of the file as this model gives them: probabilities where it has a softmax.

        Args:
            values: the outputs, joined.
            outputs: as the file alone describes them: its logits have no softmax.
        """
        pieces = [
            softmax(piece) if ends and output.classes_by != "softmax" else piece
            for piece, output, ends in zip(
                separated(values, outputs), outputs, self.softmaxes, strict=True
            )
        ]
        return joined(pieces)

    def run(self, images: Pixels) -> np.ndarray:
        """The model's outputs for a batch, as one array.

        Args:
            images: uint8 (n, rows, columns, channels); a tuple of arrays for several inputs.
        """
        import tensorflow as tf

        pixels = [
            tf.constant(_fed(image, array))
            for array, image in zip(arrays_of(images), self._graph.images, strict=True)
        ]
        structure = getattr(self._model, "_nested_inputs", None)
        given = pixels[0] if len(pixels) == 1 else pixels
        if structure is not None:
            given = tf.nest.pack_sequence_as(structure, pixels)
        outputs = tf.nest.flatten(self._model(given, training=False))
        return joined([np.asarray(output, np.float32) for output in outputs])


def _fed(image: Image, pixels: np.ndarray) -> np.ndarray:
    """The input of the quantized model; of a file alone, pixels on the grid of its kernels."""
    if image.range is not None or image.type != "uint8" or image.scale is None:
        return image.fed(pixels)
    return (pixels.astype(np.float32) - np.float32(image.zero_point)) * image.scale


def _problem(model: Any, graph: Graph) -> str | None:
    import tf_keras as keras

    if not isinstance(model, keras.Model):
        return (
            f"received {kind_of(model)}, expected a tf_keras model; sat_tf.from_keras3 makes one "
            "of a Keras 3 model, and a file is to be loaded first"
        )
    if not model.built or model.inputs is None:
        return (
            "received a model without a known input, expected a built one; call it once on images"
        )
    sizes = [int(np.prod(graph.tensors[name].shape)) for name in graph.outputs]
    for role, tensors, expected in (
        ("inputs", model.inputs, [int(np.prod(image.shape)) for image in graph.images]),
        ("outputs", model.outputs, sizes),
    ):
        shapes = [tuple(tensor.shape[1:]) for tensor in tensors]
        found = [None if None in shape else int(np.prod(shape)) for shape in shapes]
        fits = len(found) == len(expected) and all(
            one in (None, other) for one, other in zip(found, expected, strict=True)
        )
        if not fits:
            own = [image.shape for image in graph.images]
            wanted = own if role == "inputs" else [graph.tensors[n].shape for n in graph.outputs]
            return (
                f"received a model whose {role} have the shapes {shapes}, expected those of the "
                f"file, {[tuple(shape) for shape in wanted]}; pass the float model that the "
                "quantized one was made of"
            )
    return None
