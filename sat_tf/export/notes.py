"""What to know about an exported graph: what is not integer, and what it asks of its readers."""

from collections.abc import Iterable, Iterator

from sat_tf.export import queries
from sat_tf.export.graph import Graph, Island, Linear, LinearKind, Operation
from sat_tf.export.runtime import Runtime
from sat_tf.qat.input_ranges import PIXELS
from sat_tf.qat.layout import inner_layer
from sat_tf.qat.network import Network
from sat_tf.qat.quantizers import ImageQuantizer


def float_activations(network: Network) -> str:
    """Of a model that quantizes its weights only."""
    quantizers = [queries.output_quantizer(node) for node in network]
    marks = [str(found.range) for found in quantizers if isinstance(found, ImageQuantizer)]
    return (
        "no activations are quantized: it computes in float32, with weights stored as codes, "
        f"on pixels of {' and '.join(dict.fromkeys(marks)) or PIXELS}"
    )


def one_image_only(operations: Iterable[Operation]) -> Iterator[str]:
    """Of transposed convolutions."""
    linear = [operation for operation in operations if isinstance(operation, Linear)]
    names = [found.output for found in linear if found.kind is LinearKind.TRANSPOSED]
    if names:
        yield (
            f"{', '.join(names)}: TRANSPOSE_CONV has the shape of its output in the file, a "
            "batch of 1 included, so that LiteRT runs one image at a time"
        )


def islands_of_one_image(graph: Graph, content: bytes) -> Iterator[str]:
    """Of layers left float, of which the converter has made operators for a batch of 1."""
    known = any(one_image_only(graph.operations))
    if graph.islands and not known and Runtime(content, keep_tensors=False).takes_one_image:
        yield (
            f"{', '.join(graph.float_layers)}: what TensorFlow's converter makes of layers left "
            "float has a batch of 1 in its shapes, so that LiteRT runs one image at a time"
        )


def float_functions(operations: Iterable[Operation]) -> Iterator[str]:
    """Of functions that have no table, or no codes to look up."""
    for operation in operations:
        if isinstance(operation, Island) and queries.is_function(operation.node):
            layer = inner_layer(operation.node.layer)
            yield (
                f"{layer.name}: this {type(layer).__name__} is computed in float32, and is "
                "what TensorFlow's converter makes of it"
            )
