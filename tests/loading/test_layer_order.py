import numpy as np
import pytest
import tf_keras as keras

from sat_tf.loading.load import check_order, load_model
from tests.loading.hostile import config_of, small, with_config

L = keras.layers
FORMATS = ("model.keras", "model.h5", "model")


def _saved(model, path, change):
    model.save(path)
    config = config_of(path)
    change(config)
    return with_config(path, config)


def _functional(name):
    start = keras.Input((4, 4, 4))
    return keras.Model(start, L.Conv2D(4, 1)(L.ReLU()(start)), name=name)


def _called_often():
    """Layers and models of every kind that are called twice, in no order of the file."""
    image = keras.Input((4, 4, 4), name="image")
    shared = L.Conv2D(4, 1, name="shared")
    functional, first = (_functional(name) for name in ("functional", "first"))
    told = keras.Sequential([keras.Input((4, 4, 4)), L.Conv2D(4, 1)], name="told")
    by_shape = keras.Sequential([L.Conv2D(4, 1, input_shape=(4, 4, 4))], name="by_shape")
    late = keras.Sequential([L.Conv2D(4, 1)], name="late")
    nested = keras.Sequential([first, L.ReLU()], name="nested")
    wrapped = L.TimeDistributed(keras.Sequential([L.Dense(4)], name="within"), name="wrapped")
    x = image
    for layer in (shared, functional, told, by_shape, late, nested, wrapped):
        x = L.Add()([layer(x), layer(layer(x)), x])
    x = L.MultiHeadAttention(1, 2, name="attention")(x, value=shared(x), key=x)
    return keras.Model({"image": image}, [L.Flatten()(x), shared(x)], name="often")


@pytest.mark.thorough
@pytest.mark.parametrize("name", FORMATS)
def test_whatever_can_be_ordered_is_loaded(name, tmp_path):
    model = _called_often()
    model.save(tmp_path / name)
    images = np.random.default_rng(0).normal(size=(2, 4, 4, 4)).astype(np.float32)
    for left, right in zip(load_model(tmp_path / name)(images), model(images), strict=True):
        np.testing.assert_array_equal(left, right)


def test_the_order_in_the_file_is_free(tmp_path):
    path = _saved(
        small(), tmp_path / "m.keras", lambda config: config["config"]["layers"].reverse()
    )
    assert load_model(path).count_params() == small().count_params()


def test_many_layers_in_the_wrong_order_take_no_time():
    layers = [{"class_name": "InputLayer", "name": "0", "inbound_nodes": []}]
    for number in range(1, 20_000):
        node = [[str(number - 1), 0, 0, {}]]
        layers.append({"class_name": "ReLU", "name": str(number), "inbound_nodes": [node]})
    check_order({"config": {"layers": layers[::-1]}})


@pytest.mark.parametrize("config", [None, 3, {"layers": 3}, {"layers": [3, {}, {"name": []}]}])
def test_other_damage_is_left_to_keras(config):
    check_order({"config": config})
