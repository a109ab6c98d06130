"""A tree of pictures as a source of batches."""

import os
import pathlib
from collections.abc import Iterator
from typing import Any

import numpy as np
import numpy.typing as npt
import tensorflow as tf

from sat_tf.pictures.folder_tree import FolderTree, Split, printable
from sat_tf.pictures.sampling import spread_evenly
from sat_tf.preprocessing import RESIZED_AND_CROPPED, Preprocessing
from sat_tf.training.data.batch_order import checked_order, held_out_spans, shuffled_spans
from sat_tf.training.data.crops import INCEPTION, TrainingCrops
from sat_tf.training.data.decoding import Encoded, Pictures, PictureSource
from sat_tf.training.data.source import Shard, expect_images

_NAMES_READ = 1000


class FolderSource(PictureSource):
    """Batches of the pictures of a `FolderTree`; see `load_folder_tree` for how they are prepared.

    Args:
        tree: paths and labels.
        name: what the set is called.
        image_size: height and width of the images.
        max_corrupt: see `CorruptPictures`.
        deterministic: whether pictures keep their order.
        preprocessing: how pictures become the images to measure with.
        crops: how training varies them.
    """

    def __init__(
        self,
        tree: FolderTree,
        *,
        name: str,
        image_size: int,
        max_corrupt: float,
        deterministic: bool,
        preprocessing: Preprocessing = RESIZED_AND_CROPPED,
        crops: TrainingCrops = INCEPTION,
    ) -> None:
        super().__init__(
            name=name,
            image_size=image_size,
            num_classes=len(tree.class_names),
            num_train=len(tree.train.paths),
            num_test=len(tree.held_out.paths),
            max_corrupt=max_corrupt,
            deterministic=deterministic,
            preprocessing=preprocessing,
            crops=crops,
        )
        self.class_names = tuple(map(printable, tree.class_names)) or None
        self.notes = tree.notes
        self._tree = tree
        self._train, self._held_out = _Files(tree.train), _Files(tree.held_out)

    @property
    def held_out_files(self) -> dict[str, int]:
        """The labels of all held-out pictures, by their paths, in order."""
        split = self._tree.held_out
        return {
            str(pathlib.Path(p)): label for p, label in zip(split.paths, split.labels, strict=True)
        }

    def training_batches(
        self,
        *,
        batch_size: int,
        seed: int,
        first_epoch: int = 0,
        first_step: int = 0,
        shard: Shard | None = None,
    ) -> tf.data.Dataset:
        """The endless training batches from a given step on; see `ImageSource`."""
        order = checked_order(
            self.name,
            self.num_train,
            batch_size=batch_size,
            seed=seed,
            first_epoch=first_epoch,
            first_step=first_step,
            shard=shard,
        )
        spans = shuffled_spans(self.num_train, order).map(
            lambda epoch, indices: (tf.fill(tf.shape(indices), epoch), indices)
        )
        return self._training(order.in_pieces(spans), self._train, seed)

    def held_out_batches(
        self, *, batch_size: int = 256, shard: Shard | None = None
    ) -> tf.data.Dataset:
        """Every held-out image once, in order; see `ImageSource`.

        A corrupt picture leaves a black image with `NO_LABEL` in its place.
        """
        order = checked_order(self.name, None, batch_size=batch_size, shard=shard)
        spans = held_out_spans(self.num_test, order)
        return self._prepared(order.in_pieces(spans), self._held_out)

    def training_sample(self, count: int, *, seed: int) -> npt.NDArray[np.uint8]:
        """`count` training images, or all there are, prepared like the held-out ones.

        Corrupt pictures are left out, and others drawn in their place while there are any.
        """
        expect_images(self.name, count)
        # RandomState, because NumPy guarantees that its streams never change.
        chosen = np.random.RandomState(seed).permutation(self.num_train)
        return self._sample(_rows(chosen), self._train, count)[0]

    def held_out_sample(
        self, most: int
    ) -> tuple[npt.NDArray[np.uint8], npt.NDArray[np.int32] | None]:
        """At most `most` held-out images, spread evenly, and labels if any; no corrupt ones."""
        expect_images(self.name, most)
        rows = _rows(spread_evenly(self.num_test, most))
        images, labels = self._sample(rows, self._held_out, most)
        return images, labels if self.num_classes else None


def _rows(chosen: npt.NDArray[np.int64]) -> tf.data.Dataset:
    return tf.data.Dataset.from_tensor_slices(chosen.astype(np.int64))


class _Files(Pictures):
    """The pictures of a split; a row is the number of one."""

    numbers = 1

    def __init__(self, split: Split) -> None:
        first = [path.lower() for path in split.paths[:_NAMES_READ]]
        self.are_jpegs = 2 * sum(path.endswith((".jpeg", ".jpg")) for path in first) > len(first)
        self._split = split
        self._count = len(split.paths)
        with tf.device("CPU"):
            # Paths are bytes, because names need not be UTF-8.
            self._paths = tf.constant([os.fsencode(path) for path in split.paths])
            self._labels = tf.constant(split.labels, tf.int32)

    def is_there(self, *row: tf.Tensor) -> tf.Tensor:
        """Whether there are so many pictures."""
        return row[0] < self._count

    def in_graph(self, *row: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        """The bytes and the label of a picture."""
        return tf.io.read_file(self._paths[row[0]]), self._labels[row[0]]

    def following(self, *row: Any) -> Iterator[Encoded]:
        """All pictures, starting at one and wrapping around."""
        for number in range(int(row[0]), int(row[0]) + self._count):
            path = pathlib.Path(self._split.paths[number % self._count])
            yield Encoded(
                printable(path), path.read_bytes, self._split.labels[number % self._count]
            )
