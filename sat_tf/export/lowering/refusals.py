"""Checks, before anything is built, for what has no exact integer form."""

import collections
from collections.abc import Iterator

import numpy as np

from sat_tf.export.lowering import quantized_network
from sat_tf.export.lowering.layers import observed_range, quantizer_problem
from sat_tf.graph import layer_kinds
from sat_tf.graph.layers.kind import Combination, KernelForm, Role
from sat_tf.graph.layers.normalization import Statistics
from sat_tf.graph.network import Network, Node
from sat_tf.qat.layout import call_name, inner_layer
from sat_tf.qat.wrapper import QuantizedLayer, output_quantizer
from sat_tf.quantizers.protocol import ActivationQuantizer, PixelQuantizer, WeightQuantizer
from sat_tf.quantizers.seen_values import RANGE_FIX, misfit


def find_problems(network: Network, *, float_head: bool) -> list[str]:
    """Why a model cannot be exported: what was received, what was expected, and the fix.

    Args:
        network: the quantized model.
        float_head: whether its last layer is to be float.

    Returns:
        One line a problem, each with the name of its layer; empty where the model can be exported.
    """
    if network.problems:  # the graph is incomplete
        return [f"{name}: {text}." for name, text in network.problems.items()]
    if not any(isinstance(node.layer, QuantizedLayer) for node in network):
        return [
            "received a model without quantized layers, expected one quantized by sat-tf; call "
            "sat_tf.quantize_model(model, policy), and train, first."
        ]
    problems = []
    names = collections.Counter(call_name(node) for node in network)
    problems += [
        f"{name}: received {count} layers of this name inside their quantizers, expected names "
        "that differ; quantize the whole model at once."
        for name, count in names.items()
        if count > 1
    ]
    for node in network:
        name = call_name(node)
        problems += [f"{name}: {problem}." for problem in _layer_problems(network, node)]
        problems += _misfits(node)
        if node.name != node.layer.name:  # another call of the same layer
            continue
        problems += [
            f"{variable}: received {bad} values of {size} that are NaN or infinite, expected "
            "finite ones; go back to an earlier checkpoint, or train again with a smaller learning "
            "rate."
            for variable, bad, size in node.non_finite()
        ]
        if network.is_shared(node.name) and output_quantizer(node.layer) is not None:
            problems.append(
                f"{name}: received a layer that is called more than once with one quantizer for "
                "all outputs, expected one for each; share the layer in the float model, and "
                "quantize that."
            )
    for name in network.inputs:
        shape = network[name].shape
        if None in shape:
            sizes = "(length,)" if len(shape) == 2 else "(rows, columns)"
            problems.append(
                f"{name}: received the input shape {shape}, expected fixed sizes; call "
                f"sat_tf.export_tflite(model, path, image_size={sizes}), or use "
                f"sat_tf.export.with_image_size(model, {sizes})."
            )
        if name in network.outputs:
            problems.append(
                f"{name}: received an input that is an output as well, expected outputs of layers; "
                "leave it out of keras.Model(inputs, outputs)."
            )
    if float_head and quantized_network.find_head(network) is None:
        problems.append(
            "float_head=True: received a model that does not end in a Dense layer of integers, "
            "expected one that does; export it with float_head=False."
        )
    return problems


def _misfits(node: Node) -> Iterator[str]:
    """Why an input cannot have been fed what the file will get."""
    quantizer = output_quantizer(node.layer)
    if isinstance(quantizer, PixelQuantizer):
        seen = quantizer.seen(node.layer.output_variables)
        problem = misfit(seen, quantizer.range) if seen else None
        if problem:
            yield f"{node.inputs[0]}: received a model that was fed {problem}; {RANGE_FIX}."
    if quantized_network.is_input(node) and observed_range(node.layer) is None:
        yield (
            f"{node.inputs[0]}: received a model that has seen no values of this input, "
            "whose range gives its codes; call sat_tf.calibrate(model, arrays), or train it, first."
        )


def _layer_problems(network: Network, node: Node) -> Iterator[str]:
    """Problems of a layer: in its role, as its kind, and as a tensor."""
    layer, role = inner_layer(node.layer), quantized_network.role_of(node)
    if node.arguments.get("training"):
        yield (
            "received a layer that is called with training=True, expected one that follows the "
            "model; build the model without it"
        )
    if quantized_network.is_left_float(node):
        return
    if role in _BY_ROLE:
        yield from _BY_ROLE[role](network, node)
    if node.inputs:
        problem = layer_kinds.problem_at(layer, len(network[node.inputs[0]].shape))
        if problem:
            yield problem
    quantizer = output_quantizer(node.layer)
    if isinstance(quantizer, ActivationQuantizer) and not quantizer.is_unit:
        unit_free = quantized_network.is_unit_free(network, node)
        problem = quantizer_problem(quantizer, node.layer.output_variables, unit_free=unit_free)
        if problem:
            yield problem


def _linear_problems(network: Network, node: Node) -> Iterator[str]:
    rank, layer = len(network[node.inputs[0]].shape), inner_layer(node.layer)
    kernel = layer_kinds.quantized_kernel(layer)
    expected = 2 if kernel and kernel.one_dimensional else 3
    if rank != expected and not (kernel and kernel.form is KernelForm.DENSE):
        yield (
            f"received inputs with {rank} axes beside the batch, expected {expected}; put a "
            "Reshape in front"
        )
    quantizer = node.layer.quantize_config.weights
    problem = WeightQuantizer.NOT_QUANTIZED if quantizer is None else quantizer.export_problem()
    if problem:
        yield problem


def _norm_problems(network: Network, node: Node) -> Iterator[str]:
    del network
    smallest = float(np.min(Statistics.of(inner_layer(node.layer)).square))
    if smallest <= 0.0:
        yield (
            f"received a moving variance plus epsilon of {smallest:g}, expected positive ones; "
            "call sat_tf.calibrate, or go back to an earlier checkpoint"
        )


def _sum_problems(network: Network, node: Node) -> Iterator[str]:
    combination = layer_kinds.combination_of(inner_layer(node.layer))
    if len(node.inputs) < 2 and combination is not Combination.WITH_MAP:
        yield f"received {len(node.inputs)} tensors, expected at least 2; leave the sum out"
    ranks = sorted({len(network[name].shape) for name in node.inputs})
    if len(ranks) > 1:
        yield (
            f"received tensors with {' and '.join(map(str, ranks))} axes beside the batch, "
            "expected equally many in all; put a Reshape in front of one"
        )


_BY_ROLE = {
    Role.LINEAR: _linear_problems,
    Role.NORM: _norm_problems,
    Role.SUM: _sum_problems,
}
