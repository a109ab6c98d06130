import contextlib

import numpy as np

from sat_tf.exact.operations.graph_file import read_graph
from sat_tf.export.lowering.pipeline import deployed_graph
from sat_tf.graph.network import Network
from tests.export.zoo import ZOO


def test_random_damage_is_a_value_error_or_a_graph(small_file):
    rng, content = np.random.default_rng(11), small_file.read_bytes()
    for _ in range(300):
        damaged = bytearray(content)
        for position in rng.integers(0, len(content), rng.integers(1, 5)):
            damaged[position] = rng.integers(256)
        with contextlib.suppress(ValueError):
            read_graph(bytes(damaged[: rng.integers(1, 2 * len(content))]), "damaged")


def test_a_graph_prints_every_operation_and_the_sums_of_all():
    graph = deployed_graph(Network(ZOO["bottleneck"].quantized()))
    printed = str(graph)
    for operation in graph.operations:
        assert operation.output in printed
    assert f"{len(graph.operations)} operations, {len(graph.integer_tensors)} integer" in printed
    adds = sum(operation.multiply_adds(graph) for operation in graph.operations)
    assert f"{adds:,} multiply-adds an image" in printed
