import json
import shutil
import subprocess
import sys
import zipfile

import h5py
import numpy as np
import pytest
import tensorflow as tf
import tf_keras as keras

import sat_tf
from sat_tf.loading.load import load_model
from sat_tf.loading.model_file import is_keras3_file, open_model_file, parts, read_model_file
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
    """A folder with a small model in every format, of which each test has its own copy."""
    return shutil.copytree(_saved_once, tmp_path / "good")


def _images(model):
    (image,) = model.inputs
    shape = (2, *image.shape[1:])
    return np.random.default_rng(0).uniform(0, 255, shape).astype(np.float32)


def _expect_loaded(model, path):
    """Saves a model, and expects that what is loaded computes the same."""
    model.save(path)
    images = _images(model)
    tf.nest.map_structure(np.testing.assert_array_equal, load_model(path)(images), model(images))


@pytest.mark.thorough
@pytest.mark.parametrize("name", FORMATS)
@pytest.mark.parametrize("place", ["model", "nested", "wrapper"])
def test_a_lambda_is_refused_wherever_it_is_and_runs_when_trusted(name, place, tmp_path):
    marker = tmp_path / "marker"
    layer = marking(marker)
    if place == "nested":
        image = keras.Input((4, 4, 4))
        layer = keras.Model(image, layer(image), name="inner")
    elif place == "wrapper":
        layer = L.TimeDistributed(layer, name="wrapped")
    path = saved(small(layer), tmp_path / name, marker)
    said = r"harmless: a Lambda .*--trust_model .*safe_mode"
    with pytest.raises(UntrustedModelError, match=said):
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
    models = load_model(tmp_path / "both.keras"), small()
    names, expected = ([layer.name for layer in model.layers] for model in models)
    assert names == expected
    assert not marker.exists()


def _changed(path, name="relu", *, settings=(), **fields):
    """Changes a layer in a file: its fields, and some of its configuration."""
    whole = config_of(path)
    layer = layer_in(whole, name)
    layer |= fields
    layer["config"] |= settings
    return with_config(path, whole)


def _function(module, name, registered_name=None):
    """A function as a file names it."""
    named = {"module": module, "config": name, "registered_name": registered_name or name}
    return {"class_name": "function", **named}


