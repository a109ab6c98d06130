import json
import warnings

import numpy as np
import pytest
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
    scheme = sat_tf.SatQuantizeScheme(policy)
    ours = sat_tf.quantize_model(float_models.build(name), policy)
    theirs = quantize_apply(annotate_model(float_models.build(name)), scheme=scheme)
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
    scheme = sat_tf.SatQuantizeScheme(policy)
    theirs = quantize_apply(annotate_model(model), scheme=scheme)
    assert [type(layer) for layer in theirs.layers] == [type(layer) for layer in ours.layers]
    given = np.random.default_rng(4).normal(size=(8, 6, 4)).astype(np.float32)
    np.testing.assert_array_equal(theirs(given), ours(given))


@pytest.mark.parametrize("batch", [None, 4])
def test_attention_without_an_annotation_stays_as_it_is(batch):
    steps = keras.Input((6, 4), batch_size=batch, name="steps")
    attention = L.MultiHeadAttention(2, 4, name="attention")
    model = keras.Model(
        steps, annotate_layer(L.Dense(3, name="classifier"))(attention(query=steps, value=steps))
    )
    scheme = sat_tf.SatQuantizeScheme(BitPolicy.mobile(8, input_type="float32"))
    quantized = quantize_apply(model, scheme=scheme)
    given = np.random.default_rng(4).normal(size=(4, 6, 4)).astype(np.float32)
    np.testing.assert_array_equal(
        quantized.get_layer("attention")(given), attention(query=given, value=given)
    )
    assert not isinstance(quantized.get_layer("attention"), QuantizedLayer)
    assert _bits(quantized, "classifier") == 8


def _annotated(**settings):
    image = keras.Input((8, 8, 3), name="image")
    tensor = annotate_layer(L.Conv2D(4, 3, name="a"))(image)
    tensor = annotate_layer(L.Conv2D(4, 3, name="b"), sat_tf.configs.LayerConfig(**settings))(
        tensor
    )
    tensor = annotate_layer(L.ReLU(name="b_relu"))(tensor)
    tensor = annotate_layer(L.Flatten(name="flatten"))(tensor)
    return keras.Model(image, annotate_layer(L.Dense(3, name="classifier"))(tensor))


def test_a_layer_annotated_by_hand_keeps_its_own_bits():
    scheme = sat_tf.SatQuantizeScheme(BitPolicy(weight_bits=4))
    model = quantize_apply(_annotated(weight_bits=2, activation_bits=6), scheme=scheme)
    assert (_bits(model, "a"), _bits(model, "b")) == (8, 2)
    assert model.get_layer("quant_a").quantize_config.output.num_bits == 6
    assert model.get_layer("quant_b").quantize_config.annotation == {
        "weight_bits": 2,
        "activation_bits": 6,
    }


def test_annotations_by_hand_and_for_the_whole_model_go_together():
    image = keras.Input((8, 8, 3), name="image")
    tensor = L.ReLU(name="a_relu")(L.Conv2D(4, 3, name="a")(image))
    tensor = annotate_layer(
        L.Conv2D(4, 3, name="b"), sat_tf.configs.LayerConfig(weight_bits=2, rescale="none")
    )(tensor)
    model = keras.Model(image, L.Dense(3, name="classifier")(L.Flatten()(tensor)))
    for quantized in (
        quantize_apply(annotate_model(model), scheme=sat_tf.SatQuantizeScheme()),
        sat_tf.quantize_model(model),
    ):
        assert (_bits(quantized, "a"), _bits(quantized, "b")) == (8, 2)
        assert quantized.get_layer("quant_b").quantize_config.weights.rescale == "none"


