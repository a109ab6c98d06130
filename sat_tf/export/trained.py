"""The codes that the trained Keras model itself computes, to be held against those of its file."""

import numpy as np
import tensorflow as tf
import tf_keras as keras

from sat_tf.export.graph import Codes, Graph
from sat_tf.qat import registry
from sat_tf.qat.layout import inner_layer
from sat_tf.qat.network import Network


class TrainedModel:
    """A quantized Keras model that shows the codes of all its tensors.

    Args:
        model: the quantized model.
        graph: its deployed graph, whose tensors are named after the layers that make them.
    """

    def __init__(self, model: keras.Model, graph: Graph) -> None:
        self._graph = graph
        network = Network(model)
        names = {
            inner_layer(node.layer).name: node.name
            for node in network
            # Of a softmax the file has the logits as codes, and Keras only the probabilities.
            if not registry.is_softmax(inner_layer(node.layer)) and node.name != network.input
        }
        self.names = [
            name for name, tensor in graph.tensors.items() if tensor.codes and name in names
        ]
        layers = [model.get_layer(names[name]) for name in self.names]
        outputs = [*(layer.output for layer in layers), model.output]
        self._run = tf.function(keras.Model(model.input, outputs), reduce_retracing=True)

    def run(self, images: np.ndarray) -> tuple[dict[str, np.ndarray], np.ndarray]:
        """The stored integers by tensor, and the model's output.

        Args:
            images: uint8 (n, rows, columns, channels).
        """
        pixels = tf.constant(images.astype(np.float32) * self._graph.image_step)
        *tensors, output = self._run(pixels, training=False)
        codes = {
            name: stored_codes(tensor.numpy(), self._graph.codes(name))
            for name, tensor in zip(self.names, tensors, strict=True)
        }
        return codes, output.numpy()


def stored_codes(real: np.ndarray, codes: Codes) -> np.ndarray:
    """Real values as stored integers: rounded half up, and saturated.

    >>> stored_codes(np.array([-1.0, 0.5, 9.0]), Codes(np.float32(0.5), zero_point=-100)).tolist()
    [-102, -99, -82]
    """
    with np.errstate(invalid="ignore"):
        rounded = np.floor(real / np.float32(codes.real_step) + np.float32(0.5)) + codes.zero_point
        return np.clip(rounded, codes.lowest, codes.highest).astype(np.int32)
