import functools
import io
import shutil

import numpy as np
import pytest

from sat_tf.messages import ReadingError
from sat_tf.training import data
from sat_tf.training.data.source import Shard
from tests.training.data import contract
from tests.training.data.contract import pieces
from tests.training.data.photographs import encoded, photograph

tfds = pytest.importorskip("tensorflow_datasets")


class Snapshots(tfds.core.GeneratorBasedBuilder):
    """Twelve and five pictures, as JPEGs; every one has a class of its own."""

    # By itself it is found with importlib_resources, which need not be installed.
    code_path = tfds.core.Path(__file__)
    VERSION = tfds.core.Version("1.0.0")
    # In "odd" one of the pictures is a PNG after all, and the first held-out one has no label.
    BUILDER_CONFIGS = tuple(tfds.core.BuilderConfig(name=name) for name in ("jpeg", "odd"))

    def _info(self):
        image = tfds.features.Image(shape=(None, None, 3), encoding_format="jpeg")
        features = {"image": image, "label": tfds.features.ClassLabel(num_classes=17)}
        return tfds.core.DatasetInfo(builder=self, features=tfds.features.FeaturesDict(features))

    def _split_generators(self, dl_manager):
        del dl_manager
        return {"train": self._generate_examples(0, 12), "test": self._generate_examples(12, 17)}

    def _generate_examples(self, first, end):
        for number in range(first, end):
            image, label = photograph(40, 50, seed=number), number
            if self.builder_config.name == "odd":
                image = io.BytesIO(encoded(image, "PNG" if number == 3 else "JPEG"))
                label = -1 if number == 12 else number
            yield number, {"image": image, "label": label}


@pytest.fixture(scope="module")
def data_dir(tmp_path_factory):
    folder = tmp_path_factory.mktemp("tfds")
    for config in ("jpeg", "odd"):
        Snapshots(config=config, data_dir=folder).download_and_prepare()
    return folder


def open_snapshots(data_dir, config="jpeg", **options):
    return data.source(
        "tfds", builder=f"snapshots/{config}", data_dir=data_dir, image_size=16, **options
    )


labels_of = functools.partial(contract.labels_of, batch_size=4)


@pytest.mark.thorough
def test_a_prepared_set_is_read_without_its_decoder(data_dir):
    source = open_snapshots(data_dir)
    assert (source.name, source.num_classes) == ("snapshots", 17)
    assert (source.num_train, source.num_test) == (12, 5)
    epochs = labels_of(source, 6).reshape(2, 12)
    assert [sorted(labels) for labels in epochs] == [list(range(12))] * 2
    assert not np.array_equal(*epochs)
    _, labels = contract.assert_held_out_is_padded(source, batch_size=4)
    assert sorted(labels) == list(range(12, 17))


@pytest.mark.slow
def test_a_run_resumes_exactly_at_any_epoch(data_dir):
    contract.assert_resumes_exactly(open_snapshots(data_dir), batch_size=5, epochs=[1, 2])


@pytest.mark.thorough
def test_parts_of_splits_can_be_named(data_dir):
    source = open_snapshots(data_dir, train_split="train[:8]", held_out_split="train[8:]")
    assert (source.num_train, source.num_test) == (8, 4)
    train, held_out = set(labels_of(source, 2)), set(source.held_out_sample(10)[1])
    assert train | held_out == set(range(12))
    with pytest.raises(ValueError, match=r"split: received 'trian'; expected one of train, test"):
        open_snapshots(data_dir, train_split="trian")


