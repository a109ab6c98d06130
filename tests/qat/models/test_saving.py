"""Quantized models come back from every kind of file bit for bit, and go on as they were."""

import functools
import json
import operator
import pathlib
import subprocess
import sys

import numpy as np
import pytest
import tensorflow as tf
import tf_keras as keras

import sat_tf
from sat_tf.graph.network import Network
from sat_tf.qat.policy import BitPolicy
from tests.qat import float_models
from tests.qat.float_models import L, model_of

pytestmark = pytest.mark.filterwarnings(
    "ignore:You are saving your model as an HDF5 file", "ignore:calibrate"
)

FORMATS = {"keras": "model.keras", "h5": "model.h5", "saved_model": "model"}


def _with_unequal_levels(name, policy):
    """A model no two of whose clipping levels, gains and ranges are equal."""
    model = sat_tf.quantize_model(float_models.build(name), policy)
    for index, layer in enumerate(model.layers[1:]):
        for variables in (layer.kernel_variables, layer.output_variables):
            for variable in variables.values():
                variable.assign(variable + 0.1 * index)
    return model


@pytest.mark.thorough
@pytest.mark.parametrize("form", FORMATS)
def test_a_loaded_model_trains_calibrates_and_requantizes(form, tmp_path):
    model = _with_unequal_levels("dropout", BitPolicy.mobile(4))
    model.get_layer("quant_a").trainable = False
    model.compile(keras.optimizers.SGD(0.01, momentum=0.9), "mse")
    images = float_models.images(32)
    model.fit(images, np.zeros((32, 4)), verbose=0)
    model.save(tmp_path / FORMATS[form])
    loaded = keras.models.load_model(tmp_path / FORMATS[form])
    assert not loaded.get_layer("quant_a").trainable_variables
    sat_tf.calibrate(loaded, images)
    history = loaded.fit(images, np.zeros((32, 4)), verbose=0)
    assert np.isfinite(history.history["loss"]).all()
    constraint = loaded.get_layer("quant_a_relu").output_variables["clipping_level"].constraint
    assert constraint.minimum == 1e-3
    fewer = sat_tf.requantize(loaded, BitPolicy.mobile(2))
    assert np.isfinite(fewer(images)).all()


def test_a_saved_model_can_be_served_without_keras(tmp_path):
    model = _with_unequal_levels("dropout", BitPolicy.mobile(4))
    images = float_models.images()
    model.export(tmp_path / "served")
    served = tf.saved_model.load(tmp_path / "served")
    np.testing.assert_allclose(served.serve(images), model(images), rtol=1e-5, atol=1e-5)


# Operations that are no layers, such as a sine, stay float.
MANY_LAYERS = BitPolicy.mobile(4, unsupported="float", overrides={"inner/conv": {"weight_bits": 3}})


def many_layers() -> keras.Model:
    """All that models hold beside the usual: two images, nested outputs, a layer of two calls."""
    left, right = (keras.Input((8, 8, 3), name=name) for name in ("left", "right"))
    stem = L.Conv2D(4, 3, padding="same", activation="swish", name="stem")
    one = stem(L.Rescaling(1 / 127.5, -1.0, name="centred")(left))  # two calls of one kernel
    other = stem(right * 2.0 - 1.0)
    conv = L.Conv2D(4, 1, activation="relu", name="conv")
    inner = model_of(conv, shape=(8, 8, 4), name="inner")
    tensor = L.Concatenate(name="join")([inner(one), L.LeakyReLU(0.1, name="leaky")(other)])
    gate = L.Activation("sigmoid", name="gate")(L.Conv2D(8, 1, name="gates")(tensor))
    tensor = L.Multiply(name="gated")([tensor, gate])[:, 1:-1, ::2]
    up = L.Conv2DTranspose(3, 2, 2, use_bias=False, name="up")(tensor)
    up = L.PReLU(shared_axes=[1, 2], name="prelu")(L.BatchNormalization(name="bn")(up))
    pooled = tf.math.sin(tf.reduce_mean(tensor, [1, 2]))
    logits = L.Dense(3, name="classifier")(L.LayerNormalization(name="norm")(pooled))
    outputs = {"class": logits, "maps": [L.Activation("tanh", name="tanh")(up), tensor]}
    return keras.Model([left, right], outputs, name="many_layers")


