"""The answers of a float model and of its file for the same images: kept, counted and shown.

An answer is a class number, or `NO_CLASS`.
"""

import base64
import dataclasses
import io
from collections.abc import Sequence
from typing import Any, NamedTuple, Self

import numpy as np
from markupsafe import Markup

from sat_tf.arguments import Rule, check
from sat_tf.presentation.charts import heat_map, scrolled
from sat_tf.presentation.page import render
from sat_tf.presentation.tables import Cell, Column, Marked, Table, digits, percent, points
from sat_tf.top_k import NO_CLASS

# How many examples of each group are shown.
EXAMPLES = {"float_only": 8, "file_only": 8, "both_wrong": 8, "both_right": 4}
_TITLES = {
    "float_only": "Right in the float model, wrong in the file",
    "file_only": "Wrong in the float model, right in the file",
    "both_wrong": "Wrong in both",
    "both_right": "Right in both",
}
_THUMBNAIL_PIXELS = 96
_MOST_ROWS = 50
_MOST_LISTED = 10
_count, _share = digits(","), percent(1)


class Example(NamedTuple):
    """An image to look at.

    Attributes:
        image: its index.
        picture: a small JPEG, in base64.
    """

    image: int
    picture: str


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
        arrays: dict[str, Any] = {
            "labels": np.asarray(labels),
            "float_answers": np.asarray(float_answers),
            "file_answers": np.asarray(file_answers),
        }
        _check(images, arrays, num_classes, class_names)
        answers = cls(
            **arrays,
            num_classes=num_classes,
            class_names=tuple(class_names) if class_names is not None else None,
        )
        if images is None:
            return answers
        groups = answers.groups()
        examples = (
            Example(index, _thumbnail(images[index]))
            for name, most in EXAMPLES.items()
            for index in spread(groups[name], most)
        )
        return dataclasses.replace(answers, examples=tuple(examples))

    def name(self, label: int) -> str:
        """The name of a class."""
        if label == NO_CLASS:
            return "no answer"
        return str(label) if self.class_names is None else self.class_names[label]

    def groups(self) -> dict[str, np.ndarray]:
        """The indices of the images by who is right: both, the float model or the file, neither."""
        float_right, file_right = (
            answers == self.labels for answers in (self.float_answers, self.file_answers)
        )
        return {
            "both_right": np.flatnonzero(float_right & file_right),
            "float_only": np.flatnonzero(float_right & ~file_right),
            "file_only": np.flatnonzero(~float_right & file_right),
            "both_wrong": np.flatnonzero(~float_right & ~file_right),
        }

    def most_confused(self, *, most: int) -> list[Confusion]:
        """The pairs that the file confuses most often, in this order; equal ones in class order."""
        wrong = (self.file_answers != self.labels) & (self.file_answers != NO_CLASS)
        pairs = np.stack([self.labels[wrong], self.file_answers[wrong]], axis=1)
        found, counts = np.unique(pairs, axis=0, return_counts=True)
        ranked = sorted(
            zip(counts.tolist(), found.tolist(), strict=True), key=lambda pair: (-pair[0], pair[1])
        )
        return [
            Confusion(
                label=label,
                answer=answer,
                by_file=count,
                by_float_model=int(
                    np.count_nonzero((self.labels == label) & (self.float_answers == answer))
                ),
                images=int(np.count_nonzero(self.labels == label)),
            )
            for count, (label, answer) in ranked[:most]
        ]

    def class_accuracies(self) -> list[ClassAccuracy]:
        """The accuracy of every class that has images, in class order."""
        found = []
        for label in np.unique(self.labels).tolist():
            of_class = self.labels == label
            float_right, file_right = (
                int(np.count_nonzero(answers[of_class] == label))
                for answers in (self.float_answers, self.file_answers)
            )
            found.append(ClassAccuracy(label, int(of_class.sum()), float_right, file_right))
        return found

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


