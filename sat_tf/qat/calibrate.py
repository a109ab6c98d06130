"""Calibration: clipping levels, normalization statistics and output ranges taken from data."""

import contextlib
import dataclasses
import math
import tempfile
from collections.abc import Callable, Collection, Iterator, Sequence
from typing import Any

import numpy as np
import tensorflow as tf
import tf_keras as keras

from sat_tf.core.grid import WIDE_BITS
from sat_tf.either_keras import for_keras3
from sat_tf.graph import layer_kinds
from sat_tf.graph.layers.activations import REACHES
from sat_tf.graph.layers.kind import Role
from sat_tf.graph.layers.normalization import Statistics
from sat_tf.graph.network import Network, Node
from sat_tf.messages import warn
from sat_tf.messages.progress_bar import image_bar
from sat_tf.pictures import CALIBRATION_IMAGES
from sat_tf.qat import wrapper
from sat_tf.qat.images import Batches, Images, gather, images_at_once
from sat_tf.qat.input_range_checks import observe_pixels, warn_of_certainty
from sat_tf.qat.layout import in_inference, inner_layer, is_norm, quantized_network
from sat_tf.qat.model_class import policy_of
from sat_tf.qat.shared_grids import SharedGrids, give_inputs_their_grids
from sat_tf.qat.states import makers_of_states, tie_states
from sat_tf.qat.walk import (
    Parts,
    Sample,
    call_node,
    call_unrounded,
    each_part,
    float_weights,
    one_by_one,
    walk,
)
from sat_tf.quantizers.best_levels import best_observed_range, best_range_of_logits
from sat_tf.quantizers.observers import expected_largest
from sat_tf.quantizers.protocol import CLIPPING_LEVEL
from sat_tf.quantizers.values import SKEW, WITHIN, Function, itself

_FEW_IMAGES = 32
# Mean deviation, in standard deviations, up to which statistics count as those of the images: 64
# values a channel deviate by 0.15 by chance.
STALE = 0.25
# Statistics that fit one network by this factor better than another are its own.
_CLEARLY_BETTER = 0.5
# Mean deviation up to which the effect of rounding on variances is noise, by which dividing the
# signal again and again loses more than it gains. 8 bits move statistics by 0.005 to 0.015 and 4
# bits by 0.03 and more, as they change what weights amplify.
_NOISE_ALONE = 0.02
# The most values of a preprocessed tensor to look at; pixels of three channels give 768.
_MOST_VALUES = 4096
# The most logits of a batch to look at, in whole rows.
_MOST_LOGITS = 2**15
# Levels are tried in these steps, up to half a code at 8 bits, until no value is so near to a tie,
# in codes, that rounding of float32 or of a constant could decide.
_LEVELS_TRIED, _LEVEL_STEP, _FAR_FROM_TIES = 64, 2.0**-14, 2.0**-8
# Samples of all layers, which grow with the batches, go to a file above this many bytes.
_MOST_BYTES_OF_SAMPLES = 2**25


class StaleStatisticsWarning(UserWarning):
    """Statistics of BatchNormalization that are not those of the images were replaced."""


def assign_statistics(
    norms: Sequence[keras.layers.Layer], statistics: Sequence[Statistics]
) -> None:
    """Gives layers these moving statistics."""
    for norm, moving in zip(norms, statistics, strict=True):
        norm.moving_mean.assign(moving.mean)
        norm.moving_variance.assign(moving.variance)


def best_statistics(
    own: Sequence[Statistics], unrounded: Sequence[Statistics], quantized: Sequence[Statistics]
) -> list[Statistics]:
    """Statistics for a quantized network: its own, moved or replaced as `calibrate` says."""
    off = mean_deviation(own, unrounded)
    is_nearer = mean_deviation(own, quantized) >= _CLEARLY_BETTER * off
    if not (off <= STALE and is_nearer):
        return list(quantized)
    if mean_deviation(unrounded, quantized) <= _NOISE_ALONE:
        quantized = [
            dataclasses.replace(end, variance=start.variance)
            for start, end in zip(unrounded, quantized, strict=True)
        ]
    effects = zip(own, unrounded, quantized, strict=True)
    return [prior.moved(start, end) for prior, start, end in effects]


