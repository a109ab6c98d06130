"""The answers of a float model and of its file for the same images, to keep, count and show.

An answer is a class number, or `NO_CLASS`.
"""

import base64
import dataclasses
import io
from collections.abc import Sequence
from typing import Any, NamedTuple, Self

import numpy as np

from sat_tf.arguments import Rule, check
from sat_tf.top_k import NO_CLASS

# How many examples of each group are shown.
EXAMPLES = {"float_only": 8, "file_only": 8, "both_wrong": 8, "both_right": 4}
_THUMBNAIL_PIXELS = 96


class Example(NamedTuple):
    """An image to look at.

    Attributes:
        image: its index.
        picture: a small JPEG, in base64.
    """

    image: int
    picture: str


@dataclasses.dataclass(frozen=True, kw_only=True)
class Answers:
    """The answers of two models for the same images.

    Attributes:
        labels: the right class numbers (n,).
        float_answers: those of the float model (n,); `NO_CLASS` for none.
        file_answers: those of the file (n,), likewise.
        num_classes: number of classes.
        class_names: by class number; None without names.
        examples: small pictures of some images, of each kind of `EXAMPLES`.
    """

    labels: np.ndarray
    float_answers: np.ndarray
    file_answers: np.ndarray
    num_classes: int
    class_names: tuple[str, ...] | None = None
    examples: tuple[Example, ...] = ()

    @classmethod
    def of(
        cls,
        images: np.ndarray | None,
        labels: Any,
        float_answers: Any,
        file_answers: Any,
        *,
        num_classes: int,
        class_names: Sequence[str] | None = None,
    ) -> Self:
        """The answers with pictures of examples.

        Args:
            images: uint8 (n, rows, columns, 1 or 3), to take examples from; None for no pictures.
            labels: the right class numbers (n,).
            float_answers: of the float model, for example by `classes_of`.
            file_answers: of the file.
            num_classes: number of classes.
            class_names: one for each class; None shows numbers.

        Raises:
            ValueError: the arrays or the names do not fit together; lists every problem.
        """
        arrays = {
            "labels": np.asarray(labels),
            "float_answers": np.asarray(float_answers),
            "file_answers": np.asarray(file_answers),
        }
        _check(images, arrays, num_classes, class_names)
        groups = {} if images is None else example_groups(*arrays.values())
        examples = (
            Example(index, _thumbnail(images[index]))
            for name, most in EXAMPLES.items()
            if images is not None
            for index in spread(groups[name], most)
        )
        return cls(
            **arrays,
            num_classes=num_classes,
            class_names=tuple(class_names) if class_names is not None else None,
            examples=tuple(examples),
        )

    def name(self, label: int) -> str:
        """The name of a class."""
        if label == NO_CLASS:
            return "no answer"
        return str(label) if self.class_names is None else self.class_names[label]

    def to_dict(self) -> dict[str, Any]:
        """Plain values, for JSON."""
        values = {field.name: getattr(self, field.name) for field in dataclasses.fields(self)}
        return {
            name: value.tolist() if isinstance(value, np.ndarray) else value
            for name, value in values.items()
        }

    @classmethod
    def from_dict(cls, values: dict[str, Any]) -> Self:
        """Reads what `to_dict` made.

        Raises:
            ValueError: the values are something else.
        """
        try:
            found = cls.of(
                None,
                *(
                    np.asarray(values[name], np.int64)
                    for name in ("labels", "float_answers", "file_answers")
                ),
                num_classes=int(values["num_classes"]),
                class_names=values["class_names"],
            )
            examples = tuple(Example(int(i), str(picture)) for i, picture in values["examples"])
            for example in examples:
                found.labels[example.image]
                base64.b64decode(example.picture, validate=True)
        except (KeyError, TypeError, IndexError, OverflowError) as error:
            raise ValueError(
                f"received values that are no answers ({error!r}), expected those of to_dict"
            ) from error
        return dataclasses.replace(found, examples=examples)


