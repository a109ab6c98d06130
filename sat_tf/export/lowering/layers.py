"""Layers of a quantized model: their codes and operations, and problems with integer forms."""

import collections
import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf
import tf_keras as keras

from sat_tf.core.grid import LARGEST_INT8, SMALLEST_RANGE, on_int8_codes
from sat_tf.exact.operations import tabled
from sat_tf.exact.operations.operation import Operation
from sat_tf.exact.operations.pools import MaxPool
from sat_tf.exact.operations.windows import LinearKind, ends_early, placement, transposed_size
from sat_tf.exact.tflite.tensors import WHOLE, WIDE, Codes, Window
from sat_tf.export.lowering.drafts import Affine, GraphBuilder
from sat_tf.graph import layer_kinds
from sat_tf.graph.flatten import copied_weights, layer_copy
from sat_tf.graph.layers.kind import Combination, KernelForm, Move, NativeFunction, Role
from sat_tf.graph.layers.normalization import Statistics
from sat_tf.graph.network import Network, Node, call_in_inference
from sat_tf.messages import LayerMessage
from sat_tf.qat.layout import call_name, inner_layer, is_quantized
from sat_tf.qat.wrapper import QuantizedLayer, has_table, output_quantizer, rounds_to_input
from sat_tf.quantizers.protocol import ActivationQuantizer, PixelQuantizer, WeightQuantizer
from sat_tf.quantizers.seen_values import ON_AVERAGE, RANGE_FIX, each_its_own, misfit

_LOWER_PRECISIONS = ("float16", "bfloat16")
_KERNELS_OF_8_BITS = (Role.SUM, Role.PRODUCT, Role.MATRIX_PRODUCT, Role.CONCATENATION, Role.MEAN)
# float32 divides and multiplies scales of ranges from `SMALLEST_RANGE` up to this without loss.
_LARGEST_RANGE = 1e24
_NATURAL_READERS = (*_KERNELS_OF_8_BITS, Role.SOFTMAX, Role.LOOKUP, Role.OPAQUE, Role.RECURRENCE)


def role_of(node: Node) -> Role:
    """Returns the role of the user's layer."""
    return layer_kinds.role_of(inner_layer(node.layer))


def is_image(node: Node) -> bool:
    """Returns whether the layer marks the image."""
    return isinstance(output_quantizer(node.layer), PixelQuantizer)


def is_input(node: Node) -> bool:
    """Returns whether the layer makes the codes of an input that is not an image."""
    quantizer = output_quantizer(node.layer)
    return quantizer is not None and quantizer.input_type is not None and not is_image(node)


def in_float32(node: Node, shapes: Sequence[tuple[int, ...]]) -> keras.layers.Layer:
    """Returns the user's layer as files compute it: in float32, whatever its precision in training.

    An operator of an NPU has its weights as int8, and training computes with these.
    """
    layer, native = inner_layer(node.layer), native_of(node)
    weights = "" if native is None else native.weights
    if not weights and not any(
        module.compute_dtype in _LOWER_PRECISIONS for module in layer._flatten_layers()
    ):
        return layer
    copy = layer_copy(layer, **_with_float32(layer.get_config()))
    types = [tf.float32 if dtype.is_floating else dtype for dtype in node.types]
    inputs = [tf.zeros([1, *shape], dtype) for shape, dtype in zip(shapes, types, strict=True)]
    call_in_inference(node, copy, inputs)  # this builds it
    copied_weights(layer, copy)
    if weights:
        variable = getattr(copy, weights)
        variable.assign(on_int8_codes(variable))
    return copy


def _with_float32(settings: Any) -> Any:
    """Returns settings of a layer, and of inner ones, with float32 instead of lower precisions."""
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


def table_of(node: Node) -> tf.Tensor:
    """Returns the latent table of a layer that gives its rows."""
    layer = inner_layer(node.layer)
    return tf.convert_to_tensor(getattr(layer, layer_kinds.table_of(layer)), tf.float32)


def is_left_float(node: Node) -> bool:
    """Returns whether the layer is left float, for TensorFlow's own converter."""
    layer = inner_layer(node.layer)
    if role_of(node) is Role.INPUT:
        return False
    if role_of(node) is Role.LOOKUP:
        return not has_table(node.layer)
    # Integers, and values that are no real numbers, have no codes.
    no_codes = any(not dtype.is_floating for dtype in node.types)
    plain = not isinstance(node.layer, QuantizedLayer) and (
        role_of(node) is Role.LINEAR or no_codes
    )
    if role_of(node) is Role.RECURRENCE and output_quantizer(node.layer) is None:
        return True
    return plain or layer_kinds.unsupported_problem(layer) is not None