def test_layers_without_an_annotation_stay_as_they_are():
    image = keras.Input((8, 8, 3), name="image")
    tensor = L.LeakyReLU(name="leaky")(L.Conv2D(4, 3, name="a")(image))
    tensor = annotate_layer(L.Conv2D(4, 3, name="b"))(tensor)
    model = keras.Model(image, L.Flatten(name="flatten")(tensor))
    quantized = quantize_apply(model, scheme=sat_tf.SatQuantizeScheme())
    kinds = {layer.name: type(layer) for layer in quantized.layers}
    assert kinds["a"] is L.Conv2D
    assert kinds["leaky"] is L.LeakyReLU
    assert kinds["quant_b"] is QuantizedLayer
    inserted = quantized.get_layer("quant_leaky_to_8_bits").quantize_config
    assert inserted.inserted
    assert inserted.output.signed


def test_layers_that_an_annotation_left_float_between_integers_are_named():
    image = keras.Input((8, 8, 3), name="image")
    tensor = annotate_layer(L.Conv2D(4, 3, name="a"))(image)
    tensor = L.ReLU(name="relu")(L.BatchNormalization(name="norm")(tensor))
    tensor = L.ReLU(name="on_purpose")(L.Conv2D(4, 3, name="b")(tensor))
    tensor = annotate_layer(L.Dense(2, name="c"))(L.Flatten(name="flatten")(tensor))
    model = keras.Model(image, L.Softmax(name="softmax")(tensor))
    with pytest.warns(UserWarning, match=": norm, relu have no annotation and stay float: the"):
        quantize_apply(model, scheme=sat_tf.SatQuantizeScheme())
    annotated = annotate_model(model)  # also where layers were annotated before
    with warnings.catch_warnings():
        warnings.filterwarnings("error", message=".*no annotation")
        quantize_apply(annotated, scheme=sat_tf.SatQuantizeScheme())


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
        quantized = quantize_apply(model, scheme=sat_tf.SatQuantizeScheme())
    if operators is not None:
        sat_tf.calibrate(quantized, float_models.images(64))
        found = sat_tf.export_tflite(quantized, tmp_path / "model.tflite").operators
        assert found == {"QUANTIZE": 1, "FULLY_CONNECTED": 1, "DEQUANTIZE": 1, **operators}


def test_a_float_layer_behind_layers_that_move_codes_is_named():
    image = keras.Input((8, 8, 3), name="image")
    tensor = L.MaxPooling2D()(annotate_layer(L.Conv2D(4, 3))(image))
    model = keras.Model(image, L.BatchNormalization(name="norm")(L.Flatten()(tensor)))
    with pytest.warns(UserWarning, match=": norm have no annotation and stay float: the"):
        quantize_apply(model, scheme=sat_tf.SatQuantizeScheme())


@pytest.fixture(scope="module")
def quantized():
    policy = BitPolicy(requantize_streams=True)
    model = sat_tf.quantize_model(float_models.build("mobile_block"), policy)
    return sat_tf.calibrate(model, float_models.images(64))


def test_a_quantized_layer_keeps_the_name_of_its_own_behind_quant(quantized):
    names = {layer.name for layer in quantized.layers}
    own = {f"quant_{layer.name}" for layer in float_models.build("mobile_block").layers[1:]}
    assert names == own | {"image", "quant_image_image"} | {
        "quant_project_bn_to_4_bits",
        "quant_add_to_4_bits",
    }


def test_the_model_can_be_taken_apart_like_any_keras_model(quantized):
    images = float_models.images()
    for name in ("quant_add", "quant_add_to_4_bits", "quant_pool"):
        layer = quantized.get_layer(name)
        features = keras.Model(quantized.input, layer.output)
        assert np.isfinite(features(images)).all()
    lines = []
    quantized.summary(print_fn=lambda line, **_: lines.append(line))
    assert any("quant_add_to_4_bits" in line for line in lines)


@pytest.mark.parametrize(
    "copy",
    [
        keras.models.clone_model,
        lambda model: keras.Model.from_config(model.get_config()),
        lambda model: keras.models.model_from_json(model.to_json()),
        lambda model: keras.Model.from_config(json.loads(json.dumps(model.get_config()))),
    ],
    ids=["clone", "config", "json", "json of the config"],
)
def test_a_copy_computes_the_same(copy, quantized):
    twin = copy(quantized)
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
