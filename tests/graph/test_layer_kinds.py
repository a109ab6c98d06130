"""Conformance: whatever has a row is placed, explained, audited, lowered and translated by it."""

import dataclasses
import itertools
import math
import operator
import pkgutil

import keras as keras3  # noqa: TID251 -- layers go to it and come back
import numpy as np
import pytest
import tensorflow as tf
import tf_keras as keras

import sat_tf
from sat_tf.graph import layer_kinds, layers
from sat_tf.graph import operation_layers as own
from sat_tf.graph.layer_kinds import KINDS
from sat_tf.graph.layers.kind import Keras3, KernelForm, LayerKind, Role
from sat_tf.graph.layers.movements import one_move
from sat_tf.graph.network import Network
from sat_tf.keras3.placed import placed
from sat_tf.planning.deployment import multiply_adds
from sat_tf.training.audit.kappa import linear_calls, read_through
from tests.export.proofs import calibrated, proved
from tests.export.zoo import images_for, make_realistic

L = keras.layers
CHANNELS = 4
LINEAR = [kind for kind, row in KINDS.items() if row.kernels]
QUANTIZED = [kind for kind in LINEAR if KINDS[kind].quantized]
MOVING = [kind for kind, row in KINDS.items() if row.quantized and row.moves]


def test_no_layer_kind_has_a_row_in_two_families():
    # The later one would silently replace the earlier one.
    modules = [vars(layers)[info.name] for info in pkgutil.iter_modules(layers.__path__)]
    families = [module.KINDS for module in modules if hasattr(module, "KINDS")]
    assert len(families) > 4
    twice = [a.keys() & b.keys() for a, b in itertools.combinations(families, 2)]
    assert not any(twice), twice


name_of = operator.attrgetter("__name__")


def rank_of(kind):
    """How many axes an input has before its channels."""
    return next((rank for rank in (1, 2, 3) if f"{rank}D" in kind.__name__), 0)


def made(kind, **settings):
    """A layer of this kind, odd enough to tell its axes apart."""
    row = KINDS[kind]
    if row.kernels[0].form is KernelForm.DENSE:
        return kind(5, **settings)
    size = (3, 2, 2)[: rank_of(kind)]
    if row.kernels[0].depthwise and len(row.kernels) == 1:
        return kind(size, depth_multiplier=2, **settings)
    return kind(5, size, **settings)


def shape_of(kind):
    return (*(8, 6, 4)[: rank_of(kind)], CHANNELS)


@pytest.mark.parametrize("kind", [k for k in LINEAR if len(KINDS[k].kernels) == 1], ids=name_of)
def test_multiply_adds_are_those_counted_weight_by_weight(kind):
    layer, shape = made(kind, use_bias=False), shape_of(kind)
    network = Network(keras.Sequential([keras.Input(shape), layer]))
    # With one weight 1 and all others 0, an image of ones makes a one wherever the weight is used.
    kernel = getattr(layer, KINDS[kind].kernels[0].attribute)
    values, image, products = np.zeros(kernel.shape, np.float32), tf.ones((1, *shape)), 0
    for index in np.ndindex(*kernel.shape):
        values[index] = 1.0
        kernel.assign(values)
        products += int(tf.math.count_nonzero(layer(image)))
        values[index] = 0.0
    assert multiply_adds(network[layer.name], [shape]) == products


@pytest.mark.parametrize("kind", LINEAR, ids=name_of)
def test_the_axes_of_a_kernel_are_those_of_its_channels(kind):
    layer = made(kind)
    layer.build((None, *shape_of(kind)))
    read = CHANNELS
    for kernel in KINDS[kind].kernels:
        shape = getattr(layer, kernel.attribute).shape
        assert shape[kernel.input_axis] == read
        read = math.prod(shape[axis] for axis in kernel.output_axes)
        if not kernel.depthwise:
            assert kernel.input_axis not in kernel.output_axes
    assert read == layer.compute_output_shape((None, *shape_of(kind)))[-1]


@pytest.mark.parametrize("kind", LINEAR, ids=name_of)
def test_each_kernel_is_audited_with_its_neurons(kind):
    rank = rank_of(kind)
    image = keras.Input(shape_of(kind), name="image")
    layer = made(kind, name="layer")
    outputs = layer(image)
    outputs = outputs if not rank else L.Flatten()(outputs)
    calls = linear_calls(read_through(keras.Model(image, L.Dense(3, name="head")(outputs))))
    for kernel in KINDS[kind].kernels:
        call, shape = calls[kernel.name("layer")], getattr(layer, kernel.attribute).shape
        # Each weight joins one input of every output channel to it, and is one of fan_in.
        outputs = math.prod(shape[axis] for axis in kernel.output_axes)
        assert call.fan_in * outputs == math.prod(shape)
        assert call.fan_out == kernel.fan_out(shape, getattr(layer, "groups", 1))


