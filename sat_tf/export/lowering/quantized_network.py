"""Questions about a quantized network, and what of it has no exact integer form."""

import collections
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import tensorflow as tf
import tf_keras as keras

from sat_tf.core.grid import on_int8_codes
from sat_tf.export.lowering.layers import observed_range
from sat_tf.export.tflite.tensors import LARGEST_RANGE, SMALLEST_RANGE
from sat_tf.graph import layer_kinds
from sat_tf.graph.flatten import copied_weights, layer_copy
from sat_tf.graph.layers.kind import Combination, KernelForm, NativeFunction, Role
from sat_tf.graph.layers.normalization import Statistics
from sat_tf.graph.network import Network, Node, call_in_inference
from sat_tf.qat.layout import call_name, inner_layer, is_quantized
from sat_tf.qat.wrapper import QuantizedLayer, output_quantizer, rounds_to_input
from sat_tf.quantizers.protocol import ActivationQuantizer, PixelQuantizer, WeightQuantizer
from sat_tf.quantizers.seen_values import ON_AVERAGE, RANGE_FIX, each_its_own, misfit

_LOWER_PRECISIONS = ("float16", "bfloat16")
_KERNELS_OF_8_BITS = (Role.SUM, Role.PRODUCT, Role.CONCATENATION, Role.MEAN)
_NATURAL_READERS = (*_KERNELS_OF_8_BITS, Role.SOFTMAX, Role.OPAQUE)


def role_of(node: Node) -> Role:
    """The role of the user's layer."""
    return layer_kinds.role_of(inner_layer(node.layer))


def is_image(node: Node) -> bool:
    """Whether the layer marks the image."""
    return isinstance(output_quantizer(node.layer), PixelQuantizer)


def is_input(node: Node) -> bool:
    """Whether the layer makes the codes of an input that is not an image."""
    quantizer = output_quantizer(node.layer)
    return quantizer is not None and quantizer.input_type is not None and not is_image(node)


def quantizes(node: Node) -> bool:
    """Whether the layer's output becomes codes: it has a quantizer, or an observer for one."""
    return output_quantizer(node.layer) is not None and not is_image(node)


def in_float32(node: Node, shapes: Sequence[tuple[int, ...]]) -> keras.layers.Layer:
    """The user's layer as files compute it: in float32, in whatever precision it trains.

    An operator of an NPU has its weights as int8, and training computes with these.
    """
    layer, native = inner_layer(node.layer), native_of(node)
    weights = "" if native is None else native.weights
    parts = (layer, *layer.submodules)
    if not weights and not any(
        getattr(part, "compute_dtype", None) in _LOWER_PRECISIONS for part in parts
    ):
        return layer
    copy = layer_copy(layer, **_with_float32(layer.get_config()))
    types = [tf.float32 if kind.is_floating else kind for kind in node.types]
    read = [tf.zeros([1, *shape], kind) for shape, kind in zip(shapes, types, strict=True)]
    call_in_inference(node, copy, read)  # which builds it
    copied_weights(layer, copy)
    if weights:
        variable = getattr(copy, weights)
        variable.assign(on_int8_codes(variable))
    return copy


def _with_float32(settings: Any) -> Any:
    """Settings of a layer, and of those inside, with float32 instead of other policies."""
    if isinstance(settings, list | tuple):
        return [_with_float32(value) for value in settings]
    if not isinstance(settings, dict):
        return settings
    settings = {key: _with_float32(value) for key, value in settings.items()}
    policy = settings.get("dtype")  # a name, or the configuration of a policy
    if isinstance(policy, dict):
        policy = policy.get("config", {}).get("name")
    is_lower = str(policy).removeprefix("mixed_") in _LOWER_PRECISIONS
    return settings | {"dtype": "float32"} if is_lower else settings


