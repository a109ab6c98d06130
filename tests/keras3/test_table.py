"""What becomes of each layer of Keras 3, and of each function of `keras.ops`: see `table.txt`."""

import collections
import pathlib

import keras
import numpy as np
import pytest

import sat_tf
from sat_tf.graph import layer_kinds
from sat_tf.keras3.call_graph import Keras3Graph
from sat_tf.keras3.incoming import translated
from sat_tf.qat.configs import PlacementError

L, ops = keras.layers, keras.ops
FLOAT = sat_tf.BitPolicy.mobile(8, input_type="float32", unsupported="float")
# What the lines of the table name beside Keras.
SHAPES = {
    "image": (8, 8, 4),
    "rows": (8, 4),
    "numbers": (8,),
    "matrix": (4, 4),
    "sound": (256,),
    "volume": (4, 4, 4, 2),
    "picture": (16, 16, 3),
    "ids": ((8,), "int32"),
}


CORNERS = np.float32([[[0, 0], [0, 7], [7, 0], [7, 7]]])
NAMES = {"L": L, "ops": ops, "np": np, "corners": CORNERS}
NAMES["kernel"] = lambda *shape: np.random.default_rng(0).normal(size=shape).astype(np.float32)


Row = collections.namedtuple("Row", "shapes call becomes reason")
TABLE = {}
for _line in pathlib.Path(__file__).with_name("table.txt").read_text("utf-8").splitlines():
    if not _line.startswith("#"):
        _name, _shapes, _call, _becomes = (column.strip() for column in _line.split("|"))
        TABLE[_name] = Row(_shapes, _call, *_becomes.partition(": ")[::2])


def _that_become(*kinds):
    return [name for name, row in TABLE.items() if row.becomes in kinds]


PLACED = _that_become("integer", "float", "gone")
# One of each kind, for every day.
SOME = [
    *("AdaptiveAveragePooling2D", "Conv2D", "GroupQueryAttention", "MixUp", "RMSNormalization"),
    *("RandomCrop", "einsum", "top_k", "relu", "stop_gradient", "flip"),
]


def _model(names):
    """A model of calls side by side, and the names of the operations of each."""
    inputs, outputs, operations = {}, [], {}
    for name in names:
        tensors = []
        for place, given in enumerate(TABLE[name].shapes.split(";")):
            kind = eval(given, SHAPES)
            shape, dtype = kind if isinstance(kind[-1], str) else (kind, "float32")
            given = keras.Input(shape, dtype=dtype)
            tensors.append(inputs.setdefault((shape, dtype, place), given))
        outcome = eval(TABLE[name].call, {**NAMES, **dict(zip("xyzw", tensors, strict=False))})
        made = [one for one in keras.tree.flatten(outcome) if hasattr(one, "shape")]
        calls = Keras3Graph(keras.Model(tensors, made)).calls
        operations[name] = [one.operation.name for one in calls]
        outputs += made
    numbers = keras.Input((8,))
    outputs.append(L.Dense(2, name="linear")(numbers))
    return keras.Model([*inputs.values(), numbers], outputs), operations


def _left_float(names):
    """The names of calls that are no integers, from the error that tells all of them."""
    model, operations = _model(names)
    try:
        sat_tf.quantize_model(model, sat_tf.BitPolicy.mobile(8, input_type="float32"))
        return set()
    except PlacementError as error:
        problems = error.problems
    assert all("which sat-tf does not quantize" in problem for problem in problems)
    named = {problem.split(":")[0].rsplit("/", 1)[-1] for problem in problems}
    whole = {operation for calls in operations.values() for operation in calls}

    def is_named(operation):
        # Each of several outputs has a layer of its own.
        parts = {f"{operation}_{number}" for number in range(8)} - whole
        return bool(named & {operation, *parts})

    return {name for name, calls in operations.items() if any(map(is_named, calls))}


def _is_gone(name):
    model, operations = _model([name])
    calls = translated(model, is_twin=True).calls
    layers = {call.operation.name: layer for call, layer, _ in calls}
    made = [layers[operation] for operation in operations[name]]
    return all(layer_kinds.is_identity(layer, {}) for layer in made if hasattr(layer, "trainable"))


def test_each_function_and_layer_of_this_keras_is_in_the_table():
    kinds = {name: kind for name, kind in vars(L).items() if isinstance(kind, type)}
    layers = [name for name, kind in kinds.items() if issubclass(kind, L.Layer)]
    others = {"deserialize", "get", "serialize", "linear", "exponential", "mish"}
    functions = {key: one for key, one in vars(keras.activations).items() if key not in others}
    functions |= vars(ops) | vars(ops.image)
    names = {name for name, function in functions.items() if callable(function)}
    known = {name.removeprefix("image.") for name in TABLE}
    assert sorted({*layers, *names} - known) == []


def test_some_are_integer_some_float_on_request():
    assert _left_float(SOME) == {name for name in SOME if name in _that_become("float")}
    gone = [name for name in ("MixUp", "RandomCrop", "Conv2D") if _is_gone(name)]
    assert gone == ["MixUp", "RandomCrop"]


@pytest.mark.thorough
def test_all_are_integer_or_float_on_request_or_gone():
    assert _left_float(PLACED) == set(_that_become("float"))
    assert not [name for name in _that_become("gone") if not _is_gone(name)]


@pytest.mark.thorough
@pytest.mark.parametrize("part", range(8))
def test_what_is_no_integer_stays_float(part):
    sat_tf.quantize_model(_model(sorted(PLACED)[part::8])[0], FLOAT)


def _refused():
    for name in _that_become("refused"):
        is_fast = name in ("map", "JaxLayer", "unfold")
        yield name if is_fast else pytest.param(name, marks=pytest.mark.thorough)


@pytest.mark.parametrize("name", [*_refused()])
def test_what_is_refused_has_a_reason_of_its_own(name):
    if name == "JaxLayer":
        pytest.importorskip("jax")
    with pytest.raises(ValueError, match=TABLE[name].reason):
        sat_tf.quantize_model(_model([name])[0], FLOAT)


@pytest.mark.parametrize("name", ["glu", "sparsemax", "sparse_plus"])
def test_activations_of_keras_3_alone_stay_float(name):
    image = keras.Input((8, 8, 4))
    tensor = L.Conv2D(4, 3)(image)
    model = keras.Model(image, L.Activation(name)(tensor))
    quantized = sat_tf.quantize_model(model, sat_tf.BitPolicy.mobile(8, unsupported="float"))
    pixels = np.random.default_rng(0).integers(0, 256, (2, 8, 8, 4)).astype(np.float32)
    assert quantized(pixels).shape == model(pixels).shape
