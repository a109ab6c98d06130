import contextlib
import resource
import shutil
import signal

import numpy as np
import pytest
import tensorflow as tf
import tf_keras as keras

from sat_tf.messages import RunError
from sat_tf.training.learner import Learner, training_copy
from sat_tf.training.loop.callbacks import Backup
from sat_tf.training.loop.runner import outside_failures_explained
from sat_tf.training.run_folder import RunFolder
from tests.training.small import small_images, small_quantized_model

IMAGES = small_images()


def make():
    learner = Learner(training_copy(small_quantized_model()), batch_size=8)
    learner.compile(optimizer=keras.optimizers.SGD(0.05, momentum=0.9))
    learner.optimizer.build(learner.student.trainable_variables)
    return learner


def fit(learner, backup, epochs):
    batches = tf.data.Dataset.from_tensor_slices((IMAGES.train_images, IMAGES.train_labels))
    learner.fit(batches.batch(8).take(2), epochs=epochs, callbacks=[backup], verbose=0)


def expect_equal(one, other):
    for left, right in zip(one.get_weights(), other.get_weights(), strict=True):
        np.testing.assert_array_equal(left, right)


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
    expect_equal(whole, resumed)


@pytest.mark.thorough
def test_a_full_disk_is_one_message_and_leaves_the_last_good_epoch(saved, copied):
    learner, backup, run = make(), Backup(copied), RunFolder(copied.parent)
    explained = outside_failures_explained(run, tf.distribute.get_strategy())
    with no_room(512), pytest.raises(RunError, match="can no longer be written to"), explained:
        fit(learner, backup, 3)
    assert not list(copied.rglob("*temp*"))
    assert backup.epochs == 2
    restored = make()
    backup.set_model(restored)
    backup.on_train_begin()
    expect_equal(restored, saved[0])
    # The same run goes on once there is room again.
    fit(restored, backup, 3)
    assert backup.epochs == 3


def halve(path):
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


def flip(path):
    """Changes one bit in the middle."""
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)


def replace_by_folder(path):
    path.unlink()
    path.mkdir()


DAMAGES = {
    "halved": halve,
    "cut by a byte": lambda path: path.write_bytes(path.read_bytes()[:-1]),
    "empty": lambda path: path.write_bytes(b""),
    "garbage": lambda path: path.write_bytes(b"\xff" * path.stat().st_size),
    "zeros": lambda path: path.write_bytes(bytes(path.stat().st_size)),
    "of one bit": flip,
    "a folder": replace_by_folder,
}


@pytest.mark.thorough
@pytest.mark.parametrize("kind", ["index", "data"])
def test_a_damaged_checkpoint_is_named_with_the_fix(saved, copied, kind):
    learner = make()
    for name, damage in DAMAGES.items():
        folder = shutil.copytree(copied, copied.with_name(name))
        (path,) = folder.glob(f"chief/ckpt-2.{kind}*")
        damage(path)
        backup = Backup(folder)
        backup.set_model(learner)
        with pytest.raises(RunError, match=r"the checkpoint cannot be read \(.*--no-resume"):
            backup.on_train_begin()
