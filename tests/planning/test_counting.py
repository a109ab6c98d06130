import pytest
import tf_keras as keras

from sat_tf.graph.network import Network
from sat_tf.planning.deployment import multiply_adds

L = keras.layers


def counted(layer, shape):
    network = Network(keras.Sequential([keras.Input(shape), layer]))
    node = network[layer.name]
    return multiply_adds(node, [network[name].shape for name in node.inputs])


@pytest.mark.parametrize(
    ("layer", "shape", "expected"),
    [
        (L.Conv2D(5, 3, strides=2, padding="same"), (8, 6, 2), 4 * 3 * 9 * 2 * 5),
        (L.Conv2D(4, (1, 3), groups=2), (8, 6, 2), 8 * 4 * 3 * 1 * 4),
        (L.Conv1D(3, 2), (8, 4), 7 * 2 * 4 * 3),
        (L.DepthwiseConv2D(3, depth_multiplier=2), (5, 5, 3), 9 * 9 * 3 * 2),
        (L.SeparableConv2D(7, 3), (5, 5, 3), 9 * (9 * 3 + 3 * 7)),
        # Each input is multiplied by the whole kernel.
        (L.Conv2DTranspose(4, 3, strides=2), (5, 5, 3), 25 * 9 * 3 * 4),
        (L.Dense(4), (6,), 24),
        (L.Dense(4), (5, 6), 5 * 24),
        (L.BatchNormalization(), (5, 5, 3), 0),
        (L.ReLU(), (5, 5, 3), 0),
        (L.PReLU(), (5, 5, 3), 0),
        (L.Conv2D(4, 3), (None, None, 3), None),
        (L.LSTM(4), (5, 3), None),
    ],
)
def test_products_of_weights_and_inputs(layer, shape, expected):
    assert counted(layer, shape) == expected