def model_of(layer, shape):
    """A model of the layer between two linear ones, on images, as files know them."""
    image = keras.Input((8, 6, 3), name="image")
    tensor = L.Conv2D(CHANNELS, 3, padding="same", use_bias=False, name="stem")(image)
    tensor = L.ReLU(name="relu")(L.BatchNormalization(name="bn")(tensor))
    if len(shape) == 1:
        tensor = L.GlobalAveragePooling2D(name="pool")(tensor)
    elif len(shape) == 2:
        tensor = L.Reshape((-1, CHANNELS), name="row")(tensor)
    tensor = L.ReLU(name="layer_relu")(layer(tensor))
    return keras.Model(image, L.Dense(3, name="head")(L.Flatten(name="flat")(tensor)))


def integer(model, path):
    """The quantized model, whose file has no layer left float and no code that differs."""
    make_realistic(model)
    certificate = path.with_name("certificate.json")
    quantized = calibrated(model)
    images = images_for(quantized, 4)
    _, found = proved(quantized, path, images, certificate_path=certificate)
    assert certificate.stat().st_size > 0
    assert found.float_layers == []
    return quantized


@pytest.mark.parametrize("kind", QUANTIZED, ids=name_of)
def test_a_linear_layer_is_placed_explained_and_lowered_without_a_differing_code(kind, tmp_path):
    layer = made(kind, name="layer")
    model = model_of(layer, shape_of(kind))
    plan = {row.name: row for row in sat_tf.explain(model, sat_tf.BitPolicy.mobile(4)).layers}
    assert plan["layer"].weights.bits == 4
    assert plan["layer"].multiply_adds > 0
    wrapper = integer(model, tmp_path / "model.tflite").get_layer("quant_layer")
    assert wrapper.quantize_config.weights.fan_out == layer_kinds.fan_out(layer)


@pytest.mark.parametrize("kind", LINEAR, ids=name_of)
def test_a_linear_layer_goes_to_keras_3_and_comes_back(kind):
    row = KINDS[kind]
    assert layer_kinds.class_of_keras3(row.keras3.name or kind.__name__) is kind
    names = {"filters", "units", "kernel_size", "depth_multiplier"}
    settings = {key: value for key, value in made(kind).get_config().items() if key in names}
    theirs = getattr(keras3.layers, kind.__name__)(**settings, name="layer")
    image = keras3.Input(shape_of(kind), name="image")
    model = keras3.Model(image, theirs(image))
    ours = sat_tf.from_keras3(model).get_layer("layer")
    assert type(ours) is kind
    for one, other in zip(ours.weights, theirs.weights, strict=True):
        np.testing.assert_array_equal(one.numpy(), np.asarray(other))
    if kind in QUANTIZED:
        quantized = sat_tf.quantize_model(model, sat_tf.BitPolicy.mobile(4))  # which proves it
        assert quantized.get_layer("quant_layer").layer.weights


MOVEMENTS = (
    L.Flatten(),
    L.Reshape((6, 8, CHANNELS)),
    L.Permute((2, 1, 3)),
    L.ZeroPadding1D((1, 2)),
    L.ZeroPadding2D(((1, 2), (0, 1))),
    L.Cropping1D((1, 2)),
    L.Cropping2D(((1, 0), (2, 1))),
    L.UpSampling1D(2),
    L.UpSampling2D((2, 3)),
    L.Resizing(4, 3, "nearest"),
    L.MaxPooling2D((2, 3)),
    L.GlobalMaxPooling2D(),
    own.ChannelMax(),
    own.DepthToSpace(2),
    own.SpaceToDepth(2),
    own.Padding([(0, 1), (1, 2), (0, 1)]),
    own.Gather([1, 0, 1], 0),
    own.Slice([[1, None, None], [None, -1, 2], [None, None, None]]),
)


def test_every_data_movement_is_lowered_without_a_differing_code(tmp_path):
    assert {type(layer) for layer in MOVEMENTS} == set(MOVING)
    image = keras.Input((8, 6, 3), name="image")
    tensor = L.ReLU(name="relu")(L.Conv2D(CHANNELS, 3, padding="same", name="stem")(image))
    row = L.Reshape((-1, CHANNELS), name="row")(tensor)
    moved = [layer(row if type(layer).__name__.endswith("1D") else tensor) for layer in MOVEMENTS]
    flat = [L.Flatten(name=f"flat_{index}")(one) for index, one in enumerate(moved)]
    joined = L.Concatenate(name="joined")(flat)
    integer(keras.Model(image, L.Dense(3, name="head")(joined)), tmp_path / "model.tflite")


@pytest.mark.parametrize("kind", KINDS, ids=name_of)
def test_a_row_says_one_thing_of_its_layer(kind):
    row = KINDS[kind]
    assert issubclass(kind, keras.layers.Layer)
    if row.role is Role.LINEAR:
        assert row.kernels
    if row.quantized and row.role is Role.MOVEMENT:
        assert row.moves is not None
    if row.role in (Role.SUM, Role.PRODUCT, Role.CONCATENATION):
        assert row.combination is not None
    if row.role in (Role.FUNCTION, Role.SOFTMAX):
        assert row.function is not None
    assert not (row.fix and row.quantized)


