import contextlib

import numpy as np

from sat_tf.exact.operations.graph_file import read_graph


def test_random_damage_is_a_value_error_or_a_graph(small_file):
    rng, content = np.random.default_rng(11), small_file.read_bytes()
    for _ in range(300):
        damaged = bytearray(content)
        for position in rng.integers(0, len(content), rng.integers(1, 5)):
            damaged[position] = rng.integers(256)
        with contextlib.suppress(ValueError):
            read_graph(bytes(damaged[: rng.integers(1, 2 * len(content))]), "damaged")
