"""Calibration: clipping levels, normalization statistics and output ranges taken from data."""

import contextlib
import dataclasses
import inspect
import warnings
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import numpy as np
import tensorflow as tf
import tf_keras as keras

from sat_tf.core import grid as grids
from sat_tf.qat.layout import inner_layer, quantized_network
from sat_tf.qat.network import Network, Node
from sat_tf.qat.quantizers import (
    SMALLEST_CLIPPING_LEVEL,
    ImageQuantizer,
    PactQuantizer,
    RangeObserver,
    StreamQuantizer,
)
from sat_tf.qat.wrapper import QuantizedLayer

_BATCH_SIZE = 64
_VALUES_PER_BATCH = 16_384
_FEW_IMAGES = 32


@dataclasses.dataclass
class _Sample:
    """What was seen of one tensor: some of its values, and its largest magnitude."""

    values: list[np.ndarray]
    largest: float


def calibrate(
    model: keras.Model,
    dataset: Any,
    *,
    num_images: int = 512,
    clipping_levels: bool = True,
    batch_normalization: bool = True,
) -> keras.Model:
    """Fits a quantized model to data without training it.

    Three passes over the images, all with quantized weights. The first leaves activations float
    and sets every clipping level to the one with the smallest mean square error,
    argmin_α E[(q(x; α) - x)²] over x and the quantizer's grid. The second, now with quantized
    activations, re-estimates the moving statistics of BatchNormalization as the mean over batches.
    The third observes the range of the logits. In the first two, BatchNormalization works on
    batch statistics, so that stale ones do no harm; but where it is frozen (trainable=False) or
    called with training=False, or with batch_normalization=False, it works on its moving statistics
    and keeps them.

    Args:
        model: a model quantized by sat-tf; it is changed in place.
        dataset: images (n, h, w, c), or anything that yields batches of images or of (images,
            labels), like a tf.data.Dataset. Use training images.
        num_images: how many to use at most; 64 and more give usable statistics.
        clipping_levels: set the clipping levels.
        batch_normalization: re-estimate the statistics of BatchNormalization.

    Returns:
        The model itself.

    Raises:
        ValueError: the model is not quantized by sat-tf, the images do not fit its input or are
            not finite, or an activation is NaN or infinite.
    """
    network = quantized_network(model, when="first")
    images = _gather(dataset, num_images, network)
    _check_range(images, network)
    batches = _in_batches(images)
    if clipping_levels:
        _set_clipping_levels(network, batches, batch_normalization)
    if batch_normalization:
        _estimate_statistics(network, batches)
    _observe_ranges(network, batches)
    return model


def estimate_statistics(model: keras.Model, dataset: Any, *, num_images: int = 512) -> keras.Model:
    """Re-estimates the moving statistics of BatchNormalization, as `calibrate` does.

    They become the mean over batches of the weights as they are, and forget the weights of earlier
    steps that moving averages still hold.

    Args:
        model: a float model, or one quantized by sat-tf; it is changed in place.
        dataset: as in `calibrate`.
        num_images: how many to use at most; 64 and more give usable statistics.

    Returns:
        The model itself.

    Raises:
        ValueError: the model is no graph of single calls, or the images do not fit its input.
    """
    network = Network(model)
    network.refuse_problems()
    _estimate_statistics(network, _in_batches(_gather(dataset, num_images, network)))
    return model


def _in_batches(images: np.ndarray) -> list[np.ndarray]:
    batches = [images[i : i + _BATCH_SIZE] for i in range(0, len(images), _BATCH_SIZE)]
    if len(batches) > 1 and len(batches[-1]) < _BATCH_SIZE // 2:
        batches[-2:] = [np.concatenate(batches[-2:])]
    return batches


