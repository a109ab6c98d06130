import functools

import numpy as np
import pytest
import tensorflow as tf
import tf_keras as keras

import sat_tf
from sat_tf.graph.flatten import flatten, flattened
from sat_tf.graph.network import Network
from sat_tf.graph.rewrite import network_of_layers
from sat_tf.qat.policy import BitPolicy
from tests.qat import float_models
from tests.qat.models import nested_models

L = keras.layers

# Weights are clamped, but nothing is rounded: the float model in another form.
FLOAT = BitPolicy(weight_bits=None, activation_bits=None)


def _names(model):
    return [layer.name for layer in model.layers]


def _with_named_inputs():
    first, second = keras.Input((8, 8, 3), name="first"), keras.Input((8, 8, 3), name="second")
    difference = L.Subtract(name="minus")([first, second])
    inner = keras.Model({"y": first, "x": second}, difference, name="inner")
    image = keras.Input((8, 8, 3), name="image")
    return keras.Model(image, inner({"x": image, "y": L.Conv2D(3, 1, name="more")(image)}))


def _with_an_adapted_normalization():
    norm = L.Normalization(name="norm")
    norm.adapt(nested_models.images())
    return keras.Sequential([L.Input((8, 8, 3)), keras.Sequential([norm], name="front")])


NESTED = {
    **nested_models.MODELS,
    "named inputs": _with_named_inputs,
    "adapted": _with_an_adapted_normalization,
}


@pytest.mark.parametrize("name", [name for name in NESTED if name != "partly_normalized"])
def test_a_flat_model_computes_the_same_bits(name):
    model, images = NESTED[name](), nested_models.images()
    config, weights = model.get_config(), model.get_weights()
    flat = flatten(model)
    np.testing.assert_array_equal(flat(images), model(images))
    assert flat.name == model.name
    assert not any(isinstance(layer, keras.Model) for layer in flat.layers)
    # The given model is as it was, and shares nothing.
    assert model.get_config() == config
    np.testing.assert_equal(weights, model.get_weights())
    assert not {id(v) for v in model.variables} & {id(v) for v in flat.variables}


def _relu(x):  # called `relu` below
    return tf.nn.relu(x) * 0.5


_relu.__name__ = "relu"


@tf.custom_gradient
def _with_its_own_gradient(x):
    return tf.nn.relu(x), lambda upstream: upstream


# Activations of the user's, and the layers that they become once operations have become layers.
ACTIVATIONS = {
    "lambda": (lambda x: keras.activations.relu(x, max_value=3.0), ["ReLU"]),
    "partial": (functools.partial(keras.activations.relu, max_value=3.0), ["ReLU"]),
    "partial_leaky": (functools.partial(tf.nn.leaky_relu, alpha=0.3), ["LeakyReLU"]),
    "partial_gelu": (functools.partial(keras.activations.gelu, approximate=True), ["Activation"]),
    "own_swish": (lambda x: x * tf.sigmoid(1.7 * x), ["Scaling", "Activation", "Multiply"]),
    "called_relu": (_relu, ["ReLU", "Scaling"]),
    "layer": (L.LeakyReLU(0.1), ["LeakyReLU"]),
    "layer_with_ceiling": (L.ReLU(max_value=2.0), ["ReLU"]),
    "layer_with_weights": (L.PReLU("ones", shared_axes=[1, 2]), ["PReLU"]),
    "normalization": (L.BatchNormalization(), ["BatchNormalization"]),
    "model": (keras.Sequential([L.ReLU(), L.Rescaling(0.5)]), ["ReLU", "Rescaling"]),
    "unknown": (tf.sin, ["TensorFlowOperation"]),
    "must_be_run": (_with_its_own_gradient, ["Activation"]),
}
# Layers, the arguments in front of the activation, and the layers that they become.
WITH_ACTIVATIONS = {
    L.Conv2D: ((4, 3), ["Conv2D"]),
    L.DepthwiseConv2D: ((3,), ["DepthwiseConv2D"]),
    L.SeparableConv2D: ((4, 3), ["DepthwiseConv2D", "Conv2D"]),
    L.Conv2DTranspose: ((4, 3), ["Conv2DTranspose"]),
    L.Dense: ((4,), ["Dense"]),
}


def _rewritten(model):
    made = network_of_layers(flatten(model)).model
    images = np.random.default_rng(0).normal(size=(4, *model.input_shape[1:])).astype(np.float32)
    np.testing.assert_array_equal(made(images), model(images))
    layers = [layer for layer in made.layers if not isinstance(layer, L.InputLayer)]
    return made, [type(layer).__name__ for layer in layers]