def mean_deviation(own: Sequence[Statistics], measured: Sequence[Statistics]) -> float:
    """How far statistics are from measured ones, in standard deviations; the mean over channels."""
    deviations = [np.ravel(o.deviation(m)) for o, m in zip(own, measured, strict=True)]
    return float(np.mean(np.concatenate(deviations))) if deviations else 0.0


@for_keras3(by="written_back")
def calibrate(
    model: keras.Model,
    dataset: Any,
    *,
    num_images: int = CALIBRATION_IMAGES,
    clipping_levels: bool = True,
    batch_normalization: bool = True,
    keep_function: bool = False,
    progress: bool = True,
) -> keras.Model:
    """Fits a quantized model to data without training it.

    The first pass over the images leaves activations float and sets every clipping level to the one
    with the smallest error, argmin_α E|q(x; α) - x|^p over x and the quantizer's grid, p = 2 up to
    7 bits and 4 at 8 bits; if a function alone reads x, the error is that of its results (see
    `sat_tf.quantizers.best_levels`). Here x is the tensor in inference, with quantized weights and
    moving statistics of BatchNormalization that fit them. The second pass quantizes activations and
    measures the statistics as the mean over batches. The last sets the ranges of outputs, and of
    what float layers read, to what their extremes let expect (`observers.expected_largest`); the
    ranges of logits are those with the smallest error of the softmax. First of all, inputs that are
    not pictures get the range with the smallest squared error, and so do the states of a streaming
    model: one range for what leaves and what enters.
    BatchNormalization that is frozen (trainable=False) or called with training=False keeps its
    moving statistics, and so does all of it with batch_normalization=False.

    Without training, a few batches estimate the statistics worse than the float model has them: a
    hundred images leave every channel some percent off, and at 8 bits that costs more than the
    rounding. Statistics that fit the network before rounding are therefore not replaced, but moved
    by the effect of rounding on these images: means, and variances where that is more than 0.02
    standard deviations, as at 4 bits. Stale ones are replaced, with a warning, because the function
    of the model changes. With keep_function=True, for images that may differ from those that the
    model is for, they are left as they are, with a warning. With clipping_levels=False, as after
    training, all are replaced.

    Args:
        model: a model quantized by sat-tf; it is changed in place, and returned.
        dataset: images (n, h, w, c), or anything that yields batches of images or of (images,
            labels), like a tf.data.Dataset. Use training images. uint8 pixels are scaled to the
            `input_range` of the policy, as for `verify_tflite`; other numbers are what the model is
            fed. For a model with several inputs, the images of a batch are a list or a dictionary,
            as the model is called. Or the path of a folder of pictures, in folders of classes or
            not, with a folder `train` or not: they are resized and cropped to the input, and take
            its range.
        num_images: how many to use at most, the first ones, or of a folder some spread over it; 64
            and more give usable statistics. In memory are the tensors of 64 at once that are still
            read, or of 32 where one of 64 takes more than 128 MiB, and one more copy of the
            kernels; images of a data set or a folder are kept in a temporary file above 64 MiB.
        clipping_levels: set the clipping levels.
        batch_normalization: fit the statistics of BatchNormalization.
        keep_function: leave stale statistics as they are.
        progress: show a bar on a terminal or in a notebook, and elsewhere a line a minute.

    Raises:
        ValueError: the model is not quantized by sat-tf, the images do not fit its input, are
            non-finite or of another range than the model's `input_range`, statistics of
            BatchNormalization tell that it was trained with another one, or an activation is
            non-finite. The model has not changed in that case.
    """
    network = quantized_network(model, when="first")
    images = _gathered(dataset, num_images, network, by="calibrate")
    policy = policy_of(model)
    as_trained = policy is None or policy.latent_start == "keep_function"
    norms = list(_norms(network).values()) if batch_normalization else []
    passes = 4 if clipping_levels and norms else int(clipping_levels or bool(norms))
    inputs, makers = _observing(network, of_inputs=True), makers_of_states(network)
    others = _observing(network, of_inputs=False) - makers
    passes += sum(map(bool, (inputs, makers, others)))
    total = passes * Batches(images).num_images
    with _all_or_nothing(network), contextlib.ExitStack() as stack:
        observe_pixels(images, network, reference=network if as_trained else None)
        warn_of_certainty(network, Batches(images)[0], policy)
        advance = stack.enter_context(image_bar("calibrating", total, shown=progress))
        # Observers that round pass on their inputs until their range is set.
        for layer in (network[name].layer for name in _observing(network, of_inputs=False)):
            if layer.quantize_config.output.rounds:
                layer.quantize_config.output.remember(0.0, 0.0, layer.output_variables, 0)
        stack.enter_context(wrapper.kernels_kept(node.layer for node in network))
        batches = Batches(images, size=images_at_once(network), advance=advance)
        # First of all, because what the first layers read depends on it.
        _observe_best(network, inputs, batches)
        if clipping_levels and norms:
            _fit_both(network, batches, norms, keep_function=keep_function)
        elif clipping_levels:
            _set_clipping_levels(network, batches)
        elif norms:
            measure_statistics(network, batches, call_node)
        _observe_best(network, makers, batches)
        tie_states(network)
        grids = SharedGrids(network)
        observe_ranges(network, batches, grids=grids)
    grids.warn()
    give_inputs_their_grids(network)
    return model


