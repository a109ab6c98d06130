"""What every source promises, as functions that any of them can be given."""

import functools
import itertools

import numpy as np

from sat_tf.training.data.source import NO_LABEL, Shard

SHARDS = [Shard(worker=worker, workers=2, replicas=2) for worker in range(2)]


def pieces(dataset, count=None):
    """So many elements as arrays, or all of them."""
    return [(images.numpy(), labels.numpy()) for images, labels in itertools.islice(dataset, count)]


def labels_of(source, count, *, batch_size, seed=0, **options):
    """The labels of so many training batches."""
    batches = source.training_batches(batch_size=batch_size, seed=seed, **options)
    return np.concatenate([labels for _, labels in pieces(batches, count)])


def assert_resumes_exactly(source, *, batch_size, epochs):
    """Batches from an epoch on are those of a run that came there."""
    per_epoch = source.num_train // batch_size
    whole = pieces(
        source.training_batches(batch_size=batch_size, seed=3), max(epochs) * per_epoch + 3
    )
    for epoch in epochs:
        resumed = source.training_batches(batch_size=batch_size, seed=3, first_epoch=epoch)
        np.testing.assert_equal(pieces(resumed, 3), whole[epoch * per_epoch :][:3])


def _joined(parts, step):
    """A global batch, from the pieces of all workers."""
    mine = [piece for part in parts for piece in part[2 * step : 2 * step + 2]]
    return tuple(np.concatenate(tensors) for tensors in zip(*mine, strict=True))


def assert_workers_share_batches(source, *, batch_size, steps):
    """Two workers with two replicas each get the batches of one process, cut in order.

    So they do of the held-out images; every process has the same number of elements.
    """
    training = functools.partial(source.training_batches, seed=3)
    for batches, count in ((training, steps), (source.held_out_batches, None)):
        whole = pieces(batches(batch_size=batch_size), count)
        parts = [
            pieces(batches(batch_size=batch_size, shard=shard), count and 2 * count)
            for shard in SHARDS
        ]
        for shard, part in zip(SHARDS, parts, strict=True):
            sizes = [size for _, size in shard.pieces(batch_size)]
            assert [len(labels) for _, labels in part] == sizes * len(whole)
        np.testing.assert_equal([_joined(parts, step) for step in range(len(whole))], whole)


def assert_held_out_is_padded(source, *, batch_size):
    """All batches are full; what fills up the last one is black and has no label."""
    batches = pieces(source.held_out_batches(batch_size=batch_size))
    assert {len(labels) for _, labels in batches} == {batch_size}
    images, labels = (np.concatenate(tensors) for tensors in zip(*batches, strict=True))
    assert np.all(labels[: source.num_test] != NO_LABEL)
    assert np.all(labels[source.num_test :] == NO_LABEL)
    assert not images[source.num_test :].any()
    return images[: source.num_test], labels[: source.num_test]


def assert_shapes_are_static(source, *, batch_size):
    images = (batch_size, source.image_size, source.image_size, 3)
    for dataset in (
        source.training_batches(batch_size=batch_size, seed=0),
        source.held_out_batches(batch_size=batch_size),
    ):
        assert [(spec.shape, spec.dtype) for spec in dataset.element_spec] == [
            (images, "uint8"),
            ((batch_size,), "int32"),
        ]


def assert_sample_is_drawn_by_its_seed(source):
    one, again, other = (source.training_sample(5, seed=seed) for seed in (1, 1, 2))
    assert one.shape == (5, source.image_size, source.image_size, 3)
    np.testing.assert_array_equal(one, again)
    assert not np.array_equal(one, other)
    assert len(source.training_sample(1000, seed=0)) == source.num_train