@pytest.mark.parametrize("name", ACTIVATIONS)
def test_an_activation_that_is_code_of_the_users_becomes_layers(name):
    activation, expected = ACTIVATIONS[name]
    model = keras.Sequential([L.Input((6, 6, 3)), L.Conv2D(4, 3, activation=activation, name="it")])
    made, kinds = _rewritten(model)
    assert kinds == ["Conv2D", *expected]
    if name != "model":
        assert made.layers[-1].name == "it_activation"
    again = network_of_layers(flatten(made)).model
    assert again is made


@pytest.mark.parametrize("kind", [*WITH_ACTIVATIONS, L.TimeDistributed])
@pytest.mark.parametrize("activation", ["lambda", "layer"])
def test_every_layer_with_an_activation_takes_one_of_the_users(kind, activation):
    arguments, expected = WITH_ACTIVATIONS.get(kind, WITH_ACTIVATIONS[L.Dense])
    given, behind = ACTIVATIONS[activation]
    if kind is L.TimeDistributed:
        layer = kind(L.Dense(4, activation=given), name="it")
    else:
        layer = kind(*arguments, activation=given, name="it")
    model = keras.Sequential([L.Input((6, 6, 3)), layer])
    assert _rewritten(model)[1] == [*expected, *behind]
    assert sat_tf.quantize_model(model, 8).get_layer("quant_it") is not None


def test_an_activation_layer_of_several_layers_stays_one():
    shared, image = L.PReLU("ones", shared_axes=[1, 2]), keras.Input((6, 6, 3))
    first, second = (L.Conv2D(3, 1, activation=shared) for _ in range(2))
    _, kinds = _rewritten(keras.Model(image, second(first(image))))
    assert kinds == ["Conv2D", "PReLU", "Conv2D"]


@pytest.mark.parametrize("activation", ["swish", L.LeakyReLU(0.1), lambda x: tf.nn.relu(x) * 2])
def test_the_regularizer_of_what_a_layer_makes_is_behind_its_activation(activation):
    dense = L.Dense(4, activation=activation, activity_regularizer="l2")
    model = keras.Sequential([L.Input((5,)), dense])
    made, _ = _rewritten(model)
    images = np.random.default_rng(1).normal(size=(8, 5)).astype(np.float32)
    for one in (model, made):
        one(images)
    np.testing.assert_allclose(sum(made.losses), sum(model.losses), rtol=1e-6)


# These layers act on all steps of a TimeDistributed at once, on sequences of vectors of 4.
AT_EACH_STEP = {
    "dense": (L.Dense(3, activation="relu"), "Dense"),
    "batch_normalization": (L.BatchNormalization(), "BatchNormalization"),
    "layer_normalization": (L.LayerNormalization(), "LayerNormalization"),
    "dropout": (L.Dropout(0.5), "Dropout"),
    "function": (L.Activation("tanh"), "Activation"),
    "reshape": (L.Reshape((2, 2)), "Reshape"),
    "flatten": (L.Flatten(), "Reshape"),
    "convolution": (L.Conv1D(2, 1), "TimeDistributed"),
}


@pytest.mark.parametrize("name", AT_EACH_STEP)
def test_a_layer_at_each_step_is_that_layer_where_it_works_on_all_steps_at_once(name):
    inner, expected = AT_EACH_STEP[name]
    size = (5, 4, 1) if name == "convolution" else (5, 4)
    model = keras.Sequential([L.Input(size), L.TimeDistributed(inner, name="steps")])
    draws = np.random.default_rng(2)
    model.set_weights([draws.uniform(0.5, 2.0, array.shape) for array in model.get_weights()])
    made, kinds = _rewritten(model)
    assert kinds == [expected]
    assert made.layers[-1].name == "steps"


def test_a_repeated_vector_is_a_sequence_made_longer():
    model = keras.Sequential([L.Input((4,)), L.RepeatVector(3), L.TimeDistributed(L.Dense(2))])
    assert _rewritten(model)[1] == ["Reshape", "UpSampling1D", "Dense"]
    assert sat_tf.quantize_model(model, 8).output_shape == (None, 3, 2)


def test_names_are_the_way_to_a_layer_and_a_flat_model_is_returned_as_it_is():
    for model in (float_models.build("mobile_block"), nested_models.partly_normalized()):
        assert flatten(model) is model
    assert _names(flatten(nested_models.nested())) == [
        *("image", "backbone/conv", "backbone/conv_bn", "backbone/conv_relu"),
        *("backbone/block/conv", "backbone/block/bn", "backbone/block/relu", "conv", "conv_bn"),
        *("conv_relu", "pool", "classifier"),
    ]
    flat = flatten(nested_models.nested_in_a_sequential())
    assert _names(flat)[1:4] == ["middle/inner/conv", "middle/inner/relu", "middle/conv"]


