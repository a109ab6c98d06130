import itertools
import warnings

import numpy as np
import pytest
import tensorflow as tf
import tensorflow_model_optimization as tfmot
import tf_keras as keras

import sat_tf
from sat_tf.qat.model_class import policy_of
from sat_tf.qat.policy import BitPolicy
from sat_tf.qat.wrapper import QuantizedLayer
from tests.qat import float_models
from tests.qat.float_models import L, model_of

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
    layers = [IN_PARTS[name], L.Flatten(name="flat"), L.Dense(3, name="classifier")]
    model, policy = model_of(*layers, shape=(6, 4)), BitPolicy.mobile(8, input_type="float32")
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
    layers = [L.Conv2D(4, 3, name="a"), L.ReLU(), L.Flatten(), L.Dense(3, name="classifier")]
    first, *others = map(annotate_layer, layers)
    second = annotate_layer(L.Conv2D(4, 3, name="b"), sat_tf.configs.LayerConfig(**own))
    model = _applied(model_of(first, second, *others), BitPolicy(weight_bits=4))
    assert (_bits(model, "a"), _bits(model, "b")) == (8, 2)
    assert model.get_layer("quant_a").quantize_config.output.num_bits == 6
    assert model.get_layer("quant_b").quantize_config.annotation == own


def test_annotations_by_hand_and_for_the_whole_model_go_together():
    config = sat_tf.configs.LayerConfig(weight_bits=2, rescale="none")
    layers = [L.Conv2D(4, 3, name="a"), L.ReLU(), annotate_layer(L.Conv2D(4, 3, name="b"), config)]
    model = model_of(*layers, L.Flatten(), L.Dense(3, name="classifier"))
    for quantized in (_applied(annotate_model(model)), sat_tf.quantize_model(model)):
        assert (_bits(quantized, "a"), _bits(quantized, "b")) == (8, 2)
        assert quantized.get_layer("quant_b").quantize_config.weights.rescale == "none"


NOT_NAMED = {
    # A rectifier with an annotation absorbs the normalization, which has none.
    "absorbed": (
        lambda: [L.BatchNormalization(), annotate_layer(L.ReLU()), L.Flatten()],
        {"CONV_2D": 1, "RESHAPE": 1},
    ),
    # An annotated linear layer alone reads what has no annotation.
    "read": (
        lambda: [
            *(L.BatchNormalization(), L.ReLU(), L.Dropout(0.5), annotate_layer(L.Conv2D(4, 3))),
            *(annotate_layer(L.ReLU()), L.GlobalAveragePooling2D()),
        ],
        {"CONV_2D": 2, "MEAN": 1},
    ),
    "float in files anyway": (lambda: [L.PReLU(name="slopes"), L.Flatten()], None),
}


def test_layers_without_an_annotation_stay_as_they_are():
    layers = [L.Conv2D(4, 3, name="a"), L.LeakyReLU(name="leaky")]
    annotated = model_of(*layers, annotate_layer(L.Conv2D(4, 3, name="b")), L.Flatten())
    quantized = _applied(annotated)
    kinds = {layer.name: type(layer) for layer in quantized.layers}
    assert (kinds["a"], kinds["leaky"], kinds["quant_b"]) == (L.Conv2D, L.LeakyReLU, QuantizedLayer)
    inserted = quantized.get_layer("quant_leaky_to_8_bits").quantize_config
    assert inserted.inserted
    assert inserted.output.signed
    clamped, images = _applied(annotated, BitPolicy(**CLAMPED)), float_models.images()
    names = [layer.name for layer in clamped.layers if layer.name.startswith("quant_")]
    assert names == ["quant_b"]  # the image is for a layer left float alone
    expected = annotated(images).numpy()
    np.testing.assert_allclose(clamped(images), expected, atol=1e-4 * np.max(np.abs(expected)))


