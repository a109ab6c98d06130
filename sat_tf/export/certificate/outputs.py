"""The outputs of a model, each by itself: their meaning, and how those of two models compare.

What an output means is decided here alone. Its numbers are classes where something says so: a
softmax or a sigmoid makes them, there are labels, or the loss of a classifier. Otherwise they are
values, of which the largest says nothing: boxes, landmarks, pixels, or logits that nobody has
called classes.
"""

import dataclasses
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from sat_tf.export.certificate.channels import ValueCount, compared_channels
from sat_tf.export.operations.graph import Graph
from sat_tf.export.tflite.structure import Structure
from sat_tf.top_k import NO_CLASS, classes_of

# Softmax makes the sum of the probabilities of one image 1 up to its last bits.
_OFF_ONE = 1e-3


def as_in_file(values: np.ndarray, graph: Graph) -> np.ndarray:
    """The output of a model as its file gives it: probabilities where the file adds a softmax.

    Args:
        values: the output, joined; probabilities stay what they are.
        graph: of the file.
    """
    last = graph.operations[-1]
    if not last.makes_probabilities or graph.outputs != (last.output,):
        return values
    off = np.abs(np.sum(values, axis=-1) - 1.0)
    if np.all(values >= 0.0) and np.all(off <= _OFF_ONE):
        return values
    return last.simulate(graph, values)


def largest_difference(expected: np.ndarray, computed: np.ndarray) -> float:
    """The largest absolute difference; infinite where one is NaN, 0 where there are no values."""
    with np.errstate(invalid="ignore"):
        differences = np.abs(expected.astype(np.float64) - computed)
    return float(np.max(np.where(np.isnan(differences), np.inf, differences), initial=0.0))


def mean_difference(expected: np.ndarray, computed: np.ndarray) -> float:
    """The mean absolute difference; infinite where one is NaN, 0 where there are no values."""
    with np.errstate(invalid="ignore"):
        found = (
            float(np.mean(np.abs(expected.astype(np.float64) - computed))) if expected.size else 0
        )
    return float("inf") if np.isnan(found) else float(found)


# The output of a single sigmoid is class 1 above this, else 0.
_HALF = 0.5


@dataclasses.dataclass(frozen=True)
class Output:
    """One output.

    Where its last axis holds a number for each class, every place of the others is classified by
    itself: the image, or each pixel, row or box of it. One number alone is a class only behind a
    sigmoid. Several sigmoids are as many answers, yes or no: places agree where all of them do.

    Attributes:
        name: of the tensor.
        shape: without the batch dimension.
        classes_by: what says that it holds classes: "softmax", "sigmoid", "labels" or "loss"; ""
            where nothing does.
    """

    name: str
    shape: tuple[int, ...]
    classes_by: str = ""

    @property
    def is_sigmoid(self) -> bool:
        """Whether it is what a sigmoid makes."""
        return self.classes_by == "sigmoid"

    @property
    def num_classes(self) -> int:
        """How many classes it has, or would have; 0 where it cannot classify."""
        channels = self.shape[-1] if self.shape else 1
        if channels > 1:
            return int(channels)
        return 2 if self.is_sigmoid else 0

    def said_by(self, *others: str) -> "Output":
        """The same, where others say that it holds classes, too: the first that says so counts."""
        said = next((said for said in (self.classes_by, *others) if said), "")
        return dataclasses.replace(self, classes_by=said)

    @property
    def answers(self) -> int:
        """How many numbers of each place are answers of their own, yes or no."""
        return self.shape[-1] if self.is_sigmoid and self.shape else 0

    @property
    def places(self) -> tuple[int, ...]:
        """The axes of what is classified, beside the image; () where it is the image itself."""
        return self.shape[:-1]

    def classes(self, values: np.ndarray) -> np.ndarray:
        """The class of every place, (n, *places); `NO_CLASS` where a number is not finite."""
        found = classes_of(values)
        if values.shape[-1] > 1:
            return found
        return np.where(found == NO_CLASS, NO_CLASS, values[..., 0] > _HALF).astype(int)

    def agreement(self, values: np.ndarray, reference: np.ndarray) -> float | None:
        """Share of places with the same class, or largest channel; None for a single value.

        >>> mask = Output("mask", (1, 2, 2))
        >>> one = np.array([[[[0.0, 1.0], [1.0, 0.0]]]])
        >>> mask.agreement(one, np.array([[[[0.1, 0.2], [0.1, 0.2]]]]))
        0.5
        """
        if not self.num_classes:
            return None
        found = self.classes(values)
        if self.answers > 1:
            same = np.all((values > _HALF) == (reference > _HALF), axis=-1)
            return float(np.mean(same & (found >= 0) & (self.classes(reference) >= 0)))
        return float(np.mean((found == self.classes(reference)) & (found >= 0)))

    def accuracy(self, values: np.ndarray, labels: np.ndarray) -> float:
        """Share of places classified right; one with a NaN is wrong.

        Labels of several sigmoids may also be an answer for each: the share of right answers.
        """
        if labels.shape == values.shape and self.answers > 1:
            return float(np.mean(np.isfinite(values) & ((values > _HALF) == labels)))
        return float(np.mean(self.classes(values) == labels))