class OwnConvolution(L.Conv2D):
    """A class of a user's own, of which sat-tf has a row in these tests alone."""


def test_one_row_is_all_that_a_linear_layer_of_a_new_kind_needs(monkeypatch, tmp_path):
    row = dataclasses.replace(KINDS[L.Conv2D], keras3=Keras3(name="Conv2D", channels_last=True))
    monkeypatch.setitem(KINDS, OwnConvolution, row)
    model = model_of(OwnConvolution(5, 3, activation="swish", name="toy"), (8, 6, CHANNELS))
    plan = {row.name: row for row in sat_tf.explain(model, sat_tf.BitPolicy.mobile(4)).layers}
    assert plan["toy"].kind == "OwnConvolution"
    assert plan["toy"].multiply_adds == 6 * 4 * 9 * CHANNELS * 5
    assert {row.name: row.fan_in for row in sat_tf.audit(model).layers}["toy"] == 9 * CHANNELS
    quantized = integer(model, tmp_path / "model.tflite")
    assert type(placed(quantized, {})[0].get_layer("quant_toy").layer).__name__ == "Conv2D"


class Swapped(keras.layers.Layer):
    def call(self, inputs):
        return tf.transpose(inputs, [0, 2, 1, 3])


def test_one_row_is_all_that_a_layer_of_data_movement_needs(monkeypatch, tmp_path):
    row = LayerKind(Role.MOVEMENT, moves=one_move("TRANSPOSE", lambda layer: ((2, 1, 3),)))
    monkeypatch.setitem(KINDS, Swapped, row)
    model = model_of(Swapped(name="swapped"), (8, 6, CHANNELS))
    with keras.utils.custom_object_scope({"Swapped": Swapped}):
        integer(model, tmp_path / "model.tflite")


def test_without_a_row_a_layer_is_refused_and_a_subclass_only_counted():
    layer = OwnConvolution(5, 3)
    layer.build((None, 8, 6, CHANNELS))
    assert layer_kinds.role_of(layer) is Role.OPAQUE
    assert layer_kinds.kernels_of(layer) == ()
    assert layer_kinds.find_kind(layer) is KINDS[L.Conv2D]
    assert "received OwnConvolution" in layer_kinds.unsupported_problem(layer)
    assert layer_kinds.find_kind(Swapped()) not in KINDS.values()
    assert "received Swapped" in layer_kinds.unsupported_problem(Swapped())


ROLES = {
    Role.RECTIFIER: [L.ReLU(), L.ReLU(6.0), *map(L.Activation, ("relu", tf.nn.relu6))],
    Role.FUNCTION: [
        *(L.ReLU(negative_slope=0.1), L.Activation("sigmoid"), L.Resizing(4, 4)),
        L.Resizing(4, 4, "nearest", crop_to_aspect_ratio=True),
        L.UpSampling2D(interpolation="bilinear"),
    ],
    Role.SOFTMAX: [L.Activation("softmax"), L.Softmax()],
    Role.IDENTITY: [L.Activation("linear"), L.Dropout(0.5)],
    Role.LINEAR: [L.Conv2D(4, 3, groups=2)],
    Role.SUM: [L.Subtract(), own.ConstantSum([[1.0]])],
    Role.PRODUCT: [L.Multiply()],
    Role.CONCATENATION: [L.Maximum()],
    Role.MOVEMENT: [L.UpSampling2D(), L.Resizing(4, 4, "nearest")],
    Role.SCALING: [own.Scaling("x * c", 2.0)],
    Role.MEAN: [own.ChannelMean()],
}


@pytest.mark.parametrize("role", ROLES)
def test_the_role_of_a_layer_is_that_of_its_kind_and_settings(role):
    for layer in ROLES[role]:
        assert layer_kinds.role_of(layer) is role
        assert layer_kinds.unsupported_problem(layer) is None
        assert layer_kinds.find_support(layer).quantized


def test_the_last_axis_of_a_normalization_may_be_counted_from_the_front():
    norm = L.BatchNormalization(axis=3)
    norm.build((None, 8, 8, 4))
    assert layer_kinds.unsupported_problem(norm) is None


@pytest.mark.parametrize(
    ("layer", "rectifies", "ceiling"),
    [
        (L.ReLU(), True, None),
        (L.ReLU(6.0), True, 6.0),
        (L.Conv2D(2, 3, activation="relu"), True, None),
        (L.Dense(2, activation=tf.nn.relu6), True, 6.0),
        (L.Dense(2), False, None),
        (L.Dense(2, activation="softmax"), False, None),
        (L.BatchNormalization(), False, None),
    ],
)
def test_rectifiers_are_found_inside_layers_too(layer, rectifies, ceiling):
    assert layer_kinds.rectifies(layer) is rectifies
    assert layer_kinds.rectifier_ceiling(layer) == ceiling