def binned(
    labels: np.ndarray, answers: np.ndarray, num_classes: int, *, most: int
) -> tuple[np.ndarray, list[range]]:
    """The confusion matrix in at most `most` rows, and the classes that share each row and column.

    >>> labels = np.arange(5)
    >>> counts, rows = binned(labels, labels, 5, most=2)
    >>> counts.tolist(), rows
    ([[3, 0], [0, 2]], [range(0, 3), range(3, 5)])
    """
    each = max(1, -(-num_classes // most))
    rows = [range(first, min(first + each, num_classes)) for first in range(0, num_classes, each)]
    bins = np.where(answers == NO_CLASS, NO_CLASS, answers // each)
    return confusion(labels // each, bins, len(rows)), rows


def most_changed(accuracies: Sequence[ClassAccuracy], *, most: int) -> list[ClassAccuracy]:
    """The classes that differ between file and float model in most images, then in most points.

    By points alone, classes of one or two images would come first. Classes with equal accuracy are
    left out.
    """

    def order(found: ClassAccuracy) -> tuple[float, ...]:
        return -abs(found.file_right - found.float_right), -abs(found.gained), found.label

    changed = [found for found in accuracies if found.float_right != found.file_right]
    return sorted(changed, key=order)[:most]


def spread(indices: np.ndarray, most: int) -> list[int]:
    """At most `most` of the indices, evenly spread.

    >>> spread(np.arange(10), 3), spread(np.arange(2), 3)
    ([0, 3, 6], [0, 1])
    """
    if len(indices) <= most:
        return [int(index) for index in indices]
    return [int(indices[place * len(indices) // most]) for place in range(most)]


def answers_section(answers: Answers) -> Markup:
    """Confusion matrices, most confused pairs, classes that changed, and examples, as HTML.

    A page around it includes the styles of "presentation/charts.css", "presentation/curves.css" and
    "analysis/answers.css".
    """
    accuracies = answers.class_accuracies()
    changed = most_changed(accuracies, most=_MOST_LISTED)
    pairs = answers.most_confused(most=_MOST_LISTED)
    bin_size, matrices = 1, []
    for title, given in (
        ("TFLite file", answers.file_answers),
        ("Float model", answers.float_answers),
    ):
        counts, rows = binned(answers.labels, given, answers.num_classes, most=_MOST_ROWS)
        bin_size = len(rows[0])
        matrices.append(_matrix(answers, title, given, counts, rows))
    return render(
        "analysis/answers.html",
        counts={name: len(group) for name, group in answers.groups().items()},
        same_answer=int(np.count_nonzero(answers.float_answers == answers.file_answers)),
        num_images=len(answers.labels),
        matrices=matrices,
        bin_size=bin_size,
        num_classes=answers.num_classes,
        pairs=_pairs(answers, pairs).to_html("Most confused classes") if pairs else "",
        num_measured=len(accuracies),
        num_changed=sum(found.float_right != found.file_right for found in accuracies),
        changed=_changed(answers, changed).to_html("Accuracy by class") if changed else "",
        examples=_examples(answers),
    )


def _matrix(
    answers: Answers, title: str, given: np.ndarray, counts: np.ndarray, rows: list[range]
) -> Markup:
    # A row of several classes has their numbers, for want of room.
    names = [answers.name(row[0]) if len(row) == 1 else f"{row[0]}–{row[-1]}" for row in rows]
    images = counts.sum(axis=1)
    right = int(np.count_nonzero(answers.labels == given))
    drawn = heat_map(
        counts,
        names,
        title=f"Confusion matrix: {title}",
        summary=f"{right} of {len(given)} images are classified right.",
        tip_of=lambda row, column: (
            f"{names[row]} taken for {names[column]}: {int(counts[row, column])} of "
            f"{int(images[row])}"
        ),
    )
    return Markup("<figure><figcaption>{}</figcaption>{}</figure>").format(
        title, scrolled(drawn, title)
    )


def _pairs(answers: Answers, pairs: list[Confusion]) -> Table[Confusion]:
    columns: list[Column[Confusion]] = [
        Column("class", lambda pair: Marked(answers.name(pair.label), "name")),
        Column("taken for", lambda pair: answers.name(pair.answer)),
        Column("by the file", lambda pair: pair.by_file, _count, number=True),
        Column("by the float model", lambda pair: pair.by_float_model, _count, number=True),
        Column("images of the class", lambda pair: pair.images, _count, number=True),
    ]
    return Table(columns=columns, rows=pairs)


def _changed(answers: Answers, changed: list[ClassAccuracy]) -> Table[ClassAccuracy]:
    def gained(found: ClassAccuracy) -> Cell:
        return Marked(points(found.gained, 1), "good" if found.gained > 0 else "bad")

    columns: list[Column[ClassAccuracy]] = [
        Column("class", lambda found: Marked(answers.name(found.label), "name")),
        Column("images", lambda found: found.images, _count, number=True),
        Column("float model", lambda found: found.float_right / found.images, _share, number=True),
        Column("file", lambda found: found.file_right / found.images, _share, number=True),
        Column("points", gained, number=True),
    ]
    return Table(columns=columns, rows=changed)


def _examples(answers: Answers) -> dict[str, list[dict[str, Any]]]:
    """The examples as the page shows them, under the titles of the groups that have any."""

    def shown(image: int, picture: str) -> dict[str, Any]:
        label = int(answers.labels[image])
        given = {"float": answers.float_answers[image], "file": answers.file_answers[image]}
        return {
            "picture": f"data:image/jpeg;base64,{picture}",
            "label": answers.name(label),
            "answers": {
                by: Marked(answers.name(int(answer)), "good" if answer == label else "bad")
                for by, answer in given.items()
            },
        }

    groups = answers.groups()
    found = {
        title: [shown(*one) for one in answers.examples if one.image in groups[name]]
        for name, title in _TITLES.items()
    }
    return {title: examples for title, examples in found.items() if examples}
