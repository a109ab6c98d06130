"""Calibration: clipping levels, normalization statistics and output ranges taken from data."""

import contextlib
import functools
import os
import pathlib
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import tensorflow as tf
import tf_keras as keras

from sat_tf.arguments import training_argument
from sat_tf.data.folder_tree import TRAIN
from sat_tf.data.picture_folder import load_folder
from sat_tf.graph import layer_kinds
from sat_tf.graph.layers.normalization import Statistics
from sat_tf.graph.network import Network, Node
from sat_tf.messages import list_problems, warn
from sat_tf.presentation.progress_bar import Advance, image_bar
from sat_tf.qat.inputs import input_ranges, kept_inputs
from sat_tf.qat.layout import in_inference, inner_layer, quantized_network
from sat_tf.qat.shared_grids import SharedGrids
from sat_tf.qat.wrapper import (
    QuantizedLayer,
    clipping_quantizer,
    output_quantizer,
    rounds_to_input,
)
from sat_tf.quantizers.best_levels import Sample
from sat_tf.quantizers.input_range import PIXELS
from sat_tf.quantizers.observers import expected_largest
from sat_tf.quantizers.protocol import PixelQuantizer
from sat_tf.quantizers.seen_values import RANGE_FIX, SeenValues, misfit, pixel_doubt
from sat_tf.quantizers.settings import CLIPPING_LEVEL, SMALLEST_CLIPPING_LEVEL
from sat_tf.quantizers.values import Function, itself

# An array for each input.
Images = tuple[np.ndarray, ...]


@contextlib.contextmanager
def float_weights(layers: Iterable[keras.layers.Layer]) -> Iterator[None]:
    """Inside, layers compute with clamped and rescaled weights that are not rounded."""
    configs = [layer.quantize_config for layer in layers if isinstance(layer, QuantizedLayer)]
    quantizers = [config.weights for config in configs]
    try:
        for config, quantizer in zip(configs, quantizers, strict=True):
            config.weights = None if quantizer is None else quantizer.with_settings(num_bits=None)
        yield
    finally:
        for config, quantizer in zip(configs, quantizers, strict=True):
            config.weights = quantizer


# Mean deviation, in standard deviations, up to which statistics count as those of the images: 64
# values a channel deviate by 0.15 by chance.
STALE = 0.25
# Statistics that fit one network by this factor better than another are its own.
_CLEARLY_BETTER = 0.5


class StaleStatisticsWarning(UserWarning):
    """Statistics of BatchNormalization that are not those of the images were replaced."""


def assign_statistics(
    norms: Sequence[keras.layers.Layer], statistics: Sequence[Statistics]
) -> None:
    """Gives layers these moving statistics."""
    for norm, own in zip(norms, statistics, strict=True):
        norm.moving_mean.assign(own.mean)
        norm.moving_variance.assign(own.variance)


def best_statistics(
    own: Sequence[Statistics], unrounded: Sequence[Statistics], quantized: Sequence[Statistics]
) -> list[Statistics]:
    """Statistics for a quantized network, from its own and two measured on the same images.

    If its own are those of the network before rounding, as after `quantize_model`, they cover more
    images than were measured now: they are moved by the effect of rounding on the measured ones.
    Otherwise, if it has been trained quantized or they are stale, the measured ones are taken.

    Args:
        own: of the layers.
        unrounded: measured with neither weights nor activations rounded.
        quantized: measured with both.
    """
    from_unrounded, from_quantized = (
        mean_deviation(own, measured) for measured in (unrounded, quantized)
    )
    if from_unrounded > STALE or from_quantized < _CLEARLY_BETTER * from_unrounded:
        return list(quantized)
    return [
        one.moved(start, end) for one, start, end in zip(own, unrounded, quantized, strict=True)
    ]


def mean_deviation(own: Sequence[Statistics], measured: Sequence[Statistics]) -> float:
    """How far statistics are from measured ones, in standard deviations; the mean over channels."""
    deviations = [np.ravel(o.deviation(m)) for o, m in zip(own, measured, strict=True)]
    return float(np.mean(np.concatenate(deviations))) if deviations else 0.0


