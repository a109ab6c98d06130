"""The setting of all tests: two logical CPUs for distribution strategies, and repeatable draws."""

import csv
import gc
import hashlib
import os
import pathlib
import signal
import sys

# TensorFlow's half a million objects stay: the garbage collector need not walk through them.
gc.disable()

import random

import hypothesis
import pytest
import tensorflow as tf
import tf_keras as keras
from tensorflow.python.eager import context
from tensorflow.python.framework import random_seed

# Devices can be divided only before TensorFlow first uses them.
tf.config.set_logical_device_configuration(
    tf.config.list_physical_devices("CPU")[0], [tf.config.LogicalDeviceConfiguration()] * 2
)

# The same examples in every run, and no limit on the time of one: the first traces a graph.
hypothesis.settings.register_profile(
    "repeatable", derandomize=True, deadline=None, max_examples=50, database=None
)
hypothesis.settings.load_profile("repeatable")


# TensorFlow throws all of its kernels away whenever its global seed is set, as those that draw
# remember where they are, and makes them again, which took a quarter of the time of these tests.
# Here they stay where no operation has asked for a seed since. Both names are private ones, for
# want of public ones.
_set_seed, _get_seed = context.Context._set_global_seed, random_seed.get_seed
_asked = [None]  # the seeds that operations have asked for since the last one was set


def _set_global_seed(eager, seed):
    if _asked:
        _set_seed(eager, seed)
        _asked.clear()
    else:
        eager._seed, eager._rng = seed, random.Random(seed)


def _get_asked_seed(op_seed):
    _asked[:] = [op_seed]
    return _get_seed(op_seed)


context.Context._set_global_seed, random_seed.get_seed = _set_global_seed, _get_asked_seed


# The tests that take a processor longer than `MOST_SECONDS`. They are thorough, but for those that
# are marked as essential.
DURATIONS = pathlib.Path(__file__).parent / "durations.csv"
MOST_SECONDS = 0.3


def pytest_addoption(parser):
    parser.addoption("--share", type=float, default=1.0, help="run this share of the tests")
    parser.addoption("--draw", default="", help="the text that draws them: another, other tests")
    parser.addoption("--measure", action="store_true", help=f"renew {DURATIONS.name}")


def long_tests():
    """The seconds of the tests that `DURATIONS` lists, by name."""
    with DURATIONS.open(newline="", encoding="utf-8") as file:
        return {row["test"]: float(row["seconds"]) for row in csv.DictReader(file)}


def drawn(name, share, draw):
    """Whether the test of a name is among a share of all tests, which a text draws."""
    digest = hashlib.sha256(f"{draw} {name}".encode()).digest()
    return int.from_bytes(digest[:8], "big") < share * 2**64


@pytest.hookimpl(tryfirst=True)  # before pytest selects by marks
def pytest_collection_modifyitems(config, items):
    seconds = long_tests()
    for item in items:
        if item.nodeid in seconds and "essential" not in item.keywords:
            item.add_marker(pytest.mark.thorough)
    share, draw = config.getoption("--share"), config.getoption("--draw")
    if not 0.0 < share <= 1.0:
        raise pytest.UsageError(f"--share: received {share}, expected above 0 and at most 1.")
    left_out = [item for item in items if not drawn(item.nodeid, share, draw)]
    if left_out:
        config.hook.pytest_deselected(items=left_out)
        items[:] = [item for item in items if drawn(item.nodeid, share, draw)]


def pytest_collection_finish():
    _clock.append(_processor_seconds())
    gc.freeze()
    gc.enable()
    gc.set_threshold(2_000, 10, 20)


def _processor_seconds():
    """The seconds of this process and its children, which do not depend on what else runs."""
    return sum(os.times()[:4])


_clock: list[float] = []  # the times at the end of each phase of a test
_measured: dict[str, float] = {}


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport():
    report = yield
    _clock.append(_processor_seconds())
    report.processor_seconds = _clock[-1] - _clock.pop(0)
    return report


def pytest_runtest_logreport(report):
    _measured[report.nodeid] = _measured.get(report.nodeid, 0.0) + getattr(
        report, "processor_seconds", 0.0
    )


def pytest_sessionfinish(session):
    if not session.config.getoption("--measure") or hasattr(session.config, "workerinput"):
        return
    seconds = {**long_tests(), **_measured}
    rows = [row for row in sorted(seconds.items()) if row[1] > MOST_SECONDS]
    with DURATIONS.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerows([("test", "seconds"), *((test, f"{most:.2f}") for test, most in rows)])


def mirrored(count=2):
    """A strategy with so many replicas."""
    # The default, collective operations, can serve only one strategy a process.
    reduction = tf.distribute.ReductionToOneDevice()
    devices = [f"CPU:{index}" for index in range(count)]
    return tf.distribute.MirroredStrategy(devices, cross_device_ops=reduction)


@pytest.fixture(scope="session", params=[1, 2])
def replicas(request):
    """A strategy with one replica, and one with two."""
    return mirrored(request.param)


@pytest.fixture(autouse=True)
def _same_draws_for_every_test():
    keras.utils.set_random_seed(0)


@pytest.fixture
def kept_handlers(monkeypatch):
    """Puts back the handlers of signals that a test sets."""
    monkeypatch.setattr(sys, "unraisablehook", sys.unraisablehook)
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    yield
    for number, handler in before.items():
        signal.signal(number, handler)
