"""The outputs of a model, each by itself: their meaning, and how those of two models compare.

The meaning of an output is decided here alone. Its numbers are classes where something says so: a
softmax or a sigmoid makes them, there are labels, or the loss of a classifier. Otherwise they are
values, and the largest one says nothing: boxes, landmarks, pixels, or logits that nobody has
called classes.

A class is right or wrong; a value is more or less off. Each channel of the last axis has a unit of
its own: one scale for all may leave no values to a channel that is small compared with the others.
"""

import dataclasses
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from sat_tf.exact.operations.graph import Graph
from sat_tf.exact.operations.native import softmax
from sat_tf.exact.tflite.contents import Contents
from sat_tf.exact.top_k import NO_CLASS, classes_of

# The probabilities of a softmax add up to 1, except for the last bits.
_OFF_ONE = 1e-3


def as_in_file(values: np.ndarray, graph: Graph) -> np.ndarray:
    """Returns a model's output in its file's form: probabilities where the file adds a softmax."""
    makers = {operation.output: operation for operation in graph.operations}
    last = makers[graph.output]
    last = makers.get(last.represented, last)
    if graph.more_outputs or not last.makes_probabilities:
        return values
    off = np.abs(np.sum(values, axis=-1) - 1.0)
    are_probabilities = np.all(values >= 0.0) and np.all(off <= _OFF_ONE)
    return values if are_probabilities else softmax(values)


def _differences(expected: np.ndarray, computed: np.ndarray) -> np.ndarray:
    """Returns the absolute differences; infinite where a value is NaN."""
    with np.errstate(invalid="ignore"):
        differences = np.abs(expected.astype(np.float64) - computed)
    return np.where(np.isnan(differences), np.inf, differences)


def largest_difference(expected: np.ndarray, computed: np.ndarray) -> float:
    """Returns the largest absolute difference; infinite where a value is NaN, 0 without values."""
    return float(np.max(_differences(expected, computed), initial=0.0))


# The output of a single sigmoid is class 1 above this, and class 0 otherwise.
_HALF = 0.5


@dataclasses.dataclass(frozen=True)
class Output:
    """One output of a model.

    Where the last axis holds a number for each class, every place of the other axes is classified
    by itself: the image, or each pixel, row or box of it. A single number is a class only after a
    sigmoid. Several sigmoids are as many answers, yes or no: places agree where all answers do.
    """

    name: str  # The output's name.
    shape: tuple[int, ...]  # The shape without the batch dimension.
    # The evidence that it holds classes: "softmax", "sigmoid", "labels", "loss", or "" for none.
    classes_by: str = ""

    @property
    def is_sigmoid(self) -> bool:
        """Whether a sigmoid makes it."""
        return self.classes_by == "sigmoid"

    @property
    def num_classes(self) -> int:
        """The number of classes it has, or would have; 0 where it cannot classify."""
        channels = self.shape[-1] if self.shape else 1
        if channels > 1:
            return int(channels)
        return 2 if self.is_sigmoid else 0

    def said_by(self, *others: str) -> "Output":
        """Returns the output with more evidence that it holds classes: the first one counts."""
        source = next((source for source in (self.classes_by, *others) if source), "")
        return dataclasses.replace(self, classes_by=source)

    @property
    def answers(self) -> int:
        """The number of separate answers, yes or no, at each place; 0 without sigmoids."""
        return self.shape[-1] if self.is_sigmoid and self.shape else 0

    @property
    def places(self) -> tuple[int, ...]:
        """The axes of the places that are classified in an image; () for the image itself."""
        return self.shape[:-1]

    def classes(self, values: np.ndarray) -> np.ndarray:
        """Returns the class of every place, (n, *places); `NO_CLASS` for a non-finite number."""
        classes = classes_of(values)
        if values.shape[-1] > 1:
            return classes
        return np.where(classes == NO_CLASS, NO_CLASS, values[..., 0] > _HALF).astype(int)

    def agreement(self, values: np.ndarray, reference: np.ndarray) -> float | None:
        """Returns the share of places with the same class or largest channel; None for a number."""
        if not self.num_classes:
            return None
        classes, expected = self.classes(values), self.classes(reference)
        same = classes == expected
        if self.answers > 1:
            same = np.all((values > _HALF) == (reference > _HALF), axis=-1)
        return float(np.mean(same & (classes >= 0) & (expected >= 0)))

    def ties(self, values: np.ndarray, reference: np.ndarray) -> int:
        """Returns how many places have several largest values where the reference has one.

        The first of them is then the class, by its place alone. Sigmoids have no largest value.
        """
        if self.is_sigmoid or self.num_classes < 2:
            return 0

        def is_tied(numbers: np.ndarray) -> np.ndarray:
            return np.sum(numbers == np.max(numbers, axis=-1, keepdims=True), axis=-1) > 1

        return int(np.sum(is_tied(values) & ~is_tied(reference)))

    def accuracy(self, values: np.ndarray, labels: np.ndarray) -> float:
        """Returns the share of places, or of sigmoids' answers, that are right; a NaN is wrong."""
        if labels.shape == values.shape and self.answers > 1:
            return float(np.mean(np.isfinite(values) & ((values > _HALF) == labels)))
        return float(np.mean(self.classes(values) == labels))


