import json
import warnings

import numpy as np
import pytest
import tensorflow as tf
import tensorflow_model_optimization as tfmot
import tf_keras as keras

import sat_tf
from sat_tf.qat.policy import BitPolicy
from sat_tf.qat.wrapper import QuantizedLayer
from tests.qat import float_models

L = keras.layers
annotate_layer = tfmot.quantization.keras.quantize_annotate_layer
annotate_model = tfmot.quantization.keras.quantize_annotate_model
quantize_apply = tfmot.quantization.keras.quantize_apply


def _applied(annotated, policy=None):
    return quantize_apply(annotated, scheme=sat_tf.SatQuantizeScheme(policy))


def _bits(model, name):
    return model.get_layer(f"quant_{name}").quantize_config.weights.num_bits


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("name", "policy"),
    [
        ("mobile_block", BitPolicy.mobile(3)),
        ("depthwise", BitPolicy.paper(2)),
        ("sequential_with_input_layer", BitPolicy.mobile(3)),
    ],
)
def test_tfmots_way_and_the_short_one_give_the_same_model(name, policy):
    ours = sat_tf.quantize_model(float_models.build(name), policy)
    theirs = _applied(annotate_model(float_models.build(name)), policy)
    assert ours.get_config() == theirs.get_config()
    np.testing.assert_equal(ours.get_weights(), theirs.get_weights())
    images = float_models.images()
    np.testing.assert_array_equal(ours(images), theirs(images))


# Layers on sequences of vectors of 4 that are quantized in parts.
IN_PARTS = {
    "function": lambda x: L.Dense(4, activation="swish", name="a")(x),
    "separable": lambda x: L.SeparableConv1D(4, 2, activation="tanh", name="a")(x),
    "causal": lambda x: L.Conv1D(4, 2, padding="causal", name="a")(x),
    "pool": lambda x: L.MaxPooling1D(2, name="a")(x),
    "softmax": lambda x: L.Dropout(0.1, name="b")(L.Dense(4, activation="softmax", name="a")(x)),
}


@pytest.mark.parametrize("name", IN_PARTS)
def test_tfmots_way_takes_what_is_quantized_in_parts(name):
    keras.utils.set_random_seed(4)
    steps = keras.Input((6, 4), name="steps")
    tensor = L.Dense(3, name="classifier")(L.Flatten(name="flat")(IN_PARTS[name](steps)))
    model, policy = keras.Model(steps, tensor), BitPolicy.mobile(8, input_type="float32")
    ours = sat_tf.quantize_model(model, policy)
    theirs = _applied(annotate_model(model), policy)
    assert [type(layer) for layer in theirs.layers] == [type(layer) for layer in ours.layers]
    given = np.random.default_rng(4).normal(size=(8, 6, 4)).astype(np.float32)
    np.testing.assert_array_equal(theirs(given), ours(given))


@pytest.mark.parametrize("batch", [None, 4])
def test_attention_without_an_annotation_stays_as_it_is(batch):
    steps = keras.Input((6, 4), batch_size=batch, name="steps")
    attention = L.MultiHeadAttention(2, 4, name="attention")
    head = annotate_layer(L.Dense(3, name="classifier"))
    model = keras.Model(steps, head(attention(query=steps, value=steps)))
    quantized = _applied(model, BitPolicy.mobile(8, input_type="float32"))
    given = np.random.default_rng(4).normal(size=(4, 6, 4)).astype(np.float32)
    found = quantized.get_layer("attention")(given)
    np.testing.assert_array_equal(found, attention(query=given, value=given))
    assert not isinstance(quantized.get_layer("attention"), QuantizedLayer)
    assert _bits(quantized, "classifier") == 8


def test_a_layer_annotated_by_hand_keeps_its_own_bits():
    own = {"weight_bits": 2, "activation_bits": 6}
    image = keras.Input((8, 8, 3), name="image")
    tensor = annotate_layer(L.Conv2D(4, 3, name="a"))(image)
    tensor = annotate_layer(L.Conv2D(4, 3, name="b"), sat_tf.configs.LayerConfig(**own))(tensor)
    for layer in (L.ReLU(), L.Flatten(), L.Dense(3, name="classifier")):
        tensor = annotate_layer(layer)(tensor)
    model = _applied(keras.Model(image, tensor), BitPolicy(weight_bits=4))
    assert (_bits(model, "a"), _bits(model, "b")) == (8, 2)
    assert model.get_layer("quant_a").quantize_config.output.num_bits == 6
    assert model.get_layer("quant_b").quantize_config.annotation == own


