"""Images and labels to measure gradients with, from arrays or data sets."""

import dataclasses
from typing import Any

import numpy as np
import tensorflow as tf
import tf_keras as keras

from sat_tf.qat.images import elements_of, expect_num_images, holds_numbers

USUAL_IMAGES = 32


@dataclasses.dataclass(frozen=True)
class LabelledImages:
    """A batch of images, with labels or without."""

    images: np.ndarray  # (n, rows, columns, channels), in any type that the model takes.
    # Class numbers (n,) or shares of classes (n, classes); None without labels.
    labels: np.ndarray | None

    def __len__(self) -> int:
        return len(self.images)


def labelled_images(dataset: Any, *, most: int = USUAL_IMAGES) -> LabelledImages:
    """Returns the first images of a data set: a pair of arrays, an iterable, or images alone.

    Labels are class numbers, negative ones for images without a label, or one number for each
    class.
    """
    expect_num_images(most)
    arrays = (np.ndarray, tf.Tensor)
    if isinstance(dataset, LabelledImages):
        images, labels = dataset.images, dataset.labels
    elif hasattr(dataset, "held_out_sample"):
        images, labels = dataset.held_out_sample(most)
    elif hasattr(dataset, "test_images"):
        images, labels = dataset.test_images, dataset.test_labels
    elif isinstance(dataset, arrays):
        images, labels = dataset, None
    elif (
        isinstance(dataset, tuple | list)
        and len(dataset) == 2
        and (np.ndim(dataset[0]) > 1 or isinstance(dataset[0], arrays))
        and (dataset[1] is None or isinstance(dataset[1], (*arrays, list)))
    ):
        images, labels = dataset
    elif isinstance(dataset, tuple) and (
        # A tuple may also be an iterable of pairs.
        len({np.ndim(element) if isinstance(element, arrays) else -1 for element in dataset}) > 1
    ):
        raise ValueError(
            f"dataset: received a tuple of {len(dataset)}, expected a pair (images, labels); leave "
            "weights of images out."
        )
    elif hasattr(dataset, "__iter__") and not isinstance(dataset, str | bytes | dict):
        images, labels = _gathered(dataset, most)
    else:
        raise ValueError(
            f"dataset: received {type(dataset).__name__}, expected a pair (images, labels), a "
            "tf.data.Dataset of such pairs, or images alone."
        )
    images = np.asarray(images)
    labels = None if labels is None else np.asarray(labels)
    if not holds_numbers(images) or images.ndim < 2:
        raise ValueError(
            f"dataset: received images of shape {images.shape} and type {images.dtype}, expected "
            "numbers (n, rows, columns, channels)."
        )
    if not len(images):
        raise ValueError("dataset: received no images, expected at least one.")
    if not np.isfinite(images).all():
        raise ValueError("dataset: received images with NaN or infinite values; leave them out.")
    if labels is None:
        return LabelledImages(images[:most], None)
    if labels.dtype.kind not in "uifb" or labels.ndim not in (1, 2):
        raise ValueError(
            f"dataset: received labels of shape {labels.shape} and type {labels.dtype}, expected "
            "class numbers (n,), or one number for each class (n, classes)."
        )
    if len(labels) != len(images):
        raise ValueError(
            f"dataset: received {len(images)} images and {len(labels)} labels, expected as many."
        )
    if labels.ndim == 2 and labels.shape[1] == 1:
        labels = labels[:, 0]
    if labels.ndim == 1:
        indices = np.flatnonzero(labels >= 0)[:most]
        if not len(indices):
            raise ValueError("dataset: received no label of 0 or more, expected class numbers.")
        return LabelledImages(images[indices], labels[indices])
    return LabelledImages(images[:most], labels[:most])


def expect_fitting(sample: LabelledImages, model: keras.Model) -> None:
    """Raises ValueError unless images have the shape that a model with one input takes."""
    expected, received = tuple(model.inputs[0].shape[1:]), np.shape(sample.images)[1:]
    if len(expected) != len(received) or any(
        size not in (None, length) for size, length in zip(expected, received, strict=True)
    ):
        raise ValueError(
            f"dataset: received images of shape {received}, expected {expected}, which model "
            f"{model.name!r} takes; resize them, or build the model for theirs."
        )


def class_shares(labels: np.ndarray, num_classes: int) -> np.ndarray:
    """The labels as float32 shares (n, num_classes) for the cross entropy."""
    if labels.ndim == 1:
        if not np.array_equal(labels, np.round(labels)):
            raise ValueError(
                f"dataset: received labels such as {labels[0]!r}, expected class numbers: the "
                "rules are about classifiers."
            )
        if labels.max() >= num_classes:
            raise ValueError(
                f"dataset: received the label {int(labels.max())}, expected 0 to {num_classes - 1}:"
                f" the model has {num_classes} outputs."
            )
        return np.eye(num_classes, dtype=np.float32)[labels.astype(np.int64)]
    shares = labels.astype(np.float32)
    if shares.shape[1:] != (num_classes,):
        raise ValueError(
            f"dataset: received labels of shape {labels.shape}, expected (n,) or (n, {num_classes})"
            f": the model has {num_classes} outputs."
        )
    if (shares < 0).any() or not np.allclose(shares.sum(axis=1), 1.0, atol=1e-3):
        raise ValueError(
            "dataset: received rows of labels that are not class shares, expected numbers from 0 "
            "to 1 whose sum is 1; several labels for one image are not a classification."
        )
    return shares


def _gathered(dataset: Any, num_images: int) -> tuple[Any, Any]:
    """Concatenates batches or single images until there are enough."""
    all_images: list[np.ndarray] = []
    all_labels: list[Any] = []
    # A `tf.data.Dataset` tells whether it is batched, if it knows its shapes.
    spec = getattr(dataset, "element_spec", None)
    shape = getattr(spec[0] if isinstance(spec, tuple | list) else spec, "shape", None)
    single = None if shape is None or shape.rank is None else shape.rank == 3
    for element in elements_of(dataset):
        if isinstance(element, dict):
            raise ValueError(
                f"dataset: received elements with the keys {', '.join(map(str, element))}, expected"
                " pairs (images, labels); map them to pairs."
            )
        images, labels = element[:2] if isinstance(element, tuple | list) else (element, None)
        images = np.asarray(images)
        single = images.ndim == 3 if single is None else single
        if single:
            images, labels = images[None], None if labels is None else np.asarray(labels)[None]
        if images.ndim < 2 or (all_images and images.shape[1:] != all_images[0].shape[1:]):
            raise ValueError(
                f"dataset: received an element of shape {images.shape}, expected images of one "
                "size; pass (images, labels), or batches of them."
            )
        all_images.append(images)
        all_labels.append(labels)
        if sum(map(len, all_images)) >= num_images:
            break
    if not all_images:
        raise ValueError("dataset: received no images, expected at least one; it is empty.")
    images = np.concatenate(all_images)
    return images, None if any(rows is None for rows in all_labels) else np.concatenate(all_labels)
