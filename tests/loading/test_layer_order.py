import numpy as np
import pytest
import tf_keras as keras

from sat_tf.loading.load import check_order, load_model
from tests.loading.hostile import config_of, layer_in, small, with_config

L = keras.layers
FORMATS = ("model.keras", "model.h5", "model")


def _saved(model, path, change):
    model.save(path)
    config = config_of(path)
    change(config)
    return with_config(path, config)


def _reads(reader, source, index=0):
    def change(config):
        layer_in(config, reader)["inbound_nodes"] = [[[source, index, 0, {}]]]

    return change


@pytest.mark.parametrize("safe_mode", [True, False])
@pytest.mark.parametrize("name", FORMATS)
def test_layers_that_wait_for_each_other_are_refused(name, safe_mode, tmp_path):
    if name == "model" and not safe_mode:
        pytest.skip("is run as the program that it is")
    path = _saved(small(), tmp_path / name, _reads("conv", "head"))
    with pytest.raises(ValueError, match=r": received a layer that reads what comes after it"):
        load_model(path, safe_mode=safe_mode)


@pytest.mark.parametrize("name", FORMATS)
@pytest.mark.parametrize("source", ["conv", "norm"])
def test_a_layer_that_reads_itself_or_its_reader_is_named(name, source, tmp_path):
    path = _saved(small(), tmp_path / name, _reads("conv", source))
    with pytest.raises(ValueError, match=r"(conv|norm): received a layer that reads what comes "):
        load_model(path)


@pytest.mark.parametrize("index", [1, -1, 7, "0", None, 0.5])
def test_a_call_that_is_not_in_the_file_is_refused(index, tmp_path):
    path = _saved(small(), tmp_path / "model.keras", _reads("norm", "conv", index))
    with pytest.raises(ValueError, match=r"norm: received a layer that reads what call .* of conv"):
        load_model(path)


def test_tensors_among_the_arguments_are_read_too(tmp_path):
    def change(config):
        (node,) = layer_in(config, "norm")["inbound_nodes"]
        node[0][3] = {"mask": {"inside": [["head", 0, 0]]}}

    path = _saved(small(), tmp_path / "model.h5", change)
    with pytest.raises(ValueError, match=r"received a layer that reads what comes after it"):
        load_model(path)


def test_two_names_of_one_object_are_refused(tmp_path):
    def change(config):
        layer_in(config, "norm")["shared_object_id"] = 3
        layer_in(config, "relu")["shared_object_id"] = 3

    path = _saved(small(), tmp_path / "model.h5", change)
    with pytest.raises(ValueError, match=r"relu: received a layer that is the same object as norm"):
        load_model(path)


@pytest.mark.parametrize("wrapper", [None, L.TimeDistributed])
@pytest.mark.parametrize("name", FORMATS)
def test_models_inside_are_looked_at(name, wrapper, tmp_path):
    image = keras.Input((4, 4) if wrapper else (4, 4, 4))
    inner = keras.Model(image, L.ReLU(name="last")(L.ReLU(name="first")(image)), name="inner")

    def change(config):
        layer = layer_in(config, "outer" if wrapper else "inner")
        layer = layer["config"]["layer"] if wrapper else layer
        layer_in(layer, "first")["inbound_nodes"] = [[["last", 0, 0, {}]]]

    model = small(wrapper(inner, name="outer") if wrapper else inner)
    path = _saved(model, tmp_path / name, change)
    with pytest.raises(ValueError, match=r"(first|last): received a layer that reads what comes"):
        load_model(path)


@pytest.mark.parametrize("index", [0, 2])
@pytest.mark.parametrize("name", FORMATS)
def test_calls_of_models_are_counted_from_one(name, index, tmp_path):
    image = keras.Input((4, 4, 4))
    inner = keras.Model(image, L.ReLU(name="first")(image), name="inner")
    path = _saved(small(inner), tmp_path / name, _reads("pool", "inner", index))
    with pytest.raises(ValueError, match=rf"pool: .* what call {index} of inner makes"):
        load_model(path)


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
