"""A tree of pictures as a source of batches."""

import os
import pathlib
from collections.abc import Iterator

import numpy as np
import numpy.typing as npt
import tensorflow as tf

from sat_tf.data.batch_order import (
    RANDOM,
    check_batches,
    held_out_spans,
    in_pieces,
    shuffled_spans,
)
from sat_tf.data.crops import (
    INCEPTION,
    TrainingCrops,
    held_out_crop,
    held_out_crop_of_jpeg,
    held_out_crop_of_pixels,
    training_crop,
    training_crop_of_jpeg,
    training_crop_of_pixels,
)
from sat_tf.data.decoding import (
    Encoded,
    NoGoodPictureError,
    PictureSource,
    first_good,
)
from sat_tf.data.folder_tree import FolderTree, Split, printable
from sat_tf.data.source import NO_LABEL, Shard, expect_images, spread_evenly
from sat_tf.preprocessing import RESIZED_AND_CROPPED, Preprocessing

_SAMPLED_AT_ONCE = 64
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
        )
        self.class_names = tuple(map(printable, tree.class_names))
        self.preprocessing = preprocessing
        self.notes = tree.notes
        self._tree = tree
        self._turns = preprocessing.exif_orientation
        self._crops = crops

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
        shard = shard or Shard()
        order = {"seed": seed, "first_epoch": first_epoch, "first_step": first_step}
        check_batches(
            self.name, batch_size=batch_size, num_train=self.num_train, shard=shard, **order
        )
        paths, labels = _tensors(self._tree.train)
        crop_of = training_crop_of_jpeg if _are_jpegs(self._tree.train) else training_crop

        def seed_of(epoch: tf.Tensor, index: tf.Tensor) -> tf.Tensor:
            # The crop of a picture does not depend on its batch.
            return tf.random.experimental.stateless_fold_in(
                tf.stack([tf.constant(seed, tf.int64), epoch]), index, alg=RANDOM
            )

        def fast(epoch: tf.Tensor, index: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
            encoded = tf.io.read_file(paths[index])
            crop = crop_of(
                encoded,
                seed_of(epoch, index),
                self.image_size,
                turns=self._turns,
                crops=self._crops,
            )
            return crop, labels[index]

        def slow(epoch: np.int64, index: np.int64) -> tuple[npt.NDArray[np.uint8], int]:
            pixels, label = first_good(
                self._from(self._tree.train, int(index)), self.corrupt, turns=self._turns
            )
            crop = training_crop_of_pixels(
                pixels, seed_of(epoch, index), self.image_size, self._crops
            )
            return crop.numpy(), label

        spans = shuffled_spans(self.num_train, batch_size=batch_size, shard=shard, **order).map(
            lambda epoch, indices: (tf.fill(tf.shape(indices), epoch), indices)
        )
        return self._batches(in_pieces(spans, batch_size=batch_size, shard=shard), fast, slow)

    def held_out_batches(
        self, *, batch_size: int = 256, shard: Shard | None = None
    ) -> tf.data.Dataset:
        """Every held-out image once, in order; see `ImageSource`.

        A corrupt picture leaves a black image with `NO_LABEL` in its place.
        """
        shard = shard or Shard()
        check_batches(self.name, batch_size=batch_size, num_train=None, shard=shard)
        spans = held_out_spans(self.num_test, batch_size=batch_size, shard=shard)
        return self._prepared(
            self._tree.held_out, in_pieces(spans, batch_size=batch_size, shard=shard)
        )

    def training_sample(self, count: int, *, seed: int) -> npt.NDArray[np.uint8]:
        """`count` training images, or all there are, prepared like the held-out ones.

        Corrupt pictures are left out, and others drawn in their place while there are any.
        """
        expect_images(self.name, count)
        # RandomState, because NumPy guarantees that its streams never change.
        chosen = np.random.RandomState(seed).permutation(self.num_train)
        return self._sample(self._tree.train, chosen, count)[0]

    def held_out_sample(self, most: int) -> tuple[npt.NDArray[np.uint8], npt.NDArray[np.int32]]:
        """At most `most` held-out images, spread evenly, and their labels; no corrupt ones."""
        expect_images(self.name, most)
        return self._sample(self._tree.held_out, spread_evenly(self.num_test, most), most)

    def _sample(
        self, split: Split, chosen: npt.NDArray[np.int64], most: int
    ) -> tuple[npt.NDArray[np.uint8], npt.NDArray[np.int32]]:
        pieces = tf.data.Dataset.from_tensor_slices(chosen.astype(np.int64))
        batches = self._prepared(split, pieces.batch(min(_SAMPLED_AT_ONCE, most)))
        return self._first_images(batches, most)

    def _prepared(self, split: Split, pieces: tf.data.Dataset) -> tf.data.Dataset:
        """Pictures by their numbers, prepared like the held-out ones; black beyond the last."""
        paths, labels = _tensors(split)
        count = len(split.paths)
        crop_of = held_out_crop_of_jpeg if _are_jpegs(split) else held_out_crop
        nothing = np.zeros((self.image_size, self.image_size, 3), np.uint8), NO_LABEL

        def fast(index: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
            return tf.cond(
                index < count,
                lambda: (
                    crop_of(tf.io.read_file(paths[index]), self.image_size, self.preprocessing),
                    labels[index],
                ),
                lambda: (tf.constant(nothing[0]), tf.constant(nothing[1])),
            )

        def slow(index: np.int64) -> tuple[npt.NDArray[np.uint8], int]:
            alone = [next(self._from(split, int(index)))]
            try:
                pixels, label = first_good(iter(alone), self.corrupt, turns=self._turns)
            except NoGoodPictureError:
                return nothing
            crop = held_out_crop_of_pixels(pixels, self.image_size, self.preprocessing)
            return crop.numpy(), label

        return self._batches(pieces, fast, slow)

    def _from(self, split: Split, index: int) -> Iterator[Encoded]:
        """All pictures of a split, starting at one and wrapping around."""
        count = len(split.paths)
        for number in range(index, index + count):
            path = pathlib.Path(split.paths[number % count])
            yield Encoded(printable(path), path.read_bytes, split.labels[number % count])


def _are_jpegs(split: Split) -> bool:
    """Whether most pictures are JPEGs, by the names of the first ones."""
    first = [path.lower() for path in split.paths[:_NAMES_READ]]
    return 2 * sum(path.endswith((".jpeg", ".jpg")) for path in first) > len(first)


def _tensors(split: Split) -> tuple[tf.Tensor, tf.Tensor]:
    with tf.device("CPU"):
        # Paths are bytes, because names need not be UTF-8.
        return tf.constant([os.fsencode(path) for path in split.paths]), tf.constant(
            split.labels, tf.int32
        )
