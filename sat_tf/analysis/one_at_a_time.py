"""A float network with one tensor of one layer quantized at a time."""

import contextlib
import dataclasses
import math
import warnings
from collections.abc import Collection, Iterator
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf
import tf_keras as keras

from sat_tf.graph import layer_kinds
from sat_tf.graph.layers.kind import Role
from sat_tf.graph.network import Network, Node, call_in_inference
from sat_tf.qat.calibrate import calibrate, float_weights
from sat_tf.qat.configs import make_variables
from sat_tf.qat.layout import GuessedClippingLevelsWarning, call_name, maker_of_codes
from sat_tf.qat.placement import place
from sat_tf.qat.policy import BitPolicy
from sat_tf.qat.scheme import quantize_model
from sat_tf.qat.wrapper import QuantizedLayer, output_quantizer
from sat_tf.quantizers.protocol import ActivationQuantizer, Predecessor, WeightQuantizer
from sat_tf.quantizers.values import SampledValues

# All tensors of one batch are kept, and take no more than this.
_BYTES_AT_ONCE = 2**28
_IMAGES_AT_ONCE = 64
_SAMPLED_VALUES = 4096


class Quantization(NamedTuple):
    """Tensors of a layer that are quantized together; those that are None stay float."""

    layer: str  # Name of the float model's layer.
    kernel: tf.Tensor | None = None  # Its quantized kernel, rescaled to the float one.
    reads: QuantizedLayer | None = None  # The quantizer of the tensor it reads.
    makes: QuantizedLayer | None = None  # The quantizer of the tensor it makes, for a stream.


class LayerQuantizations(NamedTuple):
    """A linear layer or a stream, and its tensors to quantize."""

    fields: dict[str, Any]  # Of its `LayerSensitivity`.
    # All of its tensors, and each alone, by the names that damages have in a `LayerSensitivity`.
    quantizations: dict[str, Quantization]


class OneAtATime:
    """Runs a float model, and again with one layer quantized, from that layer on.

    The layer has the codes of the quantized model, which keeps the function: its kernel is
    multiplied by the factor that the normalization behind it was divided by. Activations are
    quantized on their way into this layer only, and stay float for other readers.
    """

    def __init__(self, network: Network, quantized: keras.Model, streams: Collection[str]) -> None:
        self._streams, self._network, self._nodes = streams, network, list(network)
        self._place = {node.name: index for index, node in enumerate(self._nodes)}
        self._quantized = Network(quantized)
        self.last_layer = network[network.output].layer
        self.layers: list[LayerQuantizations] = []
        for node in self._quantized:
            layer = node.layer
            if isinstance(layer, QuantizedLayer) and not layer.quantize_config.inserted:
                quantized_layer = self._quantizations_of(node, network[call_name(node)])
                if len(quantized_layer.quantizations) > 1:
                    self.layers.append(quantized_layer)

    def images_at_once(self) -> int:
        """The batch size that fits into memory."""
        sizes = [float(np.prod([size or 1 for size in node.shape])) for node in self._nodes]
        return int(np.clip(_BYTES_AT_ONCE / (8.0 * sum(sizes)), 1, _IMAGES_AT_ONCE))

    def outputs(
        self, images: np.ndarray, quantizations: list[Quantization]
    ) -> Iterator[np.ndarray]:
        """The float model's output for a batch, then the output with each quantization."""
        tensors = self._float_tensors(images)
        yield tensors[self._network.output].numpy()
        for quantization in quantizations:
            yield self._output_with(quantization, tensors).numpy()

    def activation_errors(self, images: np.ndarray) -> dict[str, tuple[float, ...]]:
        """Mean square error of the tensors that layers read, at their bits, one more, up to 8."""
        errors = {}
        tensors = self._float_tensors(images)
        for each in self.layers:
            reads = each.quantizations["damage"].reads
            if reads is not None and (quantizer := _activation_quantizer(reads)) is not None:
                (name,) = self._network[each.fields["name"]].inputs
                errors[each.fields["name"]] = _rounding_errors(tensors[name].numpy(), quantizer)
        return errors

    def _float_tensors(self, images: np.ndarray) -> dict[str, Any]:
        return dict(self._network.computed({self._network.input: tf.cast(images, tf.float32)}))

    def _output_with(self, quantization: Quantization, tensors: dict[str, Any]) -> tf.Tensor:
        node, output = self._network[quantization.layer], tensors[quantization.layer]
        if quantization.kernel is not None or quantization.reads is not None:
            inputs = [tensors[name] for name in node.inputs]
            if quantization.reads is not None:
                inputs = [_quantize(quantization.reads, tensor) for tensor in inputs]
            with _kernel_of(node.layer, quantization.kernel):
                output = call_in_inference(node, node.layer, inputs)
        if quantization.makes is not None:
            output = _quantize(quantization.makes, output)
        changed: dict[str, Any] = {node.name: output}
        for node in self._nodes[self._place[quantization.layer] + 1 :]:
            if any(name in changed for name in node.inputs):
                inputs = [changed.get(name, tensors[name]) for name in node.inputs]
                changed[node.name] = call_in_inference(node, node.layer, inputs)
        return changed.get(self._network.output, tensors[self._network.output])

    def _quantizations_of(self, node: Node, own: Node) -> LayerQuantizations:
        """The quantized tensors of one layer; there may be none."""
        layer, name = node.layer, own.name
        reads, kernel, num_weights = None, None, 0
        weight_bits: int | None = None
        weight_errors: tuple[float, ...] = ()
        is_stream = own.name in self._streams and _activation_quantizer(layer) is not None
        makes = layer if is_stream else None
        counted = own
        if layer_kinds.role_of(own.layer) is Role.LINEAR:
            # The layer whose quantizer makes the codes that it reads, unless these are a stream's.
            maker = maker_of_codes(self._quantized, node.inputs[0])
            is_quantized = isinstance(output_quantizer(maker.layer), ActivationQuantizer)
            if is_quantized and call_name(maker) not in self._streams:
                reads = maker.layer
            counted = self._network[own.inputs[0]]
            latent_kernel = layer_kinds.kernel_of(own.layer)
            num_weights = int(np.prod(latent_kernel.shape))
            quantizer = layer.quantize_config.weights
            if quantizer is not None and quantizer.num_bits is not None:
                weight_bits = quantizer.num_bits
                kernel = layer.effective_kernel()
                weight_errors = _weight_errors(layer, latent_kernel, quantizer, weight_bits)
        quantizations = {"damage": Quantization(name, kernel, reads, makes)}
        if kernel is not None:
            quantizations["weights"] = Quantization(name, kernel=kernel)
        if reads is not None:
            quantizations["activations"] = Quantization(name, reads=reads)
        if makes is not None:
            quantizations["stream"] = Quantization(name, makes=makes)
        fields = {
            "name": name,
            "kind": type(own.layer).__name__,
            "weight_bits": weight_bits,
            "activation_bits": reads and int(reads.quantize_config.output.num_bits),
            "stream_bits": makes and int(makes.quantize_config.output.num_bits),
            "num_weights": num_weights,
            "values_read": _count(counted.shape),
            "values_made": _count(own.shape),
            "weight_errors": weight_errors,
        }
        return LayerQuantizations(fields, quantizations)


