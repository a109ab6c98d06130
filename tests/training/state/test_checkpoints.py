import contextlib
import os
import resource
import shutil
import signal
import warnings

import numpy as np
import pytest
import tensorflow as tf
import tf_keras as keras

from sat_tf.messages import RunError
from sat_tf.training.state import checkpoints
from sat_tf.training.state.checkpoints import Checkpoints
from sat_tf.training.step.learner import Learner, training_copy
from sat_tf.training.step.schedule import Position, StagePlan
from tests.training.small import small_images, small_quantized_model

IMAGES = small_images()


def make(folder, *, keep=2):
    learner = Learner(training_copy(small_quantized_model()), batch_size=8)
    learner.compile(optimizer=keras.optimizers.SGD(0.05, momentum=0.9))
    learner.optimizer.build(learner.student.trainable_variables)
    return learner, Checkpoints(folder, learner, keep=keep)


def step(learner):
    return learner.train_on_batch(
        IMAGES.train_images[:8], IMAGES.train_labels[:8], return_dict=True
    )


@pytest.fixture(scope="module")
def two_saved(tmp_path_factory):
    """Fills a folder with two checkpoints; gives the weights of the first."""
    folder = tmp_path_factory.mktemp("two")
    learner, saved = make(folder)
    step(learner)
    saved.save(Position(0, 1))
    first = [array.copy() for array in learner.get_weights()]
    step(learner)
    saved.save(Position(0, 2))

    def fill(other):
        shutil.copytree(folder, other, dirs_exist_ok=True)
        return first

    return fill


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
def test_weights_momentum_metrics_and_position_come_back(tmp_path):
    learner, checkpoints = make(tmp_path)
    assert checkpoints.restore() is None
    step(learner)
    checkpoints.save(Position(3, 7))
    expected = step(learner)
    other, again = make(tmp_path)
    assert again.restore() == Position(3, 7)
    assert step(other) == expected
    for one, two in zip(learner.get_weights(), other.get_weights(), strict=True):
        np.testing.assert_array_equal(one, two)


@pytest.mark.thorough
def test_the_oldest_go_and_the_latest_stay(tmp_path):
    learner, checkpoints = make(tmp_path, keep=2)
    for number in range(4):
        step(learner)
        checkpoints.save(Position(0, number))
    assert len(list(tmp_path.glob("*.index"))) == 2
    assert make(tmp_path)[1].restore() == Position(0, 3)


@pytest.mark.thorough
def test_a_full_disk_leaves_the_last_good_checkpoint_and_names_it(tmp_path):
    learner, checkpoints = make(tmp_path)
    step(learner)
    checkpoints.save(Position(0, 1))
    good = [array.copy() for array in learner.get_weights()]
    step(learner)
    with no_room(512), pytest.raises(RunError, match=r"the last good one is .*ckpt-1; free some"):
        checkpoints.save(Position(0, 2))
    assert not list(tmp_path.glob("*temp*"))
    other, again = make(tmp_path)
    assert again.restore() == Position(0, 1)
    for one, two in zip(good, other.get_weights(), strict=True):
        np.testing.assert_array_equal(one, two)
    # The same run goes on once there is room again.
    checkpoints.save(Position(0, 2))
    assert make(tmp_path)[1].restore() == Position(0, 2)


def of(folder, number, kind):
    """The index or the data of a checkpoint."""
    (path,) = folder.glob(f"ckpt-{number}.{kind}*")
    return path


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


def replace_by_pipe(path):
    path.unlink()
    os.mkfifo(path)


DAMAGES = {
    "halved": halve,
    "cut by a byte": lambda path: path.write_bytes(path.read_bytes()[:-1]),
    "empty": lambda path: path.write_bytes(b""),
    "missing": lambda path: path.unlink(),
    "garbage": lambda path: path.write_bytes(b"\xff" * path.stat().st_size),
    "zeros": lambda path: path.write_bytes(bytes(path.stat().st_size)),
    "of one bit": flip,
    "a folder": replace_by_folder,
    "a pipe": replace_by_pipe,
}