def test_the_outer_layer_keeps_its_name_and_layers_without_weights_are_one_for_each_call():
    image = keras.Input((8, 8, 3), name="image")
    tensor = L.Conv2D(4, 3, name="backbone/conv")(nested_models.backbone()(image))
    found = flattened(keras.Model(image, L.Flatten(name="flatten")(tensor)))
    assert _names(found.model)[1] == "backbone/conv_2"
    assert found.origins["backbone/conv_2"] == "backbone/conv"
    assert found.model.get_layer("backbone/conv").kernel.shape[2] == 4
    found = flattened(nested_models.shared())
    names = [name for name, origin in found.origins.items() if origin in ("relu", "mix")]
    assert names == ["relu", "relu_2", "mix", "mix_activation", "mix_activation_2"]
    nodes = [node.name for node in Network(found.model)]
    assert {"conv", "conv@2", "norm@2", "mix@2", "plain@2"} <= set(nodes)


def test_training_is_handed_down_to_nested_layers_and_what_is_frozen_stays_frozen():
    images = nested_models.images()
    model = nested_models.nested(training=False)
    flat = flatten(model)
    # The backbone is in inference, the rest of the model is not.
    np.testing.assert_array_equal(flat(images, training=True), model(images, training=True))
    network = Network(flat)
    assert network["backbone/block/bn"].arguments == {"training": False}
    assert network["conv_bn"].arguments == {}
    model = nested_models.nested(frozen=True)
    frozen = {layer.name for layer in flatten(model).layers if not layer.trainable}
    assert frozen == {name for name in _names(flatten(model)) if name.startswith("backbone/")}
    outer = nested_models.nested()
    outer.trainable = False
    assert not flatten(outer).trainable_weights


def test_inputs_and_outputs_keep_their_structure():
    left, right = keras.Input((8, 8, 3), name="left"), keras.Input((8, 8, 3), name="right")
    inner = nested_models.backbone()
    outputs = {"second": inner(left), "first": [inner(right), L.Add(name="sum")([left, right])]}
    model = keras.Model({"b": left, "a": right}, outputs)
    given = {"a": nested_models.images(), "b": nested_models.images(seed=2)}
    expected, found = model(given), flatten(model)(given)
    tf.nest.assert_same_structure(found, expected)
    tf.nest.map_structure(np.testing.assert_array_equal, found, expected)


SLOW = ("nested_in_a_sequential", "partly_normalized", "shared_backbone")


@pytest.mark.parametrize(
    "name", ["nested", "shared", *(pytest.param(name, marks=pytest.mark.slow) for name in SLOW)]
)
def test_a_quantized_model_keeps_the_function(name):
    model, images = nested_models.MODELS[name](), nested_models.images()
    expected = model(images).numpy()
    found = sat_tf.quantize_model(model, FLOAT)(images).numpy()
    # A division and a multiplication by the maximum in every layer, in float32.
    assert np.abs(found - expected).max() / np.abs(expected).max() < 1e-4


def test_overrides_name_the_layers_of_nested_models_which_keep_their_kernels():
    policy = BitPolicy.paper(4, overrides={"backbone/block/*": {"weight_bits": 2}})
    model = nested_models.nested()
    quantized = sat_tf.quantize_model(model, policy)
    kernel = flatten(model).get_layer("backbone/conv").kernel
    np.testing.assert_array_equal(quantized.get_layer("quant_backbone/conv").layer.kernel, kernel)
    conv = quantized.get_layer("quant_backbone/block/conv")
    assert conv.quantize_config.weights.num_bits == 2
    assert quantized.get_layer("quant_conv").quantize_config.weights.num_bits == 4


@pytest.mark.thorough
def test_a_frozen_backbone_has_nothing_to_train_and_is_in_inference():
    quantized = sat_tf.quantize_model(nested_models.nested(frozen=True), BitPolicy.mobile(4))
    images = nested_models.images()
    quantized.compile("sgd", keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    before = {v.name: v.numpy() for v in quantized.variables if "backbone" in v.name}
    assert before
    assert not [v.name for v in quantized.trainable_variables if "backbone" in v.name]
    assert any("clipping_level" in v.name for v in quantized.trainable_variables)
    quantized.fit(images, np.arange(8) % 3, epochs=2, verbose=0)
    for variable in quantized.variables:
        if variable.name in before:
            np.testing.assert_array_equal(variable, before[variable.name])
    relu = quantized.get_layer("quant_backbone/conv_relu")
    assert not relu.trainable_weights
    quantized.trainable = True  # it thaws with its clipping levels
    assert [v.name for v in relu.trainable_weights] == ["quant_backbone/conv_relu/clipping_level:0"]