def one_at_a_time(
    network: Network, policy: BitPolicy, images: np.ndarray, *, progress: bool
) -> tuple[OneAtATime, keras.Model]:
    """Makes what runs a float model with one layer quantized, and the model with all quantized."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", GuessedClippingLevelsWarning)  # it is calibrated next
        keeping = dataclasses.replace(policy, latent_start="keep_function")
        quantized = quantize_model(network.model, keeping)
    # Clipping levels are set for the tensors of the float model; nothing else is changed.
    with float_weights(quantized.layers):
        calibrate(
            quantized, images, num_images=len(images), batch_normalization=False, progress=progress
        )
    placement = place(network, {node.name: None for node in network}, policy)
    return OneAtATime(network, quantized, placement.streams), quantized


def _weight_errors(
    layer: QuantizedLayer, kernel: tf.Variable, quantizer: WeightQuantizer, num_bits: int
) -> tuple[float, ...]:
    variable, errors = layer_kinds.kernel_of(layer.layer), []
    latent = tf.convert_to_tensor(variable)
    for bits in range(num_bits, 9):
        finer = quantizer.with_settings(num_bits=bits)
        # Its own variables: levels of few bits would leave it the error of few bits.
        variables = make_variables(keras.layers.Layer(), finer.variables(kernel.shape))
        finer.begin(variable, variables)
        before = Predecessor(quantizer, layer.kernel_variables, keep_function=True)
        finer.carry(latent, variables, before)
        errors.append(float(tf.reduce_mean((finer(latent, False, variables) - kernel) ** 2)))
    return tuple(errors)


def _activation_quantizer(layer: QuantizedLayer) -> ActivationQuantizer | None:
    quantizer = layer.quantize_config.output
    return quantizer if isinstance(quantizer, ActivationQuantizer) else None


def _rounding_errors(values: np.ndarray, quantizer: ActivationQuantizer) -> tuple[float, ...]:
    """Mean square errors at the best clipping level of each number of bits."""
    values = np.random.default_rng(0).choice(values.reshape(-1), _SAMPLED_VALUES)
    largest = float(np.max(np.abs(values)))
    if largest == 0.0:
        return ()
    errors = []
    for bits in range(quantizer.num_bits, 9):
        finer = quantizer.with_settings(num_bits=bits)
        variables = {}
        if finer.has_clipping_level:
            best = finer.best_range(SampledValues(values, largest))
            variables = {name: tf.constant(value) for name, value in best.items()}
        quantized = finer(tf.constant(values), False, variables)
        errors.append(float(tf.reduce_mean((quantized - values) ** 2)))
    return tuple(errors)


def _quantize(layer: QuantizedLayer, tensor: tf.Tensor) -> tf.Tensor:
    quantizer: Any = _activation_quantizer(layer)
    return quantizer(tensor, False, layer.output_variables)


@contextlib.contextmanager
def _kernel_of(layer: keras.layers.Layer, kernel: tf.Tensor | None) -> Iterator[None]:
    """Replaces the kernel for one call, past Keras, which would stop tracking the variable."""
    if kernel is None:
        yield
        return
    name = layer_kinds.kernel_name(layer)
    own = vars(layer)[name]
    vars(layer)[name] = tf.cast(kernel, layer.compute_dtype)
    try:
        yield
    finally:
        vars(layer)[name] = own


def _count(shape: tuple[int | None, ...]) -> int:
    return 0 if None in shape else math.prod(size or 0 for size in shape)
