"""Checks that a model is fed values of the range that it was trained on.

Nothing in a graph says what it was trained on. Three signs tell.

Layers at its entrance that convert pixels, such as Rescaling(1 / 255), leave next to nothing of
values from 0 to 1, or make hundreds of pixels.

A classifier that gives every image one class with a probability of 1, to the last bit of float32,
is fed values hundreds of times too large, if it tells the classes apart on smaller ones: training
by cross-entropy has no gradient that would take it there.

The first normalizations of a network remember what the model was trained on: their means and
variances are those of the pixels after a convolution or two. Images in the range of the training
have them again, and those of another usual range are several standard deviations off. They are
asked before a calibration estimates them anew, which would make them fit any range. After n steps a
moving average of momentum μ still has the share μ^n of its first value: statistics that some n
explains are not off. Images of another domain move means and variances as well, but not so that
another usual range fits all channels.
"""

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from sat_tf.exact.tflite.input_range import NAMED, PIXELS, InputRange
from sat_tf.graph import layer_kinds
from sat_tf.graph.layers.kind import Role
from sat_tf.graph.layers.normalization import Statistics
from sat_tf.graph.network import Network, Node
from sat_tf.messages import ProblemsError, first_ones, warn
from sat_tf.pictures import spread_evenly
from sat_tf.qat.images import Batch, Batches, Images
from sat_tf.qat.inputs import input_ranges, kept_inputs
from sat_tf.qat.layout import inner_layer
from sat_tf.qat.policy import BitPolicy
from sat_tf.qat.requantize import as_fed
from sat_tf.qat.walk import call_unrounded, each_part, float_weights, walk
from sat_tf.qat.wrapper import output_quantizer
from sat_tf.quantizers.protocol import PixelQuantizer
from sat_tf.quantizers.seen_values import (
    ON_AVERAGE,
    RANGE_FIX,
    STATISTICS,
    USUAL,
    SeenValues,
    each_its_own,
    fitting,
    fitting_range,
    has_channels,
    misfit,
    pixel_doubt,
)

# -- what the graph and the answers tell ----------------------------------------------------------

_COMPARED = (PIXELS, InputRange((0.0,), (1.0,)), NAMED["tf"])
# How far apart the pixels 0 and 255 may be after the layers that convert them. To subtract a mean
# leaves 255; Normalization makes 2 to 25, or 100 of pictures without contrast.
_LEAST_SPAN, _MOST_SPAN = 0.1, 500.0

# A class is certain if its logit leads by this: logarithms of probabilities differ by 87 at most,
# where float32 ends. In a trained classifier the lead of the median image is between the other two.
_CERTAIN, _TOLD_APART = 69.0, (1.5, 30.0)
_TINY = float(np.finfo(np.float32).tiny)
# The most images to judge, and the percentage of them that need not be certain.
_MOST_JUDGED, _OTHERS = 64, 10.0
# Rival ranges make values at least this many times smaller.
_FACTOR = 50.0


def conversion_doubt(network: Network, node: Node, fed: InputRange) -> str | None:
    """Says that a model's own layers convert other values than it is fed; None if they do not."""
    entrance = _converted(network, node)
    if entrance is None:
        return None
    layer, span = inner_layer(entrance[0].layer).name, _span(entrance, node, fed)
    if span is None or _LEAST_SPAN <= span <= _MOST_SPAN:
        return None
    spans = {choice: _span(entrance, node, choice) or 0.0 for choice in _COMPARED}
    fits = [choice for choice, width in spans.items() if _LEAST_SPAN <= width <= _MOST_SPAN]
    advice = f"input_range={fits[0]} fits that layer" if fits else "check that layer"
    return (
        f"the model's own layer {layer} makes values that lie {span:.3g} apart of "
        f"input_range={fed}, which seems not to be what it was made for: {advice}"
    )


def converting_layer(network: Network, node: Node, fed: InputRange) -> str | None:
    """Returns the name of the model's own layer that converts pixels, and was made for a range."""
    entrance = _converted(network, node)
    if entrance is None or conversion_doubt(network, node, fed) is not None:
        return None
    return str(inner_layer(entrance[0].layer).name)