@pytest.mark.thorough
@pytest.mark.parametrize("kind", ["index", "data"])
@pytest.mark.parametrize("damage", DAMAGES)
def test_a_damaged_checkpoint_gives_way_to_the_one_before(tmp_path, two_saved, damage, kind):
    good = two_saved(tmp_path)
    DAMAGES[damage](of(tmp_path, 2, kind))
    other, again = make(tmp_path)
    with pytest.warns(UserWarning, match=r"ckpt-2 cannot be read \(.+\): resuming from .*ckpt-1"):
        assert again.restore() == Position(0, 1)
    for one, two in zip(good, other.get_weights(), strict=True):
        np.testing.assert_array_equal(one, two)
    # The next one is good again, and the one before it still there.
    other.student.trainable_variables[0].assign_add(other.student.trainable_variables[0])
    again.save(Position(0, 3))
    assert make(tmp_path)[1].restore() == Position(0, 3)
    halve(of(tmp_path, 3, "data"))
    with pytest.warns(UserWarning, match="resuming from .*ckpt-1"):
        assert make(tmp_path)[1].restore() == Position(0, 1)


def test_checkpoints_that_are_all_damaged_are_named_with_the_fix(tmp_path, two_saved):
    two_saved(tmp_path)
    halve(of(tmp_path, 2, "data"))
    of(tmp_path, 1, "index").write_bytes(b"damaged")
    _, again = make(tmp_path)
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # one message, and no more
        with pytest.raises(
            RunError, match="no checkpoint can be read, expected one of this"
        ) as caught:
            again.restore()
    assert "ckpt-2 cannot be read" in str(caught.value)
    assert "ckpt-1 cannot be read" in str(caught.value)
    assert str(caught.value).endswith("Start over with --no-resume.")


@pytest.mark.thorough
def test_a_checkpoint_is_on_the_disk_before_the_oldest_goes(tmp_path, monkeypatch):
    learner, saved = make(tmp_path, keep=1)
    saved.save(Position(0, 1))
    synced = []

    def recorded(path):
        assert of(tmp_path, 1, "index").exists()
        synced.append(path.name)

    monkeypatch.setattr(checkpoints, "on_disk", recorded)
    step(learner)
    saved.save(Position(0, 2))
    assert sorted(synced) == ["ckpt-2.data-00000-of-00001", "ckpt-2.index", tmp_path.name]
    assert not list(tmp_path.glob("ckpt-1*"))


def test_a_model_that_broke_is_not_saved(tmp_path):
    learner, checkpoints = make(tmp_path)
    checkpoints.save(Position(0, 1))
    bias = learner.student.get_layer("quant_classifier").layer.bias
    bias.assign(np.full(bias.shape, np.nan))
    checkpoints.save(Position(0, 2))
    assert make(tmp_path)[1].restore() == Position(0, 1)


@pytest.mark.parametrize("start", [Position(0), Position(0, 2), Position(1), Position(2, 1)])
@pytest.mark.parametrize("total_steps", [7, 8, 12])
def test_the_parts_of_what_is_left_are_all_steps_once(start, total_steps):
    steps_per_epoch = 4
    done = start.epoch * steps_per_epoch + start.step
    if done >= total_steps:
        pytest.skip("such a stage is over")
    found = []
    plan = StagePlan(
        stage="float",
        batch_size=1,
        steps_per_epoch=steps_per_epoch,
        total_steps=total_steps,
        start=start,
    )
    for position, epochs, steps in plan.parts():
        assert epochs == 1 or (position.step == 0 and steps == steps_per_epoch)
        for epoch in range(epochs):
            first = (position.epoch + epoch) * steps_per_epoch + position.step
            found += range(first, first + steps)
    assert found == list(range(done, total_steps))


@pytest.mark.thorough
def test_checkpoints_with_a_list_of_tensorflow_are_read_whatever_it_says(tmp_path):
    learner, _ = make(tmp_path)
    epoch, number = (tf.Variable(value, dtype=tf.int64) for value in (0, 2))
    written = tf.train.Checkpoint(
        learner=learner, optimizer=learner.optimizer, epoch=epoch, step=number
    )
    tf.train.CheckpointManager(written, str(tmp_path), max_to_keep=2).save()
    (tmp_path / "checkpoint").write_text('model_checkpoint_path: "ckpt-9"')
    other, again = make(tmp_path)
    assert again.restore() == Position(0, 2)
    step(other)
    again.save(Position(0, 3))
    assert make(tmp_path)[1].restore() == Position(0, 3)