def clips(node: Node) -> bool:
    """Returns whether the layer's output is clipped to its own range."""
    quantizer = output_quantizer(node.layer)
    return isinstance(quantizer, ActivationQuantizer) and not quantizer.is_unit


def native_of(node: Node) -> NativeFunction | None:
    """Returns the operator with which the layer's function was trained; None without one."""
    if not isinstance(node.layer, QuantizedLayer) or not is_function(node):
        return None
    return node.layer.quantize_config.native_of(node.layer.layer)


def is_unit_free(network: Network, node: Node) -> bool:
    """Whether the layer's codes can be stored on [-1, 1]: linear kernels make and read them."""
    made_by = role_of(node)
    if made_by in (*_KERNELS_OF_8_BITS, Role.RECURRENCE) or rounds_to_input(node.layer):
        return False
    # The quantizer of a layer that is called several times follows the layer.
    makers = [node, *(network[name] for name in node.inputs if role_of(node) is Role.IDENTITY)]
    if any(native_of(maker) is not None for maker in makers):
        return False
    return _has_linear_readers_only(network, node.name)


def _has_linear_readers_only(network: Network, name: str) -> bool:
    """Returns whether all readers of a layer's codes can fold its clipping level into scales."""
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
    """Returns whether some windows of a pooling reach beyond the image."""
    layer = inner_layer(node.layer)
    sizes = network[node.inputs[0]].shape
    return layer.padding == "same" and any(
        any(placement(size, window, stride, 1, "SAME")[0])
        for size, window, stride in zip(sizes, layer.pool_size, layer.strides, strict=False)
        if size is not None
    )


def find_head(network: Network) -> str | None:
    """Returns the Dense layer whose result, moved or not, is the model's output, if any."""
    if len(network.outputs) != 1:
        return None
    node = network[network.output]
    while role_of(node).keeps_codes or role_of(node) is Role.SOFTMAX:
        node = network[node.inputs[0]]
    layer, quantizer = inner_layer(node.layer), output_quantizer(node.layer)
    kernel = layer_kinds.quantized_kernel(layer)
    is_dense = kernel is not None and kernel.form is KernelForm.DENSE
    is_observed = quantizer is not None and quantizer.observes_range
    is_linear = is_dense and not layer_kinds.rectifies(layer) and len(node.shape) == 1
    return node.name if is_linear and is_observed else None


def is_function(node: Node) -> bool:
    """Returns whether the layer computes a function that no kernel does, or an inner softmax."""
    return role_of(node) is Role.FUNCTION or is_fixed(node)


def is_fixed(node: Node) -> bool:
    """Returns whether the layer's quantizer has a grid that no variable moves."""
    quantizer = output_quantizer(node.layer)
    return isinstance(quantizer, ActivationQuantizer) and quantizer.is_unit


# -- codes ----------------------------------------------------------------------------------------


class KernelOutline(NamedTuple):
    """Placeholders for the codes and scales of a layer where only their number matters."""

    codes: np.ndarray  # Integers, shaped like the Keras kernel.
    scales: np.ndarray  # One scale an output channel.


def integer_kernel(wrapper: QuantizedLayer) -> tuple[np.ndarray, np.ndarray]:
    """Returns codes and scales of a layer's effective weights: Ξ = code · scale.

    They come from its quantizer, and are checked here, the only place from which files get them.
    The codes are shaped like the Keras kernel, with a scale for each output channel.
    """
    quantizer, layer = wrapper.quantize_config.weights, wrapper.layer
    if quantizer is None or quantizer.num_bits is None:
        raise TypeError(f"{layer.name}: received weights without codes, expected quantized ones.")
    latent = tf.convert_to_tensor(layer_kinds.kernel_of(layer), tf.float32)
    weights = quantizer.integer_weights(latent, wrapper.kernel_variables)
    effective = wrapper.effective_kernel()
    codes, scales = weights.codes.numpy(), tf.cast(weights.scales, tf.float64).numpy()
    # TensorFlow spreads a large layer over all cores. Both sides are a few float32 roundings from
    # the exact product, and the smallest scale is a 127th of the largest weight or more.
    products = tf.cast(weights.codes, tf.float32) * tf.constant(scales, tf.float32)
    size = tf.abs(effective)
    limit = 1e-5 * size + 1e-6 * tf.reduce_max(size)
    if not tf.reduce_all(tf.abs(products - effective) <= limit):
        raise ArithmeticError(f"{layer.name}: codes and scales do not give the effective weights.")
    largest = int(np.max(np.abs(codes), initial=0))
    if largest > LARGEST_INT8:
        raise ArithmeticError(
            f"{layer.name}: received codes up to {largest}, expected at most {LARGEST_INT8} to fit "
            "int8."
        )
    return codes, np.array(layer_kinds.along_channels(layer, scales, codes.shape), np.float64)