def _converted(network: Network, node: Node) -> list[Node] | None:
    """The layers after an input that convert it one after the other; None where none do."""
    converters: list[Node] = []
    while True:
        readers = network.consumers(node.name)
        if len(readers) != 1:
            break
        (node,) = readers
        layer = inner_layer(node.layer)
        if layer_kinds.role_of(layer) in (Role.AFFINE, Role.SCALING):
            converters.append(node)
        elif not layer_kinds.is_identity(layer, node.arguments):
            break
    return converters or None


def _span(layers: list[Node], node: Node, fed: InputRange) -> float | None:
    """How far the ends of a range are apart after layers, on the widest channel."""
    shape = tuple(size or 1 for size in node.shape)
    if fed.channels not in (None, shape[-1] if shape else None):
        return None
    ends = np.stack([np.broadcast_to(end, shape) for end in (fed.low, fed.high)])
    values: Any = tf.constant(ends, tf.float32)
    for converter in layers:
        values = inner_layer(converter.layer)(values)
    low, high = tf.cast(values, tf.float32).numpy()
    return float(np.max(np.abs(high - low)))


def warn_of_certainty(network: Network, images: Batch, policy: BitPolicy | None) -> None:
    """Warns where a classifier is as certain as float32 allows, and not in another range."""
    ranges = input_ranges(network)
    if len(network.inputs) != 1 or network.inputs[0] not in ranges:
        return
    (name,) = network.inputs
    is_stated = policy is not None and policy.states_range_of(name)
    with float_weights(node.layer for node in network):
        doubt = certainty_doubt(network, images[0], ranges[name], is_stated=is_stated)
    if doubt is not None:
        warn(f"calibrate: {name}: {doubt}.")


def certainty_doubt(
    network: Network, images: np.ndarray, fed: InputRange, *, is_stated: bool
) -> str | None:
    """Says that a classifier is as certain as float32 allows, and not in another range; or None.

    Where the policy does not state the range, linear outputs are taken for logits too, which
    nothing tells from coordinates.
    """
    readers = {name: _leads_of(network, name, is_stated=is_stated) for name in network.outputs}
    rivals = [rival for rival in _COMPARED if _FACTOR * np.max(rival.scales) <= np.min(fed.scales)]
    images = images[:_MOST_JUDGED].astype(np.float32)
    if not rivals or not any(readers.values()):
        return None
    outputs = _unrounded_outputs(network, images)
    certain = {
        name: gaps
        for name, gaps in readers.items()
        if gaps is not None and np.percentile(gaps(outputs[name]), _OTHERS) >= _CERTAIN
    }
    if not certain:
        return None
    pixels = (images - np.asarray(fed.low)) / fed.scales
    if fed.reversed_channels:
        pixels = pixels[..., ::-1]
    for rival in rivals:
        outputs = _unrounded_outputs(network, rival.fed(pixels))
        apart = [float(np.median(gaps(outputs[name]))) for name, gaps in certain.items()]
        if any(_TOLD_APART[0] <= gap <= _TOLD_APART[1] for gap in apart):
            return (
                f"fed input_range={fed}, the model is as certain of a class as float32 allows, for "
                f"nine in ten images, and fed input_range={rival} it is not. It may have been "
                "trained on that: then give quantize_model a BitPolicy with it, and calibrate with "
                f"such images. If it was trained on {fed}, all is well"
                + ("" if is_stated else f", and BitPolicy(input_range={fed}) says so")
            )
    return None


def _unrounded_outputs(network: Network, images: np.ndarray) -> dict[str, np.ndarray]:
    outputs: dict[str, list[np.ndarray]] = {name: [] for name in network.outputs}

    def compute(node: Node, inputs: Any) -> tf.Tensor:
        tensor = call_unrounded(node, inputs)
        if node.name in outputs:
            outputs[node.name].append(tensor.numpy())
        return tensor

    walk(network, (images,), each_part(compute))
    return {name: np.concatenate(arrays) for name, arrays in outputs.items()}


