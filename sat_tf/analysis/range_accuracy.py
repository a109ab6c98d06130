"""The check of a classifier's input range: its accuracy in the usual ranges."""

import dataclasses
from collections.abc import Sequence

import numpy as np
import tf_keras as keras

from sat_tf.exact.tflite.input_range import NAMED, PIXELS, InputRange
from sat_tf.exact.top_k import classes_of
from sat_tf.qat.wrapper import QuantizedLayer

# Enough pictures for a clear result, in a few seconds at most.
USUAL_IMAGES = 256

_USUAL = (PIXELS, InputRange((0.0,), (1.0,)), NAMED["tf"], NAMED["torch"], NAMED["caffe"])
# A range is clearly better by more than this share, number of standard errors, and number of
# pictures.
_CLEAR_SHARE = 0.05
_CLEAR_ERRORS = 3.0
_FEWEST_PICTURES = 8
_BATCH = 64
_GIVE = (
    "give --input_range, the real values of the pixels 0 and 255: 0,255 or 0,1 or -1,1, or tf, "
    "torch or caffe as in keras.applications"
)


@dataclasses.dataclass(frozen=True)
class RangeAccuracies:
    """Top-1 of a model in the range that it is fed, and in the other usual ranges."""

    given: InputRange  # The range that the model is fed.
    fitting: InputRange | None  # The range that is clearly better, if any.
    # The share of pictures classified correctly, for each range, `given` first.
    top1: dict[InputRange, float]
    num_images: int  # The number of pictures.
    most_frequent: float  # The share of the most frequent class, which guessing reaches.

    @property
    def guessing_problem(self) -> str | None:
        """The complaint about a model that is right no more often than guessing, or None."""
        top1 = self.top1[self.given]
        if top1 > self.most_frequent:
            return None
        return (
            f"the float model is right for {100 * top1:.1f} % of {self.num_images} held-out "
            f"pictures, which is no more than guessing ({100 * self.most_frequent:.1f} %); are the "
            "folders the model's classes, in the order of their names, and is the input range "
            "right?"
        )

    @property
    def problem(self) -> str:
        """The problem of the range that the model is fed."""
        return (
            f"received a model that is fed input_range={self.given}, expected the range that it "
            f"was trained with, which seems to be {self.fitting}: {self}"
        )

    def __str__(self) -> str:
        shares = ", ".join(f"{100 * share:.1f} % with {key}" for key, share in self.top1.items())
        return f"top-1 on {self.num_images} labelled images is {shares}"

    @property
    def setting(self) -> str:
        """The range that fits, in YAML."""
        spelling = (self.fitting or self.given).spelling
        if isinstance(spelling, str):
            return spelling
        return f"[{', '.join(f'{end:g}' for end in spelling)}]"


def range_accuracies(
    model: keras.Model, pixels: np.ndarray, labels: np.ndarray | None, given: InputRange
) -> RangeAccuracies | None:
    """Measures a float model in the range that it is fed, and in the other usual ranges.

    Another range is clearly better if its top-1 is higher by 5 points, by 3 standard errors of the
    difference and by 8 pictures, and higher than the share of the most frequent class. Labels are
    class numbers (n,), negative ones for images without a label. None is returned for a model that
    is no classifier or contains its range, and without labels.
    """
    # A range that is one of the usual ones is measured once.
    measured = _measured(model, pixels, labels, list(dict.fromkeys((given, *_USUAL))))
    if measured is None:
        return None
    right, top1, most_frequent = measured
    better = [
        input_range
        for input_range, hits in right.items()
        if top1[input_range] > most_frequent and _is_clear(hits, right[given])
    ]
    fitting = max(better, key=top1.__getitem__, default=None)
    return RangeAccuracies(given, fitting, top1, len(right[given]), most_frequent)


def found_range(
    subject: str, model: keras.Model, pixels: np.ndarray, labels: np.ndarray | None
) -> RangeAccuracies:
    """Finds the usual range whose accuracy on pictures is clearly better than all others'."""
    measured = _measured(model, pixels, labels, _USUAL)
    if measured is None:
        received = (
            "a model of one class, which is right in every range, expected the range of its input"
            if labels is not None and model.outputs[0].shape[-1] == 1
            else "no pictures in folders of its classes, expected them, or the range of its input"
        )
        raise ValueError(f"{subject}: received {received}; {_GIVE}.")
    right, top1, most_frequent = measured
    best = max(top1, key=top1.__getitem__)
    accuracies = RangeAccuracies(best, best, top1, len(right[best]), most_frequent)
    close = [rival for rival in right if rival != best and not _is_clear(right[best], right[rival])]
    if top1[best] <= most_frequent:
        raise ValueError(
            f"{subject}: {accuracies}, expected more than guessing ({100 * most_frequent:.1f} %) "
            "in one of them; are the folders the model's classes, in the order of their names? If "
            f"so, {_GIVE}."
        )
    if close:
        raise ValueError(
            f"{subject}: {accuracies}, expected one that is clearly better than the others; "
            f"{_GIVE}."
        )
    return accuracies


def _measured(
    model: keras.Model, pixels: np.ndarray, labels: np.ndarray | None, ranges: Sequence[InputRange]
) -> tuple[dict[InputRange, np.ndarray], dict[InputRange, float], float] | None:
    """The marks of right pictures and top-1, by range, and the share of the largest class."""
    has_range = any(isinstance(layer, QuantizedLayer) for layer in model.layers)
    shapes = [tuple(tensor.shape) for tensor in (*model.inputs, *model.outputs)]
    if has_range or labels is None or len(shapes) != 2 or len(shapes[1]) != 2:
        return None
    labels = np.asarray(labels)
    is_labelled = labels >= 0 if labels.ndim == 1 else np.zeros(0, bool)
    if len(shapes[0]) != 4 or shapes[1][1] < 2 or not np.any(is_labelled):
        return None
    pixels, labels = pixels[is_labelled], labels[is_labelled]
    right = {}
    for input_range in ranges:
        if input_range.channels in (None, pixels.shape[-1]):
            starts = range(0, len(pixels), _BATCH)
            fed = (input_range.fed(pixels[start : start + _BATCH]) for start in starts)
            outputs = [np.asarray(model(batch, training=False), np.float32) for batch in fed]
            # Pictures with non-finite outputs have no class.
            right[input_range] = classes_of(np.concatenate(outputs)) == labels
    top1 = {input_range: float(np.mean(hits)) for input_range, hits in right.items()}
    return right, top1, float(np.max(np.unique(labels, return_counts=True)[1])) / len(labels)


def _is_clear(better: np.ndarray, than: np.ndarray) -> bool:
    """Whether hits are better than others by much more than the sampling error."""
    differences = better.astype(np.float64) - than
    error = np.std(differences) / np.sqrt(len(differences))
    clear = np.mean(differences) > max(_CLEAR_SHARE, _CLEAR_ERRORS * error)
    return bool(clear and np.sum(differences) >= _FEWEST_PICTURES)