def codes_of(
    quantizer: ActivationQuantizer, variables: Mapping[str, Any], *, unit_free: bool
) -> Codes:
    """Returns the storage of a quantizer's codes.

    A range that is symmetric around 0 is stored as it is: at 8 bits int8 saturates at its top,
    and one code below its bottom, at -128. Any other range has its highest code at 127:
    int8 saturates exactly where the quantizer clips at the top, and a fused activation, a table or
    a QUANTIZE where it clips at the bottom.

    With fewer bits, and `unit_free` as only linear layers read it, a range with two ends is stored
    so that its larger end is at 1 or -1, where a fused activation clips, and the smaller one at the
    end of int8, which saturates there.
    """
    code_range = quantizer.code_range(variables)
    scale, (lowest, highest) = np.float32(code_range.scale), code_range.ends
    if quantizer.num_bits == WIDE:
        return Codes.wide(scale, 0) if lowest == 0 else Codes.wide(scale)
    fills_int8 = highest - lowest == 2 * LARGEST_INT8 + 1
    has_two_ends = quantizer.is_symmetric and lowest < 0
    if not has_two_ends or fills_int8:
        return Codes(scale, code_range.zero_point, lowest=LARGEST_INT8 - (highest - lowest))
    if quantizer.is_unit:
        return Codes(scale, 0, lowest, highest)
    if unit_free:
        larger = max(-lowest, highest)
        # The zero point that puts the smaller end at the end of int8.
        at_end = {0: 0, 1: -LARGEST_INT8 - 1 - lowest, -1: LARGEST_INT8 - highest}
        zero_point = at_end[int(np.sign(highest + lowest))]
        return Codes(
            np.float32(1.0 / larger),
            zero_point,
            zero_point + lowest,
            zero_point + highest,
            unit=larger * float(scale),
        )
    return Codes(scale, 0)


def observed_range(wrapper: QuantizedLayer) -> tuple[float, float] | None:
    """Returns the range that the observer of the layer's output has seen; None without one."""
    quantizer = wrapper.quantize_config.output
    if quantizer is None or not quantizer.observes_range:
        return None
    variables = {name: float(v.numpy()) for name, v in wrapper.output_variables.items()}
    if variables["observations"] == 0.0:
        return None
    return variables["lowest"], variables["highest"]


# -- operations ---------------------------------------------------------------------------------


def affine(norm: keras.layers.Layer) -> Affine:
    """Returns slope γ / sqrt(σ² + ε), offset β - slope · μ; a missing γ is 1, a missing β 0."""
    statistics = Statistics.of(norm)
    mean, variance = statistics.mean, statistics.variance
    gamma = 1.0 if norm.gamma is None else norm.gamma.numpy().astype(np.float64)
    beta = 0.0 if norm.beta is None else norm.beta.numpy().astype(np.float64)
    slope = gamma / np.sqrt(statistics.square)
    return Affine(slope, beta - slope * mean, mean, np.sqrt(np.maximum(variance, 0.0)))