@pytest.mark.parametrize("name", NOT_NAMED)
@pytest.mark.filterwarnings("ignore::sat_tf.qat.calibrate.StaleStatisticsWarning")
def test_layers_without_an_annotation_that_cost_nothing_are_not_called_float(name, tmp_path):
    between, operators = NOT_NAMED[name]
    model = model_of(annotate_layer(L.Conv2D(4, 3)), *between(), annotate_layer(L.Dense(2)))
    with warnings.catch_warnings():
        warnings.filterwarnings("error", message=".*no annotation")
        quantized = _applied(model)
    if operators is not None:
        sat_tf.calibrate(quantized, float_models.images(64))
        found = sat_tf.export_tflite(quantized, tmp_path / "model.tflite").operators
        assert found == {"QUANTIZE": 1, "FULLY_CONNECTED": 1, "DEQUANTIZE": 1, **operators}


def test_the_model_can_be_taken_apart_and_names_its_layers_like_any_keras_model():
    model, policy = float_models.build("mobile_block"), BitPolicy(requantize_streams=True)
    quantized = sat_tf.calibrate(sat_tf.quantize_model(model, policy), float_models.images(64))
    names = {layer.name for layer in quantized.layers}
    own = {f"quant_{layer.name}" for layer in model.layers[1:]}
    inserted = {"quant_image_image", "quant_project_bn_to_4_bits", "quant_add_to_4_bits"}
    assert names == own | inserted | {"image"}
    images = float_models.images()
    for name in ("quant_add", "quant_add_to_4_bits", "quant_pool"):
        layer = quantized.get_layer(name)
        features = keras.Model(quantized.input, layer.output)
        assert np.isfinite(features(images)).all()
    lines = []
    quantized.summary(print_fn=lambda line, **_: lines.append(line))
    assert any("quant_add_to_4_bits" in line for line in lines)


def test_tfmots_scope_knows_every_class_and_the_registry_answers():
    with sat_tf.quantize_scope({"Mine": L.Dense}):
        for name in ("QuantizedLayer", "PlacedConfig", "PactQuantizer", "AtLeast", "Mine"):
            assert keras.utils.get_registered_object(name) is not None, name
        assert keras.utils.get_registered_object("QuantizeWrapperV2") is not None
    registry = sat_tf.SatQuantizeScheme().get_quantize_registry()
    assert not registry.supports(L.Dense(2))
    assert registry.get_quantize_config(L.Dense(2)) == sat_tf.configs.LayerConfig()


_POLICY = BitPolicy.mobile(4, initial_clipping_level=8.0, initial_classifier_clipping_level=10.0)


def _graph():
    layers = [L.Conv2D(4, 3, activation="relu", name="stem"), L.Flatten(name="flat")]
    model = model_of(*layers, L.Dense(3, name="classifier"))
    return model.input, model.output


@keras.utils.register_keras_serializable(package="test_user_class")
class Counting(keras.Model):
    def train_step(self, data):
        return {**super().train_step(data), "counted": tf.constant(1.0)}


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


