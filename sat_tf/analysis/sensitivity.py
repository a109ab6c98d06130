"""Layer-wise sensitivity: one layer at a time quantized, the others float."""

import dataclasses
import math
import warnings
from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf
import tf_keras as keras

from sat_tf.analysis.labelled_images import (
    LabelledImages,
    class_shares,
    expect_fitting,
    labelled_images,
)
from sat_tf.analysis.range_accuracy import range_accuracies
from sat_tf.analysis.sensitivity_result import METRICS, Damage, LayerSensitivity, Sensitivity
from sat_tf.either_keras import for_keras3
from sat_tf.exact.tflite.input_range import INPUT_TYPES, PIXELS
from sat_tf.exact.top_k import top_hits
from sat_tf.graph import layer_kinds
from sat_tf.graph.layers.kind import Role
from sat_tf.graph.network import Network, Node, call_in_inference, check_one_of_each
from sat_tf.graph.rewrite import network_of_layers
from sat_tf.messages import ModelError, did_you_mean
from sat_tf.messages.progress_bar import image_bar
from sat_tf.qat.calibrate import calibrate
from sat_tf.qat.configs import make_variables
from sat_tf.qat.images import expect_num_images
from sat_tf.qat.layout import GuessedClippingLevelsWarning, call_name, is_quantized, maker_of_codes
from sat_tf.qat.placement import place
from sat_tf.qat.policy import BitPolicy, expect_policy
from sat_tf.qat.scheme import quantize_model
from sat_tf.qat.walk import float_weights
from sat_tf.qat.wrapper import QuantizedLayer, output_quantizer
from sat_tf.quantizers.protocol import ActivationQuantizer, Predecessor, WeightQuantizer
from sat_tf.quantizers.quantizing_layer import standing_in
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

    fields: dict[str, Any]  # The fields of its `LayerSensitivity`, except damages.
    # All of its tensors, and each alone, by the names of their damages in a `LayerSensitivity`.
    quantizations: dict[str, Quantization]


