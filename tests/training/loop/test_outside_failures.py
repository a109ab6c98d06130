import errno
import os
import pathlib
import signal

import pytest
import tensorflow as tf

from sat_tf.messages import RunError
from sat_tf.training.data.source import Shard
from sat_tf.training.loop import runner
from sat_tf.training.loop.runner import outside_failures_explained
from sat_tf.training.run_folder import RunFolder
from tests.training import processes

LOST = "Graph execution error:\n\nDetected at node\n\nCollective ops is aborted by: Socket closed"


def told(folder, error):
    with outside_failures_explained(RunFolder(folder), tf.distribute.get_strategy()):
        raise error


@pytest.mark.parametrize(
    "kind",
    [
        tf.errors.UnavailableError,
        tf.errors.AbortedError,
        tf.errors.CancelledError,
        tf.errors.DeadlineExceededError,
        tf.errors.InternalError,
    ],
)
def test_a_lost_worker_is_one_message_with_the_fix(tmp_path, monkeypatch, kind):
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


def test_one_process_has_lost_nobody(tmp_path):
    with pytest.raises(tf.errors.UnavailableError):
        told(tmp_path, tf.errors.UnavailableError(None, None, LOST))


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
        assert str(caught.value).endswith("resumes behind the last finished epoch.")


def test_other_errors_pass(tmp_path):
    for error in (KeyError("x"), tf.errors.InvalidArgumentError(None, None, "shapes"), OSError()):
        with pytest.raises(type(error)):
            told(tmp_path, error)


@pytest.mark.slow
@pytest.mark.parametrize("victim", [0, 1])
def test_who_is_left_of_two_workers_ends_with_one_message_and_both_go_on(tmp_path, victim):
    arguments = (
        "distribution=multi_worker",
        "stages.float.batch_size=33",
        "stages.float.steps=30",
        "stages.float.base_learning_rate=0.1",
    )
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