def _fit(model):
    model.compile("sgd", keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    return model.fit(float_models.images(), np.arange(8) % 3, batch_size=4, verbose=0).history


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
    # TFMOT's own way keeps the class, too.
    annotated = annotate_model(Counting(*_graph()))
    applied = _applied(annotated, _POLICY)
    assert type(annotated) is type(applied) is Counting
    assert _fit(applied)["counted"] == [1.0]


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


CLAMPED = {"weight_bits": None, "activation_bits": None}


def _learnt(policy=None, name="mobile_block"):
    """A quantized model in which every variable has a value of its own."""
    model = sat_tf.quantize_model(float_models.build(name), policy or BitPolicy.mobile(4))
    draw = np.random.default_rng(7)
    for variable in model.variables:
        value = draw.uniform(0.5, 2.0, variable.shape)
        variable.assign(np.where(variable.numpy() < 0, -value, value))
    return model


@pytest.fixture(scope="module")
def learnt():
    return _learnt()


@pytest.mark.essential
def test_everything_learnt_is_carried_over():
    learnt = _learnt(policy=BitPolicy.mobile(4, requantize_streams=True))
    fewer = sat_tf.requantize(learnt, BitPolicy.mobile(2, requantize_streams=True))
    old = {v.name.replace("_4_bits", "_2_bits"): v.numpy() for v in learnt.variables}
    np.testing.assert_equal({v.name: v.numpy() for v in fewer.variables}, old)
    assert _bits(fewer, "expand") == 2
    assert fewer.get_layer("quant_a_relu").quantize_config.output.num_bits == 2
    assert fewer.get_layer("quant_add_to_2_bits").quantize_config.output.num_bits == 2
    assert fewer.name == learnt.name


def test_the_same_policy_gives_the_same_model_and_another_target_only_where_it_names_one():
    levels = {"initial_clipping_level": 8.0, "initial_classifier_clipping_level": 10.0}
    learnt = _learnt(BitPolicy.mobile(4, **levels))
    again = sat_tf.requantize(learnt, BitPolicy.mobile(4, **levels))
    assert again.get_config() == learnt.get_config()
    images = float_models.images()
    np.testing.assert_array_equal(again(images), learnt(images))
    # A target is kept unless the policy names another.
    micro = BitPolicy.mobile(4, target="micro")
    model = sat_tf.quantize_model(float_models.build("mobile_block"), micro)
    kept = sat_tf.requantize(model, BitPolicy.mobile(3))
    assert policy_of(kept).target == "micro"
    changed = sat_tf.requantize(kept, BitPolicy.mobile(3, target="litert"))
    assert policy_of(changed).target == "litert"


def test_the_model_itself_is_left_alone_and_as_is_keeps_statistics_and_gains(learnt):
    before = [value.copy() for value in learnt.get_weights()]
    config = learnt.get_config()
    fewer = sat_tf.requantize(learnt, BitPolicy.mobile(2))
    for variable in fewer.variables:
        variable.assign(variable * 0.0)
    other = BitPolicy.mobile(4, weight_range="channel", latent_start="as_is")
    channels = sat_tf.requantize(learnt, other)
    assert learnt.get_config() == config
    np.testing.assert_equal(before, learnt.get_weights())
    # As is, statistics and gains stay as they are.
    for name in ("quant_a", "quant_a_bn", "quant_classifier"):
        one, other = (model.get_layer(name).get_weights() for model in (channels, learnt))
        np.testing.assert_equal(one, other)


def test_the_papers_two_stages_run_on_one_set_of_latent_weights():
    clamped = BitPolicy.paper(4, **CLAMPED)
    stage_1 = sat_tf.quantize_model(float_models.build("mobile_block"), clamped)
    stage_2 = sat_tf.requantize(stage_1, BitPolicy.paper(4))
    for name, bits in (("a", 8), ("expand", 4), ("classifier", 8)):
        one, other = (model.get_layer(f"quant_{name}") for model in (stage_1, stage_2))
        np.testing.assert_array_equal(one.layer.kernel, other.layer.kernel)
        assert one.quantize_config.weights.num_bits is None
        assert _bits(stage_2, name) == bits
    level = stage_2.get_layer("quant_a_relu").output_variables["clipping_level"]
    assert level.numpy() == 8.0  # there was none to carry


@pytest.mark.thorough
def test_new_clipping_levels_start_as_the_policy_says(learnt):
    paper = sat_tf.requantize(learnt, BitPolicy.paper(4))
    back = sat_tf.requantize(paper, BitPolicy.mobile(4, initial_clipping_level=3.0))
    # The sum was float in between: its level is new, the rectifier's is not.
    assert back.get_layer("quant_add").output_variables["clipping_level"].numpy() == 3.0
    old = learnt.get_layer("quant_a_relu").output_variables["clipping_level"].numpy()
    assert back.get_layer("quant_a_relu").output_variables["clipping_level"].numpy() == old


_VARIANTS = itertools.product(("layer", "channel"), ("constant", "stddev", "none"))


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("name", "before", "after"),
    [
        (("mobile_block", "plain")[index % 2], *pair)
        for index, pair in enumerate(itertools.product(_VARIANTS, repeat=2))
    ],
)
def test_another_range_or_rescaling_keeps_the_function(name, before, after):
    def policy(variant):
        return BitPolicy(weight_range=variant[0], rescale=variant[1], **CLAMPED)

    images = float_models.images()
    model = sat_tf.quantize_model(float_models.build(name), policy(before))
    outputs = model(images).numpy()
    again = sat_tf.requantize(model, policy(after))(images).numpy()
    np.testing.assert_allclose(again, outputs, atol=1e-5 * np.max(np.abs(outputs)))


