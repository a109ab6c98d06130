"""The stages of the export, in order; and the move of a trained model to its file's biases."""

import contextlib
import dataclasses
import operator
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple, cast

import numpy as np
import tensorflow as tf
import tf_keras as keras

from sat_tf.exact.operations.graph import Graph
from sat_tf.exact.operations.linear import Linear, linear_operations
from sat_tf.export.lowering import scales
from sat_tf.export.lowering.layers import find_problems, role_of
from sat_tf.export.lowering.outputs import with_softmax
from sat_tf.export.lowering.packing import ALL_PACKINGS, FileSettings, pack_graph, with_tables
from sat_tf.export.lowering.scales import make_portable, settle_constants
from sat_tf.export.lowering.trace import trace
from sat_tf.graph import layer_kinds
from sat_tf.graph.flatten import copied_weights, layer_copy
from sat_tf.graph.layers.kind import Role
from sat_tf.graph.network import Network, Node
from sat_tf.messages import ModelError, reason_of
from sat_tf.qat.layout import call_name, in_inference, inner_layer
from sat_tf.qat.model_class import policy_of, processor_of, remember
from sat_tf.qat.wrapper import output_quantizer


def with_image_size(model: keras.Model, image_size: Sequence[int]) -> keras.Model:
    """Returns a copy of a model of images of any size, for images of one size.

    Args:
        model: a model with inputs (None, None, channels), or of sequences (None, channels), or of
            ids (None,), quantized by sat-tf or not; it is not changed.
        image_size: rows and columns, of every input that leaves them open; (length,) for
            sequences.

    Returns:
        A model with the same weights, to be exported, deployed and verified like any other.

    Raises:
        ValueError: an invalid size, or one that does not fit the model.
    """
    return sized(Network(model), image_size).model


def sized(network: Network, image_size: Sequence[int]) -> Network:
    """Returns the graph of a copy of a model for images of one size; see `with_image_size`."""
    try:
        sizes = tuple(operator.index(size) for size in image_size)
    except (TypeError, ValueError):
        sizes = ()
    if len(sizes) not in (1, 2) or min(sizes) < 1:
        raise ValueError(
            f"image_size={image_size!r}: expected rows and columns, two integers of at least 1, "
            "such as (224, 224), or (length,) for sequences."
        )
    network.refuse_problems()
    is_open = any(None in network[name].shape for name in network.inputs)

    def shape_of(node: Node) -> tuple[int | None, ...]:
        """Returns the shape of an input; a model may have inputs of fixed and of open size."""
        shape, expected = node.shape, ("length,", "length, channels", "rows, columns, channels")
        sides = zip(shape, sizes, strict=False)
        if len(shape) == len(sizes) == 1 and shape[0] in (None, *sizes):
            return sizes
        if len(shape) == len(sizes) + 1 and all(side in (None, size) for side, size in sides):
            return *sizes, shape[-1]
        if is_open and None not in shape:
            return shape
        raise ValueError(
            f"{node.name}: received image_size={sizes} for an input of shape {shape}, "
            f"expected ({expected[min(len(shape), 3) - 1]}) with sizes that are open or the same."
        )

    copies: dict[int, keras.layers.Layer] = {}
    for node in network:
        is_input = node.name in network.inputs
        changes = {"batch_input_shape": (None, *shape_of(node))} if is_input else {}
        copies[id(node.layer)] = layer_copy(node.layer, **changes)
    try:
        model = network.remade(lambda node: copies[id(node.layer)])
    except ValueError as error:
        raise ValueError(
            f"image_size={image_size!r}: received a size that does not fit the model "
            f"({reason_of(error)}), expected a larger one, or the one that the model was made for."
        ) from error
    for node in network:
        copied_weights(node.layer, copies[id(node.layer)])
    policy = policy_of(network.model)
    return Network(model if policy is None else remember(model, policy))


def deployed_graph(
    network: Network,
    *,
    float_head: bool = False,
    pack: str = "auto",
    softmax: bool = False,
    states: Mapping[str, str] | None = None,
) -> Graph:
    """Returns the deployed graph; its biases are integers of input scale · weight scale."""
    graph = rounded(trained_graph(network, float_head=float_head, pack=pack, states=states))
    graph = with_tables(graph) if ALL_PACKINGS[pack].tables else graph
    return with_softmax(graph) if softmax else graph