def calibrate(
    model: keras.Model,
    dataset: Any,
    *,
    num_images: int = 512,
    clipping_levels: bool = True,
    batch_normalization: bool = True,
    keep_function: bool = False,
    progress: bool = True,
) -> keras.Model:
    """Fits a quantized model to data without training it.

    The first pass over the images leaves activations float and sets every clipping level to the one
    with the smallest error, argmin_α E|q(x; α) - x|^p over x and the quantizer's grid, p = 2 up to
    7 bits and 4 at 8 bits, measured behind a function if that alone reads x (see
    `sat_tf.quantizers.best_levels`). Here x is the tensor in inference, with quantized weights and
    moving statistics of BatchNormalization that fit them. The second pass quantizes activations and
    measures the statistics as the mean over batches. The last sets the ranges of outputs, and of
    what float layers read, to what their extremes let expect (`observers.expected_largest`).
    BatchNormalization that is frozen (trainable=False) or called with training=False keeps its
    moving statistics, and so does all of it with batch_normalization=False.

    Without training, a few batches estimate the statistics worse than the float model has them: a
    hundred images leave every channel some percent off, and at 8 bits that costs more than the
    rounding. Statistics that fit the network before rounding are therefore not replaced, but moved
    by the effect of rounding on these images. Stale ones are replaced, with a warning, because the
    function of the model changes; or left as they are, with a warning, by keep_function=True, for
    images that need not be those that the model is for. With clipping_levels=False, as after
    training, all are replaced.

    Args:
        model: a model quantized by sat-tf; it is changed in place.
        dataset: images (n, h, w, c), or anything that yields batches of images or of (images,
            labels), like a tf.data.Dataset. Use training images. For a model with several inputs,
            the images of a batch are a list or a dictionary, as the model is called. Or the path of
            a folder of pictures, in folders of classes or not, with a folder `train` or not: they
            are scaled and cropped to the input, and take its range.
        num_images: how many to use at most, the first ones, or of a folder some spread over it; 64
            and more give usable statistics.
        clipping_levels: set the clipping levels.
        batch_normalization: fit the statistics of BatchNormalization.
        keep_function: leave stale statistics as they are.
        progress: show a bar if it takes more than two seconds, on a terminal or in a notebook.

    Returns:
        The model itself.

    Raises:
        ValueError: the model is not quantized by sat-tf, the images do not fit its input, are
            non-finite or of another range than the model's `input_range`, or an activation is
            non-finite. The model has not changed in that case.
    """
    network = quantized_network(model, when="first")
    images = gather(dataset, num_images, network)
    batches: Collection[Images] = in_batches(images)
    observe_pixels(images, network, len(batches))
    norms = list(_norms(network).values()) if batch_normalization else []
    passes = _PASSES[clipping_levels, bool(norms)]
    passes += sum(bool(_observing(network, of_inputs=of_inputs)) for of_inputs in (True, False))
    total = passes * sum(len(batch[0]) for batch in batches)
    with image_bar("calibrating", total, shown=progress) as advance:
        (first, *_), batches = batches, _Counted(batches, advance)
        # First of all, because what the first layers read depends on it.
        observe_ranges(network, batches, of_inputs=True)
        if clipping_levels and norms:
            _fit_both(network, batches, norms, keep_function=keep_function)
        elif clipping_levels:
            _set_clipping_levels(network, batches)
        elif norms:
            measure_statistics(network, batches, call_node)
        observe_ranges(network, batches, of_inputs=False)
    grids = SharedGrids(network)
    _run(network, first, grids.watched(functools.partial(call_node, on_batch_statistics=False)))
    grids.warn()
    return model


# How often the images are run through the network, by whether clipping levels and statistics are
# fitted.
_PASSES = {(True, True): 4, (True, False): 1, (False, True): 1, (False, False): 0}


class _Counted(list[Images]):
    """Batches that advance a bar whenever one of them has been run."""

    def __init__(self, batches: Iterable[Images], advance: Advance) -> None:
        super().__init__(batches)
        self._advance = advance

    def __iter__(self) -> Iterator[Images]:
        for images in super().__iter__():
            yield images
            self._advance(len(images[0]))


def estimate_statistics(model: keras.Model, dataset: Any, *, num_images: int = 512) -> keras.Model:
    """Re-estimates the moving statistics of BatchNormalization, as `calibrate` does.

    They become the mean over batches with the current weights; moving averages still contain the
    weights of earlier steps.

    Args:
        model: a float model, or one quantized by sat-tf; it is changed in place.
        dataset: as in `calibrate`.
        num_images: how many to use at most; 64 and more give usable statistics.

    Returns:
        The model itself.

    Raises:
        ValueError: the model is not a graph of calls, or the images do not fit its input.
    """
    network = Network(model)
    network.refuse_problems()
    measure_statistics(network, in_batches(gather(dataset, num_images, network)), call_node)
    return model


