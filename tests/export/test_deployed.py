import numpy as np
import pytest
import tensorflow as tf
import tf_keras as keras

import sat_tf
from sat_tf.export.deployed import deployed_model
from sat_tf.export.flatbuffer import serialize
from sat_tf.export.pipeline import deployed_graph
from sat_tf.export.runtime import Runtime
from sat_tf.export.simulator import simulate
from tests.export.zoo import ZOO, images_for


@pytest.mark.parametrize("name", ZOO)
def test_every_integer_of_every_model_is_the_one_of_the_simulation_and_of_litert(name):
    specimen = ZOO[name]
    model = specimen.quantized()
    deployed = deployed_model(model, float_head=specimen.float_head)
    images = images_for(model)
    codes, output = deployed.run(images)
    graph = deployed_graph(model, float_head=specimen.float_head)
    simulated = simulate(graph, images)
    runtime = Runtime(serialize(graph, {}), keep_tensors=True)
    written = runtime.run(images)
    stored = runtime.tensors(codes)
    assert set(codes) == {name for name, tensor in graph.tensors.items() if tensor.codes}
    for tensor, computed in codes.items():
        assert computed.size
        np.testing.assert_array_equal(computed, simulated[tensor], tensor)
        np.testing.assert_array_equal(computed, stored[tensor], tensor)
    # Softmax and float heads sum up in another order.
    exact = not specimen.float_head and "SOFTMAX" not in specimen.operators
    np.testing.assert_allclose(output, written, rtol=0, atol=0 if exact else 1e-4)