def _both_images(count=32):
    return [float_models.images(count, seed=seed) for seed in (1, 2)]


def _of_many_layers(seed=0):
    keras.utils.set_random_seed(seed)
    quantized = sat_tf.quantize_model(many_layers(), MANY_LAYERS)
    return sat_tf.calibrate(quantized, [_both_images()])


@pytest.fixture(scope="module")
def model():
    return _of_many_layers()


COPIES = {
    "clone_model": keras.models.clone_model,
    "model_from_json": lambda model: keras.models.model_from_json(model.to_json()),
    "from_config": lambda model: type(model).from_config(model.get_config()),
}
WEIGHTS = {"weights": "model.weights.h5", "checkpoint": "checkpoint"}
# The last one twice, as what was loaded may be written otherwise.
TRIPS = (*FORMATS, *COPIES, *WEIGHTS, "keras_of_h5")
SLOW = ("saved_model", "weights", "keras_of_h5")


def _after(trip, model, folder):
    """The model as it comes back from a file, a copy, or a file of weights."""
    if trip == "keras_of_h5":
        return _after("keras", _after("h5", model, folder), folder)
    if trip in FORMATS:
        model.save(folder / FORMATS[trip])
        return keras.models.load_model(folder / FORMATS[trip])
    if trip in COPIES:
        twin = COPIES[trip](model)
        twin.set_weights(model.get_weights())
        return twin
    model.save_weights(folder / WEIGHTS[trip])
    other = _of_many_layers(seed=5)
    other.load_weights(folder / WEIGHTS[trip])
    return other


def test_the_model_has_what_it_is_for(model):
    layers = model.layers[len(model.inputs) :]
    quantizers = {type(layer.quantize_config.output).__name__ for layer in layers}
    assert {"OffsetQuantizer", "UnitQuantizer", "StreamQuantizer", "RangeObserver"} <= quantizers
    expected = "Scaling Slice TensorFlowOperation Rescaling Conv2DTranspose PReLU"
    assert {*expected.split()} <= {type(layer.layer).__name__ for layer in layers}
    names = {node.name for node in Network(model)}
    assert {"quant_inner/conv", "quant_stem", "quant_stem@2"} <= names
    assert len(model.inputs) == 2
    assert len(model.outputs) == 3


@pytest.mark.thorough
@pytest.mark.parametrize(
    "trip", [pytest.param(name, marks=pytest.mark.slow) if name in SLOW else name for name in TRIPS]
)
def test_outputs_are_the_same_bit_for_bit_after(trip, model, tmp_path):
    loaded = _after(trip, model, tmp_path)
    outputs, expected = loaded(_both_images(4)), model(_both_images(4))
    tf.nest.assert_same_structure(outputs, expected)
    tf.nest.map_structure(np.testing.assert_array_equal, outputs, expected)
    if trip not in WEIGHTS:  # into a model with names of its own
        assert {node.name for node in Network(loaded)} == {node.name for node in Network(model)}
        configs = ([getattr(x, "quantize_config", None) for x in m.layers] for m in (model, loaded))
        assert [*map(operator.eq, *configs)] == [True] * len(model.layers)
    # One kernel for both calls, as before.
    assert len(loaded.trainable_variables) == len(model.trainable_variables)


