"""What ends a run from outside is one message with the fix, and mended runs go on."""

import errno
import os
import pathlib
import signal
import subprocess
import sys

import pytest
import tensorflow as tf

from sat_tf.messages import RunError
from sat_tf.training import data
from sat_tf.training.data.source import Shard
from sat_tf.training.loop import runner
from sat_tf.training.loop.runner import outside_failures_explained, reading_errors_explained
from sat_tf.training.run_folder import RunFolder
from tests.training import processes
from tests.training.data.photographs import encoded, photograph

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
        assert str(caught.value).endswith("resumes behind the last finished epoch.")


def test_other_errors_pass(tmp_path):
    lost = tf.errors.UnavailableError(None, None, LOST)  # of one process, which has lost nobody
    invalid = tf.errors.InvalidArgumentError(None, None, "shapes")
    for error in (KeyError("x"), invalid, OSError(), lost):
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
    paths = []
    for part, count in (("train", 16), ("val", 2)):
        for name in ("ant", "bee"):
            (root / part / name).mkdir(parents=True)
            for number in range(count):
                paths.append(root / part / name / f"{number}.JPEG")
                paths[-1].write_bytes(encoded(photograph(20, 20, seed=len(paths))))
    return paths


@pytest.mark.thorough
def test_the_words_of_a_source_are_those_of_the_run(tmp_path):
    make_pictures(tmp_path)[0].write_bytes(b"")
    source = data.source("folder", data_dir=tmp_path, image_size=16)
    batches = source.training_batches(batch_size=32, seed=0)
    with (
        pytest.raises(RunError, match=r"ant/0\.JPEG: received .*; mend or delete it\.$") as found,
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
    bad = {path: path.read_bytes() for path in make_pictures(tmp_path / "set")[:1]}
    config = tmp_path / "x.yaml"
    config.write_text(CONFIG.format(data_dir=tmp_path / "set"))
    command = [sys.executable, "-m", "sat_tf", "train", "--config", str(config)]
    command += ["--out", str(tmp_path / "run")]
    for path in bad:
        path.write_bytes(b"")
    # A process of its own, because what TensorFlow itself prints is settled when it is imported.
    broken = subprocess.run(command, capture_output=True, text=True, check=False)
    told = broken.stderr
    assert broken.returncode == 2
    assert "0.JPEG: received a picture that cannot be read" in told
    assert "the same command resumes the run" in told
    assert "Traceback" not in told
    for path, content in bad.items():
        path.write_bytes(content)
    subprocess.run(command, capture_output=True, check=True)