class OneAtATime:
    """Runs a float model, and again with one layer quantized, from that layer on.

    The layer has the codes of the quantized model, which keeps the function. Activations are
    quantized on their way into this layer only.
    """

    def __init__(
        self, network: Network, policy: BitPolicy, images: np.ndarray, *, progress: bool
    ) -> None:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", GuessedClippingLevelsWarning)  # calibration comes next
            keeping = dataclasses.replace(policy, latent_start="keep_function")
            self.quantized = quantize_model(network.model, keeping)
        # Clipping levels are set for the tensors of the float model; nothing else is changed.
        options: dict[str, Any] = {"batch_normalization": False, "progress": progress}
        with float_weights(self.quantized.layers):
            calibrate(self.quantized, images, num_images=len(images), **options)
        self._streams = place(network, {node.name: None for node in network}, policy).streams
        self._network, self._nodes = network, list(network)
        self._place = {node.name: index for index, node in enumerate(self._nodes)}
        self._quantized = Network(self.quantized)
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
        """Mean square errors of the tensors that layers read, at their bits, one more, up to 8."""
        errors = {}
        tensors = self._float_tensors(images)
        for layer in self.layers:
            reads = layer.quantizations["damage"].reads
            if reads is not None and (quantizer := _activation_quantizer(reads)) is not None:
                (name,) = self._network[layer.fields["name"]].inputs
                errors[layer.fields["name"]] = _rounding_errors(tensors[name].numpy(), quantizer)
        return errors

    def _float_tensors(self, images: np.ndarray) -> dict[str, Any]:
        return dict(self._network.computed({self._network.input: tf.cast(images, tf.float32)}))

    def _output_with(self, quantization: Quantization, tensors: dict[str, Any]) -> tf.Tensor:
        node, output = self._network[quantization.layer], tensors[quantization.layer]
        kernel = {}
        if quantization.kernel is not None:
            effective = tf.cast(quantization.kernel, node.layer.compute_dtype)
            kernel[layer_kinds.kernel_name(node.layer)] = effective
        if kernel or quantization.reads is not None:
            inputs = [_quantized(quantization.reads, tensors[name]) for name in node.inputs]
            with standing_in(node.layer, kernel):
                output = call_in_inference(node, node.layer, inputs)
        output = _quantized(quantization.makes, output)
        changed: dict[str, Any] = {node.name: output}
        for node in self._nodes[self._place[quantization.layer] + 1 :]:
            if any(name in changed for name in node.inputs):
                inputs = [changed.get(name, tensors[name]) for name in node.inputs]
                changed[node.name] = call_in_inference(node, node.layer, inputs)
        return changed.get(self._network.output, tensors[self._network.output])

    def _quantizations_of(self, node: Node, float_node: Node) -> LayerQuantizations:
        """The quantized tensors of one layer; there may be none."""
        layer, name = node.layer, float_node.name
        reads, kernel, num_weights = None, None, 0
        weight_bits: int | None = None
        weight_errors: tuple[float, ...] = ()
        is_stream = float_node.name in self._streams and _activation_quantizer(layer) is not None
        makes = layer if is_stream else None
        counted = float_node
        if layer_kinds.role_of(float_node.layer) is Role.LINEAR:
            # The maker of the codes that this layer reads, unless these are a stream's.
            maker = maker_of_codes(self._quantized, node.inputs[0])
            is_quantized = isinstance(output_quantizer(maker.layer), ActivationQuantizer)
            if is_quantized and call_name(maker) not in self._streams:
                reads = maker.layer
            counted = self._network[float_node.inputs[0]]
            latent_kernel = layer_kinds.kernel_of(float_node.layer)
            num_weights = int(np.prod(latent_kernel.shape))
            quantizer = layer.quantize_config.weights
            if quantizer is not None and quantizer.num_bits is not None:
                weight_bits = quantizer.num_bits
                kernel = layer.effective_kernel()
                weight_errors = _weight_errors(layer, latent_kernel, quantizer, weight_bits)
        quantizations = {
            "damage": Quantization(name, kernel, reads, makes),
            "weights": Quantization(name, kernel=kernel),
            "activations": Quantization(name, reads=reads),
            "stream": Quantization(name, makes=makes),
        }
        quantizations = {
            damage_name: tensors
            for damage_name, tensors in quantizations.items()
            if any(tensor is not None for tensor in tensors[1:])
        }
        fields = {
            "name": name,
            "kind": type(float_node.layer).__name__,
            "weight_bits": weight_bits,
            "activation_bits": reads and int(reads.quantize_config.output.num_bits),
            "stream_bits": makes and int(makes.quantize_config.output.num_bits),
            "num_weights": num_weights,
            "values_read": _count(counted.shape),
            "values_made": _count(float_node.shape),
            "weight_errors": weight_errors,
        }
        return LayerQuantizations(fields, quantizations)


def _weight_errors(
    layer: QuantizedLayer, kernel: tf.Variable, quantizer: WeightQuantizer, num_bits: int
) -> tuple[float, ...]:
    variable, errors = layer_kinds.kernel_of(layer.layer), []
    latent = tf.convert_to_tensor(variable)
    for bits in range(num_bits, 9):
        finer = quantizer.with_settings(num_bits=bits)
        # The finer quantizer gets its own variables: levels of few bits would keep their error.
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


def _quantized(layer: QuantizedLayer | None, tensor: tf.Tensor) -> tf.Tensor:
    """The tensor as the layer's quantizer rounds it; without a layer, as it is."""
    if layer is None:
        return tensor
    quantizer: Any = _activation_quantizer(layer)
    return quantizer(tensor, False, layer.output_variables)


def _count(shape: tuple[int | None, ...]) -> int:
    return 0 if None in shape else math.prod(size or 0 for size in shape)


USUAL_IMAGES = 256


class DamageMeter:
    """Accumulates the damage over batches of outputs, compared with the float model's."""

    def __init__(self, *, probabilities: bool, classes: bool) -> None:
        self._probabilities = probabilities
        self._has_classes = classes
        self._count = 0
        self._fewer_right = 0
        self._has_labels = False
        self._error = self._size = self._divergence = 0.0

    def add(self, own: np.ndarray, reference: np.ndarray, labels: np.ndarray | None) -> None:
        """Adds a batch of outputs, the float model's, and the classes of the images."""
        own, reference = own.astype(np.float64), reference.astype(np.float64)
        self._count += len(own)
        self._error += float(np.sum(np.square(own - reference)))
        self._size += float(np.sum(np.square(reference)))
        if self._has_classes:
            log_shares = self._log_shares(reference)
            terms = np.exp(log_shares) * (log_shares - self._log_shares(own))
            self._divergence += float(np.sum(terms))
            if labels is not None:
                self._has_labels = True
                self._fewer_right += top_hits(reference, labels, 1) - top_hits(own, labels, 1)

    def damage(self) -> Damage:
        """The damage over all batches."""
        size = self._error / self._size if self._size else (math.inf if self._error else 0.0)
        return Damage(
            top1_drop=self._fewer_right / self._count if self._has_labels else None,
            distance=math.sqrt(size),
            divergence=max(self._divergence / self._count, 0.0) if self._has_classes else None,
        )

    def _log_shares(self, outputs: np.ndarray) -> np.ndarray:
        if self._probabilities:
            # A float32 softmax gives 0 below this.
            return np.log(np.maximum(outputs, float(np.finfo(np.float32).tiny)))
        shifted = outputs - outputs.max(axis=1, keepdims=True)
        return shifted - np.log(np.exp(shifted).sum(axis=1, keepdims=True))