def rounded(graph: Graph) -> Graph:
    """Returns a graph from `trained_graph` as the file holds it."""
    for stage in (make_portable, settle_constants, scales.floor_scales, scales.round_biases):
        graph = stage(graph)
    return graph


def trained_graph(
    network: Network,
    *,
    float_head: bool = False,
    pack: str = "auto",
    states: Mapping[str, str] | None = None,
) -> Graph:
    """Traces, folds, packs and upscales: the graph before anything of the model is rounded.

    Its states are those with which the model was quantized, unless others are given.
    """
    network = in_inference(network)
    if problems := find_problems(network, float_head=float_head):
        raise ModelError(network.name, problems)
    graph = trace(network, float_head=float_head, kernels={})
    if states is not None:
        called = dict(zip(graph.keys[1], graph.outputs, strict=True))
        by_tensor = {called[output]: name for output, name in states.items()}
        graph = dataclasses.replace(graph, states=by_tensor)
    return scales.upscale(pack_graph(graph, pack))


# -- the biases of a file --------------------------------------------------------------------------
# Rounded biases, and other scales of nearly constant channels (`scales`), are nearly all that makes
# a phone compute other numbers than the trained model. A model that is moved before top-1 is
# measured is the shipped one, except for ties and for differences that the certificate names.

# The shares of a unit of the sum, and of the value itself, by which float32 may miss a value of the
# file.
_NEAR, _NEAR_SHARE = 0.02, 1e-5


def snap_biases(model: keras.Model, *, float_head: bool = False, pack: str = "auto") -> None:
    """Moves the biases of a quantized model, in place, to those of its integer file.

    Call it when training is done, before the top-1 is measured; `sat_tf.export_tflite` does the
    same with `snap_biases=True`. It moves β of the BatchNormalization after a linear layer, or the
    layer's own bias without one, and that of an LSTM; layers with neither stay as they are, and so
    do layers that are called several times, whose uses have their own grids. Nothing moves in a
    model that already has the biases of its file. Where the file gives a channel another scale, γ
    follows it:

        γ <- ratio · γ,   β <- bias' - ratio · (bias - β),   ratio = scale' / scale

    with bias the constant of the whole channel, statistics included, and ' for the file's. Without
    a γ, the constant is moved so that it is right where the channel usually is.

    Args:
        model: a model quantized by sat-tf.
        float_head: as for `sat_tf.export_tflite`: the last bias then stays as it is.
        pack: as for `sat_tf.export_tflite`: the grid of biases is that of the stored codes, and
            coarser where they have fewer bits.

    Raises:
        ValueError: the model has no integer form, or nothing to pack; lists every problem.
    """
    pack = processor_of(model).packing(pack)
    for move in _moves(Network(model), float_head=float_head, pack=pack):
        move.variable.assign(move.value)


@contextlib.contextmanager
def snapped(network: Network, settings: FileSettings, *, stays: bool) -> Iterator[int]:
    """Gives a model the biases of its file in the block, and after it where it `stays` so.

    Yields the number of layers whose biases have moved.
    """
    moves = _moves_to(network, settings)
    before = [move.variable.numpy() for move in moves]
    with contextlib.ExitStack() as undo:
        for move, value in zip(moves, before, strict=True):
            undo.callback(move.variable.assign, value)
            move.variable.assign(move.value)
        yield len({id(move.holder) for move in moves})
        if stays:
            undo.pop_all()


def has_biases_of_file(network: Network, settings: FileSettings) -> bool:
    """Returns whether a model has the biases of its file, so that nothing in it would move."""
    return not _moves_to(network, settings)


class _Move(NamedTuple):
    """A variable of a layer, the value of its file, and how near float32 may bring it."""

    holder: keras.layers.Layer  # The layer.
    variable: tf.Variable  # Its bias, β or γ.
    value: np.ndarray  # The value in the file.
    near: np.ndarray  # The distance within which the variable has that value already.


def _moves_to(network: Network, settings: FileSettings) -> list[_Move]:
    """Lists the moves of a model to its file with these settings."""
    head, pack = settings.float_head, settings.packing
    return _moves(network, float_head=head, pack=pack, states=settings.states)