@dataclasses.dataclass(frozen=True)
class OutputCount:
    """How one output compares with that of the reference.

    Attributes:
        name: of the tensor.
        shape: without the batch dimension.
        places: how many images, pixels, rows or boxes have a class, or a largest channel, over all
            images; 0 for a single value.
        agreement: share of them with that of the reference; None where there are none.
        largest_difference: of its values; infinite where one is NaN.
        mean_difference: mean absolute difference; infinite where one is NaN.
        spread: standard deviation of the reference's values.
        classes_by: see `Output`.
        values: the channels, unless a softmax, labels or a loss say that they are classes; None in
            certificates of earlier versions, too.
    """

    name: str
    shape: tuple[int, ...]
    places: int
    agreement: float | None
    largest_difference: float
    mean_difference: float
    spread: float
    classes_by: str = ""
    values: ValueCount | None = None

    @property
    def is_values(self) -> bool:
        """Whether nothing says that it holds classes."""
        return self.values is not None and not self.classes_by

    @property
    def what(self) -> str:
        """The things that are classified, in words."""
        return "pixels, rows or boxes" if len(self.shape) > 1 else "images"


def compared(output: Output, values: np.ndarray, reference: np.ndarray) -> OutputCount:
    """One output against the reference's."""
    with np.errstate(invalid="ignore"):
        spread = float(np.std(reference, dtype=np.float64))
    return OutputCount(
        name=output.name,
        shape=output.shape,
        places=int(np.prod((len(values), *output.places))) if output.num_classes else 0,
        agreement=output.agreement(values, reference),
        largest_difference=largest_difference(reference, values),
        mean_difference=mean_difference(reference, values),
        spread=spread,
        classes_by=output.classes_by,
        values=None
        if output.classes_by not in ("", "sigmoid")
        else compared_channels(values, reference),
    )


def smallest_agreement(counts: Sequence[OutputCount]) -> float | None:
    """The agreement of the output that agrees least, of those with classes where any has some."""
    classes = [count for count in counts if not count.is_values] or counts
    return min((count.agreement for count in classes if count.agreement is not None), default=None)


# Operators behind which probabilities are still some: they move numbers, or average them.
_KEEPING = (
    *("RESHAPE", "SQUEEZE", "EXPAND_DIMS", "CONCATENATION", "DEQUANTIZE", "QUANTIZE"),
    *("MEAN", "AVERAGE_POOL_2D"),
)
_CLASSES = {"SOFTMAX": "softmax", "LOGISTIC": "sigmoid"}


def outputs_in(graph: Graph, structure: Structure, labels: Sequence[str] | None) -> list[Output]:
    """The outputs of a graph, named by their keys where it has a dictionary of them.

    Args:
        graph: the graph.
        structure: of its file.
        labels: the names of classes in the file; None where it has none.
    """
    makers = {made.name: operator for operator in structure.operators for made in operator.outputs}

    def said(name: str) -> str:
        maker = makers.get(name)
        if maker is None or maker.name not in _KEEPING:
            return "" if maker is None else _CLASSES.get(maker.name, "")
        kept = [tensor for tensor in maker.inputs if tensor.name in makers]
        found = {said(tensor.name) for tensor in kept}
        moved = any(tensor.shape[-1:] != maker.outputs[0].shape[-1:] for tensor in kept)
        return found.pop() if found in ({"sigmoid"}, set() if moved else {"softmax"}) else ""

    shapes = [tuple(graph.tensors[name].shape) for name in graph.outputs]
    return [
        Output(key, shape, said(name)).said_by("labels" if (len(labels or ()),) == shape else "")
        for key, name, shape in zip(
            graph.keys[1] or graph.outputs, graph.outputs, shapes, strict=True
        )
    ]