def _run(
    network: Network,
    images: Images,
    call: Callable[[Node, Any], tf.Tensor],
) -> None:
    """Runs the model layer by layer, each by `call(node, inputs)`."""
    kept = kept_inputs(network)
    tensors: dict[str, Any] = {
        name: tf.cast(array, network[name].type if name in kept else tf.float32)
        for name, array in zip(network.inputs, images, strict=True)
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


def _set_clipping_levels(network: Network, batches: Collection[Images]) -> None:
    samples: dict[str, Sample] = {}
    in_use = in_inference(network)

    def call(node: Node, inputs: Any) -> tf.Tensor:
        tensor = _call_unrounded(node, inputs, on_batch_statistics=False)
        quantizer = clipping_quantizer(node.layer)
        if quantizer is not None:
            if node.name not in samples:
                samples[node.name] = Sample(node.name, _function_behind(in_use, node))
            around = rounds_to_input(node.layer)
            samples[node.name].take(quantizer.float_twin(inputs) if around else tensor)
        return tensor

    for images in batches:
        _run(network, images, call)
    for name, sample in samples.items():
        if sample.largest > 0.0:
            layer = network[name].layer
            level = sample.best_level(layer.quantize_config.output)
            layer.output_variables[CLIPPING_LEVEL].assign(max(level, SMALLEST_CLIPPING_LEVEL))


def _function_behind(in_use: Network, node: Node) -> Function:
    """Finds the elementwise function that alone reads a tensor, or else the identity."""
    readers = [inner_layer(reader.layer) for reader in in_use.consumers(node.name)]
    names = {
        layer_kinds.activation_name(reader) if layer_kinds.is_activation(reader) else "linear"
        for reader in readers
    }
    if len(names) != 1 or not layer_kinds.is_known_function(*names):
        return itself
    activation = readers[0].activation
    return lambda values: activation(tf.constant(values)).numpy()


def call_node(node: Node, inputs: Any, on_batch_statistics: bool) -> tf.Tensor:
    """The output of a layer in inference, where asked for with the statistics of this batch."""
    return node.layer(inputs, **_arguments(node, on_batch_statistics))


def _call_unrounded(node: Node, inputs: Any, on_batch_statistics: bool) -> tf.Tensor:
    """The output of a layer before it is clipped and rounded."""
    layer = node.layer
    arguments = _arguments(node, on_batch_statistics)
    if not isinstance(layer, QuantizedLayer):
        return layer(inputs, **arguments)
    before = layer.before_quantization(inputs, arguments.get("training", False))
    quantizer = clipping_quantizer(layer)
    return before if quantizer is None else quantizer.float_twin(before)


def _norms(network: Network) -> dict[int, keras.layers.Layer]:
    """The normalizations, each once, by the identity of the layers of the network."""
    return {id(node.layer): inner_layer(node.layer) for node in network if _is_norm(node)}


def _fit_both(
    network: Network,
    batches: Collection[Images],
    norms: list[keras.layers.Layer],
    *,
    keep_function: bool,
) -> None:
    """Clipping levels, and statistics for the quantized network: see `best_statistics`."""
    own = [Statistics.of(norm) for norm in norms]
    try:
        with float_weights(node.layer for node in network):
            unrounded = measure_statistics(network, batches, _call_unrounded)
        by_weights = measure_statistics(network, batches, _call_unrounded)
        assign_statistics(norms, best_statistics(own, unrounded, by_weights))
        _set_clipping_levels(network, batches)
        quantized = measure_statistics(network, batches, call_node)
        off = min(mean_deviation(own, measured) for measured in (unrounded, quantized))
        if off > STALE and keep_function:
            assign_statistics(norms, own)
            _set_clipping_levels(network, batches)
    except BaseException:  # also an interruption
        assign_statistics(norms, own)
        raise
    received = (
        "calibrate: the statistics of BatchNormalization are not those of these images (off by "
        f"{off:.1g} standard deviations in the mean), and were"
    )
    if off <= STALE:
        assign_statistics(norms, best_statistics(own, unrounded, quantized))
    elif keep_function:
        advice = "Give images like those that the model is for, and check how they are scaled."
        warn(f"{received} left as they are. {advice}", StaleStatisticsWarning)
    else:
        assign_statistics(norms, best_statistics(own, unrounded, quantized))
        warn(
            f"{received} replaced, which changes the model's function. Train it, or check how the "
            "images are scaled; to keep the function, pass keep_function=True.",
            StaleStatisticsWarning,
        )


def measure_statistics(
    network: Network, batches: Collection[Images], call: Callable[[Node, Any, bool], tf.Tensor]
) -> list[Statistics]:
    """Gives the normalizations the mean over batches of their statistics, which it returns."""
    norms = _norms(network)
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
    return [Statistics.of(norm) for norm in norms.values()]


def observe_ranges(network: Network, batches: Collection[Images], *, of_inputs: bool) -> None:
    """Gives the observers of inputs, or all others, the range that all images let expect."""
    observing = _observing(network, of_inputs=of_inputs)
    if not observing:
        return
    # Each has the negative of the smallest value of every image, and the largest.
    extremes: dict[str, list[np.ndarray]] = {}

    def call(node: Node, inputs: Any) -> tf.Tensor:
        layer = node.layer
        if node.name in observing:
            before = tf.cast(layer.before_quantization(inputs), tf.float32)
            axes = list(range(1, before.shape.rank))
            ends = [tf.reduce_max(-before, axes), tf.reduce_max(before, axes)]
            extremes.setdefault(node.name, []).append(np.array(ends))
        return layer(inputs, **_arguments(node, on_batch_statistics=False))

    for images in batches:
        _run(network, images, call)
    for name, found in extremes.items():
        layer = network[name].layer
        below, highest = map(expected_largest, np.concatenate(found, axis=1))
        ceiling = layer_kinds.rectifier_ceiling(inner_layer(layer))
        if ceiling is not None:
            highest = min(highest, ceiling)
        layer.quantize_config.output.remember(-below, highest, layer.output_variables, len(batches))


def _observing(network: Network, *, of_inputs: bool) -> set[str]:
    """The nodes whose range is observed: those of inputs, or all others."""
    quantizers = {node.name: output_quantizer(node.layer) for node in network}
    return {
        name
        for name, quantizer in quantizers.items()
        if quantizer is not None
        and quantizer.observes_range
        and (quantizer.input_type is not None) is of_inputs
    }


def _is_norm(node: Node) -> bool:
    return layer_kinds.is_batch_normalization(inner_layer(node.layer))


def _arguments(node: Node, on_batch_statistics: bool) -> dict[str, Any]:
    """The arguments of a call: as in inference, except BatchNormalization if asked for."""
    stays = not _is_norm(node) or node.arguments.get("training") is False
    training = on_batch_statistics and not stays
    return {**node.arguments, **training_argument(node.layer.call, training)}


# -- the images ------------------------------------------------------------------------------------

_BATCH_SIZE = 64
_FEW_IMAGES = 32


def in_batches(images: Images) -> list[Images]:
    """Batches of up to 64 images; a last one of less than half is left out."""
    count = len(images[0])
    starts = list(range(0, count, _BATCH_SIZE))
    if len(starts) > 1 and count - starts[-1] < _BATCH_SIZE // 2:
        del starts[-1]
    ends = [*starts[1:], count]
    return [
        tuple(array[start:end] for array in images) for start, end in zip(starts, ends, strict=True)
    ]


def gather(dataset: Any, num_images: int, network: Network) -> Images:
    """The images of a data set, at most `num_images`, an array for each input.

    Raises:
        ValueError: there are none, they do not fit the model's inputs, or values are non-finite.
    """
    if isinstance(dataset, str | os.PathLike):
        dataset = _pictures(pathlib.Path(dataset), num_images, network)
    if isinstance(dataset, np.ndarray | tf.Tensor | tuple | Mapping) or _is_list_of_inputs(
        dataset, network
    ):
        dataset = [dataset]  # one batch, of images or of (images, labels)
    if isinstance(num_images, bool) or not isinstance(num_images, int) or num_images < 1:
        raise ValueError(f"num_images={num_images!r}: expected an integer of at least 1.")
    if not isinstance(dataset, Iterable):
        raise ValueError(
            f"dataset: received {type(dataset).__name__}, expected images (n, h, w, c) or batches "
            "of them; pass an array, a tf.data.Dataset, or the path of a folder of pictures."
        )
    found: list[Images] = []
    count = 0
    for element in dataset:
        batch = _checked_batch(element, network)
        found.append(tuple(array[: num_images - count] for array in batch))
        count += len(found[-1][0])
        if count >= num_images:
            break
    if not count:
        raise ValueError("dataset: received no images, expected 64 or more.")
    if count < _FEW_IMAGES:
        warn(f"calibrate: {count} images give unreliable statistics; use 64 or more.")
    return tuple(np.concatenate(arrays) for arrays in zip(*found, strict=True))


def _pictures(path: pathlib.Path, num_images: int, network: Network) -> np.ndarray:
    """Pictures of a folder, spread evenly over it, as a model with one input is fed."""
    if len(network.inputs) > 1:
        raise ValueError(
            f"dataset: received the folder {path} for a model with {len(network.inputs)} inputs, "
            "expected images for each of them; pass a list or a dictionary of arrays."
        )
    (name,) = network.inputs
    shape = network[name].shape
    sizes = tuple(size for size in shape if size is not None)
    if len(sizes) < len(shape):
        raise ValueError(
            f"dataset: received the folder {path} for a model of images of any size, expected one "
            f"of a fixed size, not {shape}; pass an array (n, rows, columns, channels)."
        )
    train = path.expanduser() / TRAIN
    found = load_folder(train if train.is_dir() else train.parent, sizes, most=num_images)
    return input_ranges(network).get(name, PIXELS).fed(found.images)


def _is_list_of_inputs(dataset: Any, network: Network) -> bool:
    """Whether it is one batch of a model with several inputs."""
    return (
        isinstance(dataset, list)
        and len(dataset) == len(network.inputs) > 1
        and all(isinstance(array, np.ndarray | tf.Tensor) for array in dataset)
    )


def _checked_batch(element: Any, network: Network) -> Images:
    """The images of one batch, for each input."""
    several = len(network.inputs) > 1
    # Batches are those of Keras: (images, labels), and a list or a dictionary of images.
    if isinstance(element, tuple) or (isinstance(element, list) and not several):
        element = element[0]
    is_named = isinstance(element, Mapping)
    given = network.in_order(element) if several or is_named else [element]
    arrays = [np.asarray(array) for array in given]
    for name, array in zip(network.inputs, arrays, strict=True):
        shape, where = network[name].shape, f" for {name}" if several else ""
        fits = array.ndim == len(shape) + 1 and all(
            wanted in (None, got) for wanted, got in zip(shape, array.shape[1:], strict=True)
        )
        if not fits:
            raise ValueError(
                f"dataset: received a batch of shape {array.shape}{where}, expected (n, "
                f"{', '.join(str(size) for size in shape)}); batch and resize the images first."
            )
        if not np.all(np.isfinite(array)):
            raise ValueError(
                f"dataset: received images with NaN or infinite values{where}, expected finite "
                "ones; check how they are read and scaled."
            )
    if len({len(array) for array in arrays}) > 1:
        counts = ", ".join(str(len(array)) for array in arrays)
        raise ValueError(f"dataset: received {counts} images, expected as many for each input.")
    return tuple(arrays)


def observe_pixels(
    several: Images, network: Network, batches: int, *, by: str = "calibrate"
) -> None:
    """Checks that images have the values of the model's input range, and records them.

    Args:
        several: the images.
        network: a model quantized by sat-tf, or a float one, for which nothing is done.
        batches: the number of batches.
        by: the name of the function that was given them, for messages.

    Raises:
        ValueError: these images, or those of the training before, certainly have other values;
            lists every input. Nothing has changed in that case.
    """
    found, problems = [], []
    for node in network:
        quantizer = output_quantizer(node.layer)
        if not isinstance(quantizer, PixelQuantizer):
            continue
        (name,) = node.inputs
        seen = SeenValues.of(several[network.inputs.index(name)], quantizer.range)
        trained_on = quantizer.seen(node.layer.output_variables)
        for when, one in (("", seen), ("the training before on ", trained_on)):
            problem = misfit(one, quantizer.range) if one else None
            if problem:
                problems.append(f"{name}: received {when}{problem}; {RANGE_FIX}.")
        found.append((name, node.layer, seen))
    if problems:
        raise ValueError(list_problems(by, problems))
    for name, layer, seen in found:
        quantizer = layer.quantize_config.output
        doubt = pixel_doubt(seen, quantizer.range)
        if doubt:
            warn(f"{by}: {name}: {doubt}.")
        quantizer.remember(seen, layer.output_variables, batches)