MANY_FILES = ["many.keras", "many.h5"]
# Every format once in a fresh process; the order of imports makes no difference between them.
ORDERS = ("tf_keras, sat_tf", "tensorflow_model_optimization, sat_tf, tf_keras")
LOADINGS = [
    ("import sat_tf, tf_keras", [*FORMATS.values(), *MANY_FILES]),
    *(
        pytest.param(f"import {order}", ["model.keras"], marks=pytest.mark.thorough)
        for order in (*ORDERS, "tensorflow, sat_tf, tf_keras")
    ),
]

LOAD = """
import json, pathlib, sys
import numpy as np, tensorflow as tf
folder, found = pathlib.Path(sys.argv[1]), {}
for name in json.loads(sys.argv[2]):
    model = tf_keras.models.load_model(folder / name)
    with np.load(folder / f"{len(model.inputs)}.npz") as saved:
        given, expected = ([v for k, v in saved.items() if k[0] == kind] for kind in "xy")
    made = tf.nest.flatten(model(given[0] if len(given) == 1 else given))
    found[name] = len(made) == len(expected) and all(map(np.array_equal, made, expected))
print(json.dumps(found))
"""


@pytest.fixture(scope="module")
def saved(model, tmp_path_factory):
    """A folder with models in every format, images, and what they make of them."""
    folder = tmp_path_factory.mktemp("saved")
    simple = _with_unequal_levels("residual", BitPolicy.mobile(3))
    for each, given in ((simple, [float_models.images()]), (model, _both_images(4))):
        made = tf.nest.flatten(each(given[0] if len(given) == 1 else given))
        arrays = {f"x{index}": value for index, value in enumerate(given)}
        arrays |= {f"y{index}": value.numpy() for index, value in enumerate(made)}
        np.savez(folder / f"{len(given)}.npz", **arrays)
    for file in FORMATS.values():
        simple.save(folder / file)
    for file in MANY_FILES:
        model.save(folder / file)
    return folder


@pytest.mark.parametrize(("imports", "files"), LOADINGS)
def test_a_fresh_process_loads_saved_models_in_every_order_of_imports(imports, files, saved):
    command = [sys.executable, "-c", imports + LOAD, saved, json.dumps(files)]
    home = pathlib.Path(sat_tf.__file__).parent.parent
    done = subprocess.run(command, capture_output=True, text=True, cwd=home)
    assert done.returncode == 0, done.stderr[-2000:]
    assert json.loads(done.stdout.splitlines()[-1]) == dict.fromkeys(files, True)


@keras.utils.register_keras_serializable(package="users_own")
class Halved(L.Layer):
    def call(self, inputs):
        return 0.5 * inputs


@pytest.mark.parametrize(
    "file", ["model.keras", "model.h5", pytest.param("model", marks=pytest.mark.slow)]
)
def test_registered_layers_of_users_come_back_inside_their_quantizers(file, tmp_path):
    policy = sat_tf.BitPolicy.mobile(4, unsupported="float")
    layers = [L.Conv2D(3, 3, name="conv"), Halved(name="half"), L.Dense(2, name="head")]
    model = sat_tf.quantize_model(model_of(*layers), policy)
    model.save(tmp_path / file)
    images = float_models.images(2)
    np.testing.assert_array_equal(keras.models.load_model(tmp_path / file)(images), model(images))


def transposed(seed):
    norm = L.Normalization(name="adapted")
    norm.adapt(float_models.images(16, seed=seed) * (0.3 + seed))
    layers = [norm, L.Conv2D(4, 3, 2, name="a"), L.BatchNormalization(name="a_bn")]
    layers += [L.ReLU(name="a_relu"), L.Conv2DTranspose(5, 3, 2, name="up")]
    layers += [L.BatchNormalization(name="up_bn"), L.ReLU(6.0, name="up_relu")]
    layers += [L.Conv2DTranspose(2, 2, activation="relu", name="last"), L.Flatten()]
    model = model_of(*layers, L.Dense(3, name="classifier"), name="transposed")
    statistics = norm.get_weights()
    float_models.pretend_trained(model, seed)
    norm.set_weights(statistics)
    norm.finalize_state()
    return model


