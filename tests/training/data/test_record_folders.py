import functools
import itertools

import numpy as np
import pytest
import tensorflow as tf

from sat_tf.messages import ReadingError
from sat_tf.training import data
from sat_tf.training.data.folders import find_files
from sat_tf.training.data.source import Shard
from tests.training.data import contract
from tests.training.data.contract import pieces
from tests.training.data.photographs import encoded, odd_files, photograph

JPEGS = [encoded(photograph(40, 50, seed=seed)) for seed in range(29)]


def write_set(root, train=(5, 7, 4, 6), held_out=(4, 3), replaced=None):
    """Files with so many records; every picture has a class of its own, counted through all."""
    root.mkdir()
    numbers = itertools.count()
    for part, counts in (("train", train), ("validation", held_out)):
        for file, count in enumerate(counts):
            path = root / f"{part}-{file:05}-of-{len(counts):05}"
            with tf.io.TFRecordWriter(str(path)) as writer:
                for number in itertools.islice(numbers, count):
                    content = [(replaced or {}).get(number, JPEGS[number % 29])]
                    feature = {
                        "image/encoded": {"bytes_list": tf.train.BytesList(value=content)},
                        "image/class/label": {"int64_list": tf.train.Int64List(value=[number + 1])},
                    }
                    features = {name: tf.train.Feature(**of) for name, of in feature.items()}
                    example = tf.train.Example(features=tf.train.Features(feature=features))
                    writer.write(example.SerializeToString())
    return root


def open_records(root, **options):
    settings = {"image_size": 16, "num_classes": 29, "shuffle_buffer": 8, **options}
    return data.source("tfrecords", data_dir=root, cache_dir=root / "cache", **settings)


@pytest.fixture(scope="module")
def root(tmp_path_factory):
    return write_set(tmp_path_factory.mktemp("records") / "set")


@pytest.fixture(scope="module")
def source(root):
    return open_records(root)


labels_of = functools.partial(contract.labels_of, batch_size=11)


def test_records_are_counted_once(root, source, monkeypatch):
    assert (source.num_train, source.num_test, source.num_classes) == (22, 7, 29)
    assert len(list((root / "cache").glob("records-*.npz"))) == 2
    monkeypatch.setattr("sat_tf.training.data.folders._count", None)
    assert open_records(root).num_train == 22


def test_other_numbers_than_those_expected_are_named(root, tmp_path):
    assert open_records(root, num_train=22, num_test=7).num_train == 22
    with pytest.raises(ValueError, match="2 problems") as error:
        open_records(root, num_train=100, num_test=5)
    assert "received 22 records to train with, expected 100" in str(error.value)
    assert "received 7 records to test with, expected 5" in str(error.value)
    with pytest.raises(ValueError, match="received 0 records to test with, expected at least one"):
        open_records(write_set(tmp_path / "set", (1,), (0,)))


@pytest.mark.thorough
def test_an_epoch_sees_every_picture_once_in_another_order_each_time(source):
    epochs = labels_of(source, 4).reshape(2, 22)
    for labels in epochs:
        assert sorted(labels) == list(range(22))
    assert not np.array_equal(*epochs)
    assert not np.array_equal(epochs[0], labels_of(source, 2, seed=1))


@pytest.mark.thorough
def test_the_global_seed_changes_nothing(source):
    found = []
    for seed in (0, 7):
        tf.random.set_seed(seed)
        found.append((labels_of(source, 2), source.training_sample(3, seed=1)))
    np.testing.assert_equal(*found)


@pytest.mark.thorough
def test_a_run_resumes_exactly_shapes_are_static_and_a_sample_is_drawn_by_its_seed(source):
    contract.assert_resumes_exactly(source, batch_size=5, epochs=[1, 2])
    contract.assert_shapes_are_static(source, batch_size=5)
    contract.assert_sample_is_drawn_by_its_seed(source)


@pytest.mark.thorough
def test_each_worker_reads_a_share_of_its_own(source):
    shards = [Shard(worker=worker, workers=2) for worker in range(2)]
    # A step is 8 images of each worker, and files hold 4 to 7.
    seen = [set(labels_of(source, 1, batch_size=16, shard=shard)) for shard in shards]
    assert not seen[0] & seen[1]
    assert all(len(labels) == 8 for labels in seen)
    parts = [pieces(source.held_out_batches(batch_size=4, shard=shard)) for shard in shards]
    assert len(parts[0]) == len(parts[1])
    labels = np.concatenate([labels for part in parts for _, labels in part])
    assert sorted(labels[labels >= 0]) == list(range(22, 29))