def estimate_statistics(
    model: keras.Model, dataset: Any, *, num_images: int = CALIBRATION_IMAGES
) -> keras.Model:
    """Re-estimates the moving statistics of BatchNormalization, as `calibrate` does.

    They become the mean over batches with the current weights; moving averages still contain the
    weights of earlier steps. The model, float or quantized by sat-tf, is changed in place, and
    returned. `dataset` is as in `calibrate`; at most `num_images` of its images are used, and 64 or
    more give usable statistics.
    """
    network = Network(model)
    network.refuse_problems()
    images = _gathered(dataset, num_images, network, by="estimate_statistics")
    measure_statistics(network, Batches(images, size=images_at_once(network)), call_node)
    return model


def _gathered(dataset: Any, num_images: int, network: Network, *, by: str) -> Images:
    """The images of a data set; warns where they are too few, and names the function `by`."""
    images = gather(dataset, num_images, network)
    if len(images[0]) < _FEW_IMAGES:
        warn(f"{by}: {len(images[0])} images give unreliable statistics; use 64 or more.")
    return images


def _set_clipping_levels(network: Network, batches: Batches) -> None:
    samples: dict[str, Sample] = {}
    preprocessed: dict[str, np.ndarray] = {}
    in_use = in_inference(network)
    multiplies = any(
        layer_kinds.role_of(inner_layer(node.layer)) is Role.MATRIX_PRODUCT for node in in_use
    )
    scores = _scores(in_use) if multiplies else frozenset()
    narrows = any(
        getattr(wrapper.clipping_quantizer(n.layer), "num_bits", 8) == WIDE_BITS for n in in_use
    )

    def sampled(node: Node, input_parts: Iterator[Any]) -> Parts:
        quantizer = wrapper.clipping_quantizer(node.layer)
        if quantizer is None:
            return unrounded(node, input_parts)
        outputs, input_twins = [], []
        for inputs in input_parts:
            if node.layer.place == WITHIN:  # an LSTM, whose cell states are looked at, too
                outputs.append(node.layer.before_quantization(inputs, training=True))
            else:
                outputs.append(call_unrounded(node, inputs))
            if wrapper.rounds_to_input(node.layer):
                input_twins.append(quantizer.float_twin(inputs))
        if node.name not in samples:
            samples[node.name] = Sample(node.name, file, _function_behind(in_use, node))
        tensors = input_twins or outputs
        if node.name in scores:
            tensors = list(map(_told_apart_by_softmax, tensors))
        cut = layer_kinds.function_of(inner_layer(node.layer)).cut
        samples[node.name].take(list(map(cut, tensors)))
        if layer_kinds.role_of(inner_layer(node.layer)) is Role.AFFINE:
            before = preprocessed.get(node.name, np.zeros(0, np.float32))
            values = np.unique(np.concatenate([before, *map(np.ravel, outputs)]))
            preprocessed[node.name] = values[:_MOST_VALUES]
        return one_by_one(outputs)

    unrounded = each_part(call_unrounded)
    for node in network:
        if isinstance(node.layer, wrapper.QuantizedLayer) and node.layer.place == WITHIN:
            node.layer.forget_cells()
    with tempfile.SpooledTemporaryFile(_MOST_BYTES_OF_SAMPLES) as file:
        for images in batches:
            walk(network, images, sampled)
        for name, sample in samples.items():
            if sample.largest > 0.0:
                layer = network[name].layer
                quantizer = layer.quantize_config.output
                best = quantizer.best_range(sample.sampled)
                if quantizer.num_bits == WIDE_BITS:
                    best[CLIPPING_LEVEL] = quantizer.ceiling or _HEADROOM * best[CLIPPING_LEVEL]
                fills_int8 = name in scores or ((multiplies or narrows) and quantizer.num_bits == 8)
                if fills_int8 and best.get(SKEW) == 0.0:
                    best[SKEW] = _TO_THE_END
                for of, value in best.items():
                    variable = layer.output_variables[of]
                    constraint = variable.constraint or tf.identity
                    variable.assign(constraint(tf.constant(value)))
                if 0 < preprocessed.get(name, np.zeros(0)).size < _MOST_VALUES:
                    _leave_ties(layer, preprocessed[name])
    for name, sample in samples.items():
        # A first state of a GRU is a tensor minus itself. Biases after it are multiples of its
        # scale in the file: it gets a fine one, which its kernel still takes.
        first, *others = network[name].inputs
        origin = network.origin(first, lambda node: bool(node.inputs) and node.name not in samples)
        if sample.largest == 0.0 and others == [first] and origin.name in samples:
            level, other = (n.layer.output_variables for n in (network[name], origin))
            if CLIPPING_LEVEL in level:
                level[CLIPPING_LEVEL].assign(other[CLIPPING_LEVEL] / _FINER_ZEROS)