def _check(
    images: np.ndarray | None,
    arrays: dict[str, np.ndarray],
    num_classes: int,
    class_names: Sequence[str] | None,
) -> None:
    count = len(arrays["labels"]) if arrays["labels"].ndim else 0
    rules = []
    for name, found in arrays.items():
        least = 0 if name == "labels" else NO_CLASS
        fits = (
            found.shape == (count,)
            and count > 0
            and np.issubdtype(found.dtype, np.integer)
            and least <= found.min() <= found.max() < num_classes
        )
        rules.append(
            Rule(
                name,
                f"{found.dtype} {found.shape}"
                + (f" from {found.min()} to {found.max()}" if found.size else ""),
                fits,
                f"integers ({count or 'n'},) from {least} to {num_classes - 1}",
                "pass one class number an image",
            )
        )
    if images is not None:
        rules.append(
            Rule(
                "images",
                f"{images.dtype} {images.shape}",
                images.dtype == np.uint8
                and images.ndim == 4
                and len(images) == count
                and images.shape[3] in (1, 3),
                f"uint8 ({count or 'n'}, rows, columns, 1 or 3)",
                "pass pixels, or None",
            )
        )
    if class_names is not None:
        rules.append(
            Rule(
                "class_names",
                f"{len(class_names)} names",
                len(class_names) == num_classes
                and all(isinstance(name, str) for name in class_names),
                f"{num_classes} strings",
                "pass one a class, or None",
            )
        )
    check("answers", rules)


def _thumbnail(image: np.ndarray) -> str:
    from PIL import Image

    picture = Image.fromarray(image[..., 0] if image.shape[-1] == 1 else image)
    picture.thumbnail((_THUMBNAIL_PIXELS, _THUMBNAIL_PIXELS), Image.Resampling.LANCZOS)
    content = io.BytesIO()
    # Colours at full resolution: small pictures are shown enlarged.
    picture.save(content, format="JPEG", quality=92, subsampling=0)
    return base64.b64encode(content.getvalue()).decode()


def confusion(labels: np.ndarray, answers: np.ndarray, num_classes: int) -> np.ndarray:
    """How often the images of each class (row) get each answer (column).

    Images without an answer are in no column.

    >>> confusion(np.array([0, 0, 1]), np.array([0, 1, NO_CLASS]), 2).tolist()
    [[1, 1], [0, 0]]
    """
    counts = np.zeros((num_classes, num_classes), np.int64)
    answered = answers != NO_CLASS
    np.add.at(counts, (labels[answered], answers[answered]), 1)
    return counts


class Confusion(NamedTuple):
    """Images of one class that get another one as the answer.

    Attributes:
        label: class number of the images.
        answer: the other one.
        by_file: how many by the file.
        by_float_model: how many by the float model.
        images: of the class in all.
    """

    label: int
    answer: int
    by_file: int
    by_float_model: int
    images: int


def most_confused(
    labels: np.ndarray, float_answers: np.ndarray, file_answers: np.ndarray, *, most: int
) -> list[Confusion]:
    """The pairs that the file confuses most often, most often first; equal ones in class order."""
    wrong = (file_answers != labels) & (file_answers != NO_CLASS)
    pairs = np.stack([labels[wrong], file_answers[wrong]], axis=1)
    found, counts = np.unique(pairs, axis=0, return_counts=True)
    return [
        Confusion(
            label=label,
            answer=answer,
            by_file=count,
            by_float_model=int(np.count_nonzero((labels == label) & (float_answers == answer))),
            images=int(np.count_nonzero(labels == label)),
        )
        for count, (label, answer) in sorted(
            zip(counts.tolist(), found.tolist(), strict=True), key=lambda pair: (-pair[0], pair[1])
        )[:most]
    ]


@dataclasses.dataclass(frozen=True)
class Bins:
    """A confusion matrix of which consecutive classes share a row and a column.

    Attributes:
        counts: images by class (row) and answer (column), summed over the classes of each.
        starts: first class of each row.
        num_classes: in all.
    """

    counts: np.ndarray
    starts: tuple[int, ...]
    num_classes: int

    def classes(self, row: int) -> range:
        """The classes of a row."""
        ends = (*self.starts[1:], self.num_classes)
        return range(self.starts[row], ends[row])