@pytest.mark.thorough
def test_held_out_images_come_in_the_order_of_the_files(source):
    images, labels = contract.assert_held_out_is_padded(source, batch_size=4)
    assert labels.tolist() == list(range(22, 29))
    np.testing.assert_array_equal(images, source.held_out_sample(100)[0])
    assert source.held_out_sample(3)[1].tolist() == [22, 25, 28]


@pytest.mark.thorough
@pytest.mark.parametrize("options", [{"first_label": 2}, {"num_classes": 20}])
def test_labels_out_of_range_are_named_with_the_fix(root, options):
    with pytest.raises(tf.errors.OpError, match="correct first_label or num_classes"):
        labels_of(open_records(root, **options), 2)


@pytest.mark.thorough
def test_records_without_the_picture_are_named_with_the_fix(root):
    source = open_records(root, image_key="image")
    with pytest.raises(tf.errors.OpError, match="correct the names of its features"):
        labels_of(source, 1)
    assert "Feature: image (data type: string) is required" in str(source.reading_error)
    assert "{{" not in str(source.reading_error)
    with pytest.raises(ValueError, match="label_key='image': expected another feature"):
        open_records(root, image_key="image", label_key="image")


def test_files_may_lie_in_a_folder_for_each_part(tmp_path):
    for name in ("train/train-00000-of-00001", "validation/validation-00000-of-00001"):
        (tmp_path / name).parent.mkdir()
        (tmp_path / name).touch()
    assert [len(files) for files in find_files(tmp_path)] == [1, 1]


@pytest.mark.thorough
def test_a_corrupt_picture_is_named_by_its_file_and_its_place(tmp_path):
    bad = {12: b"no picture", 23: b"", 7: odd_files()["tiff"]}
    source = open_records(write_set(tmp_path / "set", replaced=bad))
    with pytest.raises(tf.errors.OpError):
        labels_of(source, 2)
    assert "train-00002-of-00004, record 0: received a picture" in str(source.reading_error)
    with pytest.raises(ReadingError, match="validation-00000-of-00002, record 1: received a pict"):
        open_records(tmp_path / "set").held_out_sample(100)


def test_damaged_files_and_those_that_have_gone_are_named(tmp_path):
    root = write_set(tmp_path / "set", (2, 5), (1,))
    path = root / "train-00001-of-00002"
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)
    with pytest.raises(ReadingError, match=r"train-00001-of-00002, record \d: received a file tha"):
        open_records(root, num_classes=8).training_sample(7, seed=0)
    source = open_records(write_set(tmp_path / "other", (1,), (1,)))
    (tmp_path / "other" / "validation-00000-of-00001").unlink()
    with pytest.raises(ReadingError, match="-00000-of-00001, record 0: received a file that is"):
        source.held_out_sample(1)


@pytest.mark.parametrize("workers", [2, 3])  # of two files
def test_workers_get_uneven_held_out_files_whole(tmp_path, workers):
    source = open_records(write_set(tmp_path / "set", (1,), (7, 3)), num_test=10)
    shards = [Shard(worker=worker, workers=workers) for worker in range(workers)]
    parts = [pieces(source.held_out_batches(batch_size=4, shard=shard)) for shard in shards]
    labels = np.concatenate([labels for part in parts for _, labels in part])
    assert sorted(labels[labels >= 0]) == list(range(1, 11))


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("counts", "workers", "batch_size"),
    # Files without records are passed over.
    [((7, 7, 7), 2, 4), ((2, 9, 3, 6), 2, 4), ((9, 9), 3, 3), ((8, 8), 2, 5), ((2, 0, 2), 2, 4)],
)
def test_an_epoch_of_several_workers_has_no_picture_twice(counts, workers, batch_size, tmp_path):
    source = open_records(write_set(tmp_path / "set", counts, (1,)), num_classes=29)
    steps = sum(counts) // batch_size
    shards = [Shard(worker=worker, workers=workers) for worker in range(workers)]
    seen = [labels_of(source, 2 * steps, batch_size=batch_size, shard=one) for one in shards]
    for epoch in range(2):
        labels = np.concatenate([np.split(one, 2)[epoch] for one in seen])
        assert len(np.unique(labels)) == len(labels) == steps * batch_size
