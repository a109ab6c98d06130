"""What every source promises, as functions that any of them can be given."""

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


def assert_workers_share_batches(source, *, batch_size, steps):
    """Two workers with two replicas each get the batches of one process, cut in order."""
    whole = pieces(source.training_batches(batch_size=batch_size, seed=3), steps)
    parts = [
        pieces(source.training_batches(batch_size=batch_size, seed=3, shard=shard), 2 * steps)
        for shard in SHARDS
    ]
    for shard, part in zip(SHARDS, parts, strict=True):
        sizes = [size for _, size in shard.pieces(batch_size)]
        assert [len(labels) for _, labels in part] == sizes * steps
    np.testing.assert_equal([joined(parts, step) for step in range(steps)], whole)


def joined(parts, step):
    """A global batch, from the pieces of all workers."""
    mine = [piece for part in parts for piece in part[2 * step : 2 * step + 2]]
    return tuple(np.concatenate(tensors) for tensors in zip(*mine, strict=True))


def assert_workers_share_held_out(source, *, batch_size):
    """The same for held-out images; every process has the same number of elements."""
    whole = pieces(source.held_out_batches(batch_size=batch_size))
    parts = [pieces(source.held_out_batches(batch_size=batch_size, shard=s)) for s in SHARDS]
    assert {len(part) for part in parts} == {2 * len(whole)}
    np.testing.assert_equal([joined(parts, step) for step in range(len(whole))], whole)


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
    size = source.image_size
    for dataset in (
        source.training_batches(batch_size=batch_size, seed=0),
        source.held_out_batches(batch_size=batch_size),
    ):
        images, labels = dataset.element_spec
        assert images.shape == (batch_size, size, size, 3)
        assert images.dtype == "uint8"
        assert labels.shape == (batch_size,)
        assert labels.dtype == "int32"


def assert_sample_is_drawn_by_its_seed(source):
    one, again, other = (source.training_sample(5, seed=seed) for seed in (1, 1, 2))
    assert one.shape == (5, source.image_size, source.image_size, 3)
    np.testing.assert_array_equal(one, again)
    assert not np.array_equal(one, other)
    assert len(source.training_sample(1000, seed=0)) == source.num_train