@for_keras3()
def sensitivity(
    model: keras.Model,
    dataset: Any,
    policy: BitPolicy | int | None = None,
    *,
    metric: str | None = None,
    num_images: int = USUAL_IMAGES,
    progress: bool = True,
) -> Sensitivity:
    """Measures the loss of a float model with one layer at a time quantized.

    A linear layer is run with its kernel quantized, with the tensor it reads quantized, and with
    both; streams, the tensors that other layers read, are quantized alone. All other layers stay
    float. Clipping levels are calibrated on the same images; nothing is trained, and the model is
    not changed. The drop of top-1 needs labels; the distance of the outputs does not.

    Args:
        model: a Functional or Sequential float model with one input and one output.
        dataset: images, with labels or without: a pair of arrays, a `tf.data.Dataset`, or a set of
            `sat_tf.training.data`; labels are class numbers or one-hot. uint8 pixels are scaled to
            the `input_range` of the policy; other numbers are fed as they are.
        policy: the bits of each layer; see `BitPolicy`. Whatever its latent_start, the model keeps
            its function; where it names no weights, they are DoReFa's at all bits.
        metric: "top1" (the drop, a share of the images), "distance" (relative error of the
            outputs) or "divergence" (of the class probabilities, in nats): layers are ranked by
            it. All possible ones are measured: the divergence where a softmax, labels or this
            metric say that the outputs are classes. By default top1 with labels, distance without.
        num_images: how many images to take at most. A drop of top-1 is a multiple of one image.
        progress: show a bar on a terminal or in a notebook, and elsewhere a line a minute.

    Returns:
        The loss of each layer, to be printed (`table`), exported (`to_rows`, `to_frame`,
        `write_csv`), drawn (`write_picture`) or turned into a policy (`suggest`).

    Raises:
        ValueError: the model is of another kind or cannot be quantized; the data do not fit it,
            are a single image, have no labels for metric="top1", or are pixels for which another
            usual range is clearly better, unless the policy states that the model is fed pixels.

    Example:
        found = sat_tf.sensitivity(model, (images, labels), BitPolicy.mobile(3))
        better = BitPolicy.mobile(3, overrides=found.suggest(average_bits=4))
    """
    policy = expect_policy(BitPolicy.mobile() if policy is None else policy).of_one_kind()
    if metric is not None and (not isinstance(metric, str) or metric not in METRICS):
        raise ValueError(
            f"metric={metric!r}: expected one of {', '.join(METRICS)}. "
            f"{did_you_mean(str(metric), METRICS)}"
        )
    refuse_all_but_float(model)
    network = network_of_layers(model, processor=policy.processor)
    model = network.model
    sample = _sample(model, dataset, num_images, policy)
    classes = None
    if sample.labels is not None and _is_row(model):
        classes = np.argmax(class_shares(sample.labels, model.outputs[0].shape[1]), axis=1)
    if not (policy.states_input_range and policy.range_of(model.input_names[0]) == PIXELS):
        _refuse_other_range(model, sample.images, classes)
    metric = _metric(metric, model, classes)
    runner = OneAtATime(network, policy, sample.images, progress=progress)
    quantizations = [
        quantization for layer in runner.layers for quantization in layer.quantizations.values()
    ]
    is_softmax = layer_kinds.is_softmax(runner.last_layer)
    has_classes = _is_row(model) and (is_softmax or classes is not None or metric == "divergence")
    together, *alone = (
        DamageMeter(probabilities=is_softmax, classes=has_classes)
        for _ in range(1 + len(quantizations))
    )
    every = runner.images_at_once()
    total, num_right = len(sample) * len(quantizations), 0
    with image_bar("measuring layers", total, shown=progress) as advance:
        for start in range(0, len(sample), every):
            batch = sample.images[start : start + every]
            labels = None if classes is None else classes[start : start + every]
            outputs = runner.outputs(batch, quantizations)
            reference = _finite(next(outputs), "the float model")
            for quantization, meter, output in zip(quantizations, alone, outputs, strict=True):
                output = _finite(output, f"the model with {quantization.layer} quantized")
                meter.add(output, reference, labels)
                advance(len(batch))
            whole = _finite(runner.quantized(batch, training=False).numpy(), "the quantized model")
            together.add(whole, reference, labels)
            num_right += 0 if labels is None else top_hits(reference, labels, 1)
    errors = runner.activation_errors(sample.images[:every])
    meters = iter(alone)
    layers = []
    for layer in runner.layers:
        damages: Any = {name: next(meters).damage() for name in layer.quantizations}
        square_errors = errors.get(layer.fields["name"], ())
        layers.append(LayerSensitivity(**layer.fields, **damages, activation_errors=square_errors))
    return Sensitivity(
        model=model.name,
        policy=policy,
        metric=metric,
        layers=tuple(layers),
        together=together.damage(),
        num_images=len(sample),
        top1=None if classes is None else num_right / len(sample),
    )


