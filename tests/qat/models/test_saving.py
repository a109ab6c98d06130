import json
import pathlib
import subprocess
import sys

import numpy as np
import pytest
import tensorflow as tf
import tf_keras as keras

import sat_tf
from sat_tf.qat.policy import BitPolicy
from tests.qat import float_models

L = keras.layers

FORMATS = {"keras": "model.keras", "h5": "model.h5", "saved_model": "model"}

MODELS = {
    "mobile_block": BitPolicy.mobile(4, weight_range="channel"),
    "preactivation": BitPolicy.paper(2, clipping_gradient="pact", detach_max=True),
    "softmax_in_the_classifier": BitPolicy(weight_bits=3, input_max=1.0, rescale="stddev"),
    "residual": BitPolicy(weight_bits=None, activation_bits=None),
}

pytestmark = pytest.mark.filterwarnings("ignore:You are saving your model as an HDF5 file")


def _with_unequal_levels(name, policy):
    """A model no two of whose clipping levels, gains and ranges are equal."""
    model = sat_tf.quantize_model(float_models.build(name), policy)
    for index, layer in enumerate(model.layers[1:]):
        for variables in (layer.kernel_variables, layer.output_variables):
            for variable in variables.values():
                variable.assign(variable + 0.1 * index)
    return model


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("name", "form"),
    [
        *((name, "keras") for name in MODELS),
        ("preactivation", "h5"),
        ("softmax_in_the_classifier", "h5"),
        ("softmax_in_the_classifier", "saved_model"),
        ("residual", "saved_model"),
    ],
)
def test_a_saved_model_comes_back_bit_for_bit(name, form, tmp_path):
    model = _with_unequal_levels(name, MODELS[name])
    images = float_models.images()
    expected = model(images).numpy()
    model.save(tmp_path / FORMATS[form])
    loaded = keras.models.load_model(tmp_path / FORMATS[form])
    np.testing.assert_array_equal(loaded(images), expected)
    assert [layer.name for layer in loaded.layers] == [layer.name for layer in model.layers]
    for one, other in zip(model.layers[1:], loaded.layers[1:], strict=True):
        assert one.quantize_config == other.quantize_config
        for old, new in zip(one.weights, other.weights, strict=True):
            np.testing.assert_array_equal(old, new)
            assert old.trainable == new.trainable


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


# SavedModels hold no optimizer in Keras: one that is loaded starts anew.
@pytest.mark.thorough
@pytest.mark.parametrize("form", ["keras", "h5"])
def test_training_goes_on_after_loading_as_if_it_had_never_stopped(form, tmp_path):
    images, targets = float_models.images(16) / 255.0, np.ones((16, 5))
    model = _with_unequal_levels("plain", BitPolicy.mobile(4, input_max=1.0))
    # Moments of its own for every variable, and an update that depends on how many there were.
    model.compile(keras.optimizers.Adam(0.01), "mse")
    options = {"batch_size": 8, "shuffle": False, "verbose": 0}
    model.fit(images, targets, **options)
    model.save(tmp_path / FORMATS[form])
    loaded = keras.models.load_model(tmp_path / FORMATS[form])
    for each in (model, loaded):
        each.fit(images, targets, **options)
    assert int(loaded.optimizer.iterations) == 4
    for one, other in zip(model.weights, loaded.weights, strict=True):
        np.testing.assert_array_equal(one, other, err_msg=one.name)


def test_a_saved_model_can_be_served_without_keras(tmp_path):
    model = _with_unequal_levels("dropout", BitPolicy.mobile(4))
    images = float_models.images()
    model.export(tmp_path / "served")
    served = tf.saved_model.load(tmp_path / "served")
    np.testing.assert_allclose(served.serve(images), model(images), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("file", ["weights.weights.h5", "checkpoint"])
def test_weights_alone_can_be_saved(file, tmp_path):
    model = _with_unequal_levels("dropout", BitPolicy.mobile(4))
    other = sat_tf.quantize_model(float_models.build("dropout", seed=5), BitPolicy.mobile(4))
    model.save_weights(tmp_path / file)
    other.load_weights(tmp_path / file)
    images = float_models.images()
    np.testing.assert_array_equal(other(images), model(images))


@pytest.mark.thorough
def test_a_checkpoint_brings_optimizer_and_levels_back(tmp_path):
    images = float_models.images(32)
    interrupted, restored = (
        _with_unequal_levels("without_normalization", BitPolicy.mobile(4)) for _ in range(2)
    )
    for model in (interrupted, restored):
        model.compile(keras.optimizers.SGD(0.01, momentum=0.9), "mse")
    interrupted.fit(images, np.zeros((32, 5)), verbose=0)
    path = tf.train.Checkpoint(model=interrupted, optimizer=interrupted.optimizer).save(
        tmp_path / "checkpoint"
    )
    tf.train.Checkpoint(model=restored, optimizer=restored.optimizer).restore(path)
    for model in (interrupted, restored):
        model.fit(images, np.zeros((32, 5)), verbose=0, shuffle=False)
    for one, other in zip(interrupted.get_weights(), restored.get_weights(), strict=True):
        np.testing.assert_array_equal(one, other)


# -- in another process ------------------------------------------------------------------------

# Every format once in a fresh process; the order of imports makes no difference between them.
LOADINGS = {
    "import sat_tf, tf_keras": [*FORMATS.values()],
    "import tf_keras, sat_tf": ["model.keras"],
    "import tensorflow_model_optimization, sat_tf, tf_keras": ["model.keras"],
    "import tensorflow, sat_tf, tf_keras": ["model.keras"],
}

LOAD = """
import json, pathlib, sys
import numpy as np
folder = pathlib.Path(sys.argv[1])
images = np.load(folder / "images.npy")
expected = np.load(folder / "expected.npy")
found = {
    name: bool(np.array_equal(tf_keras.models.load_model(folder / name)(images), expected))
    for name in json.loads(sys.argv[2])
}
print(json.dumps(found))
"""


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    """A folder with a model in every format, images, and what it makes of them."""
    folder = tmp_path_factory.mktemp("saved")
    model = _with_unequal_levels("residual", BitPolicy.mobile(3))
    images = float_models.images()
    np.save(folder / "images.npy", images)
    np.save(folder / "expected.npy", model(images).numpy())
    for file in FORMATS.values():
        model.save(folder / file)
    return folder


@pytest.mark.parametrize(
    ("imports", "files"),
    [
        pytest.param(imports, files, marks=() if len(files) > 1 else pytest.mark.thorough)
        for imports, files in LOADINGS.items()
    ],
)
def test_a_fresh_process_loads_saved_models_in_every_order_of_imports(imports, files, saved):
    done = subprocess.run(
        [sys.executable, "-c", imports + LOAD, saved, json.dumps(files)],
        capture_output=True,
        text=True,
        cwd=pathlib.Path(sat_tf.__file__).parent.parent,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    assert json.loads(done.stdout.splitlines()[-1]) == dict.fromkeys(files, True)
