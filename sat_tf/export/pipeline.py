"""The stages of the export, in order."""

from collections.abc import Mapping

import tf_keras as keras

from sat_tf.export import steps
from sat_tf.export.constants import settle_constants
from sat_tf.export.graph import Graph
from sat_tf.export.lattice import KernelTensors
from sat_tf.export.packing import pack_graph
from sat_tf.export.probabilities import with_softmax
from sat_tf.export.trace import trace


def deployed_graph(
    model: keras.Model,
    *,
    float_head: bool = False,
    pack: str = "none",
    softmax: bool = False,
    kernels: Mapping[str, KernelTensors] | None = None,
) -> Graph:
    """The graph of the deployed model, whose biases are integers of input step · weight step.

    Args:
        model: a model quantized by sat-tf.
        float_head: compute the last Dense layer in float32, from dequantized codes.
        pack: how kernels are stored, a name of `packing.PACKINGS`.
        softmax: end in probabilities.
        kernels: see `trace`.

    Raises:
        ValueError: the model has no integer form, or nothing to pack; lists every problem with its
            fix.
    """
    graph = trained_graph(model, float_head=float_head, pack=pack, kernels=kernels)
    return with_softmax(rounded(graph)) if softmax else rounded(graph)


def rounded(graph: Graph) -> Graph:
    """What the file holds of a graph from `trained_graph`.

    Raises:
        ValueError: an operation does not fit its integer kernel; lists every one with its fix.
    """
    for stage in (settle_constants, steps.floor_steps, steps.snap_biases):
        graph = stage(graph)
    return graph


def trained_graph(
    model: keras.Model,
    *,
    float_head: bool = False,
    pack: str = "none",
    kernels: Mapping[str, KernelTensors] | None = None,
) -> Graph:
    """The same graph before anything of the model is rounded: trace, fold, pack and upscale.

    Args:
        model: a model quantized by sat-tf.
        float_head: compute the last Dense layer in float32, from dequantized codes.
        pack: how kernels are stored, a name of `packing.PACKINGS`.
        kernels: see `trace`.

    Raises:
        ValueError: the model has no integer form, or nothing to pack; lists every problem with its
            fix.
    """
    graph = trace(model, float_head=float_head, kernels=kernels)
    return steps.upscale(pack_graph(graph, pack))
