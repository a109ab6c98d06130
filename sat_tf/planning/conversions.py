"""Whether TensorFlow's converter takes the layers of a model that are left float."""

import json
from collections.abc import Mapping

import tf_keras as keras

from sat_tf.export.graph import Graph, Island
from sat_tf.export.island import float_operators
from sat_tf.qat.layout import inner_layer

# Trying takes the converter most of a second; of these it is known.
_TAKEN = (
    keras.layers.Activation,
    keras.layers.LayerNormalization,
    keras.layers.PReLU,
    keras.layers.Softmax,
)


def not_converted(graph: Graph) -> Mapping[str, str]:
    """Why layers that are left float cannot be written into a file, by their names.

    Each is converted, once for all that are alike.

    Args:
        graph: of known shapes.
    """
    found: dict[str, str] = {}
    tried: dict[str, str] = {}
    for operation in graph.operations:
        if not isinstance(operation, Island):
            continue
        layer = inner_layer(operation.node.layer)
        if isinstance(layer, _TAKEN):
            continue
        shapes = [graph.tensors[name].shape for name in operation.inputs]
        settings = {key: value for key, value in layer.get_config().items() if key != "name"}
        kind = json.dumps([type(layer).__qualname__, settings, shapes], default=str)
        if kind not in tried:
            try:
                float_operators(operation.node, shapes)
                tried[kind] = ""
            except ValueError as error:
                tried[kind] = str(error).removeprefix(f"{layer.name}: ")
        if tried[kind]:
            found[operation.layer] = f"{operation.layer}: {tried[kind]}"
    return found
