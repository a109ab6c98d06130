"""Calibration: clipping levels, normalization statistics and output ranges taken from data."""

import inspect
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import tensorflow as tf
import tf_keras as keras

from sat_tf.qat import functions, registry
from sat_tf.qat.best_levels import Function, Sample, itself
from sat_tf.qat.calibration_images import Images, gather, in_batches, observe_pixels
from sat_tf.qat.float_weights import float_weights
from sat_tf.qat.layout import in_inference, inner_layer, quantized_network
from sat_tf.qat.network import Network, Node
from sat_tf.qat.norm_statistics import (
    STALE,
    StaleStatisticsWarning,
    Statistics,
    assign_statistics,
    best_statistics,
    mean_deviation,
    read_statistics,
)
from sat_tf.qat.quantizers import (
    SMALLEST_CLIPPING_LEVEL,
    ClippingQuantizer,
    InputQuantizer,
    RangeObserver,
    SatQuantizer,
)
from sat_tf.qat.wrapper import QuantizedLayer

# A feature with fewer codes has lost most of what it says.
_FEW_CODES = 16
_MOST_NAMED = 5


def calibrate(
    model: keras.Model,
    dataset: Any,
    *,
    num_images: int = 512,
    clipping_levels: bool = True,
    batch_normalization: bool = True,
) -> keras.Model:
    """Fits a quantized model to data without training it.

    Passes over the images. One leaves activations float and sets every clipping level to the one
    with the smallest error, argmin_α E|q(x; α) - x|^p over x and the quantizer's grid, p = 2 up to
    7 bits and 4 at 8 bits, behind a function where only that reads x (see
    `sat_tf.qat.best_levels`). There x is what inference would give, with quantized weights and
    with moving statistics of BatchNormalization that fit them. One, now with quantized activations,
    measures the statistics as the mean over batches. The last observes the range of the logits.
    Where BatchNormalization is frozen (trainable=False) or called with training=False, or with
    batch_normalization=False, it keeps its moving statistics.

    Without training, a few batches know less of the statistics than the float model does: a
    hundred images leave every channel some percent off, and at 8 bits that costs more than the
    rounding. Statistics that are those of the network before rounding, by a pass without any, are
    therefore moved by what rounding does to those of these images, and not replaced by them. Stale
    ones are replaced, which is warned of: the function of the model changes. So are all where
    clipping_levels=False, as after training.

    Args:
        model: a model quantized by sat-tf; it is changed in place.
        dataset: images (n, h, w, c), or anything that yields batches of images or of (images,
            labels), like a tf.data.Dataset. Use training images. For a model with several inputs,
            the images of a batch are a list or a dictionary, as the model is called.
        num_images: how many to use at most; 64 and more give usable statistics.
        clipping_levels: set the clipping levels.
        batch_normalization: fit the statistics of BatchNormalization.

    Returns:
        The model itself.

    Raises:
        ValueError: the model is not quantized by sat-tf, the images do not fit its input or are
            not finite, or of another range than the model's `input_range`, or an activation is NaN
            or infinite. The model has not changed then.
    """
    network = quantized_network(model, when="first")
    images = gather(dataset, num_images, network)
    batches = in_batches(images)
    observe_pixels(images, network, len(batches))
    # Before all else, because what the first layers read hangs on it.
    _observe_ranges(network, batches, InputQuantizer)
    _warn_of_coarse_features(network, images)
    norms = _norms(network) if batch_normalization else []
    if clipping_levels and norms:
        _fit_both(network, batches, norms)
    elif clipping_levels:
        _set_clipping_levels(network, batches)
    elif norms:
        _estimate_statistics(network, batches, _call)
    _observe_ranges(network, batches, RangeObserver)
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
    _estimate_statistics(network, in_batches(gather(dataset, num_images, network)), _call)
    return model


