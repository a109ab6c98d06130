"""The two ways from a deployed graph to a file."""

import tensorflow as tf

from sat_tf.export.converter import keras_of_graph
from sat_tf.export.graph import Graph
from sat_tf.export.island import run_converter
from sat_tf.export.settings import FileSettings
from sat_tf.messages import did_you_mean

# By name, what the export's report says of its files.
ROUTES = {
    "direct": "",
    "converter": "route='converter': the file is not certified; TensorFlow's converter has written "
    "it from the same graph, and has decided which operators it leaves float. verify_tflite reads "
    "files of route='direct' only",
}


def route_problems(route: object, settings: FileSettings) -> list[str]:
    """Why a file cannot be written in this way, with the fix."""
    if not isinstance(route, str) or route not in ROUTES:
        names = " or ".join(repr(name) for name in ROUTES)
        return [f"route: received {route!r}, expected {names}. {did_you_mean(str(route), ROUTES)}"]
    if route == "direct":
        return []
    return [
        f"route='converter' with {name}={value!r}: received a setting of the direct writer, "
        f"expected {name}={default!r}; leave one of them out."
        for name, value, default in (
            ("pack", settings.pack, "none"),
            ("float_head", settings.float_head, False),
            ("resizable", settings.resizable, False),
        )
        if value != default
    ]


def converted(graph: Graph) -> bytes:
    """The file that TensorFlow's converter writes from a deployed graph, of uint8 images.

    Raises:
        ValueError: the graph has float streams, or the converter fails.
    """
    converter = tf.lite.TFLiteConverter.from_keras_model(keras_of_graph(graph))
    converter.optimizations = [tf.lite.Optimize.DEFAULT]
    (kind, *others) = dict.fromkeys(image.type for image in graph.images)
    if others:
        raise ValueError(
            f"model {graph.name!r}: received inputs of the types {kind} and {', '.join(others)}, "
            "expected one for all, as TensorFlow's converter has it; use route='direct'."
        )
    converter.inference_input_type = tf.as_dtype(kind)
    try:
        return run_converter(converter)
    except ValueError as error:
        raise ValueError(
            f"model {graph.name!r}: received a model that TensorFlow's converter does not convert "
            f"({error}), expected one that it does; use route='direct'."
        ) from error
