import contextlib
import resource
import shutil
import signal
import types

import numpy as np
import pytest
import tensorflow as tf
import tf_keras as keras

from sat_tf.messages import RunError
from sat_tf.qat.finetune import Backup
from sat_tf.training.learner import Learner, training_copy
from sat_tf.training.loop.runner import outside_failures_explained
from sat_tf.training.loop.stage import BestEpoch, kept_current, settling
from sat_tf.training.run_folder import EpochMetrics, RunFolder
from tests.training.recipes.trained import fitted, on_each_number_of_replicas
from tests.training.small import small_float_model, small_images, small_quantized_model


def _held_out():
    images = small_images()
    return tf.data.Dataset.from_tensor_slices((images.test_images, images.test_labels)).batch(11)


@pytest.mark.thorough
@on_each_number_of_replicas
def test_what_is_measured_is_the_same_before_and_after_training(replicas):
    start = small_quantized_model()
    with replicas.scope():
        model = training_copy(start, synchronized=True)
    learner, _ = fitted(model, None, replicas, steps=2)
    with replicas.scope():
        callbacks = kept_current(model)
    assert len(callbacks) == 1
    kernel = next(weight for weight in model.trainable_weights if weight.shape.rank > 1)
    found = []
    for _ in range(2):
        found.append(learner.evaluate(_held_out(), verbose=0, callbacks=callbacks))
        learner.test_function = None
        assert found[-1] == learner.evaluate(_held_out(), verbose=0)
        learner.test_function = None
        kernel.assign(np.random.default_rng(0).normal(size=kernel.shape))
    assert found[0] != found[1]


def test_a_float_model_is_measured_as_it_is():
    assert kept_current(small_float_model()) == []


MEASURED = [  # top-1, loss
    (0.5, 1.0),
    (0.75, 0.9),
    (0.75, 0.8),  # the better of two with the same top-1
    (0.75, 0.8),
    (float("nan"), 0.1),
    (0.7, 0.1),
]


def _best(folder, rows):
    model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)])
    best = BestEpoch(folder, rows)
    best.set_model(types.SimpleNamespace(student=model))
    return model, best


@pytest.mark.parametrize("resumed", [None, 1, 2, 4])
def test_the_weights_of_the_best_epoch_come_back(tmp_path, resumed):
    rows = [EpochMetrics(stage="quantized", epoch=0, step=0, held_out_loss=2.0, held_out_top1=0.4)]
    model, best = _best(tmp_path, rows)
    for epoch, (top1, loss) in enumerate(MEASURED, start=1):
        best.on_epoch_begin(epoch - 1)
        model.set_weights([np.full((2, 1), epoch), np.full(1, epoch)])
        logs = {"top1": np.float32(top1), "loss": np.float32(loss)}
        best.on_test_end(logs)
        model.set_weights([np.zeros((2, 1)), np.zeros(1)])
        best.on_epoch_end(epoch - 1, {f"val_{name}": value for name, value in logs.items()})
        values = {f"held_out_{name}": float(value) for name, value in logs.items()}
        rows.append(EpochMetrics(stage="quantized", epoch=epoch, step=epoch, **values))
        if epoch == resumed:
            model, best = _best(tmp_path, rows)
    assert best.epoch == 3
    assert [path.name for path in tmp_path.iterdir()] == ["best-3.npz"]
    best.restore()
    assert all((weight == 3).all() for weight in model.get_weights())
    (tmp_path / "best-3.npz").write_bytes(b"damaged")
    with pytest.raises(RunError, match=r"best-3\.npz: cannot be read .*--no-resume"):
        best.restore()


def test_a_start_that_no_epoch_beats_is_the_best_and_needs_no_file(tmp_path):
    rows = [EpochMetrics(stage="quantized", epoch=0, step=0, held_out_loss=1.0, held_out_top1=0.5)]
    _, best = _best(tmp_path, rows)
    best.on_epoch_begin(0)
    best.on_test_end({"top1": 0.5, "loss": 1.0})
    assert best.epoch == 0
    assert not list(tmp_path.iterdir())


