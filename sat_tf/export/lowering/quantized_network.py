"""Questions of the export's stages about a quantized network."""

from collections.abc import Sequence
from typing import Any

import tensorflow as tf
import tf_keras as keras

from sat_tf.graph import layer_kinds
from sat_tf.graph.flatten import copied_weights, layer_copy
from sat_tf.graph.layers.kind import KernelForm, Role
from sat_tf.graph.network import Network, Node, call_in_inference
from sat_tf.qat.layout import inner_layer
from sat_tf.qat.wrapper import QuantizedLayer, output_quantizer
from sat_tf.quantizers.protocol import ActivationQuantizer, PixelQuantizer

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

    Args:
        node: the layer, and how it is called.
        shapes: of its inputs, without the batch dimension.

    Returns:
        The layer itself, or a copy with its weights where it, or one inside, has another precision.
    """
    layer = inner_layer(node.layer)
    parts = (layer, *layer.submodules)
    if not any(getattr(part, "compute_dtype", None) in _LOWER_PRECISIONS for part in parts):
        return layer
    copy = layer_copy(layer, **_with_float32(layer.get_config()))
    types = [tf.float32 if kind.is_floating else kind for kind in node.types]
    read = [tf.zeros([1, *shape], kind) for shape, kind in zip(shapes, types, strict=True)]
    call_in_inference(node, copy, read)  # which builds it
    copied_weights(layer, copy)
    return copy


def _with_float32(settings: Any) -> Any:
    """Settings of a layer, and of those inside, with float32 instead of other policies."""
    if isinstance(settings, list | tuple):
        return [_with_float32(value) for value in settings]
    if not isinstance(settings, dict):
        return settings
    return {
        key: "float32" if key == "dtype" and _is_lower(value) else _with_float32(value)
        for key, value in settings.items()
    }


def _is_lower(policy: Any) -> bool:
    """Whether what a configuration has for a type or a policy computes in less than float32."""
    if isinstance(policy, dict):
        policy = policy.get("config", {}).get("name")
    return str(policy).removeprefix("mixed_") in _LOWER_PRECISIONS


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


def is_float_function(node: Node) -> bool:
    """Whether the layer computes a function that has no table of codes."""
    layer = inner_layer(node.layer)
    return role_of(node) is Role.FUNCTION and not layer_kinds.works_on_each_value(layer)


def is_unit_free(network: Network, node: Node) -> bool:
    """Whether the layer's codes can be stored on [-1, 1]: linear kernels make and read them."""
    if role_of(node) in _KERNELS_OF_8_BITS:
        return False
    return _has_linear_readers_only(network, node.name)


def _has_linear_readers_only(network: Network, name: str) -> bool:
    """Whether all that read a layer's codes can fold its clipping level into their scales."""
    if name in network.outputs:
        return False
    for reader in network.consumers(name):
        if role_of(reader) in _NATURAL_READERS or is_float_function(reader):
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
    quantizer = output_quantizer(node.layer)
    unit = isinstance(quantizer, ActivationQuantizer) and quantizer.is_unit
    return role_of(node) is Role.FUNCTION or unit