def _leads_of(
    network: Network, name: str, *, is_stated: bool
) -> Callable[[np.ndarray], np.ndarray] | None:
    """The function that gives, from an output, the lead of a class for each image; or None."""
    maker = network.origin(
        name, lambda node: layer_kinds.role_of(inner_layer(node.layer)).keeps_codes
    )
    layer, size = inner_layer(maker.layer), (network[name].shape or (None,))[-1]
    config = getattr(maker.layer, "quantize_config", None)
    # A quantizer that stands in for a function reads, and gives here, what is in front of it.
    is_before = config is not None and config.output and config.stands_at_activation(layer)
    function = layer_kinds.activation_name(layer)
    if layer_kinds.is_softmax(layer):
        return _leads if is_before else lambda shares: _leads(_logarithms(shares))
    if function == "sigmoid" and size == 1:
        if is_before:
            return lambda logit: _leads(np.concatenate([logit, np.zeros_like(logit)], axis=-1))
        return lambda share: _leads(_logarithms(np.concatenate([share, 1.0 - share], axis=-1)))
    if function == "linear" and not is_stated and size is not None and size > 1:
        return _leads
    return None


def _logarithms(shares: np.ndarray) -> np.ndarray:
    return np.asarray(np.log(np.maximum(shares, _TINY)))


def _leads(logits: np.ndarray) -> np.ndarray:
    """The lead of the largest logit, in the mean over the rows of each image."""
    ordered = np.sort(logits.reshape(len(logits), -1, logits.shape[-1]), axis=-1)
    return np.asarray(np.mean(ordered[..., -1] - ordered[..., -2], axis=1))


# -- what statistics tell --------------------------------------------------------------------------

# The most and the fewest images to look at, and the bytes of a tensor above which there are fewer.
_MOST_IMAGES, _FEWEST_IMAGES, _MOST_BYTES = 64, 16, 2**27
# The images that are computed at once, which stay in the caches of a processor.
_AT_ONCE = 8
# How far off statistics are is the mean over channels of `Statistics.deviation`, each up to 3, so
# that no single one decides. By it, a range is far off above the first; at twice the scale of the
# right one every channel is off by 0.69. Another one fits clearly up to the second, and if it is so
# many times nearer.
_MOST_OFF = 3.0
_FAR, _FITS, _TIMES_NEARER = 0.6, 0.6, 3.0
# A range is the only one that fits where all others are off by this, and by this factor farther.
_UNLIKE, _TIMES_FARTHER = 0.3, 2.0
# A range that is off by this, or more, is doubtful where another one fits.
_DOUBTFUL = 0.25
# Scales that differ by less are the same, and ranges alike whose ends differ by so little of them.
_SAME_SCALE, _ALIKE = 1.5, 0.1
# Ranges that are no more than this farther off than the nearest, or by this factor, fit as well.
_BY_CHANCE, _AS_WELL = 0.03, 1.5
# Channels that are off by the same in all ranges, as dead ones are, say nothing.
_SAME = 0.1
# The steps after which nothing is left of the first value of averages, and how many are tried.
_MOST_STEPS, _TRIED_STEPS = 2**14, 40


