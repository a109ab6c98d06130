"""Round trips of a model with the layers, calls and ends that simple ones do not have."""

import pathlib
import subprocess
import sys

import numpy as np
import pytest
import tensorflow as tf
import tf_keras as keras

import sat_tf
from sat_tf.graph.network import Network
from tests.qat.models import many_layers

L = keras.layers

pytestmark = pytest.mark.filterwarnings(
    "ignore:You are saving your model as an HDF5 file", "ignore:calibrate"
)


@pytest.fixture(scope="module")
def model():
    return many_layers.quantized()


@pytest.fixture(scope="module")
def expected(model):
    return tf.nest.map_structure(np.asarray, model(many_layers.images(4)))


def _cloned(model, folder):
    return _with_weights_of(model, keras.models.clone_model(model))


def _by_json(model, folder):
    return _with_weights_of(model, keras.models.model_from_json(model.to_json()))


def _by_config(model, folder):
    return _with_weights_of(model, type(model).from_config(model.get_config()))


def _with_weights_of(model, copy):
    copy.set_weights(model.get_weights())
    return copy


def _by_file(name):
    def load(model, folder):
        model.save(folder / name)
        return keras.models.load_model(folder / name)

    return load


def _by_weights(name):
    def load(model, folder):
        model.save_weights(folder / name)
        other = many_layers.quantized(seed=5)
        other.load_weights(folder / name)
        return other

    return load


TRIPS = {
    "keras": _by_file("model.keras"),
    "h5": _by_file("model.h5"),
    "saved_model": _by_file("model"),
    "clone_model": _cloned,
    "model_from_json": _by_json,
    "from_config": _by_config,
    "weights": _by_weights("model.weights.h5"),
    "checkpoint": _by_weights("checkpoint"),
    # Twice, as what was loaded may be written otherwise.
    "keras_of_h5": lambda model, folder: TRIPS["keras"](TRIPS["h5"](model, folder), folder),
}
SLOW = ("saved_model", "weights", "keras_of_h5")


@pytest.mark.thorough
def test_the_model_has_what_it_is_for(model):
    quantizers, layers = set(), set()
    for layer in model.layers[len(model.inputs) :]:
        quantizers.add(type(layer.quantize_config.output).__name__)
        layers.add(type(layer.layer).__name__)
    assert {"OffsetQuantizer", "UnitQuantizer", "StreamQuantizer", "RangeObserver"} <= quantizers
    assert {
        "Scaling",
        "Slice",
        "TensorFlowOperation",
        "Rescaling",
        "Conv2DTranspose",
        "PReLU",
    } <= layers
    names = {node.name for node in Network(model)}
    assert {"quant_inner/conv", "quant_stem", "quant_stem@2"} <= names
    assert len(model.inputs) == 2
    assert len(model.outputs) == 3


@pytest.mark.thorough
@pytest.mark.parametrize(
    "trip",
    [pytest.param(name, marks=pytest.mark.slow) if name in SLOW else name for name in TRIPS],
)
def test_outputs_are_the_same_bit_for_bit_after(trip, model, expected, tmp_path):
    loaded = TRIPS[trip](model, tmp_path)
    found = loaded(many_layers.images(4))
    tf.nest.assert_same_structure(found, expected)
    tf.nest.map_structure(np.testing.assert_array_equal, found, expected)
    if "weights" not in trip and trip != "checkpoint":  # into a model with names of its own
        assert {node.name for node in Network(loaded)} == {node.name for node in Network(model)}
    # One kernel for both calls, as before.
    assert len(loaded.trainable_variables) == len(model.trainable_variables)


@pytest.mark.thorough
def test_a_loaded_model_is_quantized_again_and_exported_alike(model, expected, tmp_path):
    loaded = TRIPS["keras"](model, tmp_path)
    again = sat_tf.requantize(loaded, many_layers.POLICY)
    found = again(many_layers.images(4))
    tf.nest.map_structure(np.testing.assert_array_equal, found, expected)
    for name, each in (("one.tflite", model), ("other.tflite", loaded)):
        sat_tf.export_tflite(each, tmp_path / name)
    assert (tmp_path / "one.tflite").read_bytes() == (tmp_path / "other.tflite").read_bytes()


LOAD = """
import sys, sat_tf, tf_keras, numpy as np
folder = sys.argv[1]
saved = np.load(folder + "/values.npz")
for name in ("model.keras", "model.h5"):
    made = tf_keras.models.load_model(folder + "/" + name)([saved["left"], saved["right"]])
    np.testing.assert_array_equal(made["class"], saved["class"])
    np.testing.assert_array_equal(made["maps"][0], saved["up"])
    np.testing.assert_array_equal(made["maps"][1], saved["tensor"])
"""


@pytest.mark.thorough
def test_another_process_loads_every_file_after_the_import_alone(model, expected, tmp_path):
    for name in ("model.keras", "model.h5"):
        model.save(tmp_path / name)
    left, right = many_layers.images(4)
    up, tensor = expected["maps"]
    values = {"left": left, "right": right, "class": expected["class"], "up": up}
    np.savez(tmp_path / "values.npz", **values, tensor=tensor)
    root = pathlib.Path(sat_tf.__file__).parent.parent
    command = [sys.executable, "-c", LOAD, str(tmp_path)]
    process = subprocess.run(command, capture_output=True, text=True, cwd=root)
    assert process.returncode == 0, process.stderr[-2000:]


# -- layers that users have written ------------------------------------------------------------


@keras.utils.register_keras_serializable(package="users_own")
class Halved(L.Layer):
    def call(self, inputs):
        return 0.5 * inputs


@pytest.mark.parametrize(
    "file", ["model.keras", "model.h5", pytest.param("model", marks=pytest.mark.slow)]
)
def test_registered_layers_of_users_come_back_inside_their_quantizers(file, tmp_path):
    image = keras.Input((8, 8, 3), name="image")
    tensor = Halved(name="half")(L.Conv2D(3, 3, name="conv")(image))
    policy = sat_tf.BitPolicy.mobile(4, unsupported="float")
    model = sat_tf.quantize_model(keras.Model(image, L.Dense(2, name="head")(tensor)), policy)
    model.save(tmp_path / file)
    images = many_layers.images(2)[0]
    np.testing.assert_array_equal(keras.models.load_model(tmp_path / file)(images), model(images))