def test_a_model_that_has_its_function_by_gains_keeps_it_under_the_papers_policy():
    images, sizes = float_models.images(), {"weight_range": "layer", "rescale": "constant"}
    model = sat_tf.quantize_model(float_models.build("mobile_block"), BitPolicy(**CLAMPED, **sizes))
    paper = sat_tf.requantize(model, BitPolicy.paper(4, **CLAMPED))
    np.testing.assert_array_equal(paper(images), model(images))


@pytest.mark.parametrize("weight_range", ["layer", "channel"])
def test_a_model_without_gains_gets_them_with_a_policy_that_keeps_the_function(weight_range):
    images, policy = float_models.images(), BitPolicy.paper(4, **CLAMPED)
    model = sat_tf.quantize_model(float_models.build("mobile_block"), policy)
    assert not model.get_layer("quant_a").kernel_variables
    model.get_layer("quant_classifier").kernel_variables["rescale_gain"].assign(3.0)
    other = sat_tf.requantize(model, BitPolicy(**CLAMPED, weight_range=weight_range))
    expected = model(images).numpy()
    np.testing.assert_allclose(other(images), expected, atol=1e-5 * np.max(np.abs(expected)))


@pytest.mark.thorough
def test_frozen_layers_stay_frozen():
    model = _learnt()
    model.get_layer("quant_a").trainable = False
    model.get_layer("quant_expand").layer.trainable = False
    other = sat_tf.requantize(model, BitPolicy.mobile(3))
    assert not other.get_layer("quant_a").trainable_variables
    assert not other.get_layer("quant_expand").layer.trainable_variables
    assert other.get_layer("quant_again").trainable_variables
    model.trainable = False
    assert not sat_tf.requantize(model, BitPolicy.mobile(3)).trainable_variables


def test_annotations_by_hand_are_kept():
    config = sat_tf.configs.LayerConfig(weight_bits=2)
    layers = [annotate_layer(L.Conv2D(4, 3, name="b"), config), annotate_layer(L.Flatten())]
    layers += [annotate_layer(L.Dense(3, name="classifier"))]
    model = _applied(model_of(L.Conv2D(4, 3, name="a"), *layers))  # of which the first stays float
    other = sat_tf.requantize(model, BitPolicy(weight_bits=6, first_last_weight_bits=None))
    assert type(other.get_layer("a")) is L.Conv2D
    assert (_bits(other, "b"), _bits(other, "classifier")) == (2, 6)
    np.testing.assert_array_equal(other.get_layer("a").kernel, model.get_layer("a").kernel)


def test_overrides_may_move_a_quantizer():
    model = _learnt(name="two_readers")
    split = sat_tf.requantize(model, BitPolicy.mobile(4, overrides={"c": {"activation_bits": 6}}))
    assert split.get_layer("quant_a_relu").quantize_config.output.num_bits == 6
    assert split.get_layer("quant_a_relu_to_4_bits").quantize_config.output.num_bits == 4
    images = float_models.images()
    assert np.isfinite(split(images)).all()