def is_left_float(node: Node) -> bool:
    """Whether the layer is left float, for TensorFlow's own converter."""
    layer = inner_layer(node.layer)
    if role_of(node) is Role.INPUT:
        return False
    # Integers, and what is no real number, have no codes.
    no_codes = any(not kind.is_floating for kind in node.types)
    plain = not isinstance(node.layer, QuantizedLayer) and (
        role_of(node) is Role.LINEAR or no_codes
    )
    return plain or layer_kinds.unsupported_problem(layer) is not None


def clips(node: Node) -> bool:
    """Whether the layer's output is clipped to a range of its own."""
    quantizer = output_quantizer(node.layer)
    return isinstance(quantizer, ActivationQuantizer) and not quantizer.is_unit


def native_of(node: Node) -> NativeFunction | None:
    """The operator of its own by which the layer's function was trained; None without one."""
    if not isinstance(node.layer, QuantizedLayer) or not is_function(node):
        return None
    return node.layer.quantize_config.native_of(node.layer.layer)


def is_unit_free(network: Network, node: Node) -> bool:
    """Whether the layer's codes can be stored on [-1, 1]: linear kernels make and read them."""
    if role_of(node) in _KERNELS_OF_8_BITS or rounds_to_input(node.layer):
        return False
    # The quantizer of a layer that is called several times is behind it.
    makers = [node, *(network[name] for name in node.inputs if role_of(node) is Role.IDENTITY)]
    if any(native_of(maker) is not None for maker in makers):
        return False
    return _has_linear_readers_only(network, node.name)


def _has_linear_readers_only(network: Network, name: str) -> bool:
    """Whether all that read a layer's codes can fold its clipping level into their scales."""
    if name in network.outputs:
        return False
    for reader in network.consumers(name):
        has_no_table = role_of(reader) is Role.FUNCTION and not layer_kinds.works_on_each_value(
            inner_layer(reader.layer)
        )
        if role_of(reader) in _NATURAL_READERS or has_no_table or native_of(reader) is not None:
            return False
        moves = role_of(reader).keeps_codes and not clips(reader)
        if moves and not _has_linear_readers_only(network, reader.name):
            return False
    return True