def _gather(dataset: Any, num_images: int, network: Network) -> np.ndarray:
    shape = network[network.input].shape
    if isinstance(dataset, np.ndarray | tf.Tensor | tuple):
        dataset = [dataset]  # one batch, of images or of (images, labels)
    if isinstance(num_images, bool) or not isinstance(num_images, int) or num_images < 1:
        raise ValueError(f"num_images={num_images!r}: expected an integer of at least 1.")
    if not isinstance(dataset, Iterable):
        raise ValueError(
            f"dataset: received {type(dataset).__name__}, expected images (n, h, w, c) or batches "
            "of them; pass an array or a tf.data.Dataset."
        )
    found: list[np.ndarray] = []
    count = 0
    for element in dataset:
        batch = np.asarray(element[0] if isinstance(element, tuple | list) else element)
        fits = batch.ndim == len(shape) + 1 and all(
            wanted in (None, got) for wanted, got in zip(shape, batch.shape[1:], strict=True)
        )
        if not fits:
            raise ValueError(
                f"dataset: received a batch of shape {batch.shape}, expected (n, "
                f"{', '.join(str(size) for size in shape)}); batch and resize the images first."
            )
        if not np.all(np.isfinite(batch)):
            raise ValueError(
                "dataset: received images with NaN or infinite values, expected finite ones; check "
                "how they are read and scaled."
            )
        found.append(batch[: num_images - count])
        count += len(found[-1])
        if count >= num_images:
            break
    if not count:
        raise ValueError("dataset: received no images, expected some; 64 and more are usable.")
    if count < _FEW_IMAGES:
        warnings.warn(
            f"calibrate: {count} images give unreliable statistics; use 64 or more.", stacklevel=3
        )
    return np.concatenate(found)


def _check_range(images: np.ndarray, network: Network) -> None:
    for node in network:
        if isinstance(node.layer, QuantizedLayer):
            quantizer = node.layer.quantize_config.output
            if isinstance(quantizer, ImageQuantizer):
                highest, lowest = float(np.max(images)), float(np.min(images))
                step = quantizer.image_max / 255.0
                off_grid = np.abs(images / step - np.round(images / step)).max() > 1e-3
                if lowest < 0 or highest > quantizer.image_max * 1.001 or highest <= 4 * step:
                    problem = f"span {lowest:g} to {highest:g}"
                elif off_grid:
                    problem = "lie between the values a uint8 pixel can have"
                else:
                    return
                warnings.warn(
                    f"calibrate: the images {problem}, but the policy's input_max says that pixels "
                    f"0 to 255 stand for 0 to {quantizer.image_max:g}; an exported model reads "
                    "uint8 images that way. Set BitPolicy(input_max=1.0) for images / 255.",
                    stacklevel=3,
                )


def _run(
    network: Network,
    images: np.ndarray,
    call: Callable[[Node, Any], tf.Tensor],
) -> tf.Tensor:
    """Runs the model layer by layer, each by `call(node, inputs)`."""
    tensors: dict[str, Any] = {network.input: tf.cast(images, tf.float32)}
    readers = {node.name: len(network.consumers(node.name)) for node in network}
    for node in network:
        if node.name in tensors:
            continue
        inputs = [tensors[name] for name in node.inputs]
        tensors[node.name] = call(node, inputs if node.takes_list else inputs[0])
        for name in node.inputs:
            readers[name] -= 1
            if not readers[name] and name != network.output:
                del tensors[name]
    return tensors[network.output]


def _set_clipping_levels(
    network: Network, batches: list[np.ndarray], on_batch_statistics: bool
) -> None:
    samples: dict[str, _Sample] = {}

    def call(node: Node, inputs: Any) -> tf.Tensor:
        layer = node.layer
        arguments = _arguments(node, on_batch_statistics)
        if not isinstance(layer, QuantizedLayer):
            return layer(inputs, **arguments)
        before = layer.before_quantization(inputs, arguments.get("training", False))
        quantizer = layer.quantize_config.output
        if not isinstance(quantizer, PactQuantizer | StreamQuantizer):
            return before
        twin = quantizer.float_twin(before)
        _take(samples.setdefault(node.name, _Sample([], 0.0)), twin, node.name)
        return twin

    with _kept_statistics(network):
        for images in batches:
            _run(network, images, call)
    for name, sample in samples.items():
        layer = network[name].layer
        if sample.largest > 0.0:
            level = best_clipping_level(
                np.concatenate(sample.values),
                sample.largest,
                layer.quantize_config.output.num_bits,
                signed=layer.quantize_config.output.signed,
            )
            layer.output_variables["clipping_level"].assign(max(level, SMALLEST_CLIPPING_LEVEL))