# The pictures of the first are JPEGs, those of the second PNGs of one channel.
@pytest.mark.thorough
@pytest.mark.parametrize("builder", ["imagenet2012", pytest.param("mnist", marks=pytest.mark.slow)])
def test_mocked_builders_are_read_like_real_ones(builder):
    with tfds.testing.mock_data(num_examples=9, policy=tfds.testing.MockPolicy.USE_CODE):
        source = data.source("tfds", builder=builder, image_size=16)
        assert (source.num_train, source.num_test) == (9, 9)
        assert source.num_classes == {"imagenet2012": 1000, "mnist": 10}[builder]
        assert labels_of(source, 2).max() < source.num_classes
        images, labels = source.held_out_sample(9)
    assert images.shape == (9, 16, 16, 3)
    assert labels.max() < source.num_classes


@pytest.mark.parametrize(
    ("builder", "message"),
    [
        ("imagnet2012", r"'imagnet2012'.*Did you mean: imagnet2012 -> imagenet2012"),
        ("imdb_reviews", r"text \(Text\), label \(ClassLabel\); expected an image"),
        ("imagenet2012", "'imagenet2012', which is not in FOLDER.* imagenet2012 --data_dir"),
        ("mnist", "run `tfds build mnist --data_dir=FOLDER`"),
    ],
    ids=["unknown", "of_another_kind", "missing", "missing_too"],
)
def test_a_set_that_is_unknown_missing_or_of_another_kind_is_named_with_the_fix(
    builder, message, tmp_path
):
    with pytest.raises(ValueError, match=message.replace("FOLDER", str(tmp_path))):
        data.source("tfds", builder=builder, data_dir=tmp_path)


@pytest.mark.thorough
@pytest.mark.parametrize("split", ["train[:5]+train[5:]", "train"])
def test_workers_share_an_epoch_and_what_is_held_out(data_dir, split):
    source = open_snapshots(data_dir, train_split=split)
    shards = [Shard(worker=worker, workers=2) for worker in range(2)]
    # Of 3 pictures the second of two workers has one.
    for batch_size in (3, 6):
        steps = 12 // batch_size
        seen = [labels_of(source, 2 * steps, batch_size=batch_size, shard=one) for one in shards]
        for epoch in range(2):
            labels = np.concatenate([np.split(one, 2)[epoch] for one in seen])
            assert sorted(labels) == list(range(12))
        held_out = [pieces(source.held_out_batches(batch_size=batch_size, shard=s)) for s in shards]
        assert len({len(part) for part in held_out}) == 1
        labels = np.concatenate([labels for part in held_out for _, labels in part])
        assert sorted(labels[labels >= 0]) == list(range(12, 17))


@pytest.mark.thorough
@pytest.mark.parametrize("split", ["train[:12]", "train[:5]+train[5:]"])
def test_odd_pictures_in_parts_of_splits_are_read(data_dir, split):
    source = open_snapshots(data_dir, "odd", train_split=split)
    assert sorted(labels_of(source, 1, batch_size=12)) == list(range(12))


def test_labels_out_of_range_are_answered_with_another_split(data_dir):
    source = open_snapshots(data_dir, "odd")
    with pytest.raises(ReadingError, match="received the label -1, expected 0 to 16; correct"):
        source.held_out_sample(5)


def test_files_that_are_missing_or_break_off_are_named(data_dir, tmp_path):
    shutil.copytree(data_dir / "snapshots" / "jpeg", tmp_path / "snapshots" / "jpeg")
    folder = tmp_path / "snapshots" / "jpeg" / "1.0.0"
    train, test = (next(folder.glob(f"*-{part}.*")) for part in ("train", "test"))
    test.unlink()
    with pytest.raises(ReadingError, match=f"snapshots: received files .*{test.name}; No such"):
        open_snapshots(tmp_path).held_out_sample(5)
    train.write_bytes(train.read_bytes()[:-300])
    with pytest.raises(ReadingError, match="snapshots: received files that cannot be read"):
        open_snapshots(tmp_path).training_sample(12, seed=0)


def test_the_home_folder_may_be_written_as_usual(data_dir, monkeypatch):
    monkeypatch.setenv("HOME", str(data_dir))
    assert open_snapshots("~").num_train == 12
