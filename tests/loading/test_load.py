import base64
import pathlib
import shutil
import zipfile

import numpy as np
import pytest
import tensorflow as tf
import tf_keras as keras

import sat_tf
from sat_tf.loading.load import load_model
from sat_tf.loading.trust import UntrustedModelError
from tests.loading.hostile import config_of, layer_in, marking, saved, small, with_config

L = keras.layers
FORMATS = ("model.keras", "model.h5", "model")


@pytest.fixture(scope="module")
def _saved_once(tmp_path_factory):
    folder = tmp_path_factory.mktemp("good")
    for name in FORMATS:
        small().save(folder / name)
    return folder


@pytest.fixture
def good(_saved_once, tmp_path):
    """Returns the path of a small model in a format, of which each test has its own copy."""

    def copied(name="model.keras"):
        copy = shutil.copytree if name == "model" else shutil.copy
        return pathlib.Path(copy(_saved_once / name, tmp_path / name))

    return copied


def _images(model):
    shape = (2, *model.input_shape[1:])
    return np.random.default_rng(0).uniform(0, 255, shape).astype(np.float32)


def _wrapped(kind):
    def make(marker):
        if kind == "nested":
            image = keras.Input((4, 4, 4))
            return keras.Model(image, marking(marker)(image), name="inner")
        return L.TimeDistributed(marking(marker), name="wrapped")

    return make


@pytest.mark.thorough
@pytest.mark.parametrize("name", FORMATS)
@pytest.mark.parametrize("make", [marking, _wrapped("nested"), _wrapped("wrapper")])
def test_a_lambda_is_refused_wherever_it_is_and_runs_when_trusted(name, make, tmp_path):
    marker = tmp_path / "marker"
    path = saved(small(make(marker)), tmp_path / name, marker)
    with pytest.raises(
        UntrustedModelError, match=r"harmless: a Lambda .*--trust_model .*safe_mode"
    ):
        load_model(path)
    assert not marker.exists()
    assert load_model(path, safe_mode=False).name == "small"
    assert marker.exists()


@pytest.mark.parametrize("other", ["model.keras", "model.h5", "model.hdf5", "model", "model.bin"])
@pytest.mark.parametrize("name", ["good.keras", "good.h5"])
def test_the_name_of_a_file_changes_nothing(name, other, tmp_path):
    marker = tmp_path / "marker"
    for layers in ([], [marking(marker)]):
        path = saved(small(*layers), tmp_path / name, marker)
        shutil.copy(path, tmp_path / other)
        if layers:
            with pytest.raises(UntrustedModelError):
                load_model(tmp_path / other)
            assert not marker.exists()
        else:
            assert load_model(tmp_path / other).count_params() == small().count_params()


def test_a_file_of_two_formats_is_loaded_as_the_one_that_was_checked(tmp_path):
    marker = tmp_path / "marker"
    small().save(tmp_path / "good.h5")
    saved(small(marking(marker)), tmp_path / "bad.keras", marker)
    both = (tmp_path / "good.h5").read_bytes() + (tmp_path / "bad.keras").read_bytes()
    (tmp_path / "both.keras").write_bytes(both)
    assert zipfile.is_zipfile(tmp_path / "both.keras")
    assert [layer.name for layer in load_model(tmp_path / "both.keras").layers] == [
        layer.name for layer in small().layers
    ]
    assert not marker.exists()


def _changed(path, name="relu", *, config=None, settings=None, **fields):
    """Changes a layer in a file: its fields, and all or some of its configuration."""
    whole = config_of(path)
    layer = layer_in(whole, name)
    layer |= fields
    layer["config"] = {**(config or layer["config"]), **(settings or {})}
    return with_config(path, whole)


def _function(module, name, registered_name=None):
    """A function as a file names it."""
    named = {"module": module, "config": name, "registered_name": registered_name or name}
    return {"class_name": "function", **named}


_MARKER = {"class_name": "Marker", "module": "marker_module", "registered_name": "Marker"}
_ACTIVATION = {"class_name": "Activation", "module": "keras.layers"}
_LAMBDA = {"class_name": "__lambda__", "config": {"value": ["4w==", None, None]}}
_TYPE = {"class_name": "__typespec__", "spec_name": "run", "module": "marker_module"}
_NAMED = {
    "a class": _MARKER,
    "a class that is not registered": {**_MARKER, "registered_name": None},
    "a lambda by its registered name": {
        "module": "keras.src.layers.core.lambda_layer",
        "registered_name": "Lambda",
    },
    "a lambda": {**_ACTIVATION, "settings": {"activation": _LAMBDA}},
    "a function": {**_ACTIVATION, "settings": {"activation": _function("marker_module", "run")}},
    "a builtin": {**_ACTIVATION, "settings": {"activation": _function("builtins", "eval")}},
    "a type": {"settings": {"threshold": {**_TYPE, "registered_name": None, "config": []}}},
}