def linear_operation(
    layer: keras.layers.Layer, codes: np.ndarray, source: tuple[int, ...]
) -> tuple[LinearKind, np.ndarray, Window]:
    """Returns a linear layer's operation, its codes with output channels last, and its window."""
    kernel = layer_kinds.quantized_kernel(layer)
    if kernel is None or kernel.form is KernelForm.DENSE:
        if len(source) == 1:
            return LinearKind.FULLY_CONNECTED, codes, WHOLE
        return LinearKind.CONVOLUTION, codes[np.newaxis, np.newaxis], WHOLE
    sizes = [tuple(layer.strides), tuple(layer.dilation_rate)]
    one_row, image = kernel.one_dimensional, source
    if one_row:
        sizes, codes, image = [(1, *size) for size in sizes], codes[np.newaxis], (1, *source)
    window = Window(sizes[0], layer.padding.upper(), sizes[1])
    if kernel.transposed:
        shape = tuple(layer.compute_output_shape((None, *source))[1:])
        if one_row:
            shape = (1, *shape)
        usual = transposed_size(image[:2], codes.shape[:2], window)
        rows, columns = (int(size) - default for size, default in zip(shape, usual, strict=False))
        window = dataclasses.replace(window, more=(rows, columns))
        codes, window = _for_xnnpack(np.swapaxes(codes, 2, 3), window, image[:2], shape[:2])
        return LinearKind.TRANSPOSED, codes, window
    # SAME that pads nothing becomes VALID: earlier releases of XNNPACK compute some SAME wrongly.
    axes = zip(image, codes.shape[:2], window.strides, window.dilation, strict=False)
    pads = any(any(placement(*axis, window.padding)[0]) for axis in axes)
    if not pads and ends_early(image[:2], codes.shape[:2], window):
        window = dataclasses.replace(window, padding="VALID")
    if kernel.depthwise:
        return LinearKind.DEPTHWISE, codes.reshape(*codes.shape[:2], -1), window
    return LinearKind.CONVOLUTION, codes, window


def _for_xnnpack(
    codes: np.ndarray, window: Window, image: tuple[int, ...], outputs: tuple[int, ...]
) -> tuple[np.ndarray, Window]:
    """Returns the same transposed convolution in a form that XNNPACK takes.

    With SAME, XNNPACK takes no kernel that is smaller than a stride, and leaves the operator to the
    builtin kernels, which round twice. Where nothing is cut off, VALID is equivalent; elsewhere
    zeros around the kernel make it as large as the stride.
    """
    axes = list(zip(image, codes.shape[:2], window.strides, outputs, strict=True))
    if window.padding == "VALID" or all(kernel >= stride for _, kernel, stride, _ in axes):
        return codes, window
    if not any(_cut_off(size, kernel, stride, output) for size, kernel, stride, output in axes):
        window = dataclasses.replace(window, padding="VALID", more=(0, 0))
        usual = transposed_size(image, codes.shape[:2], window)
        rows, columns = (output - default for output, default in zip(outputs, usual, strict=True))
        return codes, dataclasses.replace(window, more=(rows, columns))
    margins = [_zeros_around(*axis) for axis in axes]
    return np.pad(codes, (*margins, (0, 0), (0, 0))), window


def _cut_off(size: int, kernel: int, stride: int, output: int) -> int:
    """Returns how far kernels reach beyond the ends of the output, by TensorFlow's rule."""
    return max((size - 1) * stride + kernel - output, 0)


def _zeros_around(size: int, kernel: int, stride: int, output: int) -> tuple[int, int]:
    """Returns how many zeros before and after a kernel make it no smaller than the stride."""
    if kernel >= stride:
        return 0, 0
    start = _cut_off(size, kernel, stride, output) // 2
    # The zeros change how much SAME cuts off at the start, by just the number put in front.
    return next(
        (front, length - kernel - front)
        for length in range(stride, 3 * stride + 1)
        for front in range(length - kernel + 1)
        if _cut_off(size, length, stride, output) // 2 == start + front
    )


def moved(
    layer: keras.layers.Layer, builder: GraphBuilder, source: str, shape: tuple[int, ...]
) -> str:
    """Adds the operations of a layer of data movement; returns its tensor's name."""
    moves = layer_kinds.find_support(layer).moves
    for move in moves(layer, builder.shape(source), shape) if moves else (Move("RESHAPE"),):
        name = builder.between(f"{layer.name}_{move.suffix}") if move.suffix else layer.name
        if move.operator == MaxPool.operator.name:
            size, strides, padding = move.arguments
            operation: Operation = MaxPool((source,), name, size, Window(strides, padding))
        else:
            source_shape = builder.shape(source)
            operation = tabled.moved(move.operator, source, name, source_shape, *move.arguments)
        source = builder.move(operation, shape if move.shape is None else move.shape)
    return source


# -- models without an exact integer form ----------------------------------------------------------


