import pytest
import tf_keras as keras

from sat_tf.training.models import vgg
from tests.training.models.small import build_small, layers_of, small_model


def test_stages_have_the_published_shapes():
    pools = layers_of(vgg.vgg16(width_multiplier=1.0, hidden_units=8), keras.layers.MaxPooling2D)
    assert [pool.output_shape[1:] for pool in pools] == [
        (112, 112, 64),
        (56, 56, 128),
        (28, 28, 256),
        (14, 14, 512),
        (7, 7, 512),
    ]


@pytest.mark.parametrize("name", ["vgg16", "vgg16_bn"])
def test_every_convolution_and_dense_layer_has_a_bias(name):
    kinds = (keras.layers.Conv2D, keras.layers.Dense)
    linear = layers_of(small_model(name), kinds)
    assert len(linear) == 16
    assert all(layer.use_bias for layer in linear)


def test_only_convolutions_are_normalized_and_only_where_asked_for():
    plain, normalized = small_model("vgg16"), small_model("vgg16_bn")
    assert not layers_of(plain, keras.layers.BatchNormalization)
    assert len(layers_of(normalized, keras.layers.BatchNormalization)) == 13
    # 13 convolutions and 2 hidden dense layers.
    for model in (plain, normalized):
        assert len(layers_of(model, keras.layers.ReLU)) == 15


def test_hidden_dense_layers_are_as_wide_as_asked_for():
    model = build_small("vgg16", hidden_units=24)
    units = [layer.units for layer in layers_of(model, keras.layers.Dense)]
    assert units == [24, 24, 10]


def test_pools_keep_the_last_row_of_odd_sizes():
    model = build_small("vgg16", 24)
    pools = layers_of(model, keras.layers.MaxPooling2D)
    assert [pool.output_shape[1] for pool in pools] == [12, 6, 3, 2, 1]