def binned(labels: np.ndarray, answers: np.ndarray, num_classes: int, *, most: int) -> Bins:
    """The confusion matrix in at most `most` rows, of equally many classes but for the last.

    >>> labels = np.arange(5)
    >>> found = binned(labels, labels, 5, most=2)
    >>> found.starts, found.counts.tolist(), found.classes(1)
    ((0, 3), [[3, 0], [0, 2]], range(3, 5))
    """
    each = max(1, -(-num_classes // most))
    starts = tuple(range(0, num_classes, each))
    bins = np.where(answers == NO_CLASS, NO_CLASS, answers // each)
    return Bins(confusion(labels // each, bins, len(starts)), starts, num_classes)


class ClassAccuracy(NamedTuple):
    """How a class is classified.

    Attributes:
        label: class number.
        images: how many it has.
        float_right: how many the float model classifies right.
        file_right: how many the file classifies right.
    """

    label: int
    images: int
    float_right: int
    file_right: int

    @property
    def gained(self) -> float:
        """Accuracy of the file less that of the float model, in [-1, 1]."""
        return (self.file_right - self.float_right) / self.images


def class_accuracies(
    labels: np.ndarray, float_answers: np.ndarray, file_answers: np.ndarray
) -> list[ClassAccuracy]:
    """The accuracy of every class that has images, in class order."""
    found = []
    for label in np.unique(labels).tolist():
        of_class = labels == label
        float_right, file_right = (
            int(np.count_nonzero(answers[of_class] == label))
            for answers in (float_answers, file_answers)
        )
        found.append(ClassAccuracy(label, int(of_class.sum()), float_right, file_right))
    return found


def most_changed(accuracies: Sequence[ClassAccuracy], *, most: int) -> list[ClassAccuracy]:
    """The classes that differ between file and float model in most images, then in most points.

    By points alone, classes of one or two images would come first. Classes with equal accuracy are
    left out.
    """

    def order(found: ClassAccuracy) -> tuple[float, ...]:
        return -abs(found.file_right - found.float_right), -abs(found.gained), found.label

    changed = [found for found in accuracies if found.float_right != found.file_right]
    return sorted(changed, key=order)[:most]


class Agreement(NamedTuple):
    """How many images each of the two classifies right.

    Attributes:
        both_right: images that both classify right.
        float_only: that only the float model does.
        file_only: that only the file does.
        both_wrong: that neither does.
        same_answer: images with the same answer, right or wrong.
    """

    both_right: int
    float_only: int
    file_only: int
    both_wrong: int
    same_answer: int


def agreement(labels: np.ndarray, float_answers: np.ndarray, file_answers: np.ndarray) -> Agreement:
    """Counts of right and wrong answers, side by side."""
    groups = example_groups(labels, float_answers, file_answers)
    return Agreement(
        **{name: len(group) for name, group in groups.items()},
        same_answer=int(np.count_nonzero(float_answers == file_answers)),
    )


def example_groups(
    labels: np.ndarray, float_answers: np.ndarray, file_answers: np.ndarray
) -> dict[str, np.ndarray]:
    """The indices of the images by who is right: names of `Agreement`, in its order."""
    float_right, file_right = float_answers == labels, file_answers == labels
    return {
        "both_right": np.flatnonzero(float_right & file_right),
        "float_only": np.flatnonzero(float_right & ~file_right),
        "file_only": np.flatnonzero(~float_right & file_right),
        "both_wrong": np.flatnonzero(~float_right & ~file_right),
    }


def spread(indices: np.ndarray, most: int) -> list[int]:
    """At most `most` of the indices, evenly spread.

    >>> spread(np.arange(10), 3), spread(np.arange(2), 3)
    ([0, 3, 6], [0, 1])
    """
    if len(indices) <= most:
        return [int(index) for index in indices]
    return [int(indices[place * len(indices) // most]) for place in range(most)]