def _leave_ties(layer: Any, values: np.ndarray) -> None:
    """Raises a clipping level a little, to where no value is half way between two codes."""
    # Half of preprocessed pixels, such as x / 255 + 1, may be ties, which Keras and the file round
    # each in its own way.
    level, quantizer = layer.output_variables[CLIPPING_LEVEL], layer.quantize_config.output
    start = float(level.numpy())
    best = start, -1.0
    for step in range(_LEVELS_TRIED):
        level.assign(start * (1.0 + step * _LEVEL_STEP))
        codes = values / np.float64(quantizer.code_range(layer.output_variables).scale)
        distance = float(np.min(np.abs(codes - np.floor(codes) - 0.5)))
        if distance > best[1]:
            best = float(level.numpy()), distance
        if distance > _FAR_FROM_TIES:
            break
    level.assign(best[0])


def _function_behind(in_use: Network, node: Node) -> Function:
    """Finds the elementwise function that alone reads a tensor, or else the identity."""
    readers = [inner_layer(reader.layer) for reader in in_use.consumers(node.name)]
    names = {
        layer_kinds.activation_name(reader) if layer_kinds.is_activation(reader) else "linear"
        for reader in readers
    }
    if len(names) != 1 or not names <= REACHES.keys():
        return itself
    activation = readers[0].activation
    return lambda values: activation(tf.constant(values)).numpy()


def _scores(in_use: Network) -> frozenset[str]:
    """The tensors that nothing but a softmax reads."""
    readers = {node.name: in_use.consumers(node.name) for node in in_use}
    return frozenset(
        name
        for name, of_tensor in readers.items()
        if of_tensor and all(layer_kinds.is_softmax(inner_layer(r.layer)) for r in of_tensor)
    ).difference(in_use.outputs)


# Kernels of differences take scales that are up to 256 times as fine as those of what they read.
_FINER_ZEROS = 64.0
# Ranges of 16 bits are widened by this: products with rounded roots exceed unrounded ones.
_HEADROOM = 1.25
# The skew of symmetric ranges in a model that multiplies matrices. A symmetric range ends one code
# above the lowest of int8, where the file's values end: so do scores that a mask hides, and
# attention would pass a code that differs on to all places of a sequence.
_TO_THE_END = -(2.0**-8)
# A score that is so much below the largest of its row gets a twelfth of a probability's code.
_FAR_BELOW = 8.0
# Below this, float32 does not tell scores apart whose distance is that.
_HIDDEN = -(2.0**26)


