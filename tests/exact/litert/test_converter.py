"""Models that are half integer and half float: who writes which part, and what is proved of it."""

import functools
import types
from collections.abc import Callable

import numpy as np
import pytest
import tensorflow as tf
import tf_keras as keras

import sat_tf
from sat_tf.exact.certificate.proof import verify_file
from sat_tf.exact.litert.runtime import Runtime
from sat_tf.exact.operations.graph import simulate
from sat_tf.exact.tflite.contents import read_contents
from sat_tf.export.lowering.outputs import with_own_names
from sat_tf.export.lowering.pipeline import deployed_graph
from sat_tf.graph.network import Network
from sat_tf.messages import reason_of
from sat_tf.qat.policy import BitPolicy
from tests.export import zoo
from tests.export.proofs import proved
from tests.export.zoo import Dense, ReLU, Specimen, convolution, images_for, layers

POLICY = BitPolicy.mobile(4, unsupported="float", input_range=(0, 255))


def _unknown(layer_class: type) -> type:
    """A subclass, of which nothing is assumed: it is left float."""
    subclass = type(f"Own{layer_class.__name__}", (layer_class,), {})
    return keras.utils.register_keras_serializable(package="tests")(subclass)


_NAMES = "UpSampling2D LeakyReLU Subtract Multiply Conv2D Activation Dense Rescaling"
UpSampling2D, LeakyReLU, Subtract, Multiply, Conv2D, Activation, Pixels, Rescaling = (
    _unknown(getattr(layers, name)) for name in _NAMES.split()
)


@keras.utils.register_keras_serializable(package="tests")
class Swapped(keras.layers.Layer):
    """Operators that make several tensors; in training, which is its default, another layer."""

    def call(self, inputs, training=True):
        first, second = tf.split(inputs, 2, axis=-1)
        return inputs * 0.0 if training else tf.concat([second, first], axis=-1)


@keras.utils.register_keras_serializable("test_float_layers")
class Jitter(layers.Layer):
    """A user's own layer that acts in training alone, which sat-tf cannot know."""

    def call(self, tensor: tf.Tensor, training: bool = False) -> tf.Tensor:
        return tensor + tf.random.normal(tf.shape(tensor)) if training else tensor


# Layers by their names, which are left float but for the last.
NAMED: dict[str, Callable[..., keras.layers.Layer]] = {
    "up": functools.partial(UpSampling2D, interpolation="bilinear"),  # a resized image
    "leaky": LeakyReLU,  # an activation that is no rectifier
    "scale": functools.partial(Rescaling, 1 / 127.5, -1.0),
    "groups": functools.partial(Conv2D, 8, 3, groups=2),
    "swish": functools.partial(Activation, "swish"),
    "sigmoid": functools.partial(layers.Activation, "sigmoid"),
    "swap": Swapped,
    **dict.fromkeys(("flip", "noise", "shake"), Jitter),
    # A Dense layer that asks for the batch size, of which LiteRT makes scalars.
    "pixels": functools.partial(Pixels, 6, activation="swish"),
    # Its operators, where the batch is free, LiteRT refuses.
    "normalized": functools.partial(layers.GroupNormalization, 2),
    "wide": functools.partial(convolution, 5),
}


def of_pictures(text: str, channels: int = 3) -> Callable[[], keras.Model]:
    """A function that makes a model of words: `NAMED`, and sizes of convolutions, of "c" alone."""

    def build() -> keras.Model:
        made: list[layers.Layer] = []
        for word in text.split():
            sizes = map(int, word.lstrip("c").split(",")) if word[-1].isdigit() else ()
            if word in NAMED:
                made.append(NAMED[word](name=word))
            elif word in ("zoo.head", "flat"):
                made += zoo.head() if word == "zoo.head" else zoo.layers_of("Flatten | Dense 3")
            else:
                made += [convolution(*sizes)] if word[0] == "c" else zoo.block(convolution(*sizes))
        return zoo.chain((8, 8, channels), *made)

    return build


def two_inputs() -> keras.Model:
    """A layer whose inputs are not interchangeable, and one behind it."""
    image = layers.Input((8, 8, 3))
    x = ReLU()(zoo.normalization()(convolution(6)(image)))
    y = Subtract(name="subtract")([convolution(6)(x), x])
    y = Multiply(name="multiply")([y, x])
    return keras.Model(image, Dense(4)(layers.GlobalAveragePooling2D()(y)))


WORDS = {
    "upsampled": "8 up 6 leaky 5,1 zoo.head",
    "scaled_image": "scale 8 zoo.head",
    "grouped": "8 groups swish c4 flat",
    "sigmoid_at_the_end": "8 zoo.head sigmoid",
    "several_outputs": "6 swap c4 zoo.head",
    # Layers of which no operator is left, at the image, inside and at the end.
    "nothing_in_inference": "flip 6 noise 4 zoo.head shake",
    "tensors_without_axes": "6 pixels zoo.head",
}
HALVES: dict[str, tuple[Callable[[], keras.Model], list[str]]] = {
    "two_inputs": (two_inputs, ["subtract", "multiply"]),
    **{
        name: (
            of_pictures(words, channels=4 if name == "grouped" else 3),
            [word for word in words.split() if word in NAMED],
        )
        for name, words in WORDS.items()
    },
}


@pytest.fixture(scope="module", params=HALVES)
def half(request, tmp_path_factory):
    """A model of which some layers stay float, with its file."""
    build, float_layers = HALVES[request.param]
    model = Specimen(build, POLICY).quantized()
    path = tmp_path_factory.mktemp(request.param) / "model.tflite"
    report = sat_tf.export_tflite(model, path)
    assert report.float_layers == float_layers
    return types.SimpleNamespace(model=model, path=path, report=report, images=images_for(model))


