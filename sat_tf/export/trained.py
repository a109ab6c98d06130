"""The codes that the trained Keras model itself computes, to be held against those of its file."""

import numpy as np
import tensorflow as tf
import tf_keras as keras

from sat_tf.export.deployed import DeployedModel
from sat_tf.export.graph import Codes, Graph
from sat_tf.export.several import Pixels, arrays_of, joined
from sat_tf.qat import registry
from sat_tf.qat.layout import call_name, inner_layer
from sat_tf.qat.network import Network, call_in_inference


class TrainedModel:
    """A quantized Keras model that shows the codes of all its tensors.

    Args:
        model: the quantized model.
        graph: its deployed graph, whose tensors are named after the layers that make them.
    """

    def __init__(self, model: keras.Model, graph: Graph) -> None:
        self._graph = graph
        self._network = Network(model)
        layers = {
            call_name(node): node.name
            for node in self._network
            # Of a softmax the file has the logits as codes, and Keras only the probabilities.
            if not registry.is_softmax(inner_layer(node.layer))
        }
        self._layers = {
            name: layers[name]
            for name, tensor in graph.tensors.items()
            if tensor.codes is not None and name in layers
        }

    @property
    def names(self) -> list[str]:
        """The tensors that a layer makes, and that are integers in the file."""
        return list(self._layers)

    def run(self, images: Pixels) -> tuple[dict[str, np.ndarray], np.ndarray]:
        """The stored integers by tensor, and the model's output.

        Args:
            images: uint8 (n, rows, columns, channels); a tuple of arrays for several inputs.
        """
        # Layer by layer: TFMOT leaves layers in two models, so that Keras cannot make a third.
        given = zip(self._network.inputs, arrays_of(images), self._graph.images, strict=True)
        made = {name: tf.constant(image.fed(pixels)) for name, pixels, image in given}
        for node in self._network:
            if node.name not in made:
                inputs = [made[name] for name in node.inputs]
                made[node.name] = call_in_inference(node, node.layer, inputs)
        codes = {
            name: stored_codes(made[layer].numpy(), self._graph.codes(name))
            for name, layer in self._layers.items()
        }
        return codes, joined([np.asarray(made[name]) for name in self._network.outputs])


def trained_model(model: keras.Model, graph: Graph) -> TrainedModel | DeployedModel:
    """What shows the codes of a quantized model, or of a deployed one as they are now.

    Raises:
        ValueError: a deployed model whose head is float where that of the graph is not, or the
            other way round.
    """
    if not isinstance(model, DeployedModel):
        return TrainedModel(model, graph)
    model.refresh()
    if set(model.names) != set(graph.integer_tensors):
        raise ValueError(
            f"model {model.name!r}: received a deployed model with float_head={model.float_head}, "
            "expected one like the file; call deployed_model with the other float_head."
        )
    return model


def stored_codes(real: np.ndarray, codes: Codes) -> np.ndarray:
    """Real values as stored integers: rounded half up, and saturated.

    >>> stored_codes(np.array([-1.0, 0.5, 9.0]), Codes(np.float32(0.5), zero_point=-100)).tolist()
    [-102, -99, -82]
    """
    with np.errstate(invalid="ignore"):
        rounded = np.floor(real / np.float32(codes.real_step) + np.float32(0.5)) + codes.zero_point
        return np.clip(rounded, codes.lowest, codes.highest).astype(np.int32)