@pytest.mark.parametrize("name", ["model.keras", "model.h5"])
@pytest.mark.parametrize("changes", _NAMED)
def test_what_a_file_names_is_not_imported(good, name, changes, tmp_path, monkeypatch):
    marker = tmp_path / "marker"
    (tmp_path / "marker_module.py").write_text(f"open({str(marker)!r}, 'w').close()\nrun = print\n")
    monkeypatch.syspath_prepend(tmp_path)
    path = good(name)
    _changed(path, **_NAMED[changes])
    with pytest.raises(UntrustedModelError, match=r"--trust_model"):
        load_model(path)
    assert not marker.exists()


_WRITES = {"function": "io.write_file", "arguments": [[{"tensor": 0}], {}]}
_NAMED_TWICE = {
    "an operation as a slice": {
        "class_name": "sat_tf>Operation",
        "registered_name": "sat_tf>Slice",
    },
    "a slice as an operation": {
        "class_name": "sat_tf>Slice",
        "registered_name": "sat_tf>Operation",
    },
    "an operation": {"class_name": "sat_tf>Operation"},
    "a value as an operation": {"class_name": "TensorShape", "registered_name": "sat_tf>Operation"},
    "a lookup as an operation": {
        "class_name": "StringLookup",
        "module": "keras.layers",
        "registered_name": "sat_tf>Operation",
    },
    "a lambda as a slice": {"class_name": "Lambda", "registered_name": "sat_tf>Slice"},
    "a slice as a lambda": {"class_name": "sat_tf>Slice", "registered_name": "Lambda"},
    "a value of a module": {"class_name": "TensorShape", "module": "marker_module"},
    "a lookup of a module": {"class_name": "IntegerLookup", "module": "marker_module"},
    "a layer as a slice": {"class_name": "Dense", "registered_name": "sat_tf>Slice"},
}


@pytest.mark.thorough
@pytest.mark.parametrize("key", ["activation", "kernel_regularizer", "bias_initializer"])
@pytest.mark.parametrize("names", _NAMED_TWICE)
@pytest.mark.parametrize("name", FORMATS)
def test_each_name_of_a_part_is_checked(good, name, names, key):
    path = good(name)
    part = {**_NAMED_TWICE[names], "config": dict(_WRITES)}
    _changed(path, "head", settings={key: part})
    with pytest.raises(UntrustedModelError, match=r"head: .*--trust_model"):
        load_model(path)


def _of_many_layers():
    image = keras.Input((8, 8, 3), name="image")
    x = L.Rescaling(1 / 255)(image)
    x = L.Conv2D(4, 3, kernel_regularizer="l2", kernel_constraint="max_norm")(x)
    x = L.BatchNormalization()(x)
    x = tf.nn.relu6(x) * 0.5 + 0.25
    x = tf.pad(x, [[0, 0], [1, 1], [1, 1], [0, 0]])
    x = L.DepthwiseConv2D(3, depthwise_initializer=keras.initializers.HeNormal())(x)
    x = L.Activation(keras.activations.swish)(x)
    x = tf.image.resize(x, (4, 4))
    inner = keras.Sequential([keras.Input((4, 4, 4)), L.Conv2D(4, 1), L.PReLU()])
    x = inner(x) + inner(x)
    x = L.Dropout(0.1)(tf.transpose(tf.concat([x, x[:, ::-1]], -1), [0, 2, 1, 3]))
    x = L.Bidirectional(L.LSTM(3))(L.Reshape((-1, 8))(x))
    return keras.Model(image, L.Dense(3, activation="softmax", dtype="float32")(x), name="many")