def _finite(outputs: np.ndarray, whose: str) -> np.ndarray:
    if not np.all(np.isfinite(outputs)):
        # NaN would count as correct, or as no distance.
        raise ValueError(
            f"sensitivity: received NaN or infinite outputs of {whose}, expected finite ones; check"
            " the images, and the weights and statistics of the model."
        )
    return outputs


def refuse_all_but_float(model: keras.Model) -> None:
    """Raises ValueError unless `model` is a flat float one with one input and one output."""
    if is_quantized(Network(model)):
        raise ModelError(
            model.name,
            "received a quantized model, expected the float model it was "
            "made from, whose layers are quantized one at a time; give that, with a policy.",
        )
    check_one_of_each(model)


def _sample(model: keras.Model, dataset: Any, num_images: int, policy: BitPolicy) -> LabelledImages:
    """The images as the model is fed them, with their labels."""
    expect_num_images(num_images, fewest=2)
    sample = labelled_images(dataset, most=num_images)
    expect_fitting(sample, model)
    if len(sample) < 2:
        raise ValueError(
            "dataset: received 1 image, expected 2 or more to measure clipping levels and losses; "
            "give 64 or more."
        )
    (name,) = model.input_names
    is_pixels = sample.images.dtype == np.uint8 and policy.type_of(name) == INPUT_TYPES[0]
    if not is_pixels or policy.range_of(name) == PIXELS:
        return sample
    return LabelledImages(policy.range_of(name).fed(sample.images), sample.labels)


def _is_row(model: keras.Model) -> bool:
    """Whether the output is a row of numbers, which may be classes."""
    shape = model.outputs[0].shape
    return len(shape) == 2 and shape[1] > 1


def _refuse_other_range(model: keras.Model, images: np.ndarray, classes: np.ndarray | None) -> None:
    """Raises ValueError for pixels from 0 to 255 and a model that was trained on other values."""
    is_pixels = np.all((images >= 0) & (images <= 255) & (images == np.round(images)))
    if classes is None or not is_pixels or np.max(images) <= 1:
        return
    accuracies = range_accuracies(model, images[:USUAL_IMAGES], classes[:USUAL_IMAGES], PIXELS)
    if accuracies is not None and accuracies.fitting is not None:
        raise ValueError(
            f"dataset: {accuracies.problem}; give images of that range, and say "
            f"input_range={accuracies.fitting.spelling!r} in the policy."
        )


def _metric(metric: str | None, model: keras.Model, classes: np.ndarray | None) -> str:
    if metric is None:
        return "distance" if classes is None else "top1"
    if metric in ("top1", "divergence") and not _is_row(model):
        raise ValueError(
            f"metric={metric!r}: received a model, {model.name!r}, whose output of shape "
            f"{tuple(model.outputs[0].shape)} is not a row of classes, expected "
            "metric='distance' for it."
        )
    if metric == "top1" and classes is None:
        raise ValueError(
            "metric='top1': received images without labels, expected labels; give (images, "
            "labels), or metric='distance', which needs none."
        )
    return metric