@pytest.mark.thorough
@on_each_number_of_replicas
def test_every_epoch_is_measured_as_the_stage_will_end_but_not_the_start(replicas):
    with replicas.scope():
        model = training_copy(small_quantized_model())
        learner = Learner(model, batch_size=22)
        learner.compile(optimizer=keras.optimizers.SGD(0.0))
    settled, measured = [], []

    def settle(copy):
        copy.set_weights([weight + 1.0 for weight in copy.get_weights()])
        settled.append(copy)

    def total():
        return sum(float(np.sum(weight)) for weight in model.get_weights())

    after = keras.callbacks.LambdaCallback(on_test_end=lambda logs: measured.append(total()))
    settings = {"callbacks": [settling(model, settle), after], "verbose": 0}
    images = _held_out().unbatch().batch(22, drop_remainder=True)
    start = total()
    learner.evaluate(images, **settings)
    assert (settled, measured) == ([], [start])
    learner.fit(images, steps_per_epoch=1, epochs=2, validation_data=images, **settings)
    assert len(settled) == 2
    assert settled[0] is settled[1] is not model
    size = sum(weight.size for weight in model.get_weights())
    assert measured[1] > start + 0.5 * size
    assert measured[2] > measured[1] + 0.5 * size


IMAGES = small_images()


def make():
    learner = Learner(training_copy(small_quantized_model()), batch_size=8)
    learner.compile(optimizer=keras.optimizers.SGD(0.05, momentum=0.9))
    learner.optimizer.build(learner.student.trainable_variables)
    return learner


def fit(learner, backup, epochs):
    batches = tf.data.Dataset.from_tensor_slices((IMAGES.train_images, IMAGES.train_labels))
    learner.fit(batches.batch(8).take(2), epochs=epochs, callbacks=[backup], verbose=0)


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    """A learner of two epochs, and the folder of its backup."""
    folder, learner = tmp_path_factory.mktemp("saved"), make()
    fit(learner, Backup(folder), 2)
    return learner, folder


@pytest.fixture
def copied(saved, tmp_path):
    """A copy of the folder of the backup."""
    return shutil.copytree(saved[1], tmp_path / "checkpoints")


@contextlib.contextmanager
def no_room(size):
    """No file may grow beyond so many bytes: the file system's refusal is a real one."""
    before = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, limits[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
        signal.signal(signal.SIGXFSZ, before)


@pytest.mark.thorough
def test_a_stage_goes_on_bit_for_bit_behind_its_last_epoch(saved, copied):
    assert Backup(copied / "none").epochs == 0
    assert Backup(copied).epochs == 2
    assert len(list(copied.rglob("*.index"))) == 1  # the last one alone
    whole, resumed = make(), make()
    fit(whole, Backup(copied.with_name("other")), 3)
    fit(resumed, Backup(copied), 3)
    assert Backup(copied).epochs == 3
    np.testing.assert_equal(whole.get_weights(), resumed.get_weights())


@pytest.mark.thorough
def test_a_full_disk_is_one_message_and_leaves_the_last_good_epoch(saved, copied):
    learner, backup, run = make(), Backup(copied), RunFolder(copied.parent)
    explained = outside_failures_explained(run, tf.distribute.get_strategy())
    with no_room(512), pytest.raises(RunError, match="can no longer be written to"), explained:
        fit(learner, backup, 3)
    assert backup.epochs == 2
    restored = make()
    backup.set_model(restored)
    backup.on_train_begin()
    np.testing.assert_equal(restored.get_weights(), saved[0].get_weights())
    # The same run goes on once there is room again.
    fit(restored, backup, 3)
    assert backup.epochs == 3
    assert not list(copied.rglob("*temp*"))


def one_bit_changed(content):
    changed = bytearray(content)
    changed[len(content) // 2] ^= 1
    return bytes(changed)


DAMAGES = {
    "halved": lambda content: content[: len(content) // 2],
    "cut by a byte": lambda content: content[:-1],
    "empty": lambda content: b"",
    "garbage": lambda content: b"\xff" * len(content),
    "zeros": lambda content: bytes(len(content)),
    "of one bit": one_bit_changed,
    "a folder": None,
}


@pytest.mark.thorough
@pytest.mark.parametrize("kind", ["index", "data"])
def test_a_damaged_checkpoint_is_named_with_the_fix(saved, copied, kind):
    learner = make()
    for name, damage in DAMAGES.items():
        folder = shutil.copytree(copied, copied.with_name(name))
        (path,) = folder.glob(f"chief/ckpt-2.{kind}*")
        content = path.read_bytes()
        path.unlink()
        if damage is None:
            path.mkdir()
        else:
            path.write_bytes(damage(content))
        backup = Backup(folder)
        backup.set_model(learner)
        with pytest.raises(RunError, match=r"the checkpoint cannot be read \(.*--no-resume"):
            backup.on_train_begin()