def find_problems(network: Network, *, float_head: bool) -> list[str]:
    """Lists why a model cannot be exported: what was received and expected, and the fix."""
    if network.problems:  # the graph is incomplete
        return [LayerMessage(name, f"{text}.") for name, text in network.problems.items()]
    if not is_quantized(network):
        return [
            "received a model without quantized layers, expected one quantized by sat-tf; call "
            "sat_tf.quantize_model(model, policy), and train, first."
        ]
    names = collections.Counter(call_name(node) for node in network)
    problems: list[str] = [
        LayerMessage(
            name,
            f"received {count} layers of this name inside their quantizers, expected names that "
            "differ; quantize the whole model at once.",
        )
        for name, count in names.items()
        if count > 1
    ]
    for node in network:
        name = call_name(node)
        problems += [LayerMessage(name, f"{text}.") for text in _layer_problems(network, node)]
        problems += [LayerMessage(node.inputs[0], text) for text in _misfits(network, node)]
        if node.name != node.layer.name:  # another call of the same layer
            continue
        for variable, bad, size in node.non_finite():
            text = (
                f"{variable}: received {bad} values of {size} that are NaN or infinite, expected "
                "finite ones; go back to an earlier checkpoint, or train again with a smaller "
                "learning rate."
            )
            problems.append(LayerMessage(name, text, text))
        is_shared = network.is_shared(node.name) and role_of(node) is not Role.RECURRENCE
        if is_shared and output_quantizer(node.layer) is not None:
            text = (
                "received a layer that is called more than once with one quantizer for all "
                "outputs, expected one for each; share the layer in the float model, and quantize "
                "that."
            )
            problems.append(LayerMessage(name, text))
    for name in network.inputs:
        shape = network[name].shape
        if None in shape:
            sizes = "(length,)" if len(shape) < 3 else "(rows, columns)"
            text = (
                f"received the input shape {shape}, expected fixed sizes; call "
                f"sat_tf.export_tflite(model, path, image_size={sizes}), or use "
                f"sat_tf.export.with_image_size(model, {sizes})."
            )
            problems.append(LayerMessage(name, text))
        if name in network.outputs:
            text = (
                "received an input that is an output as well, expected outputs of layers; leave it "
                "out of keras.Model(inputs, outputs)."
            )
            problems.append(LayerMessage(name, text))
    if float_head and find_head(network) is None:
        problems.append(
            "float_head=True: received a model that does not end in a Dense layer of integers, "
            "expected one that does; export it with float_head=False."
        )
    return problems


def _misfits(network: Network, node: Node) -> Iterator[str]:
    """Yields why the values that an input has seen cannot be like the values of the file."""
    quantizer = output_quantizer(node.layer)
    if isinstance(quantizer, PixelQuantizer):
        seen = quantizer.seen(node.layer.output_variables)
        problem = misfit(seen, quantizer.range) if seen else None
        if problem:
            hint = each_its_own(network.inputs, node.inputs[0])
            yield (
                f"received a model that was fed, {ON_AVERAGE}, {problem}; {RANGE_FIX}{hint}. Where "
                "it was trained on other values by mistake, quantize the float model anew."
            )
    if is_input(node) and observed_range(node.layer) is None:
        # Training leaves the range of a state.
        or_train = "" if node.layer.quantize_config.output.is_fixed else ", or train it,"
        yield (
            "received a model that has seen no values of this input, whose range gives its codes; "
            f"call sat_tf.calibrate(model, arrays){or_train} first."
        )


def _layer_problems(network: Network, node: Node) -> Iterator[str]:
    """Yields problems of a layer: in its role, as its kind, and as a tensor."""
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
                f"received inputs with {ranks[0]} axes besides the batch, expected {expected}; put "
                "a Reshape in front"
            )
        weights = node.layer.quantize_config.weights
        problem = WeightQuantizer.NOT_QUANTIZED if weights is None else weights.export_problem()
        if problem:
            yield problem
    if role is Role.LOOKUP:
        largest = float(tf.reduce_max(tf.abs(table_of(node))))
        if largest > _LARGEST_RANGE:
            yield (
                f"received rows with values up to {largest:g}, expected up to {_LARGEST_RANGE:g}; "
                "go back to an earlier checkpoint"
            )
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
                f"received tensors with {' and '.join(map(str, ranks))} axes besides the batch, "
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
    if not SMALLEST_RANGE <= level <= _LARGEST_RANGE:
        yield (
            f"received the clipping level {level:g}, expected one from {SMALLEST_RANGE:g} to "
            f"{_LARGEST_RANGE:g}; call sat_tf.calibrate, or go back to an earlier checkpoint"
        )
    elif quantizer.is_symmetric and quantizer.num_bits < 8 and not is_unit_free(network, node):
        yield (
            f"received a signed stream of {quantizer.num_bits} bits that a sum, a mean or the "
            "output reads, expected 8 bits, where int8 itself saturates; requantize with "
            "stream_bits=8"
        )