def _told_apart_by_softmax(scores: tf.Tensor) -> tf.Tensor:
    """Raises scores, also those that a mask has hidden, to where a softmax still tells them apart.

    A range down to minus infinity would cost the others their resolution, and one without room
    below them would let hidden places through.
    """
    largest = tf.reduce_max(scores, axis=-1, keepdims=True)
    lowest = largest - tf.cast(_FAR_BELOW, scores.dtype)
    # A mask may hide whole rows: then they are nothing but codes that saturate.
    is_hidden = largest < tf.cast(_HIDDEN, scores.dtype)
    of_others = tf.reduce_min(tf.where(is_hidden, scores.dtype.max, lowest))
    of_others = tf.where(tf.reduce_all(is_hidden), tf.zeros_like(of_others), of_others)
    return tf.where(is_hidden, of_others, tf.maximum(scores, lowest))


def _norms(network: Network) -> dict[int, keras.layers.Layer]:
    """The normalizations, each once, by the identity of the layers of the network."""
    return {id(node.layer): inner_layer(node.layer) for node in network if is_norm(node)}


def _fit_both(
    network: Network, batches: Batches, norms: list[keras.layers.Layer], *, keep_function: bool
) -> None:
    """Fits clipping levels, and statistics for the quantized network: see `best_statistics`."""
    original = [Statistics.of(norm) for norm in norms]
    with float_weights(node.layer for node in network):
        unrounded = measure_statistics(network, batches, call_unrounded)
    by_weights = measure_statistics(network, batches, call_unrounded)
    assign_statistics(norms, best_statistics(original, unrounded, by_weights))
    _set_clipping_levels(network, batches)
    quantized = measure_statistics(network, batches, call_node)
    off = min(mean_deviation(original, measured) for measured in (unrounded, quantized))
    if off > STALE and keep_function:
        assign_statistics(norms, original)
        _set_clipping_levels(network, batches)
    received = (
        "calibrate: the statistics of BatchNormalization are not those of these images (off by "
        f"{off:.1g} standard deviations in the mean), and were"
    )
    if off > STALE and keep_function:
        advice = "Give images like those that the model is for, and check how they are scaled."
        warn(f"{received} left as they are. {advice}", StaleStatisticsWarning)
        return
    assign_statistics(norms, best_statistics(original, unrounded, quantized))
    if off > STALE:
        warn(
            f"{received} replaced, which changes the model's function. Train it, or check how the "
            "images are scaled; to keep the function, pass keep_function=True.",
            StaleStatisticsWarning,
        )


def measure_statistics(
    network: Network, batches: Batches, call: Callable[[Node, Any, bool], tf.Tensor]
) -> list[Statistics]:
    """Gives the normalizations the mean over batches of their statistics, which it returns."""
    norms = _norms(network)
    momenta = {key: norm.momentum for key, norm in norms.items()}
    calls = dict.fromkeys(norms, 0)

    def counted(node: Node, input_parts: Iterator[Any]) -> Parts:
        norm = norms.get(id(node.layer))
        is_frozen = node.arguments.get("training") is False
        if norm is not None and norm.trainable and not is_frozen:
            # The moving average is then the mean over batches, and over calls of a shared layer.
            norm.momentum = calls[id(node.layer)] / (calls[id(node.layer)] + 1.0)
            calls[id(node.layer)] += 1
        return (call(node, inputs, True) for inputs in input_parts)

    try:
        for images in batches:
            walk(network, images, counted, whole={n.name for n in network if id(n.layer) in norms})
    finally:
        for key, norm in norms.items():
            norm.momentum = momenta[key]
    return [Statistics.of(norm) for norm in norms.values()]


def _observe_best(network: Network, names: Collection[str], batches: Batches) -> None:
    """Gives the observers of nodes the best range: see `best_levels.best_observed_range`."""
    if not names:
        return
    with tempfile.SpooledTemporaryFile(_MOST_BYTES_OF_SAMPLES) as file:
        samples = {name: Sample(name, file) for name in names}

        def call(node: Node, inputs: Any) -> tf.Tensor:
            if node.name in samples:
                samples[node.name].take([node.layer.before_quantization(inputs)])
            return call_node(node, inputs)

        for images in batches:
            walk(network, images, each_part(call))
        for name, sample in samples.items():
            layer, ends = network[name].layer, (0.0, 0.0)
            observer = layer.quantize_config.output
            if sample.largest > 0.0:
                ends = best_observed_range(sample.sampled, observer.num_bits)
            observer.remember(*ends, layer.output_variables, len(batches))


