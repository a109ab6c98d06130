"""The setting of all tests: two logical CPUs for distribution strategies, and repeatable draws."""

import gc
import hashlib

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


class _Seeds:
    """Sets TensorFlow's global seed as it does itself, in less time.

    TensorFlow throws all of its kernels away whenever the seed is set, as those that draw remember
    where they are, and makes them again, which took a quarter of the time of these tests. Here they
    stay where no operation has asked for a seed since. Both names are private ones, for want of
    public ones.
    """

    def __init__(self) -> None:
        self.set_seed, self.get_seed = context.Context._set_global_seed, random_seed.get_seed
        self.drawn = True

    def drawing(self, op_seed):
        self.drawn = True
        return self.get_seed(op_seed)

    def set(self, eager, seed):
        if self.drawn:
            self.set_seed(eager, seed)
            self.drawn = False
        else:
            eager._seed, eager._rng = seed, random.Random(seed)


_seeds = _Seeds()
context.Context._set_global_seed = lambda eager, seed: _seeds.set(eager, seed)
random_seed.get_seed = _seeds.drawing


def pytest_addoption(parser):
    parser.addoption("--share", type=float, default=1.0, help="run this share of the tests")
    parser.addoption("--draw", default="", help="the text that draws them: another, other tests")


def drawn(name: str, share: float, draw: str) -> bool:
    """Whether the test of a name is among a share of all tests, which a text draws."""
    digest = hashlib.sha256(f"{draw} {name}".encode()).digest()
    return int.from_bytes(digest[:8], "big") < share * 2**64


def pytest_collection_modifyitems(config, items):
    share, draw = config.getoption("--share"), config.getoption("--draw")
    if not 0.0 < share <= 1.0:
        raise pytest.UsageError(f"--share: received {share}, expected above 0 and at most 1.")
    left_out = [item for item in items if not drawn(item.nodeid, share, draw)]
    if left_out:
        config.hook.pytest_deselected(items=left_out)
        items[:] = [item for item in items if drawn(item.nodeid, share, draw)]


def pytest_collection_finish():
    gc.freeze()
    gc.enable()
    gc.set_threshold(2_000, 10, 20)


def mirrored(count: int = 2) -> tf.distribute.Strategy:
    """A strategy with so many replicas."""
    # The default, collective operations, can serve only one strategy a process.
    return tf.distribute.MirroredStrategy(
        [f"CPU:{index}" for index in range(count)],
        cross_device_ops=tf.distribute.ReductionToOneDevice(),
    )


@pytest.fixture(scope="session", params=[1, 2])
def replicas(request):
    """A strategy with one replica, and one with two."""
    return mirrored(request.param)


@pytest.fixture(autouse=True)
def _same_draws_for_every_test():
    keras.utils.set_random_seed(0)
