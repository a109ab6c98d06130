import pathlib
import subprocess
import sys

import numpy as np
import pytest
import tensorflow as tf

from sat_tf.export import evaluate
from sat_tf.export.evaluate import (
    evaluate_simulator,
    evaluate_tflite,
    file_interface,
    run_tflite,
)
from sat_tf.export.litert import processes
from sat_tf.export.litert.runtime import Runtime
from sat_tf.export.operations.graph_file import read_graph
from sat_tf.top_k import top_hits


@pytest.fixture(scope="module")
def labels(small_images):
    return np.random.default_rng(0).integers(0, 4, len(small_images))


@pytest.fixture(scope="module")
def expected(small_file, small_images, labels):
    outputs = Runtime(small_file.read_bytes(), keep_tensors=False).run(small_images)
    return {k: top_hits(outputs, labels, k) / len(labels) for k in (1, 2, 4)}


@pytest.mark.parametrize("processes", [1, 2])
@pytest.mark.parametrize("function", [evaluate_tflite, evaluate_simulator])
def test_shares_are_those_of_one_interpreter(
    function, processes, small_file, small_images, labels, expected
):
    found = function(
        small_file, small_images, labels, top=(1, 2, 4), processes=processes, progress=False
    )
    assert found.top == expected
    assert (found.num_images, found.not_finite, found.processes) == (32, 0, processes)


def test_a_data_set_of_batches_gives_the_same(small_file, small_images, labels, expected):
    batches = tf.data.Dataset.from_tensor_slices((small_images, labels)).batch(20)
    found = evaluate_tflite(small_file, batches, top=(1, 2, 4), processes=2, progress=True)
    assert found.top == expected


def test_a_graph_is_simulated_as_its_file(small_file, small_images, labels, expected):
    graph = read_graph(small_file.read_bytes(), "file")
    found = evaluate_simulator(graph, small_images, labels, top=[1], progress=False)
    assert found.top == {1: expected[1]}


@pytest.mark.parametrize("processes", [1, 3])
def test_outputs_are_in_the_order_of_the_images(small_file, small_images, processes):
    expected = Runtime(small_file.read_bytes(), keep_tensors=False).run(small_images)
    found = run_tflite(small_file, small_images, processes=processes, progress=False)
    np.testing.assert_array_equal(found, expected)


def test_a_file_says_what_it_takes(small_file):
    interface = file_interface(small_file)
    assert (interface.input_shape, interface.input_type) == ((8, 9, 3), np.uint8)
    assert interface.num_outputs == 4


def test_outputs_that_are_not_finite_are_counted_and_wrong(
    small_file, small_images, labels, monkeypatch
):
    outputs = np.array([[np.nan, 1.0, 0.0], [1.0, 0.0, 0.0], [np.inf, 0.0, 0.0]])
    batches = [(outputs, np.array([1, 0, 0])), (np.zeros((1, 3)), np.array([1]))]
    monkeypatch.setattr(evaluate, "_outputs", lambda *_: iter(batches))
    found = evaluate_tflite(small_file, small_images, labels, top=(1, 2))
    assert (found.num_images, found.not_finite, found.top) == (4, 2, {1: 0.25, 2: 0.5})


def test_a_script_without_a_main_guard_is_run_once(small_file, small_images, labels, tmp_path):
    np.savez(tmp_path / "data.npz", x=small_images, y=labels)
    script = tmp_path / "script.py"
    script.write_text(
        "import numpy as np\n"
        "from sat_tf.export import evaluate_tflite\n"
        "print('started')\n"
        f"data = np.load({str(tmp_path / 'data.npz')!r})\n"
        f"evaluate_tflite({str(small_file)!r}, data['x'], data['y'], top=[1], processes=2)\n"
    )
    done = subprocess.run(
        [sys.executable, script],
        env=processes.child_environment(),
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout == "started\n"


def test_paths_may_be_strings(small_file: pathlib.Path, small_images, labels, expected):
    found = evaluate_tflite(str(small_file), small_images, labels, top=[1], progress=False)
    assert found.top[1] == expected[1]