def separated(joined: np.ndarray, outputs: Sequence[Output]) -> list[np.ndarray]:
    """The outputs that `images.joined` has joined."""
    if len(outputs) == 1:
        return [joined.reshape(len(joined), *outputs[0].shape)]
    sizes = [int(np.prod(output.shape)) for output in outputs]
    pieces = np.split(joined, np.cumsum(sizes)[:-1], axis=1)
    return [
        piece.reshape(len(joined), *output.shape)
        for piece, output in zip(pieces, outputs, strict=True)
    ]


def labels_of(
    labels: Any, outputs: Sequence[Output], count: int, names: Sequence[Iterable[str]] = ()
) -> tuple[list[np.ndarray | None], list[str]]:
    """Labels for each output as arrays (count, *places), and what is wrong with them.

    Args:
        labels: of the only output; or for several a list with one for each, or a dictionary by
            their names, with None for, or without, those that have none.
        outputs: the outputs.
        count: of the images.
        names: other names of each output.
    """
    if labels is None:
        return [None] * len(outputs), []
    known = [{output.name} for output in outputs]
    for also, called in zip(known, names, strict=False):
        also.update(called)
    given: list[Any]
    if isinstance(labels, Mapping):
        unknown = [key for key in labels if not any(key in called for called in known)]
        if unknown:
            listed = ", ".join(str(output.name) for output in outputs)
            return [], [
                f"labels: received some for {', '.join(map(repr, unknown))}, expected names of "
                f"outputs; they are {listed}."
            ]
        given = [next((labels[key] for key in labels if key in called), None) for called in known]
    elif len(outputs) == 1:
        given = [labels]
    elif isinstance(labels, list | tuple) and len(labels) == len(outputs):
        given = list(labels)
    else:
        size = f" of {len(labels)}" if isinstance(labels, list | tuple) else ""
        listed = ", ".join(str(output.name) for output in outputs)
        return [], [
            f"labels: received {type(labels).__name__}{size} for {len(outputs)} outputs ({listed}),"
            " expected a list with labels or None for each, or a dictionary by their names."
        ]
    arrays, problems = [], []
    for output, one in zip(outputs, given, strict=True):
        name = "labels" if len(outputs) == 1 else f"labels of {output.name}"
        array, found = (None, []) if one is None else _checked(name, one, output, count)
        arrays.append(array)
        problems += found
    return arrays, problems


def _checked(
    name: str, given: Any, output: Output, count: int
) -> tuple[np.ndarray | None, list[str]]:
    try:
        labels = np.asarray(given)
    except ValueError:
        return None, [f"{name}: received a ragged list, expected an array; give all the same size."]
    classes, expected = output.num_classes, (count, *output.places)
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
    classes: float,
    *,
    name: str = "labels",
    what: str = "an image",
) -> list[str]:
    """Why these are not labels.

    Args:
        labels: they.
        shape: that they should have.
        classes: how many there are.
        name: of the labels.
        what: has a label.
    """
    if labels.shape != shape:
        return [
            f"{name}: received shape {labels.shape}, expected {shape}, one class number {what}."
        ]
    if labels.dtype != bool and not np.issubdtype(labels.dtype, np.integer):
        return [f"{name}: received {labels.dtype}, expected integers, the class numbers."]
    if labels.size and not 0 <= np.min(labels) <= np.max(labels) < classes:
        return [
            f"{name}: received {np.min(labels)} to {np.max(labels)}, expected 0 to {classes - 1}; "
            "count classes from 0."
        ]
    return []


def only(shares: Mapping[str, float]) -> float | None:
    """The share of the only output that has one; None where there are none, or several."""
    return next(iter(shares.values())) if len(shares) == 1 else None
