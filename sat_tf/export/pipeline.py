"""The stages of the export, in order."""

import tf_keras as keras

from sat_tf.export import steps
from sat_tf.export.constants import settle_constants
from sat_tf.export.graph import Graph
from sat_tf.export.trace import trace


def deployed_graph(model: keras.Model, *, float_head: bool = False) -> Graph:
    """The graph of the deployed model, whose biases are integers of input step · weight step.

    Args:
        model: a model quantized by sat-tf.
        float_head: compute the last Dense layer in float32, from dequantized codes.

    Raises:
        ValueError: the model has no integer form; lists every problem with its fix.
    """
    return steps.snap_biases(graph_with_real_biases(model, float_head=float_head))


def graph_with_real_biases(model: keras.Model, *, float_head: bool = False) -> Graph:
    """The same before the last stage: its biases are still the trained ones.

    Args:
        model: a model quantized by sat-tf.
        float_head: compute the last Dense layer in float32, from dequantized codes.

    Raises:
        ValueError: the model has no integer form; lists every problem with its fix.
    """
    graph = trace(model, float_head=float_head)
    for stage in (steps.upscale, settle_constants, steps.floor_steps):
        graph = stage(graph)
    return graph
