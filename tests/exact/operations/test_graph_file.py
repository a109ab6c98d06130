import contextlib

import numpy as np
import pytest

from sat_tf.exact.operations.graph_file import read_foreign, read_graph
from tests.exact.foreign import make


@pytest.mark.parametrize("read", [read_graph, read_foreign])
def test_random_damage_is_a_value_error_or_a_graph(read, small_file):
    path = small_file if read is read_graph else make.FOLDER / "tfmot.tflite"
    rng, content = np.random.default_rng(11), path.read_bytes()
    for _ in range(300):
        damaged = bytearray(content)
        for position in rng.integers(0, len(content), rng.integers(1, 5)):
            damaged[position] = rng.integers(256)
        with contextlib.suppress(ValueError):
            read(bytes(damaged[: rng.integers(1, 2 * len(content))]), "damaged")
