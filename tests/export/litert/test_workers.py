import os
import signal
import sys

import numpy as np
import pytest

from sat_tf.export.evaluate import SimulatorTask
from sat_tf.export.litert.runtime import Interface
from sat_tf.export.litert.workers import Task, TfliteTask, Worker
from sat_tf.export.operations.graph_file import read_graph


class DyingTask(Task):
    """Ends its process with the second batch."""

    def start(self) -> Interface:
        return Interface((1,), np.dtype(np.uint8), 1)

    def run(self, images: np.ndarray) -> np.ndarray:
        if images[0]:
            os.kill(os.getpid(), signal.SIGSEGV)
        print("not an answer")
        return images


@pytest.fixture
def found_by_workers(monkeypatch):
    """Workers find this test's task where this process does."""
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(filter(None, sys.path)))


@pytest.mark.usefixtures("found_by_workers")
def test_a_task_that_ends_its_process_is_a_value_error():
    with Worker(DyingTask()) as worker:
        assert worker.run(np.zeros(1, np.uint8)).tolist() == [0]
        with pytest.raises(ValueError, match="it ends the process with SIGSEGV"):
            worker.run(np.ones(1, np.uint8))


def test_a_task_that_cannot_start_is_a_value_error(small_file):
    with pytest.raises(ValueError, match="not a valid Flatbuffer"):
        Worker(TfliteTask(small_file.read_bytes()[:99], "xnnpack"))


def test_images_that_a_task_refuses_leave_it_alive(small_file, small_images):
    with Worker(TfliteTask(small_file.read_bytes(), "xnnpack")) as worker:
        with pytest.raises(ValueError, match=r"FLOAT32|float32"):
            worker.run(small_images.astype(np.float32))
        assert worker.run(small_images).shape == (32, 4)


def test_litert_and_the_simulation_give_the_same_outputs(small_file, small_images):
    content = small_file.read_bytes()
    tasks = (TfliteTask(content, "xnnpack"), SimulatorTask(read_graph(content, "file")))
    outputs = []
    for task in tasks:
        with Worker(task) as worker:
            assert worker.interface == tasks[1].start()
            outputs.append(worker.run(small_images))
    np.testing.assert_array_equal(*outputs)
