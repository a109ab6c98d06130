import os

import pytest
import tensorflow as tf
import tf_keras as keras

from sat_tf.loading.load import load_model
from sat_tf.loading.model_file import expect_usual_size
from sat_tf.loading.saved_model import variable_bytes
from tests.loading.hostile import config_of, layer_in, with_config

L = keras.layers


def split_model(path):
    image = keras.Input((16,), name="image")
    parts = tf.unstack(tf.split(image, 4, axis=1)[0], axis=1)
    keras.Model(image, L.Dense(2, name="head")(tf.stack(parts, axis=1))).save(path)
    return config_of(path)


def function_in(config, name):
    """The layer of a function; their own names are numbered."""
    layers = config["config"]["layers"]
    return next(layer for layer in layers if layer["config"].get("function") == name)


def many_layers(config):
    config["config"]["layers"] += [layer_in(config, "head")] * 20_000


def many_tensors(config):
    function_in(config, "split")["inbound_nodes"][0][3]["num_or_size_splits"] = 10**8


def many_rows(config):
    layer_in(config, "image")["config"]["batch_input_shape"] = [None, 4 * 10**8]


def unrolled(config):
    many_rows(config)
    function_in(config, "unstack")["config"]["function"] = "abs"
    layer_in(config, "head")["config"]["unroll"] = True


def no_tensor(config):
    layer = function_in(config, "split")
    layer["config"]["function"] = "ones"
    layer["inbound_nodes"] = [["_CONSTANT_VALUE", -1, [10**5, 10**5], {}]]


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        (many_layers, r"received 20,00\d layers, expected at most 10,000"),
        (many_tensors, r"tf.split\w*: received a layer that may make 100,000,000 tensors of one"),
        (many_rows, r"tf.unstack\w*: received a layer that may make 400,000,000 tensors of one"),
        (unrolled, r"head: received a layer that may make 400,000,000 tensors of one"),
        (no_tensor, r"tf.split\w*: received a function of no tensor"),
    ],
)
def test_a_giant_of_a_few_words_is_refused_before_it_is_built(change, problem, tmp_path):
    path = tmp_path / "model.keras"
    config = split_model(path)
    load_model(path)
    change(config)
    with_config(path, config)
    with pytest.raises(ValueError, match=problem):
        load_model(path)


def test_an_operation_of_keras_3_is_held_to_the_same():
    split = {"class_name": "Split", "config": {"name": "parts", "indices_or_sections": 10**8}}
    with pytest.raises(ValueError, match=r"parts: received a layer that may make 100,000,000"):
        expect_usual_size({"config": {"layers": [split]}})
    split["config"]["indices_or_sections"] = 4
    expect_usual_size({"config": {"layers": [split] * 10_000}})


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="this system has no named pipes")
def test_a_pipe_among_the_variables_of_a_saved_model_is_refused(tmp_path):
    keras.Sequential([L.Dense(2, input_shape=(3,))]).save(tmp_path / "model")
    assert variable_bytes(tmp_path / "model") > 0
    load_model(tmp_path / "model")
    for name in ("variables.data-00001-of-00002", "variables.index"):
        path = tmp_path / "model" / "variables" / name
        path.unlink(missing_ok=True)
        os.mkfifo(path)
        with pytest.raises(ValueError, match=rf"variables are no files \({name}"):
            load_model(tmp_path / "model")
        path.unlink()
