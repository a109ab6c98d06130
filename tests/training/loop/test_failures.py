"""What ends a run from outside is one message with the fix, and mended runs go on."""

import errno
import os
import pathlib
import re
import signal
import subprocess
import sys

import numpy as np
import pytest
import tensorflow as tf

from sat_tf.messages import RunError
from sat_tf.training import data
from sat_tf.training.data.source import Shard
from sat_tf.training.loop import runner
from sat_tf.training.loop.runner import outside_failures_explained, reading_errors_explained
from sat_tf.training.run_folder import EpochMetrics, RunFolder
from tests.methods import METHODS
from tests.training import processes
from tests.training.data.photographs import photograph
from tests.training.small import write_pictures

# -- workers that are lost, and folders that take no more ------------------------------------------

LOST = "Graph execution error:\n\nDetected at node\n\nCollective ops is aborted by: Socket closed"


def told(folder, error):
    with outside_failures_explained(RunFolder(folder), tf.distribute.get_strategy()):
        raise error


@pytest.mark.parametrize(
    "name", ["Unavailable", "Aborted", "Cancelled", "DeadlineExceeded", "Internal"]
)
def test_a_lost_worker_is_one_message_with_the_fix(tmp_path, monkeypatch, name):
    kind = getattr(tf.errors, f"{name}Error")
    monkeypatch.setattr(runner, "shard_of", lambda strategy: Shard(worker=0, workers=2))
    expected = r"\(Collective ops is aborted by: Socket closed\), .* start the same command on all"
    with pytest.raises(RunError, match=expected):
        told(tmp_path, kind(None, None, LOST))


@pytest.mark.parametrize("name", ["dd", "node", "Collective", "aborted by"])
def test_a_lost_worker_is_none_of_a_folder_whose_name_is_in_the_message(name, monkeypatch):
    monkeypatch.setattr(runner, "shard_of", lambda strategy: Shard(worker=0, workers=2))
    lost = f"{LOST}\nAdditional GRPC error; failed to connect to all addresses; last error: {name}"
    with pytest.raises(RunError, match=r"another worker no longer answers"):
        told(pathlib.Path(name), tf.errors.UnavailableError(None, None, lost))
    full = f"{name}/checkpoints/ckpt-1.index; No space left on device"
    with pytest.raises(RunError, match=r"can no longer be written to .*No space left on device"):
        told(pathlib.Path(name), tf.errors.ResourceExhaustedError(None, None, full))


@pytest.mark.parametrize("number", [errno.EROFS, errno.EACCES, errno.ENOSPC, errno.EIO])
def test_a_folder_that_takes_no_more_files_is_one_message_with_the_fix(tmp_path, number):
    reason = os.strerror(number)
    path = tmp_path / "tensorboard" / "events"
    for error in (
        OSError(number, reason, str(path)),
        tf.errors.FailedPreconditionError(None, None, f"{path}; {reason}"),
        tf.errors.PermissionDeniedError(None, None, f"{path}; {reason}"),
    ):
        with pytest.raises(RunError, match=r"can no longer be written to") as caught:
            told(tmp_path, error)
        assert reason in str(caught.value)
        assert str(caught.value).endswith("resumes after the last finished epoch.")


def test_other_errors_pass(tmp_path):
    lost = tf.errors.UnavailableError(None, None, LOST)  # of one process, which has lost nobody
    invalid = tf.errors.InvalidArgumentError(None, None, "shapes")
    for error in (KeyError("x"), invalid, OSError(), lost):
        with pytest.raises(type(error)):
            told(tmp_path, error)


@pytest.mark.slow
@pytest.mark.parametrize("victim", [0, 1])
def test_who_is_left_of_two_workers_ends_with_one_message_and_both_go_on(tmp_path, victim):
    settings = ("batch_size=33", "steps=30", "base_learning_rate=0.1")
    arguments = ("distribution=multi_worker", *(f"stages.float.{value}" for value in settings))
    running = processes.start(tmp_path, *arguments, workers=2)
    processes.until_step(running[0], 7)
    running[victim].send_signal(signal.SIGKILL)
    left = running[1 - victim]
    _, errors = left.communicate(timeout=300)
    running[victim].communicate()
    assert left.returncode == 2, errors[-4000:]
    assert "Traceback" not in errors
    assert "error: distribution: another worker no longer answers" in errors
    rests = processes.finish(processes.start(tmp_path, *arguments, workers=2))
    assert rests[0] == rests[1]
    assert min(rests[0]) > 1
    assert max(rests[0]) == 30


