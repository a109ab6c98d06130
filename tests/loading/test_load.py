import base64
import json
import pathlib
import shutil
import zipfile

import h5py
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


@pytest.mark.parametrize(
    "function",
    [
        "io.write_file",
        "print",
        "raw_ops.WriteFile",
        "keras.utils.get_file",
        "py_function",
        "load_library",
        "keras.models.load_model",
        "random.fixed_unigram_candidate_sampler",
        "keras.activations.deserialize",
    ],
)
@pytest.mark.parametrize("name", ["model.keras", "model.h5"])
def test_functions_of_tensorflow_that_do_more_than_compute_are_refused(
    good, name, function, tmp_path
):
    path = good(name)
    _changed(
        path,
        class_name="TFOpLambda",
        module="keras.src.layers.core.tf_op_layer",
        registered_name="TFOpLambda",
        config={"name": "relu", "function": function},
        inbound_nodes=[["_CONSTANT_VALUE", -1, str(tmp_path / "marker"), {"contents": "x"}]],
    )
    with pytest.raises(UntrustedModelError, match=rf"relu: TensorFlow's function '{function}'"):
        load_model(path)
    assert not (tmp_path / "marker").exists()


def _with_operation(path, class_name, function, tensors):
    small().save(path)
    _changed(
        path,
        class_name=class_name,
        module="sat_tf.graph.operation_layers",
        registered_name="sat_tf>Operation",
        config={"name": "relu", "function": function, "arguments": [tensors, {}]},
    )


def test_the_functions_of_sat_tf_s_own_layer_are_checked_too(tmp_path):
    _with_operation(tmp_path / "model.keras", "Operation", "io.write_file", [])
    with pytest.raises(UntrustedModelError, match=r"function 'io.write_file'"):
        load_model(tmp_path / "model.keras")


@pytest.mark.parametrize("class_name", ["Operation", "TensorFlowOperation"])
def test_an_operation_loads_by_the_old_and_the_new_name_of_its_class(class_name, tmp_path):
    _with_operation(tmp_path / "model.keras", class_name, "math.abs", [{"tensor": 0}])
    assert load_model(tmp_path / "model.keras").get_layer("relu").function == "math.abs"


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


@pytest.mark.parametrize(
    "module", ["keras.src.utils.data_utils", "keras.utils", "keras.activations", "builtins"]
)
def test_a_function_has_one_name(module, tmp_path):
    small(L.Activation("relu", name="other")).save(tmp_path / "model.keras")
    activation = _function(module, "relu", "urlretrieve")
    _changed(tmp_path / "model.keras", "other", settings={"activation": activation})
    with pytest.raises(UntrustedModelError, match=r"'relu', also called 'urlretrieve', of the mod"):
        load_model(tmp_path / "model.keras")


@pytest.mark.parametrize("module", ["keras.src.utils.data_utils", "tf_keras.utils", "keras.models"])
def test_functions_are_taken_from_public_modules_of_functions(module, tmp_path):
    small(L.Activation("relu", name="other")).save(tmp_path / "model.keras")
    path = tmp_path / "model.keras"
    _changed(path, "other", settings={"activation": _function(module, "relu")})
    with pytest.raises(UntrustedModelError, match=rf"the function 'relu' of the module {module}"):
        load_model(path)
    _changed(path, "other", settings={"activation": _function("keras.activations", "relu")})
    assert load_model(path).get_layer("other").activation is keras.activations.relu


@pytest.mark.parametrize("registered_name", [5, ["Dense"], {"a": 1}])
def test_a_name_that_is_no_text_is_refused(good, registered_name):
    path = good()
    _changed(path, "head", registered_name=registered_name)
    with pytest.raises(ValueError, match=r"received head with registered_name=.*, expected text"):
        load_model(path)


def test_a_vocabulary_in_another_file_is_refused(good):
    path = good()
    config = {"name": "relu", "vocabulary": "/etc/passwd"}
    _changed(path, class_name="StringLookup", config=config)
    with pytest.raises(UntrustedModelError, match=r"relu: a vocabulary in the file '/etc/passwd'"):
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


def test_arrays_of_other_files_are_not_read(tmp_path):
    for number, change in enumerate((_linked, _external)):
        path = tmp_path / f"{number}.h5"
        small().save(path)
        with h5py.File(path, "a") as file:
            change(file["model_weights"])
        with pytest.raises(ValueError, match=r"is a link|kept in another file"):
            load_model(path)


@pytest.mark.parametrize("kind", ["link", "external", "size"])
def test_arrays_in_archives_are_looked_at_too(kind, tmp_path):
    path = tmp_path / "model.keras"
    small().save(path)
    with zipfile.ZipFile(path) as archive:
        content = {name: archive.read(name) for name in archive.namelist()}
    (tmp_path / "weights.h5").write_bytes(content["model.weights.h5"])
    with h5py.File(tmp_path / "weights.h5", "a") as file:
        if kind == "size":
            file.create_dataset("more", (2**40,), "f4")
        else:
            (_linked if kind == "link" else _external)(file)
    content["model.weights.h5"] = (tmp_path / "weights.h5").read_bytes()
    with zipfile.ZipFile(path, "w") as archive:
        for name, data in content.items():
            archive.writestr(name, data)
    with pytest.raises(ValueError, match=r"is a link|kept in another file|would take 4,398,046"):
        load_model(path)


def _linked(group):
    group["more"] = h5py.ExternalLink("/etc/hostname", "/")


def _external(group):
    group.create_dataset("more", (4,), "u1", external=[("/etc/hostname", 0, 4)])


def test_small_files_do_not_grow_in_memory(tmp_path):
    path = tmp_path / "model.keras"
    small().save(path)
    config = config_of(path)
    layer_in(config, "head")["config"]["units"] = 10**9
    with_config(path, config)
    with pytest.raises(ValueError, match=r"bytes of weights in a file that holds"):
        load_model(path)
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("config.json", " " * 2**26 + "{}")
    with pytest.raises(ValueError, match=r"config.json has 67,108,866 bytes, expected at"):
        load_model(path)
    with zipfile.ZipFile(path, "w", zipfile.ZIP_BZIP2) as archive:
        archive.writestr("model.weights.h5", b"\0" * 2**20)
        archive.writestr("config.json", "{}")
    with pytest.raises(ValueError, match=r"compressed by method 12, expected stored or DEFLATE"):
        load_model(path)
    with h5py.File(tmp_path / "model.h5", "w") as file:
        file.attrs["model_config"] = json.dumps({"class_name": "Sequential", "config": {}})
        file.create_dataset("weights", (2**40,), "f4")
    with pytest.raises(ValueError, match=r"bytes, and would take 4,398,046,511,104 in memory"):
        load_model(tmp_path / "model.h5")


def test_endless_configurations_are_refused(tmp_path):
    path = tmp_path / "model.keras"
    for depth in (300, 5000, 100_000):
        with zipfile.ZipFile(path, "w") as archive:
            archive.writestr("config.json", '{"config": ' + "[" * depth + "]" * depth + "}")
        with pytest.raises(ValueError, match=r"nested"):
            load_model(path)


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