_MARKER = {"class_name": "Marker", "module": "marker_module", "registered_name": "Marker"}
_CORE_LAMBDA = "keras.src.layers.core.lambda_layer"
_ACTIVATION = {"class_name": "Activation", "module": "keras.layers"}
_LAMBDA = {"class_name": "__lambda__", "config": {"value": ["4w==", None, None]}}
_TYPE = {"class_name": "__typespec__", "spec_name": "run", "module": "marker_module"}
_NAMED = {
    "a class": _MARKER,
    "a class that is not registered": {**_MARKER, "registered_name": None},
    "a lambda by its registered name": {"module": _CORE_LAMBDA, "registered_name": "Lambda"},
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
    with pytest.raises(UntrustedModelError, match=r"--trust_model"):
        load_model(_changed(good / name, **_NAMED[changes]))
    assert not marker.exists()


_WRITES = {"function": "io.write_file", "arguments": [[{"tensor": 0}], {}]}
# Class names with registered names, and modules where there are any.
_NAMED_TWICE = {
    "an operation as a slice": ("sat_tf>Operation", "sat_tf>Slice"),
    "a slice as an operation": ("sat_tf>Slice", "sat_tf>Operation"),
    "an operation": ("sat_tf>Operation", None),
    "a value as an operation": ("TensorShape", "sat_tf>Operation"),
    "a lookup as an operation": ("StringLookup", "sat_tf>Operation", "keras.layers"),
    "a lambda as a slice": ("Lambda", "sat_tf>Slice"),
    "a slice as a lambda": ("sat_tf>Slice", "Lambda"),
    "a value of a module": ("TensorShape", None, "marker_module"),
    "a lookup of a module": ("IntegerLookup", None, "marker_module"),
    "a layer as a slice": ("Dense", "sat_tf>Slice"),
}


@pytest.mark.thorough
@pytest.mark.parametrize("key", ["activation", "kernel_regularizer", "bias_initializer"])
@pytest.mark.parametrize("names", _NAMED_TWICE)
@pytest.mark.parametrize("name", FORMATS)
def test_each_name_of_a_part_is_checked(good, name, names, key):
    fields = zip(("class_name", "registered_name", "module"), _NAMED_TWICE[names], strict=False)
    part = {field: value for field, value in fields if value}
    path = _changed(good / name, "head", settings={key: {**part, "config": _WRITES}})
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


@keras.saving.register_keras_serializable(package="tests_of_loading")
class _Own(L.Layer):
    def call(self, inputs):
        return inputs * 2.0


def _called_often():
    """Layers and models of every kind that are called twice, in no order of the file."""
    image = keras.Input((4, 4, 4), name="image")
    shared = L.Conv2D(4, 1, name="shared")
    starts = [keras.Input((4, 4, 4)) for _ in range(2)]
    functional, first = (keras.Model(start, L.Conv2D(4, 1)(L.ReLU()(start))) for start in starts)
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


_MODELS = {
    "many": _of_many_layers,
    "called often": _called_often,
    "registered": lambda: small(_Own(name="own")),
}


@pytest.mark.thorough
@pytest.mark.parametrize("name", FORMATS)
@pytest.mark.parametrize("kind", [*_MODELS, "quantized", "compiled"])
def test_models_of_layers_alone_are_loaded_as_they_were(name, kind, tmp_path):
    model = _MODELS.get(kind, small)()
    if kind == "quantized":
        model = sat_tf.quantize_model(model, sat_tf.BitPolicy.mobile(4))
    rng = np.random.default_rng(1)
    model.set_weights([rng.uniform(0.1, 1.0, w.shape).astype(w.dtype) for w in model.get_weights()])
    if kind == "compiled":
        model.compile("adam", keras.losses.CategoricalCrossentropy(), metrics=["accuracy"])
        model.fit(_images(model), np.eye(3, dtype=np.float32)[:2], verbose=0)
    _expect_loaded(model, tmp_path / name)


@pytest.mark.thorough
def test_applications_of_keras_are_loaded(tmp_path):
    made = keras.applications.MobileNetV3Small((32, 32, 3), weights=None, classes=4)
    _expect_loaded(made, tmp_path / "model.h5")


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


@pytest.mark.parametrize("name", ["model.keras", "model.h5"])
def test_functions_that_the_user_calls_are_left_float(name, tmp_path):
    model = small(lambda x: tf.debugging.check_numerics(x, "numbers"), L.Conv2D(4, 3))
    quantized = sat_tf.quantize_model(model, sat_tf.BitPolicy.mobile(8, unsupported="float"))
    inner = [getattr(layer, "layer", layer) for layer in quantized.layers]
    functions = [getattr(layer, "function", None) for layer in inner]
    assert [*filter(None, functions)] == ["debugging.check_numerics"]
    quantized.save(tmp_path / name)
    with pytest.raises(UntrustedModelError, match=r"TensorFlow's function 'debugging.check_num"):
        load_model(tmp_path / name)
    loaded = load_model(tmp_path / name, safe_mode=False)
    np.testing.assert_array_equal(loaded(_images(model)), quantized(_images(model)))
    # The loaded model can be rewritten like any other.
    assert sat_tf.requantize(loaded, sat_tf.BitPolicy.mobile(4, unsupported="float"))


def test_the_order_in_the_file_is_free(good):
    config = config_of(good / "model.keras")
    config["config"]["layers"].reverse()
    path = with_config(good / "model.keras", config)
    assert load_model(path).count_params() == small().count_params()


def _write(path, version, config):
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("metadata.json", json.dumps({"keras_version": version}))
        archive.writestr("config.json", json.dumps(config))
    return path


def _write_hdf5(path, version, **attributes):
    with h5py.File(path, "w") as file:
        file.attrs.update({"keras_version": version, **attributes})
    return path


def test_the_version_tells_keras_3_from_keras_2_whatever_the_name_says(tmp_path):
    assert open_model_file(_write(tmp_path / "model.tflite", "3.15.1", {})).is_keras3
    model = {"model_config": json.dumps({"class_name": "Functional"})}
    for version, expected in (("3.15.1", True), ("4.0", True), ("2.21.0", False), ("", False)):
        assert is_keras3_file(_write(tmp_path / "m.keras", version, {})) == expected
        assert is_keras3_file(_write_hdf5(tmp_path / "m.h5", version, **model)) == expected


def test_what_is_no_keras_file_is_none(tmp_path):
    (tmp_path / "text.keras").write_text("text")
    _write_hdf5(tmp_path / "weights.h5", "3.15.1")
    with zipfile.ZipFile(tmp_path / "other.keras", "w") as archive:
        archive.writestr("readme", "text")
    for path in ("text.keras", "other.keras", "weights.h5", "missing.keras", "."):
        assert read_model_file(tmp_path / path) is None
        assert not is_keras3_file(tmp_path / path)


def test_all_parts_are_found_in_nested_models(tmp_path):
    dense = {"class_name": "Dense", "module": "keras.layers", "config": {"name": "dense"}}
    own = {"class_name": "Own", "module": "shop", "config": {"name": "own"}}
    inner = {"class_name": "Functional", "config": {"name": "inner", "layers": [dense, own]}}
    model = {"class_name": "Sequential", "config": {"name": "outer", "layers": [inner]}}
    found = read_model_file(_write(tmp_path / "model.keras", "3.0", model))
    names = [(part.name, part.module) for part in parts(found.config)]
    assert names == [("outer", ""), ("inner", ""), ("dense", "keras.layers"), ("own", "shop")]


def test_neither_keras_nor_tensorflow_is_loaded_to_read_a_file(tmp_path):
    path = _write(tmp_path / "3.keras", "3.15.1", {})
    program = (
        "import sys\nfrom sat_tf.loading.model_file import is_keras3_file\n"
        "assert is_keras3_file(sys.argv[1])\n"
        "assert not {'keras', 'tf_keras', 'tensorflow'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", program, str(path)], check=True)