# -- sets that cannot be read on -------------------------------------------------------------------

CONFIG = """
name: x
seed: 0
data: {{name: folder, options: {{data_dir: {data_dir}, image_size: 16}}}}
model: {{name: mobilenet_v1, options: {{width_multiplier: 0.25, stem_stride: 1}}}}
stages:
  float: {{epochs: 1, batch_size: 8, base_learning_rate: 0.1, warmup_epochs: 0}}
  quantized: null
calibration: {{num_images: 0}}
export: {{verify_images: 5}}
"""


def make_pictures(root):
    """Writes a divided folder of two classes; returns one of its pictures to train on."""
    for part, count in (("train", 32), ("val", 4)):
        pixels = np.stack([photograph(20, 20, seed=seed) for seed in range(count)])
        write_pictures(root / part, pixels, np.arange(count) % 2)
    return root / "train" / "class_0" / "000.png"


@pytest.mark.thorough
def test_the_words_of_a_source_are_those_of_the_run(tmp_path):
    make_pictures(tmp_path).write_bytes(b"")
    source = data.source("folder", data_dir=tmp_path, image_size=16)
    batches = source.training_batches(batch_size=32, seed=0)
    with (
        pytest.raises(
            RunError, match=r"class_0/000\.png: received .*; mend or delete it\.$"
        ) as found,
        reading_errors_explained(source),
    ):
        next(iter(batches))
    assert found.value.__suppress_context__
    with pytest.raises(RunError, match="go on"), reading_errors_explained(source, advice="; go on"):
        source.training_sample(32, seed=0)


def test_errors_of_tensorflow_are_left_alone(tmp_path):
    make_pictures(tmp_path)
    source = data.source("folder", data_dir=tmp_path, image_size=16)
    with pytest.raises(tf.errors.OpError, match="no memory"), reading_errors_explained(source):
        raise tf.errors.ResourceExhaustedError(None, None, "no memory")


@pytest.mark.slow
def test_a_run_with_a_corrupt_picture_goes_on_when_it_is_mended(tmp_path, monkeypatch):
    # JAX sets it, for the processes that are started here too; commands are quiet without it.
    monkeypatch.delenv("TF_CPP_MIN_LOG_LEVEL", raising=False)
    picture = make_pictures(tmp_path / "set")
    content = picture.read_bytes()
    config = tmp_path / "x.yaml"
    config.write_text(CONFIG.format(data_dir=tmp_path / "set"))
    command = [sys.executable, "-m", "sat_tf", "train", "--config", str(config)]
    command += ["--out", str(tmp_path / "run")]
    picture.write_bytes(b"")
    # A process of its own, because what TensorFlow itself prints is settled when it is imported.
    broken = subprocess.run(command, capture_output=True, text=True, check=False)
    told = broken.stderr
    assert broken.returncode == 2
    assert "000.png: received a picture that cannot be read" in told
    assert "the same command resumes the run" in told
    assert "Traceback" not in told
    picture.write_bytes(content)
    subprocess.run(command, capture_output=True, check=True)


# -- runs that are killed, stopped, or spread over processes end like one that is left alone -------

# 33 images do not divide evenly between two; 96 give two steps an epoch, of which there are ten.
UNEVEN = (
    "stages.float.batch_size=33",
    "stages.float.steps=20",
    "stages.float.base_learning_rate=0.1",
)
WORKERS = ("distribution=multi_worker", *UNEVEN)
KILLED_AT = int(np.random.RandomState(0).randint(5, 17))
# The first step of the epoch that it was in; it may have done more before the signal came.
RESUMED_FROM = (KILLED_AT - 1) // 2 * 2 + 1


@pytest.fixture(scope="module")
def alone(tmp_path_factory):
    """The losses and weights of one process that nothing happens to."""
    folder = tmp_path_factory.mktemp("alone")
    (losses,) = processes.finish(processes.start(folder, *UNEVEN))
    assert sorted(losses) == list(range(1, 21))
    return losses, processes.weights(folder)