def pads(network: Network, node: Node) -> bool:
    """Whether some windows of a pooling reach beyond the image."""
    layer = inner_layer(node.layer)
    sizes = network[node.inputs[0]].shape
    return layer.padding == "same" and any(
        (-(-size // stride) - 1) * stride + window > size
        for size, window, stride in zip(sizes, layer.pool_size, layer.strides, strict=False)
        if size is not None
    )


def find_head(network: Network) -> str | None:
    """The Dense layer whose result, moved or not, is the model's output; None without one."""
    if len(network.outputs) != 1:
        return None
    node = network[network.output]
    while role_of(node).keeps_codes or role_of(node) is Role.SOFTMAX:
        node = network[node.inputs[0]]
    layer = inner_layer(node.layer)
    kernel = layer_kinds.quantized_kernel(layer)
    dense = kernel is not None and kernel.form is KernelForm.DENSE
    quantizer = output_quantizer(node.layer)
    observed = quantizer is not None and quantizer.observes_range
    linear = dense and not layer_kinds.rectifies(layer)
    return node.name if linear and observed and len(node.shape) == 1 else None


def is_function(node: Node) -> bool:
    """Whether the layer computes a function that no kernel does; also a softmax inside."""
    return role_of(node) is Role.FUNCTION or is_fixed(node)


def is_fixed(node: Node) -> bool:
    """Whether the layer's quantizer has a grid that no variable moves."""
    quantizer = output_quantizer(node.layer)
    return isinstance(quantizer, ActivationQuantizer) and quantizer.is_unit


# -- what has no exact integer form ----------------------------------------------------------------


def find_problems(network: Network, *, float_head: bool) -> list[str]:
    """Why a model cannot be exported: what was received, what was expected, and the fix."""
    if network.problems:  # the graph is incomplete
        return [f"{name}: {text}." for name, text in network.problems.items()]
    if not is_quantized(network):
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
        problems += _misfits(network, node)
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
    if float_head and find_head(network) is None:
        problems.append(
            "float_head=True: received a model that does not end in a Dense layer of integers, "
            "expected one that does; export it with float_head=False."
        )
    return problems


def _misfits(network: Network, node: Node) -> Iterator[str]:
    """Why an input cannot have been fed what the file will get."""
    quantizer = output_quantizer(node.layer)
    if isinstance(quantizer, PixelQuantizer):
        seen = quantizer.seen(node.layer.output_variables)
        problem = misfit(seen, quantizer.range) if seen else None
        if problem:
            own = each_its_own(network.inputs, node.inputs[0])
            yield (
                f"{node.inputs[0]}: received a model that was fed, {ON_AVERAGE}, {problem}; "
                f"{RANGE_FIX}{own}. Where it was trained on other values by mistake, quantize the "
                "float model anew."
            )
    if is_input(node) and observed_range(node.layer) is None:
        yield (
            f"{node.inputs[0]}: received a model that has seen no values of this input, "
            "whose range gives its codes; call sat_tf.calibrate(model, arrays), or train it, first."
        )


def _layer_problems(network: Network, node: Node) -> Iterator[str]:
    """Problems of a layer: in its role, as its kind, and as a tensor."""
    layer, role = inner_layer(node.layer), role_of(node)
    if node.arguments.get("training"):
        yield (
            "received a layer that is called with training=True, expected one that follows the "
            "model; build the model without it"
        )
    if is_left_float(node):
        return
    ranks = sorted({len(network[name].shape) for name in node.inputs})
    if role is Role.LINEAR:
        kernel = layer_kinds.quantized_kernel(layer)
        expected = 2 if kernel and kernel.one_dimensional else 3
        if ranks[0] != expected and not (kernel and kernel.form is KernelForm.DENSE):
            yield (
                f"received inputs with {ranks[0]} axes beside the batch, expected {expected}; put "
                "a Reshape in front"
            )
        weights = node.layer.quantize_config.weights
        problem = WeightQuantizer.NOT_QUANTIZED if weights is None else weights.export_problem()
        if problem:
            yield problem
    if role is Role.NORM:
        smallest = float(np.min(Statistics.of(layer).square))
        if smallest <= 0.0:
            yield (
                f"received a moving variance plus epsilon of {smallest:g}, expected positive ones; "
                "call sat_tf.calibrate, or go back to an earlier checkpoint"
            )
    if role is Role.SUM:
        is_map = layer_kinds.combination_of(layer) is Combination.WITH_MAP
        if len(node.inputs) < 2 and not is_map:
            yield f"received {len(node.inputs)} tensors, expected at least 2; leave the sum out"
        if len(ranks) > 1:
            yield (
                f"received tensors with {' and '.join(map(str, ranks))} axes beside the batch, "
                "expected equally many in all; put a Reshape in front of one"
            )
    if node.inputs:
        problem = layer_kinds.problem_at(layer, len(network[node.inputs[0]].shape))
        if problem:
            yield problem
    quantizer = output_quantizer(node.layer)
    if not isinstance(quantizer, ActivationQuantizer) or quantizer.is_unit:
        return
    level = quantizer.highest_value(node.layer.output_variables)
    if not SMALLEST_RANGE <= level <= LARGEST_RANGE:
        yield (
            f"received the clipping level {level:g}, expected one from {SMALLEST_RANGE:g} to "
            f"{LARGEST_RANGE:g}; call sat_tf.calibrate, or go back to an earlier checkpoint"
        )
    elif quantizer.is_symmetric and quantizer.num_bits < 8 and not is_unit_free(network, node):
        yield (
            f"received a signed stream of {quantizer.num_bits} bits that a sum, a mean or the "
            "output reads, expected 8 bits, where int8 itself saturates; requantize with "
            "stream_bits=8"
        )