def test_annotations_by_hand_and_for_the_whole_model_go_together():
    image = keras.Input((8, 8, 3), name="image")
    tensor = L.ReLU(name="a_relu")(L.Conv2D(4, 3, name="a")(image))
    config = sat_tf.configs.LayerConfig(weight_bits=2, rescale="none")
    tensor = annotate_layer(L.Conv2D(4, 3, name="b"), config)(tensor)
    model = keras.Model(image, L.Dense(3, name="classifier")(L.Flatten()(tensor)))
    for quantized in (_applied(annotate_model(model)), sat_tf.quantize_model(model)):
        assert (_bits(quantized, "a"), _bits(quantized, "b")) == (8, 2)
        assert quantized.get_layer("quant_b").quantize_config.weights.rescale == "none"


def test_layers_without_an_annotation_stay_as_they_are():
    image = keras.Input((8, 8, 3), name="image")
    tensor = L.LeakyReLU(name="leaky")(L.Conv2D(4, 3, name="a")(image))
    tensor = annotate_layer(L.Conv2D(4, 3, name="b"))(tensor)
    quantized = _applied(keras.Model(image, L.Flatten(name="flatten")(tensor)))
    kinds = {layer.name: type(layer) for layer in quantized.layers}
    assert kinds["a"] is L.Conv2D
    assert kinds["leaky"] is L.LeakyReLU
    assert kinds["quant_b"] is QuantizedLayer
    inserted = quantized.get_layer("quant_leaky_to_8_bits").quantize_config
    assert inserted.inserted
    assert inserted.output.signed


def _absorbed(tensor):
    """A rectifier with an annotation absorbs the normalization, which has none."""
    return L.Flatten()(annotate_layer(L.ReLU())(L.BatchNormalization()(tensor)))


def _read(tensor):
    """An annotated linear layer alone reads what has no annotation."""
    tensor = L.Dropout(0.5)(L.ReLU()(L.BatchNormalization()(tensor)))
    tensor = annotate_layer(L.ReLU())(annotate_layer(L.Conv2D(4, 3))(tensor))
    return L.GlobalAveragePooling2D()(tensor)


NOT_NAMED = {
    "absorbed": (_absorbed, {"CONV_2D": 1, "RESHAPE": 1}),
    "read": (_read, {"CONV_2D": 2, "MEAN": 1}),
    "float in files anyway": (lambda x: L.Flatten()(L.PReLU(name="slopes")(x)), None),
}


@pytest.mark.parametrize("name", NOT_NAMED)
@pytest.mark.filterwarnings("ignore::sat_tf.qat.calibrate.StaleStatisticsWarning")
def test_layers_without_an_annotation_that_cost_nothing_are_not_called_float(name, tmp_path):
    between, operators = NOT_NAMED[name]
    image = keras.Input((8, 8, 3), name="image")
    tensor = between(annotate_layer(L.Conv2D(4, 3))(image))
    model = keras.Model(image, annotate_layer(L.Dense(2))(tensor))
    with warnings.catch_warnings():
        warnings.filterwarnings("error", message=".*no annotation")
        quantized = _applied(model)
    if operators is not None:
        sat_tf.calibrate(quantized, float_models.images(64))
        found = sat_tf.export_tflite(quantized, tmp_path / "model.tflite").operators
        assert found == {"QUANTIZE": 1, "FULLY_CONNECTED": 1, "DEQUANTIZE": 1, **operators}


@pytest.fixture(scope="module")
def quantized():
    policy = BitPolicy(requantize_streams=True)
    model = sat_tf.quantize_model(float_models.build("mobile_block"), policy)
    return sat_tf.calibrate(model, float_models.images(64))


def test_a_quantized_layer_keeps_the_name_of_its_own_behind_quant(quantized):
    names = {layer.name for layer in quantized.layers}
    own = {f"quant_{layer.name}" for layer in float_models.build("mobile_block").layers[1:]}
    inserted = {"quant_image_image", "quant_project_bn_to_4_bits", "quant_add_to_4_bits"}
    assert names == own | inserted | {"image"}


def test_the_model_can_be_taken_apart_like_any_keras_model(quantized):
    images = float_models.images()
    for name in ("quant_add", "quant_add_to_4_bits", "quant_pool"):
        layer = quantized.get_layer(name)
        features = keras.Model(quantized.input, layer.output)
        assert np.isfinite(features(images)).all()
    lines = []
    quantized.summary(print_fn=lambda line, **_: lines.append(line))
    assert any("quant_add_to_4_bits" in line for line in lines)