@dataclasses.dataclass(frozen=True)
class RangeStatistics:
    """How far statistics of BatchNormalization are from those of images in some ranges."""

    given: InputRange  # The range that the model is fed.
    layers: tuple[str, ...]  # The normalizations, the first ones of the network.
    # How far the statistics are from those in each usual range and the given one, in standard
    # deviations: the mean over channels, of which each counts up to 3.
    off: dict[InputRange, float]
    off_start: float  # How far the statistics are from those of a layer that was never trained.

    @property
    def fitting(self) -> InputRange | None:
        """The range, of another scale, that fits where the given one certainly does not."""
        return self._clear(lambda input_range: not self._has_same_scale(input_range), _FAR)

    @property
    def doubt(self) -> str | None:
        """The doubt about the given range, in words; None where there is no doubt."""
        rival = self._clear(lambda input_range: True, _DOUBTFUL)
        if rival is None or self.fitting is not None:
            return None
        return (
            f"of the usual ranges, {rival} fits the model better than input_range={self.given}, by "
            f"{self}; or these images are brighter or darker than those of the training"
        )

    @property
    def likely(self) -> str:
        """The range that fits, and those that fit nearly as well, in words."""
        near = sorted(self.off.items(), key=lambda pair: pair[1])
        near = [pair for pair in near if not self._has_same_scale(pair[0])]
        limit = max(_AS_WELL * near[0][1], near[0][1] + _BY_CHANCE)
        return " or ".join(str(input_range) for input_range, off in near if off <= limit)

    def _has_same_scale(self, input_range: InputRange) -> bool:
        ratio = np.mean(input_range.scales) / np.mean(self.given.scales)
        return bool(1.0 / _SAME_SCALE < ratio < _SAME_SCALE)

    def _clear(self, is_meant: Callable[[InputRange], bool], far: float) -> InputRange | None:
        """The nearest of some ranges, where it clearly fits and the given one is so far off."""
        own_off = self.off[self.given]
        rivals = [rival for rival in self.off if is_meant(rival) and not _alike(rival, self.given)]
        best = min(rivals, key=self.off.__getitem__, default=None)
        limit = min(_FITS, own_off / _TIMES_NEARER, self.off_start / _TIMES_NEARER)
        return best if best is not None and own_off >= far and self.off[best] <= limit else None

    @property
    def best(self) -> "RangeStatistics | None":
        """The statistics with the only range that fits as the given one; otherwise None."""
        nearest = min(self.off, key=self.off.__getitem__)
        statistics = dataclasses.replace(self, given=nearest)
        return statistics if statistics.decides else None

    @property
    def decides(self) -> bool:
        """Whether the given range fits, and no other one does."""
        own_off = self.off[self.given]
        offs = [off for rival, off in self.off.items() if not _alike(rival, self.given)]
        offs.append(self.off_start)
        return own_off < _FAR and all(off >= max(_UNLIKE, _TIMES_FARTHER * own_off) for off in offs)

    @property
    def problem(self) -> str:
        """The problem with the given range, in words, where another one fits."""
        fitting = self.fitting or self.given
        return (
            f"received a model that is fed input_range={self.given}, expected the range that it "
            f"was trained with, which is {self.likely} by {self}. Quantize the float model with "
            f"BitPolicy(input_range={fitting}), and give uint8 pixels, which are scaled for you, "
            f"or {fitting.scaling}"
        )

    def __str__(self) -> str:
        near = sorted(self.off.items(), key=lambda pair: (pair[0] != self.given, pair[1]))[:2]
        phrases = []
        for input_range, off in near:
            is_far = off >= 0.95 * _MOST_OFF
            words = "3 standard deviations or more" if is_far else f"{off:.2g} standard deviations"
            phrases.append(f"{words} off with {input_range}")
        return f"{STATISTICS} ({first_ones(self.layers, 3)}), which are {', '.join(phrases)}"


def _alike(left: InputRange, right: InputRange) -> bool:
    """Whether two ranges are one to pictures, in which the order of channels hardly shows."""
    size = max(len(left.low), len(right.low))
    ends = [np.sort(np.broadcast_to(v, size)) for r in (left, right) for v in (r.low, r.high)]
    width = np.max(ends[1] - ends[0])
    return bool(np.max(np.abs(np.subtract(ends[:2], ends[2:]))) <= _ALIKE * width)


def first_norms(network: Network, name: str) -> list[Node]:
    """The normalizations after an input that have no other one in front, and moving statistics."""
    norms: list[Node] = []
    for node in network:
        layer = inner_layer(node.layer)
        if not layer_kinds.is_batch_normalization(layer) or node.arguments.get("training"):
            continue
        before = network.before(node.name)
        is_first = not any(
            layer_kinds.is_batch_normalization(inner_layer(network[producer].layer))
            for producer in before
        )
        mean, variance = (v.numpy() for v in (layer.moving_mean, layer.moving_variance))
        is_trained = np.any(mean != 0.0) or np.any(variance != 1.0)
        if name in before and is_first and is_trained and np.all(np.isfinite([mean, variance])):
            norms.append(node)
    return norms