_GRAPHS = ["mobile_block", "depthwise", "without_normalization", "no_gamma", "preactivation"]
OF_WEIGHTS = {
    **{name: functools.partial(float_models.build, name) for name in _GRAPHS},
    "transposed": transposed,
    "dense": lambda seed: float_models.pretend_trained(float_models.dense_only(), seed),
    "many_layers": lambda seed: float_models.pretend_trained(many_layers(), seed),
}
POLICIES = {
    "mobile8": BitPolicy.mobile(8),
    "mobile4_channel": BitPolicy.mobile(4, weight_range="channel", detach_max=True),
    "paper2": BitPolicy.paper(2),
    "paper3_kept": BitPolicy.paper(3, latent_start="keep_function"),
    "stddev": BitPolicy.mobile(3, rescale="stddev", weight_grid="narrow"),
    "clamped": BitPolicy(weight_bits=None, activation_bits=None, rescale="none"),
    "many_layers": MANY_LAYERS,
}


def _images(model):
    if len(model.inputs) == 2:
        return _both_images(4)
    if model.input_shape[1:] == (6,):
        return np.random.default_rng(0).normal(size=(8, 6)).astype(np.float32)
    return float_models.images()


def _equal(one, other):
    return all(map(np.array_equal, tf.nest.flatten(one), tf.nest.flatten(other)))


@functools.cache
def _quantized(name, policy, seed):
    keras.backend.reset_uids()  # names that Keras gives count the layers that there are
    return sat_tf.quantize_model(OF_WEIGHTS[name](seed), POLICIES[policy])


def _lasting(config):
    """The configuration without the start of clipping levels, which are weights."""
    if isinstance(config, dict):
        kept = {key: part for key, part in config.items() if key != "initial_clipping_level"}
        return {key: _lasting(part) for key, part in kept.items()}
    return [_lasting(part) for part in config] if isinstance(config, list | tuple) else config


ONE_INPUT = [name for name in POLICIES if name != "many_layers"]
# Every model and every policy, and those with gains beside those without.
PAIRS = [
    *zip([*_GRAPHS, "transposed"], ONE_INPUT, strict=False),
    *(("depthwise", policy) for policy in ONE_INPUT if policy != "mobile4_channel"),
    ("transposed", "mobile4_channel"),
    ("dense", "paper2"),
    ("many_layers", "many_layers"),
]


@pytest.mark.thorough
@pytest.mark.parametrize(("name", "policy"), PAIRS)
def test_set_weights_makes_another_model_the_same(name, policy):
    one, other = (_quantized(name, policy, seed) for seed in (0, 1))
    if name != "transposed":
        assert _lasting(one.get_config()) == _lasting(other.get_config())
    images = _images(one)
    assert not _equal(other(images), one(images))
    other = keras.models.clone_model(other)
    other.set_weights(one.get_weights())
    assert _equal(other(images), one(images))
    one = keras.models.clone_model(one)
    one.set_weights(other.get_weights())
    for _ in range(2):  # also with the statistics that the first step has moved
        trained = one(images, training=True)
        assert _equal(other(images, training=True), trained)
    assert _equal(other(images), one(images))


@pytest.mark.thorough
@pytest.mark.parametrize("file", ["model.weights.h5", "weights.h5", "checkpoint"])
@pytest.mark.parametrize("name", ["transposed", "depthwise"])
def test_a_file_of_weights_makes_another_model_the_same(name, file, tmp_path):
    one, other = (_quantized(name, "mobile4_channel", seed) for seed in (0, 1))
    one.save_weights(tmp_path / file)
    other = keras.models.clone_model(other)
    other.load_weights(tmp_path / file)
    images = _images(one)
    np.testing.assert_array_equal(other(images), one(images))
    np.testing.assert_array_equal(tf.function(other)(images), tf.function(one)(images))
