"""Runs that are killed, stopped, or spread over processes end like one that is left alone."""

import re
import signal

import numpy as np
import pytest

from sat_tf.training.run_folder import EpochMetrics, RunFolder
from tests.methods import METHODS
from tests.training import processes

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


@pytest.mark.thorough
def test_a_killed_run_goes_on_bit_for_bit(alone, tmp_path):
    running = processes.start(tmp_path, *UNEVEN)
    kill(running, signal.SIGKILL)
    processes.finish(running, status=-signal.SIGKILL)
    (rest,) = processes.finish(processes.start(tmp_path, *UNEVEN))
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
    running = processes.start(folders[1], *UNEVEN, method=method)
    kill(running, signal.SIGKILL)
    processes.finish(running, status=-signal.SIGKILL)
    (rest,) = processes.finish(processes.start(folders[1], *UNEVEN, method=method))
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
    running = processes.start(tmp_path, *WORKERS, workers=2)
    kill(running, signal.SIGKILL)
    processes.finish(running, status=-signal.SIGKILL)
    rests = processes.finish(processes.start(tmp_path, *WORKERS, workers=2))
    losses, weights = together
    assert min(rests[0]) >= RESUMED_FROM
    assert rests[0] == rests[1] == {step: losses[step] for step in rests[0]}
    np.testing.assert_equal(processes.weights(tmp_path), weights)