# A channel is off where its error is larger than this, in standard deviations of the reference:
# less than 94 % of its variance is then explained.
MOST_ERROR = 0.25
# A channel is also off where fewer different values are left of twice as many or more.
FEWEST_VALUES = 8
# Channels that vary by less than this share of the usual, such as pixels at a border, are off by an
# error that is no larger than others'. This is no fault where they are the end of a row of ever
# quieter channels. After a gap of this factor, they are values of another unit, and lost.
_QUIET = 0.2
_GAP = 10.0
# Errors are estimates from a sample: one that is larger by up to this factor counts as equal.
_ROOM = 1.25
# Each of fewer channels than these is a value of its own, and none of them is excused.
_FEWEST_ALIKE = 16
# Up to this share of the largest value, a standard deviation is float32's rounding.
_CONSTANT = 1e-6
# The most places in which different values are counted, as counting sorts them.
_MOST_COUNTED = 2**16
# At most so many channels are kept, the worst ones.
_MOST_KEPT = 16


@dataclasses.dataclass(frozen=True)
class ChannelCount:
    """How one channel of an output compares with that of the reference."""

    channel: int  # Its place in the last axis, from 0.
    # Root mean square of the differences, in standard deviations of the reference's channel, or of
    # the whole output where that channel is constant. Infinite where a value is NaN.
    error: float
    spread: float  # The standard deviation of the reference's channel.
    values: int  # The number of different values that it has.
    reference_values: int  # The number of different values in the reference.

    @property
    def is_off(self) -> bool:
        """Whether it differs by more than `MOST_ERROR`, or has too few values left."""
        few = self.values < FEWEST_VALUES <= self.reference_values / 2
        return few or not self.error <= MOST_ERROR


@dataclasses.dataclass(frozen=True)
class ValueCount:
    """How the channels of an output compare with the reference's."""

    channels: list[ChannelCount]  # The channels that differ most: at most 16, the worst first.
    num_channels: int  # The number of all channels.
    off: int  # The number of channels that are off, without quiet ones.
    quiet: int  # The number of channels off without fault, as they vary little compared to others.
    fewest_values: ChannelCount  # The channel with the smallest share of values left.

    @property
    def is_bad(self) -> bool:
        """Whether a channel is off and not merely quiet."""
        return self.off > 0


