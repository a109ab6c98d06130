import pytest
import tf_keras as keras

from sat_tf.analysis.wiring import groups, holds_matrices, kernel_of, unwrapped
from sat_tf.graph.layer_kinds import kernels_of

layers = keras.layers

# Counted by hand: how many inputs reach one output, and how many outputs one input reaches.
COUNTS = [
    (layers.Dense(7), (5,), [(5, 7)]),
    (layers.Conv2D(8, (3, 2)), (9, 9, 4), [(24, 48)]),
    (layers.Conv2D(8, 3, groups=2), (9, 9, 4), [(18, 36)]),
    (layers.Conv1D(6, 5), (9, 4), [(20, 30)]),
    (layers.Conv3D(2, 2), (5, 5, 5, 3), [(24, 16)]),
    (layers.DepthwiseConv2D(3, depth_multiplier=2), (9, 9, 4), [(9, 18)]),
    (layers.DepthwiseConv1D(5), (9, 4), [(5, 5)]),
    (layers.SeparableConv2D(6, 3, depth_multiplier=2), (9, 9, 4), [(9, 18), (8, 6)]),
    (layers.Conv2DTranspose(8, 3), (9, 9, 4), [(36, 72)]),
]


@pytest.mark.parametrize(
    ("layer", "shape", "counts"), COUNTS, ids=[type(row[0]).__name__ for row in COUNTS]
)
def test_neurons_are_counted_as_by_hand(layer, shape, counts):
    layer.build((None, *shape))
    shapes = [(kernel, kernel_of(layer, kernel).shape) for kernel in kernels_of(layer)]
    found = [
        (kernel.fan_in(shape), kernel.fan_out(shape, groups(layer))) for kernel, shape in shapes
    ]
    assert found == counts


def test_a_subclass_is_not_known():
    class Standardized(layers.Conv2D):
        pass

    assert kernels_of(Standardized(3, 3)) == ()


def test_wrappers_are_taken_off():
    inner = layers.Dense(3)
    assert unwrapped(layers.TimeDistributed(inner)) is inner
    assert unwrapped(inner) is inner


def test_a_matrix_is_told_from_a_vector():
    dense, norm = layers.Dense(3), layers.BatchNormalization()
    dense.build((None, 4))
    norm.build((None, 4))
    assert holds_matrices(dense)
    assert not holds_matrices(norm)
