import hashlib

import numpy as np
import pytest

from sat_tf.export.certificate.comparison import CodesRecorder
from sat_tf.export.operations.graph import simulate
from sat_tf.export.operations.graph_file import read_graph


@pytest.fixture(scope="module")
def graph(small_file):
    return read_graph(small_file.read_bytes(), "file")


def recorded(graph, images, size):
    recorder = CodesRecorder(graph, dict.fromkeys(graph.integer_tensors, "KIND"))
    for start in range(0, len(images), size):
        recorder.add(simulate(graph, images[start : start + size]))
    return recorder.result()


def test_codes_are_counted_and_hashed_over_all_images(graph, small_images):
    simulated = simulate(graph, small_images)
    for tensor in recorded(graph, small_images, len(small_images)):
        codes = simulated[tensor.name]
        values, counts = np.unique(codes, return_counts=True)
        found = {tensor.lowest + i: n for i, n in enumerate(tensor.counts) if n}
        assert found == dict(zip(values.tolist(), counts.tolist(), strict=True))
        assert tensor.sha256 == hashlib.sha256(codes.astype(np.int8).tobytes()).hexdigest()
        assert sum(tensor.counts) == codes.size
        assert 2 ** (tensor.bits - 1) < len(tensor.counts) <= 2**tensor.bits


def test_batches_of_any_size_give_the_same_hash(graph, small_images):
    assert recorded(graph, small_images, 5) == recorded(graph, small_images, 32)


def test_tensors_come_in_the_order_of_their_operations(graph, small_images):
    names = [tensor.name for tensor in recorded(graph, small_images[:1], 1)]
    made = [op.output for op in graph.operations if graph.tensors[op.output].codes]
    assert names == made == list(graph.integer_tensors)