def best_clipping_level(
    values: np.ndarray, largest: float, num_bits: int, *, signed: bool
) -> float:
    """The clipping level with the smallest mean square quantization error.

    Searched on 100 levels up to the largest magnitude, evenly spaced.

    Args:
        values: a sample of the tensor, any shape.
        largest: largest magnitude in the whole tensor; above 0.
        num_bits: bits of the quantizer.
        signed: whether the quantizer is `pact.quantize_stream` or `pact.quantize_activation`.

    >>> best_clipping_level(np.array([0.0, 1.0, 2.0, 3.0]), 3.0, 2, signed=False)
    3.0
    """
    steps = grids.levels(num_bits, "narrow" if signed else "dorefa")
    values = np.asarray(values, np.float32).reshape(-1)
    magnitudes = np.abs(values) if signed else values
    best, smallest = largest, np.inf
    for level in np.arange(100, 0, -1) / 100.0 * largest:
        step = np.float32((2.0 if signed else 1.0) * level / steps)
        quantized = np.floor(np.minimum(magnitudes, np.float32(level)) / step + 0.5) * step
        error = float(np.mean(np.square(quantized - magnitudes)))
        if error < smallest:
            best, smallest = float(level), error
    return best


def _take(sample: _Sample, tensor: tf.Tensor, name: str) -> None:
    values = tensor.numpy().astype(np.float32).reshape(-1)
    largest = float(np.max(np.abs(values), initial=0.0))
    if not np.isfinite(largest):
        raise ValueError(
            f"{name}: received NaN or infinite activations, expected finite ones; check the "
            "images, and the weights and statistics of the layers before it."
        )
    if values.size > _VALUES_PER_BATCH:
        # At random: an even stride would meet some channels again and again, and others never.
        chosen = np.random.default_rng(len(sample.values)).integers(
            0, values.size, _VALUES_PER_BATCH
        )
        values = values[chosen]
    sample.values.append(values)
    sample.largest = max(sample.largest, largest)


def _estimate_statistics(network: Network, batches: list[np.ndarray]) -> None:
    def call(node: Node, inputs: Any) -> tf.Tensor:
        return node.layer(inputs, **_arguments(node, on_batch_statistics=True))

    norms = [inner_layer(node.layer) for node in network if _is_norm(node)]
    momenta = [norm.momentum for norm in norms]
    try:
        for index, images in enumerate(batches):
            for norm in norms:
                norm.momentum = index / (index + 1.0)  # the moving average is then the mean
            _run(network, images, call)
    finally:
        for norm, momentum in zip(norms, momenta, strict=True):
            norm.momentum = momentum


def _observe_ranges(network: Network, batches: list[np.ndarray]) -> None:
    ranges: dict[str, list[float]] = {}

    def call(node: Node, inputs: Any) -> tf.Tensor:
        layer = node.layer
        if isinstance(layer, QuantizedLayer) and isinstance(
            layer.quantize_config.output, RangeObserver
        ):
            before = layer.before_quantization(inputs)
            seen = ranges.setdefault(node.name, [0.0, 0.0])
            seen[0] = min(seen[0], float(tf.reduce_min(before)))
            seen[1] = max(seen[1], float(tf.reduce_max(before)))
        return layer(inputs, **_arguments(node, on_batch_statistics=False))

    for images in batches:
        _run(network, images, call)
    for name, (lowest, highest) in ranges.items():
        variables = network[name].layer.output_variables
        variables["lowest"].assign(lowest)
        variables["highest"].assign(highest)
        variables["observations"].assign(float(len(batches)))


def _is_norm(node: Node) -> bool:
    return isinstance(inner_layer(node.layer), keras.layers.BatchNormalization)


def _arguments(node: Node, on_batch_statistics: bool) -> dict[str, Any]:
    """What to call a layer with: as in inference, but for BatchNormalization where asked."""
    if "training" not in inspect.signature(node.layer.call).parameters:
        return node.arguments
    stays = not _is_norm(node) or node.arguments.get("training") is False
    return {**node.arguments, "training": on_batch_statistics and not stays}


@contextlib.contextmanager
def _kept_statistics(network: Network) -> Iterator[None]:
    """Puts the moving statistics back when it ends."""
    variables = [
        variable
        for node in network
        if _is_norm(node)
        for variable in inner_layer(node.layer).non_trainable_variables
    ]
    values = [variable.numpy() for variable in variables]
    try:
        yield
    finally:
        for variable, value in zip(variables, values, strict=True):
            variable.assign(value)
