"""The stages of the export, in order."""

import tf_keras as keras

from sat_tf.export import steps
from sat_tf.export.constants import settle_constants
from sat_tf.export.graph import Graph
from sat_tf.export.trace import trace


def deployed_graph(model: keras.Model, *, float_head: bool = False) -> Graph:
    """The graph of the deployed model: trace and fold, then the stages of `steps`.

    Args:
        model: a model quantized by sat-tf.
        float_head: compute the last Dense layer in float32, from dequantized codes.

    Raises:
        ValueError: the model has no integer form; lists every problem with its fix.
    """
    graph = trace(model, float_head=float_head)
    for stage in (steps.upscale, settle_constants, steps.floor_steps, steps.snap_biases):
        graph = stage(graph)
    return graph