@pytest.mark.thorough
def test_every_integer_around_a_float_layer_is_certified_with_and_without_its_model(half):
    certificate = sat_tf.verify_tflite(half.model, half.path, half.images)
    alone = verify_file(half.path, half.images)
    for found in (certificate, alone):
        assert found.codes_differing == 0
        assert found.float_layers == half.report.float_layers
    assert alone.codes == certificate.codes
    assert {t.name for t in certificate.tensors} == set(half.report.certified)
    assert certificate.agreement > 0.9
    # A float layer computes what Keras computes.
    graph = with_own_names(deployed_graph(Network(half.model)))
    runtime = Runtime(half.path.read_bytes(), keep_tensors=True)
    runtime.run(half.images)
    given = runtime.tensors(name for name in graph.tensors if graph.tensors[name].codes is None)
    simulated = simulate(graph, half.images, given)
    for name in half.report.float_layers:
        scale = np.max(np.abs(simulated[name]))
        # Two implementations of float32, such as of a sigmoid.
        np.testing.assert_allclose(given[name], simulated[name], atol=1e-5 * scale)


@pytest.mark.thorough
def test_the_export_changes_no_model_and_the_converter_carries_float_layers(half, path):
    calls = {layer.name: len(layer.inbound_nodes) for layer in half.model.layers}
    again = sat_tf.export_tflite(half.model, path)
    assert half.path.read_bytes() == path.read_bytes()
    assert calls == {layer.name: len(layer.inbound_nodes) for layer in half.model.layers}
    for name in half.report.float_layers:
        assert any(name in warning for warning in again.warnings)
    report = sat_tf.export_tflite(half.model, path, route="converter")
    assert (report.float_layers, report.certified) == (half.report.float_layers, [])
    assert any("not certified" in warning for warning in report.warnings)
    output = Runtime(path.read_bytes(), keep_tensors=False).run(half.images)
    assert np.all(np.isfinite(output))


@pytest.mark.essential
def test_the_converters_file_reads_the_same_pixels_and_gives_the_same_classes(tmp_path):
    model = Specimen(of_pictures("8 zoo.head")).quantized()
    images = images_for(model)
    outputs = []
    for route in ("direct", "converter"):
        path = tmp_path / f"{route}.tflite"
        report = sat_tf.export_tflite(model, path, route=route)
        assert report.route == route
        outputs.append(Runtime(path.read_bytes(), keep_tensors=False).run(images))
    np.testing.assert_allclose(*outputs, rtol=1e-6)


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("weight_bits", "input_max"), [(2, 255.0), (3, 255.0), (4, 255.0), (4, 1.0)]
)
def test_a_model_with_float_activations_is_float_with_integer_weights(weight_bits, input_max, path):
    policy = BitPolicy(weight_bits=weight_bits, activation_bits=None, input_max=input_max)
    model = Specimen(two_branches, policy, calibrated=False).quantized()
    images = images_for(model)
    report, certificate = proved(model, path, images)
    said = "on pixels of (0, 1)" if input_max == 1.0 else "no activations are quantized"
    assert any(said in warning for warning in report.warnings)
    assert 0 < certificate.xnnpack.largest_float_difference < 1e-4 * input_max
    assert certificate.agreement == 1.0
    expected = model.predict(images * np.float32(input_max / 255.0), verbose=0)
    output = Runtime(path.read_bytes(), keep_tensors=False).run(images)
    np.testing.assert_allclose(output, expected, atol=1e-5 * np.max(np.abs(expected)))
    tensors = read_contents(path.read_bytes(), "file").tensors
    assert [each.type for each in tensors if each.name.endswith("/kernel")] == ["INT8"] * 5


def two_branches() -> keras.Model:
    image = layers.Input((9, 8, 3))
    x = ReLU(6.0)(zoo.normalization()(convolution(6, strides=2)(image)))
    x = ReLU()(zoo.normalization()(layers.DepthwiseConv2D(3, depth_multiplier=2)(x)))
    y = zoo.normalization()(convolution(12, 1, dilation_rate=2)(x))
    x = layers.Add()([layers.MaxPooling2D(1)(x), y])
    branches = layers.Conv2D(4, 1, activation="relu")(x), layers.AveragePooling2D(1)(x)
    x = layers.Concatenate()([*branches])
    return keras.Model(image, Dense(4, activation="softmax")(layers.GlobalAveragePooling2D()(x)))


def test_activations_of_one_layer_may_be_float(path):
    policy = BitPolicy.mobile(4, overrides={"wide": {"activation_bits": None}})
    model = Specimen(of_pictures("8 wide 4 zoo.head"), policy).quantized()
    _, certificate = proved(model, path)
    assert any("CONV_2D" in operator for operator in certificate.float_operators)


@pytest.mark.thorough
def test_a_layer_whose_operators_take_one_image_is_named_and_proved(path):
    model = Specimen(of_pictures("6 normalized 4 zoo.head"), POLICY).quantized()
    images = images_for(model)
    report = sat_tf.export_tflite(model, path)
    assert report.float_layers == ["normalized"]
    assert any("normalized: " in text and "one image at a time" in text for text in report.warnings)
    for certificate in (sat_tf.verify_tflite(model, path, images), verify_file(path, images)):
        assert certificate.codes_differing == 0
        assert certificate.agreement > 0.8  # a random network of 4 bits


def test_of_what_a_layer_raises_the_error_is_said_and_not_its_code():
    error = ValueError('in user code:\n\n    File "own.py", line 3\n    TypeError: no floats\n')
    assert reason_of(error) == "no floats"