@pytest.mark.thorough
@pytest.mark.parametrize("name", FORMATS)
@pytest.mark.parametrize("kind", ["many", "quantized", "compiled"])
def test_models_of_layers_alone_are_loaded_as_they_were(name, kind, tmp_path):
    model = _of_many_layers() if kind == "many" else small()
    if kind == "quantized":
        model = sat_tf.quantize_model(model, sat_tf.BitPolicy.mobile(4))
    rng = np.random.default_rng(1)
    model.set_weights([rng.uniform(0.1, 1.0, w.shape).astype(w.dtype) for w in model.get_weights()])
    if kind == "compiled":
        model.compile("adam", keras.losses.CategoricalCrossentropy(), metrics=["accuracy"])
        model.fit(_images(model), np.eye(3, dtype=np.float32)[:2], verbose=0)
    model.save(tmp_path / name)
    images = _images(model)
    np.testing.assert_array_equal(load_model(tmp_path / name)(images), model(images))


@pytest.mark.thorough
def test_applications_of_keras_are_loaded(tmp_path):
    made = keras.applications.MobileNetV3Small((32, 32, 3), weights=None, classes=4)
    made.save(tmp_path / "model.h5")
    assert load_model(tmp_path / "model.h5").count_params() == made.count_params()


@keras.saving.register_keras_serializable(package="tests_of_loading")
class _Own(L.Layer):
    def call(self, inputs):
        return inputs * 2.0


@pytest.mark.thorough
@pytest.mark.parametrize("name", FORMATS)
def test_classes_that_are_registered_are_taken(name, tmp_path):
    model = small(_Own(name="own"))
    model.save(tmp_path / name)
    images = _images(model)
    np.testing.assert_array_equal(load_model(tmp_path / name)(images), model(images))


class _Subclassed(keras.Model):
    def __init__(self):
        super().__init__()
        self.dense = L.Dense(2)

    def call(self, inputs):
        return self.dense(inputs)


@pytest.mark.thorough
def test_a_saved_model_is_rebuilt_or_refused_but_never_run(tmp_path):
    class Writes(tf.Module):
        def __init__(self):
            super().__init__()
            self.path = tf.Variable(str(tmp_path / "marker"))

        @tf.function(input_signature=[tf.TensorSpec((), tf.float32)])
        def __call__(self, x):
            tf.io.write_file(self.path, "x")
            return x

    tf.saved_model.save(Writes(), str(tmp_path / "program"))
    own = _Subclassed()
    own(np.zeros((1, 3), np.float32))
    own.save(tmp_path / "own", save_format="tf")
    with pytest.raises(UntrustedModelError, match=r"only be run as a program, .*--trust_model"):
        load_model(tmp_path / "own")
    # It has no layers that trust could give it.
    for safe_mode in (True, False):
        with pytest.raises(ValueError, match=r"a program without layers, .*model\.save\("):
            load_model(tmp_path / "program", safe_mode=safe_mode)
    assert not (tmp_path / "marker").exists()
    small().save(tmp_path / "graph", save_format="tf")
    # The graph is not even read.
    (tmp_path / "graph" / "saved_model.pb").write_bytes(b"no graph")
    assert load_model(tmp_path / "graph").name == "small"


def _of_another_python(value):
    """A configuration whose code of Lambda layers begins as no code of this Python does."""
    if isinstance(value, dict):
        return {key: _of_another_python(inner) for key, inner in value.items()}
    if isinstance(value, list):
        return [_of_another_python(inner) for inner in value]
    code = base64.b64decode(value) if isinstance(value, str) and len(value) > 100 else b""
    is_code = code[:1] in (b"\xe3", b"c")
    return base64.b64encode(b"\x7f" + code[1:]).decode() if is_code else value


@pytest.mark.parametrize("name", ["lambda.h5", "lambda.keras"])
def test_code_of_another_python_is_named_with_the_way_to_its_weights(name, tmp_path):
    image = L.Input((4, 4, 1))
    tensor = L.Conv2D(2, 3, name="conv")(image)
    scaled = L.Lambda(lambda inputs, scale: inputs[0] + inputs[1] * scale, name="scaled_sum")
    scaled.arguments = {"scale": 0.17}
    model, path = keras.Model(image, scaled([tensor, tensor])), tmp_path / name
    model.save(path)
    with_config(path, _of_another_python(config_of(path)))
    with pytest.raises(UntrustedModelError, match="scaled_sum: a Lambda layer"):
        load_model(path)
    with pytest.raises(ValueError, match=r"\(scaled_sum\) that another version of Python") as error:
        load_model(path, safe_mode=False)
    assert "marshal" in str(error.value)
    # What the error says to do.
    assert f"model.load_weights({str(path)!r})" in str(error.value)
    again = keras.models.clone_model(model)
    again.load_weights(path)
    np.testing.assert_array_equal(again.get_weights()[0], model.get_weights()[0])
