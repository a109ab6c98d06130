"""The stages of the export, in order."""

import tf_keras as keras

from sat_tf.export import steps
from sat_tf.export.constants import settle_constants
from sat_tf.export.graph import Graph
from sat_tf.export.packing import pack_graph
from sat_tf.export.probabilities import with_softmax
from sat_tf.export.trace import trace


def deployed_graph(
    model: keras.Model, *, float_head: bool = False, pack: str = "none", softmax: bool = False
) -> Graph:
    """The graph of the deployed model, whose biases are integers of input step · weight step.

    Args:
        model: a model quantized by sat-tf.
        float_head: compute the last Dense layer in float32, from dequantized codes.
        pack: how kernels are stored, a name of `packing.PACKINGS`.
        softmax: end in probabilities.

    Raises:
        ValueError: the model has no integer form, or nothing to pack; lists every problem with its
            fix.
    """
    graph = rounded(trained_graph(model, float_head=float_head, pack=pack))
    return with_softmax(graph) if softmax else graph


def rounded(graph: Graph) -> Graph:
    """What the file holds of a graph from `trained_graph`.

    Raises:
        ValueError: an operation does not fit its integer kernel; lists every one with its fix.
    """
    for stage in (settle_constants, steps.floor_steps, steps.snap_biases):
        graph = stage(graph)
    return graph


def trained_graph(model: keras.Model, *, float_head: bool = False, pack: str = "none") -> Graph:
    """The same graph before anything of the model is rounded: trace, fold, pack and upscale.

    Args:
        model: a model quantized by sat-tf.
        float_head: compute the last Dense layer in float32, from dequantized codes.
        pack: how kernels are stored, a name of `packing.PACKINGS`.

    Raises:
        ValueError: the model has no integer form, or nothing to pack; lists every problem with its
            fix.
    """
    return steps.upscale(pack_graph(trace(model, float_head=float_head), pack))
