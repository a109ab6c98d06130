import pytest
import tensorflow as tf
import tf_keras as keras

from sat_tf.graph import layer_kinds, operation_layers
from sat_tf.graph.layers.kind import Role
from sat_tf.graph.operation_layers import Scaling, Slice

L = keras.layers


@pytest.mark.parametrize(
    ("layer", "role"),
    [
        (L.Conv2D(2, 3), Role.LINEAR),
        (L.DepthwiseConv2D(3), Role.LINEAR),
        (L.Dense(2), Role.LINEAR),
        (L.BatchNormalization(), Role.NORM),
        (L.ReLU(), Role.RECTIFIER),
        (L.ReLU(6.0), Role.RECTIFIER),
        (L.Activation("relu"), Role.RECTIFIER),
        (L.Activation(tf.nn.relu6), Role.RECTIFIER),
        (L.Activation("softmax"), Role.SOFTMAX),
        (L.Activation("linear"), Role.IDENTITY),
        (L.Softmax(), Role.SOFTMAX),
        (L.Add(), Role.SUM),
        (L.GlobalAveragePooling2D(), Role.MEAN),
        (L.AveragePooling2D(), Role.MEAN),
        (L.MaxPooling2D(), Role.MOVEMENT),
        (L.ZeroPadding2D(), Role.MOVEMENT),
        (L.Flatten(), Role.MOVEMENT),
        (L.Reshape((4,)), Role.MOVEMENT),
        (L.Dropout(0.5), Role.IDENTITY),
        (L.Conv1D(2, 3), Role.LINEAR),
        (L.Conv2D(4, 3, groups=2), Role.LINEAR),
        (L.Conv2DTranspose(2, 3), Role.LINEAR),
        (L.Subtract(), Role.SUM),
        (L.Average(), Role.SUM),
        (L.Multiply(), Role.PRODUCT),
        (L.Maximum(), Role.CONCATENATION),
        (L.Minimum(), Role.CONCATENATION),
        (Scaling("x * c", 2.0), Role.SCALING),
        (L.UpSampling2D(), Role.MOVEMENT),
        (L.UpSampling2D(interpolation="bilinear"), Role.FUNCTION),
        (L.Cropping2D(), Role.MOVEMENT),
        (L.Permute((2, 1)), Role.MOVEMENT),
        (L.GlobalMaxPooling2D(), Role.MOVEMENT),
        (Slice([[1, None, None]]), Role.MOVEMENT),
        (L.Activation("sigmoid"), Role.FUNCTION),
        (L.ReLU(negative_slope=0.1), Role.FUNCTION),
        (L.LeakyReLU(), Role.FUNCTION),
        (L.PReLU(), Role.FUNCTION),
        (L.LayerNormalization(), Role.FUNCTION),
        (L.Resizing(4, 4), Role.FUNCTION),
        (L.Resizing(4, 4, "nearest"), Role.MOVEMENT),
        (L.Resizing(4, 4, "nearest", crop_to_aspect_ratio=True), Role.FUNCTION),
        (L.Conv2DTranspose(4, 3, 2, output_padding=1), Role.LINEAR),
        (L.Conv1DTranspose(4, 3, 2, output_padding=1), Role.LINEAR),
        (L.DepthwiseConv1D(3), Role.LINEAR),
        (operation_layers.Clip(-1.0, 2.0), Role.FUNCTION),
        (operation_layers.DepthToSpace(2), Role.MOVEMENT),
        (operation_layers.SpaceToDepth(2), Role.MOVEMENT),
        (operation_layers.Padding([(0, 0), (1, 2)]), Role.MOVEMENT),
        (operation_layers.Gather([1, 0], 0), Role.MOVEMENT),
        (operation_layers.ChannelMax(), Role.MOVEMENT),
        (operation_layers.ChannelMean(), Role.MEAN),
        (operation_layers.ConstantSum([[1.0]]), Role.SUM),
    ],
)
def test_every_supported_layer_has_a_role(layer, role):
    assert layer_kinds.role_of(layer) is role
    assert layer_kinds.unsupported_problem(layer) is None
    assert type(layer).__name__ in layer_kinds.supported_names()


def test_a_subclass_may_do_anything_and_is_not_known():
    class MyConv(L.Conv2D):
        pass

    assert layer_kinds.role_of(MyConv(2, 3)) is Role.OPAQUE
    assert "received MyConv" in layer_kinds.unsupported_problem(MyConv(2, 3))


def test_the_last_axis_of_a_normalization_may_be_counted_from_the_front():
    norm = L.BatchNormalization(axis=3)
    norm.build((None, 8, 8, 4))
    assert layer_kinds.unsupported_problem(norm) is None


@pytest.mark.parametrize(
    ("layer", "rectifies", "ceiling"),
    [
        (L.ReLU(), True, None),
        (L.ReLU(6.0), True, 6.0),
        (L.Conv2D(2, 3, activation="relu"), True, None),
        (L.Dense(2, activation=tf.nn.relu6), True, 6.0),
        (L.Dense(2), False, None),
        (L.Dense(2, activation="softmax"), False, None),
        (L.BatchNormalization(), False, None),
    ],
)
def test_rectifiers_are_found_inside_layers_too(layer, rectifies, ceiling):
    assert layer_kinds.rectifies(layer) is rectifies
    assert layer_kinds.rectifier_ceiling(layer) == ceiling