def compared_channels(values: np.ndarray, reference: np.ndarray) -> ValueCount:
    """Compares the channels of an output with those of the reference."""
    channels = reference.shape[-1] if reference.ndim > 1 else 1
    computed, expected = values.reshape(-1, channels), reference.reshape(-1, channels)
    with np.errstate(invalid="ignore", divide="ignore", over="ignore"):
        spreads = np.std(expected, axis=0, dtype=np.float64)
        errors = np.sqrt(np.mean(np.square(computed.astype(np.float64) - expected), axis=0))
        varies = spreads > _CONSTANT * np.max(np.abs(expected), axis=0, initial=0.0)
        units = np.where(varies, spreads, np.std(expected, dtype=np.float64))
        ratios = np.where(errors == 0.0, 0.0, errors / units)
    ratios = np.where(np.isnan(ratios), np.inf, ratios)
    counted = slice(None, None, max(1, len(expected) // _MOST_COUNTED))
    counts = [
        ChannelCount(
            channel=channel,
            error=float(ratios[channel]),
            spread=float(spreads[channel]),
            values=len(np.unique(computed[counted, channel])),
            reference_values=len(np.unique(expected[counted, channel])),
        )
        for channel in range(channels)
    ]
    quiet = set[int]()
    if len(counts) >= _FEWEST_ALIKE:
        near = [count for count in counts if not count.is_off]
        usual = _ROOM * max((errors[count.channel] for count in near), default=0.0)
        spread = float(np.sqrt(np.mean([count.spread**2 for count in counts])))
        faint = [count for count in counts if count.is_off and count.spread < _QUIET * spread]
        few = [count for count in faint if errors[count.channel] <= usual]
        loudest = max((count.spread for count in few), default=0.0)
        if any(count.spread < _GAP * loudest for count in near):
            quiet = {count.channel for count in few}
    off = [count for count in counts if count.is_off and count.channel not in quiet]
    off_channels = {count.channel for count in off}
    order = sorted(counts, key=lambda count: (count.channel not in off_channels, -count.error))
    return ValueCount(
        channels=order[:_MOST_KEPT],
        num_channels=channels,
        off=len(off),
        quiet=len(quiet),
        fewest_values=min(counts, key=lambda count: count.values / count.reference_values),
    )


@dataclasses.dataclass(frozen=True)
class OutputCount:
    """How one output compares with that of the reference."""

    name: str  # The output's name.
    shape: tuple[int, ...]  # The shape without the batch dimension.
    # How many images, pixels, rows or boxes have a class or a largest channel; 0 for single values.
    places: int
    agreement: float | None  # The share of places that agree with the reference; None without any.
    largest_difference: float  # The largest difference of values; infinite where a value is NaN.
    mean_difference: float  # The mean absolute difference; infinite where a value is NaN.
    spread: float  # The standard deviation of the reference's values.
    classes_by: str = ""  # See `Output`.
    # The comparison of channels, unless a softmax, labels or a loss say that they are classes.
    values: ValueCount | None = None
    ties: int = 0  # The number of places with several largest values where the reference has one.

    @property
    def is_values(self) -> bool:
        """Whether nothing says that it holds classes."""
        return self.values is not None and not self.classes_by

    @property
    def has_classes(self) -> bool:
        """Whether it holds classes, or numbers that nothing could compare as values."""
        return self.agreement is not None and not self.is_values

    @property
    def places_differing(self) -> int:
        """The number of places with another class than in the reference."""
        return round((1.0 - (self.agreement or 0.0)) * self.places)


def compared(output: Output, values: np.ndarray, reference: np.ndarray) -> OutputCount:
    """Compares one output with the reference's."""
    differences = _differences(reference, values)
    may_be_values = output.classes_by in ("", "sigmoid")
    with np.errstate(invalid="ignore"):
        spread = float(np.std(reference, dtype=np.float64))
    return OutputCount(
        name=output.name,
        shape=output.shape,
        places=int(np.prod((len(values), *output.places))) if output.num_classes else 0,
        agreement=output.agreement(values, reference),
        largest_difference=float(np.max(differences, initial=0.0)),
        mean_difference=float(np.mean(differences)) if reference.size else 0.0,
        spread=spread,
        classes_by=output.classes_by,
        values=compared_channels(values, reference) if may_be_values else None,
        ties=output.ties(values, reference),
    )


def smallest_agreement(counts: Sequence[OutputCount]) -> float | None:
    """Returns the smallest agreement of the outputs, of those with classes where there are any."""
    classes = [count for count in counts if not count.is_values] or counts
    return min((count.agreement for count in classes if count.agreement is not None), default=None)


# Operators that make probabilities of probabilities: they move numbers, or average them.
_KEEPING = (
    *("RESHAPE", "SQUEEZE", "EXPAND_DIMS", "CONCATENATION", "DEQUANTIZE", "QUANTIZE"),
    *("MEAN", "AVERAGE_POOL_2D"),
)
_CLASSES = {"SOFTMAX": "softmax", "LOGISTIC": "sigmoid"}


def outputs_in(graph: Graph, contents: Contents, labels: Sequence[str] | None) -> list[Output]:
    """Returns the outputs of a graph, named by their keys where it has a dictionary of them."""
    makers = {tensor.name: maker for maker in contents.operators for tensor in maker.outputs}

    def classes_by(name: str) -> str:
        maker = makers.get(name)
        if maker is None or maker.name not in _KEEPING:
            return "" if maker is None else _CLASSES.get(maker.name, "")
        inputs = [tensor for tensor in maker.reads if tensor.name in makers]
        functions = {classes_by(tensor.name) for tensor in inputs}
        moved = any(tensor.shape[-1:] != maker.outputs[0].shape[-1:] for tensor in inputs)
        is_known = functions == {"sigmoid"} or (functions == {"softmax"} and not moved)
        return functions.pop() if is_known else ""

    outputs = []
    for key, name in zip(graph.keys[1] or graph.outputs, graph.outputs, strict=True):
        shape = tuple(graph.tensors[name].shape)
        by_labels = "labels" * ((len(labels or ()),) == shape)
        outputs.append(Output(key, shape, classes_by(name)).said_by(by_labels))
    return outputs


def separated(joined: np.ndarray, outputs: Sequence[Output]) -> list[np.ndarray]:
    """Separates the outputs that `tensors.joined` has joined."""
    if len(outputs) == 1:
        return [joined.reshape(len(joined), *outputs[0].shape)]
    ends = np.cumsum([int(np.prod(output.shape)) for output in outputs])
    pieces = zip(np.split(joined, ends[:-1], axis=1), outputs, strict=True)
    return [piece.reshape(len(joined), *output.shape) for piece, output in pieces]


def labels_of(
    labels: Any, outputs: Sequence[Output], count: int, names: Sequence[Iterable[str]] = ()
) -> tuple[list[np.ndarray | None], list[str]]:
    """Returns the labels of each output as arrays (count, *places), and their problems."""
    if labels is None:
        return [None] * len(outputs), []
    listed = ", ".join(str(output.name) for output in outputs)
    by_output: list[Any]
    if isinstance(labels, Mapping):
        keys = [{output.name} for output in outputs]
        for called, aliases in zip(keys, names, strict=False):
            called.update(aliases)
        if unknown := sorted(map(repr, labels.keys() - set().union(*keys))):
            return [], [
                f"labels: received some for {', '.join(unknown)}, expected names of outputs; they "
                f"are {listed}."
            ]
        by_output = [next((labels[key] for key in labels if key in group), None) for group in keys]
    elif len(outputs) == 1:
        by_output = [labels]
    elif isinstance(labels, list | tuple) and len(labels) == len(outputs):
        by_output = list(labels)
    else:
        size = f" of {len(labels)}" if isinstance(labels, list | tuple) else ""
        return [], [
            f"labels: received {type(labels).__name__}{size} for {len(outputs)} outputs ({listed}),"
            " expected a list with labels or None for each, or a dictionary by their names."
        ]
    arrays, problems = [], []
    for output, values in zip(outputs, by_output, strict=True):
        name = "labels" if len(outputs) == 1 else f"labels of {output.name}"
        array, wrong = (None, []) if values is None else _checked(name, values, output, count)
        arrays.append(array)
        problems += wrong
    return arrays, problems


def as_array(values: Any, name: str) -> tuple[np.ndarray, list[str]]:
    """Returns images or labels as an array, and their problems."""
    try:
        return np.asarray(values), []
    except ValueError:
        problem = "received a ragged list, expected an array; give all the same size."
        return np.empty(0), [f"{name}: {problem}"]


def _checked(
    name: str, values: Any, output: Output, count: int
) -> tuple[np.ndarray | None, list[str]]:
    labels, problems = as_array(values, name)
    classes, expected = output.num_classes, (count, *output.places)
    if problems:
        return None, problems
    if not classes:
        return None, [
            f"{name}: received some for an output of shape {output.shape}, which is a number, "
            "not a class, expected classes or what a sigmoid makes; leave them out: the "
            "certificate says how far values differ."
        ]
    is_one_place = labels.shape == (count,) and np.prod(output.places) == 1
    if labels.shape == (*expected, 1) or is_one_place:
        labels = labels.reshape(expected)
    if output.answers > 1 and labels.shape == (*expected, output.answers):
        expected, classes = labels.shape, 2  # an answer for each sigmoid
    what = "each pixel, row or box" if output.places else "an image"
    if output.answers > 1:
        what += f", or {(*expected, output.answers)}, 0 or 1 for each sigmoid"
    problems = label_problems(labels, expected, classes, name=name, what=what)
    return (None if problems else labels), problems


def label_problems(
    labels: np.ndarray,
    shape: tuple[int, ...],
    classes: int,
    name: str = "labels",
    what: str = "an image",
) -> list[str]:
    """Returns why an array holds no labels."""
    problem = ""
    if labels.shape != shape:
        problem = f"shape {labels.shape}, expected {shape}, one class number {what}."
    elif labels.dtype != bool and not np.issubdtype(labels.dtype, np.integer):
        problem = f"{labels.dtype}, expected integers, the class numbers."
    elif labels.size and not 0 <= np.min(labels) <= np.max(labels) < classes:
        ends = f"{np.min(labels)} to {np.max(labels)}"
        problem = f"{ends}, expected 0 to {classes - 1}; count classes from 0."
    return [f"{name}: received {problem}"] if problem else []


def only(shares: Mapping[str, float]) -> float | None:
    """Returns the share of the only output that has one; None without one, or with several."""
    return next(iter(shares.values())) if len(shares) == 1 else None