def range_statistics(
    network: Network, images: Sequence[Any], place: int, given: InputRange
) -> RangeStatistics | None:
    """Compares statistics of BatchNormalization with those of images in the usual ranges.

    The first layers of the network fold no large shift, with which they would pad instead of 0.
    `place` is that of an input, fed in the `given` range. It is None where nothing tells.
    """
    name = network.inputs[place]
    norms = first_norms(network, name)
    if not norms:
        return None
    needed = {name for norm in norms for name in (norm.name, *network.before(norm.name))}
    of_image = 4 * max(int(np.prod([s or 1 for s in network[tensor].shape])) for tensor in needed)
    image_count = int(np.clip(_MOST_BYTES // of_image, _FEWEST_IMAGES, _MOST_IMAGES))
    indices = spread_evenly(len(images[0]), image_count)
    fed = dict(zip(network.inputs, (array[indices] for array in images), strict=True))
    pixels = given.pixels(fed[name].astype(np.float32))
    spans = [slice(start, start + _AT_ONCE) for start in range(0, len(pixels), _AT_ONCE)]

    def measured(input_range: InputRange) -> list[Statistics]:
        parts = []
        for span in spans:
            inputs = {key: array[span] for key, array in fed.items()}
            if input_range != given:
                inputs[name] = input_range.fed(pixels[span])
            parts.append(_measured(network, norms, inputs))
        shares = [len(pixels[span]) / len(pixels) for span in spans]
        return [Statistics.over(of_norm, shares) for of_norm in zip(*parts, strict=True)]

    usual = [choice for choice in USUAL if has_channels(choice, pixels.shape[-1])]
    off = {choice: _off(norms, measured(choice)) for choice in dict.fromkeys((given, *usual))}
    telling = np.ptp(list(off.values()), axis=0) > _SAME
    if not np.any(telling):
        return None
    means = {choice: float(np.mean(values[telling])) for choice, values in off.items()}
    layers = [inner_layer(norm.layer) for norm in norms]
    stored = list(map(Statistics.of, layers))
    starts = [Statistics(0.0 * s.mean, 0.0 * s.variance + 1.0, s.epsilon) for s in stored]
    off_start = float(np.mean(_deviations(stored, starts)[telling]))
    return RangeStatistics(given, tuple(layer.name for layer in layers), means, off_start)


def _measured(network: Network, norms: list[Node], fed: dict[str, Any]) -> list[Statistics]:
    """The statistics of the tensors that normalizations read."""
    float_inputs = kept_inputs(network)
    batch = {
        name: tf.cast(array, network[name].type if name in float_inputs else tf.float32)
        for name, array in fed.items()
    }
    names = [norm.inputs[0] for norm in norms]

    def call(node: Node, inputs: list[Any]) -> tf.Tensor:
        return call_unrounded(node, inputs if node.takes_list else inputs[0])

    read_tensors = dict(network.computed(batch, names, call))
    measurements = []
    for norm, name in zip(norms, names, strict=True):
        values = tf.cast(read_tensors[name], tf.float32)
        moments = tf.nn.moments(values, list(range(values.shape.rank - 1)))
        mean, variance = (value.numpy().astype(np.float64) for value in moments)
        measurements.append(Statistics(mean, variance, float(inner_layer(norm.layer).epsilon)))
    return measurements


def _off(norms: list[Node], measured: list[Statistics]) -> np.ndarray:
    """How far normalizations are from measured statistics, by channel, after any steps."""
    layers = [inner_layer(norm.layer) for norm in norms]
    stored = [Statistics.of(layer) for layer in layers]
    steps = [*np.unique(np.geomspace(1, _MOST_STEPS, _TRIED_STEPS).round()), np.inf]

    def after(count: float) -> np.ndarray:
        shares = [1.0 - layer.momentum**count if count < np.inf else 1.0 for layer in layers]
        lagging = [
            Statistics(share * m.mean, share * m.variance + 1.0 - share, m.epsilon)
            for share, m in zip(shares, measured, strict=True)
        ]
        return _deviations(stored, lagging)

    return min(map(after, steps), key=np.mean)


def _deviations(stored: Sequence[Statistics], predicted: Sequence[Statistics]) -> np.ndarray:
    """How far statistics are from others, by channel, `_MOST_OFF` at most."""
    off = np.concatenate([np.ravel(a.deviation(b)) for a, b in zip(stored, predicted, strict=True)])
    return np.minimum(np.nan_to_num(off, nan=_MOST_OFF), _MOST_OFF)


# -- all of it -------------------------------------------------------------------------------------


def observe_pixels(
    several: Images, network: Network, *, reference: Network | None, by: str = "calibrate"
) -> None:
    """Checks that images have the values of the model's input range, and records them.

    `reference` is the network whose statistics of BatchNormalization are compared with those of the
    images; None where none are those of the training. Raises ProblemsError with all that is
    certainly wrong; then nothing is recorded.
    """
    observations, problems = [], []
    for node in network:
        quantizer = output_quantizer(node.layer)
        if not isinstance(quantizer, PixelQuantizer):
            continue
        (name,) = node.inputs
        place = network.inputs.index(name)
        seen = SeenValues.of(several[place], quantizer.range)
        trained_on = quantizer.seen(node.layer.output_variables)
        wrong: dict[str, str] = {}  # images like those of the training before are one problem
        for when, values in (("", seen), (f"the training before, {ON_AVERAGE}, on ", trained_on)):
            if values and (problem := misfit(values, quantizer.range)):
                fix = RANGE_FIX
                if values is seen and fitting_range(values) != PIXELS:
                    fix += (
                        f"; if the model was trained on input_range={quantizer.range}, give uint8 "
                        "pixels instead, which are scaled for you"
                    )
                wrong.setdefault(fitting(values), f"{name}: received {when}{problem}; {fix}")
        statistics = None
        if reference is not None and not wrong:
            statistics = _unrounded_statistics(reference, several, place, quantizer.range)
        if statistics is not None and statistics.fitting is not None:
            wrong[""] = f"{name}: {statistics.problem}"
        suffix = each_its_own(network.inputs, name)
        problems += [f"{problem}{suffix}." for problem in wrong.values()]
        checked_by = STATISTICS if statistics is not None and statistics.decides else ""
        doubt = None if statistics is None else statistics.doubt
        observations.append((name, node, seen, checked_by, doubt))
    if problems:
        raise ProblemsError(by, problems)
    for name, node, seen, checked_by, doubt_of_statistics in observations:
        quantizer = node.layer.quantize_config.output
        doubts = (
            pixel_doubt(seen, quantizer.range),
            conversion_doubt(network, node, quantizer.range),
            doubt_of_statistics,
        )
        for doubt in filter(None, doubts):
            warn(f"{by}: {name}: {doubt}{each_its_own(network.inputs, name)}.")
        variables = node.layer.output_variables
        quantizer.remember(seen, variables, len(Batches(several)), checked_by=checked_by)


def _unrounded_statistics(
    network: Network, images: Images, place: int, pixels: InputRange
) -> RangeStatistics | None:
    """Compares the statistics of a network, where nothing is rounded, with those of images."""
    with float_weights(node.layer for node in network):
        # The first layers pad with a folded shift, instead of 0. Up to two pixels of the narrowest
        # range that is compared, the shift is negligible.
        narrowest = min(np.min(usual_range.scales) for usual_range in USUAL)
        if np.max(np.abs(pixels.change.shift)) > 2.0 * narrowest:
            return range_statistics(as_fed(network), images, place, pixels)
        return range_statistics(network, images, place, pixels)