# tests/qat/models/test_saving.py has other copies.
def test_a_copy_by_the_json_of_its_configuration_computes_the_same(quantized):
    twin = keras.Model.from_config(json.loads(json.dumps(quantized.get_config())))
    twin.set_weights(quantized.get_weights())
    images = float_models.images()
    np.testing.assert_array_equal(twin(images), quantized(images))


def test_tfmots_scope_knows_every_class():
    with sat_tf.quantize_scope({"Mine": L.Dense}):
        for name in ("QuantizedLayer", "PlacedConfig", "PactQuantizer", "AtLeast", "Mine"):
            assert keras.utils.get_registered_object(name) is not None, name
        assert keras.utils.get_registered_object("QuantizeWrapperV2") is not None


def test_the_registry_of_the_scheme_answers_tfmot():
    registry = sat_tf.SatQuantizeScheme(BitPolicy(weight_bits=3)).get_quantize_registry()
    assert not registry.supports(L.Dense(2))
    config = registry.get_quantize_config(L.Dense(2, name="d"))
    assert config.fields["weight_bits"] == 3


_POLICY = BitPolicy.mobile(4, initial_clipping_level=8.0, initial_classifier_clipping_level=10.0)


def _graph():
    image = keras.Input((8, 8, 3), name="image")
    tensor = L.Conv2D(4, 3, activation="relu", name="stem")(image)
    return image, L.Dense(3, name="classifier")(L.Flatten(name="flat")(tensor))


@keras.utils.register_keras_serializable(package="test_user_class")
class Counting(keras.Model):
    def train_step(self, data):
        logs = super().train_step(data)
        return {**logs, "counted": tf.constant(1.0)}


class Distilling(keras.Model):
    """Has a teacher, a temperature, a metric and a variable of its own."""

    def __init__(self, inputs, outputs, temperature, teacher=None, name=None):
        super().__init__(inputs, outputs, name=name)
        self.temperature = temperature
        self.teacher = teacher
        self.seen = keras.metrics.Mean(name="seen")
        self.average = tf.Variable(0.0, trainable=False)

    @property
    def metrics(self):
        return [*super().metrics, self.seen]

    def train_step(self, data):
        self.seen.update_state(self.temperature)
        self.average.assign_add(1.0)
        return {**super().train_step(data), "seen": self.seen.result()}


_PIXELS = np.random.default_rng(0).integers(0, 256, (8, 8, 8, 3)).astype(np.float32)
_LABELS = np.arange(8) % 3


def _fit(model):
    model.compile("sgd", keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    return model.fit(_PIXELS, _LABELS, batch_size=4, verbose=0).history


@pytest.mark.thorough
def test_a_model_of_the_user_s_class_is_trained_by_its_own_step(tmp_path):
    model = Counting(*_graph())
    quantized = sat_tf.quantize_model(model, _POLICY)
    again = sat_tf.requantize(quantized, BitPolicy.mobile(2))
    for made in (quantized, again):
        assert type(made) is Counting
        assert any(isinstance(layer, QuantizedLayer) for layer in made.layers)
    assert _fit(quantized)["counted"] == [1.0]
    quantized.save(tmp_path / "model.keras")
    loaded = keras.models.load_model(tmp_path / "model.keras")
    assert type(loaded) is Counting
    assert len(loaded.weights) == len(quantized.weights)
    sat_tf.calibrate(quantized, np.zeros((64, 8, 8, 3), np.uint8) + np.uint8(9))
    sat_tf.export_tflite(quantized, tmp_path / "model.tflite")


@pytest.mark.thorough
def test_the_class_survives_quantize_apply():
    annotated = annotate_model(Counting(*_graph()))
    assert type(annotated) is Counting
    quantized = _applied(annotated, _POLICY)
    assert type(quantized) is Counting
    assert _fit(quantized)["counted"] == [1.0]


@pytest.mark.thorough
def test_what_a_model_of_the_user_s_class_holds_is_carried_over():
    teacher = keras.Sequential([keras.Input((8, 8, 3)), L.Flatten()])
    model = Distilling(*_graph(), temperature=5.0, teacher=teacher)
    model.average.assign(7.0)
    model.labels = ["a", "b"]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        quantized = sat_tf.quantize_model(model, _POLICY)
    assert type(quantized) is Distilling
    assert (quantized.temperature, list(quantized.labels)) == (5.0, ["a", "b"])
    assert quantized.teacher is teacher
    assert float(quantized.average) == 7.0
    assert quantized.seen is not model.seen
    assert _fit(quantized)["seen"] == [5.0]
    assert (float(quantized.average), float(model.average)) == (9.0, 7.0)
