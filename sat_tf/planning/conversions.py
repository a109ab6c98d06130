"""What TensorFlow's converter makes of the layers of a model that are left float."""

import json
from collections.abc import Sequence
from typing import NamedTuple

import tf_keras as keras

from sat_tf.export.graph import Graph, Island
from sat_tf.export.island import float_operators, spliced_bytes
from sat_tf.qat.layout import inner_layer

# A conversion takes most of a second. These layers become the same operators at all sizes.
_ALIKE_AT_ALL_SIZES = (
    keras.layers.Activation,
    keras.layers.LayerNormalization,
    keras.layers.PReLU,
    keras.layers.Softmax,
)
_FLOAT_BYTES = 4


class Conversions(NamedTuple):
    """By the names of layers that are left float.

    Attributes:
        problems: why those that cannot be written into a file cannot.
        bytes: what the others take in one.
    """

    problems: dict[str, str]
    bytes: dict[str, int]


def conversions(graph: Graph) -> Conversions:
    """Converts the layers that are left float, once all that are alike.

    Args:
        graph: of known shapes.
    """
    found = Conversions({}, {})
    tried: dict[str, tuple[bytes, int] | str] = {}
    for operation in graph.operations:
        if not isinstance(operation, Island):
            continue
        layer = inner_layer(operation.node.layer)
        shapes = [graph.tensors[name].shape for name in operation.inputs]
        weights = _FLOAT_BYTES * int(layer.count_params())
        kind = _kind(layer, shapes)
        if kind not in tried:
            try:
                tried[kind] = float_operators(operation.node, shapes), weights
            except ValueError as error:
                tried[kind] = str(error).removeprefix(f"{layer.name}: ")
        outcome = tried[kind]
        if isinstance(outcome, str):
            found.problems[operation.layer] = f"{operation.layer}: {outcome}"
        else:
            content, of_content = outcome
            spliced = spliced_bytes(content, operation.output)
            found.bytes[operation.layer] = spliced - of_content + weights
    return found


def _kind(layer: keras.layers.Layer, shapes: Sequence[tuple[int, ...]]) -> str:
    sizes = [len(shape) if isinstance(layer, _ALIKE_AT_ALL_SIZES) else shape for shape in shapes]
    settings = {key: value for key, value in layer.get_config().items() if key != "name"}
    return json.dumps([type(layer).__qualname__, settings, sizes], default=str)