def _run(
    network: Network,
    images: Images,
    call: Callable[[Node, Any], tf.Tensor],
) -> None:
    """Runs the model layer by layer, each by `call(node, inputs)`."""
    tensors: dict[str, Any] = {
        name: tf.cast(array, tf.float32) for name, array in zip(network.inputs, images, strict=True)
    }
    readers = {node.name: len(network.consumers(node.name)) for node in network}
    for node in network:
        if node.name in tensors:
            continue
        inputs = [tensors[name] for name in node.inputs]
        tensors[node.name] = call(node, inputs if node.takes_list else inputs[0])
        for name in node.inputs:
            readers[name] -= 1
            if not readers[name]:
                del tensors[name]


def _set_clipping_levels(network: Network, batches: list[Images]) -> None:
    samples: dict[str, Sample] = {}

    def call(node: Node, inputs: Any) -> tf.Tensor:
        tensor = _call_unrounded(node, inputs, on_batch_statistics=False)
        layer = node.layer
        if isinstance(layer, QuantizedLayer) and isinstance(
            layer.quantize_config.output, ClippingQuantizer
        ):
            if node.name not in samples:
                samples[node.name] = Sample(node.name, _function_behind(network, node))
            samples[node.name].take(tensor)
        return tensor

    for images in batches:
        _run(network, images, call)
    for name, sample in samples.items():
        if sample.largest > 0.0:
            layer = network[name].layer
            level = sample.best_level(layer.quantize_config.output)
            layer.output_variables["clipping_level"].assign(max(level, SMALLEST_CLIPPING_LEVEL))


def _function_behind(network: Network, node: Node) -> Function:
    """The function that alone reads a tensor, where it is one of each value for itself."""
    readers = [inner_layer(reader.layer) for reader in in_inference(network).consumers(node.name)]
    names = {
        registry.activation_name(reader) if type(reader) is keras.layers.Activation else "linear"
        for reader in readers
    }
    if len(names) != 1 or not functions.is_known(*names):
        return itself
    activation = readers[0].activation
    return lambda values: activation(tf.constant(values)).numpy()


def _call(node: Node, inputs: Any, on_batch_statistics: bool) -> tf.Tensor:
    return node.layer(inputs, **_arguments(node, on_batch_statistics))


def _call_unrounded(node: Node, inputs: Any, on_batch_statistics: bool) -> tf.Tensor:
    """What a layer gives before its output is clipped and rounded."""
    layer = node.layer
    arguments = _arguments(node, on_batch_statistics)
    if not isinstance(layer, QuantizedLayer):
        return layer(inputs, **arguments)
    before = layer.before_quantization(inputs, arguments.get("training", False))
    quantizer = layer.quantize_config.output
    return quantizer.float_twin(before) if isinstance(quantizer, ClippingQuantizer) else before


def _norms(network: Network) -> list[keras.layers.BatchNormalization]:
    """The normalizations, each once."""
    found = {id(node.layer): inner_layer(node.layer) for node in network if _is_norm(node)}
    return list(found.values())


def _fit_both(
    network: Network, batches: list[Images], norms: list[keras.layers.BatchNormalization]
) -> None:
    """Clipping levels, and statistics for the quantized network: see `best_statistics`."""
    own = read_statistics(norms)
    try:
        with float_weights(node.layer for node in network):
            unrounded = _measured_statistics(network, batches, norms, _call_unrounded)
        by_weights = _measured_statistics(network, batches, norms, _call_unrounded)
        assign_statistics(norms, best_statistics(own, unrounded, by_weights))
        _set_clipping_levels(network, batches)
        quantized = _measured_statistics(network, batches, norms, _call)
    except BaseException:  # also where it is interrupted
        assign_statistics(norms, own)
        raise
    off = min(mean_deviation(own, measured) for measured in (unrounded, quantized))
    if off > STALE:
        warnings.warn(
            "calibrate: the statistics of BatchNormalization are not those of these images (off by "
            f"{off:.1g} standard deviations in the mean), and were replaced, with which the model's"
            " function changes. Train it, or check how the images are scaled; to keep the function,"
            " pass batch_normalization=False.",
            StaleStatisticsWarning,
            stacklevel=3,
        )
    assign_statistics(norms, best_statistics(own, unrounded, quantized))


