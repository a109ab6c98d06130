"""The answers of a float model and of its file for the same images, to keep and to show."""

import base64
import dataclasses
import io
from collections.abc import Sequence
from typing import Any, NamedTuple, Self

import numpy as np

from sat_tf.analysis.answers.counting import example_groups, spread
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