def observe_ranges(network: Network, batches: Batches, *, grids: SharedGrids | None = None) -> None:
    """Gives the observers after inputs, but for those of states, the range that images let expect.

    A margin would cost the resolution of logits in front of a softmax, and what is beyond the
    largest of them is as certain as they are: see `best_levels.best_range_of_logits`.
    """
    observing = _observing(network, of_inputs=False) - makers_of_states(network)
    if not observing and (grids is None or not grids.holders):
        return
    # Each layer has the negative of the smallest value of every image, and the largest.
    extremes: dict[str, list[np.ndarray]] = {}
    names = {name for name in observing if _is_logits(network, network[name])}
    logits: dict[str, list[np.ndarray]] = {name: [] for name in names}

    def call(node: Node, inputs: Any) -> tf.Tensor:
        layer = node.layer
        if node.name in logits:
            rows = np.array(tf.cast(layer.before_quantization(inputs), tf.float32))
            rows = rows.reshape(-1, rows.shape[-1])
            step = math.ceil(rows.size / _MOST_LOGITS)
            logits[node.name].append(rows[::step])
        elif node.name in observing:
            before = tf.cast(layer.before_quantization(inputs), tf.float32)
            axes = list(range(1, before.shape.rank))
            ends = [tf.reduce_max(-before, axes), tf.reduce_max(before, axes)]
            extremes.setdefault(node.name, []).append(np.array(ends))
        output = call_node(node, inputs)
        if grids is not None:
            grids.look_at(node, inputs, output)
        return output

    for images in batches if observing else [batches[0]]:
        walk(network, images, each_part(call), whole=() if grids is None else grids.holders)
    for name, rows in logits.items():
        layer, ends = network[name].layer, best_range_of_logits(np.concatenate(rows))
        layer.quantize_config.output.remember(*ends, layer.output_variables, len(batches))
    for name, pairs in extremes.items():
        layer = network[name].layer
        readers = [network[name], *network.consumers(name)]
        has_softmax = any(layer_kinds.is_softmax(inner_layer(reader.layer)) for reader in readers)
        end = np.max if has_softmax else expected_largest
        below, highest = (max(float(end(side)), 0.0) for side in np.concatenate(pairs, axis=1))
        ceiling = layer_kinds.rectifier_ceiling(inner_layer(layer))
        if ceiling is not None:
            highest = min(highest, ceiling)
        layer.quantize_config.output.remember(-below, highest, layer.output_variables, len(batches))


@contextlib.contextmanager
def _all_or_nothing(network: Network) -> Iterator[None]:
    """Gives all that a calibration sets its values back where that fails, or is interrupted."""
    layers = [node.layer for node in network if isinstance(node.layer, wrapper.QuantizedLayer)]
    variables = [variable for layer in layers for variable in layer.output_variables.values()]
    for norm in _norms(network).values():
        variables += [norm.moving_mean, norm.moving_variance]
    before = [(variable, variable.numpy()) for variable in variables]
    try:
        yield
    except BaseException:
        for variable, value in before:
            variable.assign(value)
        raise


def _observing(network: Network, *, of_inputs: bool) -> set[str]:
    """The nodes whose range is observed: those of inputs, or all others."""
    return {
        node.name
        for node in network
        if (quantizer := wrapper.output_quantizer(node.layer)) is not None
        and quantizer.observes_range
        and (quantizer.input_type is not None) is of_inputs
    }


def _is_logits(network: Network, node: Node) -> bool:
    """Whether a softmax over the last axis, alone, reads the observed tensor of a layer."""
    layer = inner_layer(node.layer)
    if layer_kinds.is_softmax(layer):
        return layer_kinds.role_of(layer) is Role.LINEAR  # Its own softmax is after the observer.
    readers = [inner_layer(reader.layer) for reader in network.consumers(node.name)]
    are_softmax = all(
        layer_kinds.is_softmax(reader) and getattr(reader, "axis", -1) == -1 for reader in readers
    )
    return bool(readers) and node.name not in network.outputs and are_softmax