def _measured_statistics(
    network: Network,
    batches: list[Images],
    norms: list[keras.layers.BatchNormalization],
    call: Callable[[Node, Any, bool], tf.Tensor],
) -> list[Statistics]:
    _estimate_statistics(network, batches, call)
    return read_statistics(norms)


def _estimate_statistics(
    network: Network, batches: list[Images], call: Callable[[Node, Any, bool], tf.Tensor]
) -> None:
    norms = {id(node.layer): inner_layer(node.layer) for node in network if _is_norm(node)}
    momenta = {key: norm.momentum for key, norm in norms.items()}
    calls = dict.fromkeys(norms, 0)

    def counted(node: Node, inputs: Any) -> tf.Tensor:
        if id(node.layer) in norms:
            count = calls[id(node.layer)]
            calls[id(node.layer)] += 1
            # The moving average is then the mean over batches, and over calls of a shared layer.
            norms[id(node.layer)].momentum = count / (count + 1.0)
        return call(node, inputs, True)

    try:
        for images in batches:
            _run(network, images, counted)
    finally:
        for key, norm in norms.items():
            norm.momentum = momenta[key]


def _observe_ranges(network: Network, batches: list[Images], kind: type[RangeObserver]) -> None:
    """Gives observers of one kind the range of all batches."""
    if not any(type(_output_quantizer(node)) is kind for node in network):
        return
    ranges: dict[str, list[float]] = {}

    def call(node: Node, inputs: Any) -> tf.Tensor:
        layer = node.layer
        if type(_output_quantizer(node)) is kind:
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


def _warn_of_coarse_features(network: Network, images: Images) -> None:
    """Warns where one step for all features of an input makes a few codes of some of them."""
    for node in network:
        quantizer = _output_quantizer(node)
        if not isinstance(quantizer, InputQuantizer) or node.inputs[0] not in network.inputs:
            continue
        (name,) = node.inputs
        values = images[network.inputs.index(name)]
        features = np.moveaxis(values, -1, 0).reshape(values.shape[-1], -1)
        lowest, highest = (float(node.layer.output_variables[end]) for end in ("lowest", "highest"))
        codes = np.rint(features * (255.0 / max(highest - lowest, 1e-30)))
        coarse = [
            index
            for index, (found, real) in enumerate(zip(codes, features, strict=True))
            if len(np.unique(found)) < min(_FEW_CODES, len(np.unique(real)) / 2)
        ]
        if coarse:
            listed = ", ".join(map(str, coarse[:_MOST_NAMED]))
            more = f" and {len(coarse) - _MOST_NAMED} more" if len(coarse) > _MOST_NAMED else ""
            warnings.warn(
                f"calibrate: {name}: {len(coarse)} of {len(features)} features ({listed}{more}) "
                f"get fewer than {_FEW_CODES} of 256 codes, because one step serves all of them, "
                f"which range from {lowest:.4g} to {highest:.4g}; standardize them, or put a "
                "Normalization layer in front and set BitPolicy(input_type='float32').",
                stacklevel=3,
            )


def _output_quantizer(node: Node) -> SatQuantizer | None:
    return node.layer.quantize_config.output if isinstance(node.layer, QuantizedLayer) else None


def _is_norm(node: Node) -> bool:
    return isinstance(inner_layer(node.layer), keras.layers.BatchNormalization)


def _arguments(node: Node, on_batch_statistics: bool) -> dict[str, Any]:
    """What to call a layer with: as in inference, but for BatchNormalization where asked."""
    if "training" not in inspect.signature(node.layer.call).parameters:
        return node.arguments
    stays = not _is_norm(node) or node.arguments.get("training") is False
    return {**node.arguments, "training": on_batch_statistics and not stays}
