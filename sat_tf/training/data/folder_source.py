"""A tree of pictures as a source of batches."""

import os
from typing import Any

import numpy as np
import tensorflow as tf

from sat_tf.messages import ReadingError
from sat_tf.pictures import Pictures as ListedPictures
from sat_tf.pictures import printable, spread_evenly
from sat_tf.training.data.batch_order import Order, held_out_numbers, shuffled_spans
from sat_tf.training.data.decoding import Pictures, PictureSource
from sat_tf.training.data.folder_tree import FolderTree


class FolderSource(PictureSource):
    """Batches of the pictures of a `FolderTree`; see `load_folder_tree` for how they are prepared.

    Args:
        tree: paths and labels.
        **options: those of `PictureSource` that do not follow from the tree.
    """

    def __init__(self, tree: FolderTree, **options: Any) -> None:
        super().__init__(
            _Files(tree.train),
            _Files(tree.held_out),
            num_classes=len(tree.class_names),
            class_names=tree.class_names or None,
            notes=tree.notes,
            **options,
        )


class _Files(Pictures):
    """The pictures of a split; a row is the number of one."""

    def __init__(self, split: ListedPictures) -> None:
        self.count = len(split.paths)
        self._names = split.paths
        with tf.device("CPU"):
            # Paths are bytes, because names need not be UTF-8.
            self._paths = tf.constant([os.fsencode(path) for path in split.paths])
            labels = np.zeros(self.count, np.int32) if split.labels is None else split.labels
            self._labels = tf.constant(labels, tf.int32)

    def training_rows(self, order: Order) -> tf.data.Dataset:
        """Returns rows in another order in every epoch; see `Pictures`."""
        spans = shuffled_spans(self.count, order)
        return spans.map(lambda epoch, numbers: (tf.fill(tf.shape(numbers), epoch), numbers))

    def held_out_rows(self, order: Order) -> tf.data.Dataset:
        """Returns all rows in order; see `Pictures`."""
        return held_out_numbers(self.count, order)

    def drawn_rows(self, count: int, seed: int) -> tf.data.Dataset:
        """Returns rows drawn at random; see `Pictures`."""
        # RandomState, because NumPy guarantees that its streams never change.
        chosen = np.random.RandomState(seed).permutation(self.count)[:count]
        return tf.data.Dataset.from_tensor_slices(chosen)

    def spread_rows(self, most: int) -> tf.data.Dataset:
        """Returns rows spread evenly; see `Pictures`."""
        return tf.data.Dataset.from_tensor_slices(spread_evenly(self.count, most))

    def number(self, *row: tf.Tensor) -> tf.Tensor:
        """Returns the row."""
        return row[0]

    def read(self, *row: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        """Returns the bytes and the label of a picture."""
        return tf.io.read_file(self._paths[row[0]]), self._labels[row[0]]

    def name(self, *row: Any) -> str:
        """Returns the path of a picture."""
        return printable(self._names[row[0]])

    def expect_readable(self, *row: Any) -> None:
        """Tries to open the file of a picture; see `Pictures`."""
        try:
            with open(self._names[row[0]], "rb"):
                return
        except OSError as error:
            raise ReadingError(
                f"{self.name(*row)}: received a file that cannot be opened ({error.strerror}); "
                "expected the one found at the start; restore it."
            ) from error