def _moves(
    network: Network, *, float_head: bool, pack: str, states: Mapping[str, str] | None = None
) -> list[_Move]:
    """Lists the moves of a model, for the packing of one target; empty if all are done already."""
    trained = trained_graph(network, float_head=float_head, pack=pack, states=states)
    deployed = rounded(trained)
    nodes = {call_name(node): node for node in network}
    shaped = {op.inputs[0]: op.output for op in trained.operations if op.reshapes}
    pairs = (linear_operations(graph.operations) for graph in (trained, deployed))
    moves: list[_Move] = []
    for exact, stored in zip(*pairs, strict=True):
        node = nodes.get(exact.output) or nodes.get(shaped.get(exact.output, ""))
        if node is not None and not exact.is_float(trained):
            held = _bias_holder(network, node)
            if held is not None:
                moves += _moves_of(*held, trained, exact, stored)
    for operation in deployed.operations:
        node = nodes.get(operation.output)
        if node is not None and role_of(node) is Role.RECURRENCE:
            variable = inner_layer(node.layer).cell.bias
            if variable is not None and not network.is_shared(node.name):
                value, unit = cast(Any, operation).real_bias(deployed)
                near = _NEAR * unit + _NEAR_SHARE * np.abs(value)
                moves.append(_Move(inner_layer(node.layer), variable, value, near))
    # Another move would only round float32 once more.
    are_done = (np.all(np.abs(move.variable.numpy() - move.value) <= move.near) for move in moves)
    return [] if all(are_done) else moves


def _moves_of(
    holder: keras.layers.Layer, factor: np.ndarray, graph: Graph, exact: Linear, stored: Linear
) -> Iterator[_Move]:
    """Yields the moves of a layer's constants, times a factor in the file, and of its slopes γ."""
    unit = graph.codes(exact.output).unit
    # The file's scale over the trained one, a channel; 1 where it no longer has the same codes.
    same = np.all(exact.kernel == stored.kernel, axis=exact.inner_axes)
    seen = np.any(exact.kernel != 0, axis=exact.inner_axes)
    scales = stored.scales.astype(np.float64)
    ratio = np.where(same & seen, scales / exact.scales, 1.0)
    bias = exact.bias * unit
    source = float(graph.codes(exact.inputs[0]).scale)
    moved = stored.bias * source * scales * unit
    is_norm = layer_kinds.is_batch_normalization(holder)
    variable = holder.beta if is_norm else holder.bias
    old = variable.numpy().astype(np.float64)
    largest = np.maximum(np.abs(old), np.abs(moved / factor))
    near = _NEAR * source * scales * np.abs(unit / factor) + _NEAR_SHARE * largest
    if is_norm and holder.gamma is not None:
        gamma = holder.gamma.numpy()
        yield _Move(holder, holder.gamma, gamma * ratio, _NEAR_SHARE * np.abs(gamma))
        yield _Move(holder, variable, (moved - ratio * (bias - factor * old)) / factor, near)
    else:
        value = old + (moved - bias + (ratio - 1.0) * exact.center * unit) / factor
        yield _Move(holder, variable, value, near)


def _bias_holder(network: Network, node: Node) -> tuple[keras.layers.Layer, np.ndarray] | None:
    """Returns the layer whose β or bias adds to a tensor, the last before a quantizer.

    Beside it is the factor that the tensor has it with, as queries of attention have theirs.
    """
    factor = np.ones(())
    while True:
        layer = inner_layer(node.layer)
        if network.is_shared(node.name):
            return None
        if layer_kinds.is_batch_normalization(layer):
            return (layer, factor) if layer.beta is not None else None
        if getattr(layer, "bias", None) is not None:
            return layer, factor
        if role_of(node) is Role.SCALING:
            slope, offset = layer.affine()
            if np.any(offset != 0.0):
                return None
            factor = factor * slope
        # Only a rectifier may stand between the sum and the tensor, and nothing that has codes.
        if layer.weights or len(node.inputs) != 1:
            return None
        node = network[node.inputs[0]]
        if output_quantizer(node.layer) is not None:
            return None