@pytest.fixture(scope="module")
def together(tmp_path_factory):
    """The losses and weights of two processes that nothing happens to."""
    folder = tmp_path_factory.mktemp("together")
    losses = processes.finish(processes.start(folder, *WORKERS, workers=2))
    assert losses[0] == losses[1]
    np.testing.assert_equal(processes.weights(folder, 0), processes.weights(folder, 1))
    return losses[0], processes.weights(folder)


def kill(running, signal_number):
    processes.until_step(running[0], KILLED_AT)
    for process in running:
        process.send_signal(signal_number)


def killed_and_resumed(folder, *, arguments=UNEVEN, **options):
    """The losses that a run, or each of its workers, prints after it was killed."""
    running = processes.start(folder, *arguments, **options)
    kill(running, signal.SIGKILL)
    processes.finish(running, status=-signal.SIGKILL)
    rest, *others = processes.finish(processes.start(folder, *arguments, **options))
    assert others in ([], [rest])
    return rest


@pytest.mark.thorough
def test_a_killed_run_goes_on_bit_for_bit(alone, tmp_path):
    rest = killed_and_resumed(tmp_path)
    losses, weights = alone
    rows = EpochMetrics.read(RunFolder(tmp_path))
    assert [row.step for row in rows] == list(range(2, 21, 2))  # neither a gap nor an epoch twice
    assert min(rest) >= RESUMED_FROM
    assert rest == {step: loss for step, loss in losses.items() if step in rest}
    np.testing.assert_equal(processes.weights(tmp_path), weights)


@pytest.mark.slow
@pytest.mark.parametrize("method", METHODS)
def test_a_killed_run_of_every_method_goes_on_bit_for_bit(method, tmp_path):
    folders = [tmp_path / name for name in ("alone", "killed")]
    (losses,) = processes.finish(processes.start(folders[0], *UNEVEN, method=method))
    rest = killed_and_resumed(folders[1], method=method)
    assert rest == {step: loss for step, loss in losses.items() if step in rest}
    np.testing.assert_equal(*map(processes.weights, folders))


@pytest.mark.thorough
@pytest.mark.parametrize(
    "number", [signal.SIGTERM, pytest.param(signal.SIGINT, marks=pytest.mark.slow)]
)
def test_a_run_that_is_asked_to_stop_says_which_epoch_is_saved_and_goes_on_behind_it(
    number, alone, tmp_path
):
    (running,) = processes.start(tmp_path, *UNEVEN)
    kill([running], number)
    said, errors = running.communicate(timeout=600)
    assert running.returncode == 0, errors[-4000:]
    assert not (tmp_path / "worker0.npz").exists()
    epoch = int(re.search(r"epoch (\d+) of the float stage is saved", said)[1])
    (rest,) = processes.finish(processes.start(tmp_path, *UNEVEN))
    losses, weights = alone
    assert min(rest) == 2 * epoch + 1
    assert rest == {step: losses[step] for step in range(min(rest), 21)}
    np.testing.assert_equal(processes.weights(tmp_path), weights)


@pytest.mark.thorough
def test_two_processes_train_like_one(alone, together):
    # float32 sums over the batch are taken in another order. That may round a value to the code
    # beside it, which the loss of that step shows, and the next steps hardly do.
    losses = np.array([(together[0][step], loss) for step, loss in alone[0].items()])
    off = np.abs(losses[:, 0] / losses[:, 1] - 1.0)
    assert np.median(off) < 1e-5
    assert np.max(off) < 1e-3
    levels = [[array for array in weights if array.shape == ()] for _, weights in (alone, together)]
    assert len(levels[0]) > 3
    for one, two in zip(*levels, strict=True):
        np.testing.assert_allclose(two, one, rtol=0.0, atol=1e-4)


@pytest.mark.thorough
def test_two_killed_processes_go_on_bit_for_bit(together, tmp_path):
    rest = killed_and_resumed(tmp_path, arguments=WORKERS, workers=2)
    losses, weights = together
    assert min(rest) >= RESUMED_FROM
    assert rest == {step: losses[step] for step in rest}
    np.testing.assert_equal(processes.weights(tmp_path), weights)
