import itertools

import numpy as np
import pytest
import tensorflow_model_optimization as tfmot
import tf_keras as keras

import sat_tf
from sat_tf.qat.model_class import policy_of
from sat_tf.qat.policy import BitPolicy
from tests.qat import float_models


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


def _by_name(model):
    """Values by name, without the part that tells the bits of inserted quantizers."""
    return {
        v.name.replace("_4_bits", "").replace("_2_bits", ""): v.numpy() for v in model.variables
    }


@pytest.mark.essential
def test_everything_learnt_is_carried_over():
    learnt = _learnt(policy=BitPolicy.mobile(4, requantize_streams=True))
    fewer = sat_tf.requantize(learnt, BitPolicy.mobile(2, requantize_streams=True))
    old, new = _by_name(learnt), _by_name(fewer)
    assert set(old) == set(new)
    for name, value in new.items():
        np.testing.assert_array_equal(value, old[name], err_msg=name)
    assert fewer.get_layer("quant_expand").quantize_config.weights.num_bits == 2
    assert fewer.get_layer("quant_a_relu").quantize_config.output.num_bits == 2
    assert fewer.get_layer("quant_add_to_2_bits").quantize_config.output.num_bits == 2
    assert fewer.name == learnt.name


def test_the_same_policy_gives_the_same_model():
    levels = {"initial_clipping_level": 8.0, "initial_classifier_clipping_level": 10.0}
    learnt = _learnt(BitPolicy.mobile(4, **levels))
    again = sat_tf.requantize(learnt, BitPolicy.mobile(4, **levels))
    assert again.get_config() == learnt.get_config()
    images = float_models.images()
    np.testing.assert_array_equal(again(images), learnt(images))


def test_a_target_is_kept_unless_the_policy_names_another():
    micro = BitPolicy.mobile(4, target="micro")
    model = sat_tf.quantize_model(float_models.build("mobile_block"), micro)
    kept = sat_tf.requantize(model, BitPolicy.mobile(3))
    assert policy_of(kept).target == "micro"
    changed = sat_tf.requantize(kept, BitPolicy.mobile(3, target="litert"))
    assert policy_of(changed).target == "litert"


def test_the_model_itself_is_left_alone(learnt):
    before = [value.copy() for value in learnt.get_weights()]
    config = learnt.get_config()
    fewer = sat_tf.requantize(learnt, BitPolicy.mobile(2))
    for variable in fewer.variables:
        variable.assign(variable * 0.0)
    assert learnt.get_config() == config
    np.testing.assert_equal(before, learnt.get_weights())


def test_the_papers_two_stages_run_on_one_set_of_latent_weights():
    clamped = BitPolicy.paper(4, weight_bits=None, activation_bits=None)
    stage_1 = sat_tf.quantize_model(float_models.build("mobile_block"), clamped)
    stage_2 = sat_tf.requantize(stage_1, BitPolicy.paper(4))
    for name, bits in (("a", 8), ("expand", 4), ("classifier", 8)):
        one, other = (model.get_layer(f"quant_{name}") for model in (stage_1, stage_2))
        np.testing.assert_array_equal(one.layer.kernel, other.layer.kernel)
        assert one.quantize_config.weights.num_bits is None
        assert other.quantize_config.weights.num_bits == bits
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
        weight_range, rescale = variant
        bits = {"weight_bits": None, "activation_bits": None}
        return BitPolicy(weight_range=weight_range, rescale=rescale, **bits)

    images = float_models.images()
    model = sat_tf.quantize_model(float_models.build(name), policy(before))
    outputs = model(images).numpy()
    found = sat_tf.requantize(model, policy(after))(images).numpy()
    np.testing.assert_allclose(found, outputs, atol=1e-5 * np.max(np.abs(outputs)))


def test_as_is_leaves_statistics_and_gains_as_they_are(learnt):
    other = BitPolicy.mobile(4, weight_range="channel", latent_start="as_is")
    channels = sat_tf.requantize(learnt, other)
    for name in ("quant_a", "quant_a_bn", "quant_classifier"):
        found = channels.get_layer(name).get_weights()
        np.testing.assert_equal(found, learnt.get_layer(name).get_weights())


def test_a_model_that_has_its_function_by_gains_keeps_it_under_the_papers_policy():
    images = float_models.images()
    bits = {"weight_bits": None, "activation_bits": None}
    sizes = {"weight_range": "layer", "rescale": "constant"}  # those of the paper
    model = sat_tf.quantize_model(float_models.build("mobile_block"), BitPolicy(**bits, **sizes))
    paper = sat_tf.requantize(model, BitPolicy.paper(4, **bits))
    np.testing.assert_array_equal(paper(images), model(images))


@pytest.mark.parametrize("weight_range", ["layer", "channel"])
def test_a_model_without_gains_gets_them_with_a_policy_that_keeps_the_function(weight_range):
    images = float_models.images()
    bits = {"weight_bits": None, "activation_bits": None}
    model = sat_tf.quantize_model(float_models.build("mobile_block"), BitPolicy.paper(4, **bits))
    assert not model.get_layer("quant_a").kernel_variables
    model.get_layer("quant_classifier").kernel_variables["rescale_gain"].assign(3.0)
    other = sat_tf.requantize(model, BitPolicy(**bits, weight_range=weight_range))
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
    annotate, layers = tfmot.quantization.keras.quantize_annotate_layer, keras.layers
    image = keras.Input((8, 8, 3), name="image")
    tensor = layers.Conv2D(4, 3, name="a")(image)  # float
    config = sat_tf.configs.LayerConfig(weight_bits=2)
    tensor = annotate(layers.Conv2D(4, 3, name="b"), config)(tensor)
    tensor = annotate(layers.Flatten(name="flatten"))(tensor)
    float_model = keras.Model(image, annotate(layers.Dense(3, name="classifier"))(tensor))
    scheme = sat_tf.SatQuantizeScheme()
    model = tfmot.quantization.keras.quantize_apply(float_model, scheme=scheme)
    other = sat_tf.requantize(model, BitPolicy(weight_bits=6, first_last_weight_bits=None))
    assert type(other.get_layer("a")) is layers.Conv2D
    assert other.get_layer("quant_b").quantize_config.weights.num_bits == 2
    assert other.get_layer("quant_classifier").quantize_config.weights.num_bits == 6
    np.testing.assert_array_equal(other.get_layer("a").kernel, model.get_layer("a").kernel)


def test_overrides_may_move_a_quantizer():
    model = _learnt(name="two_readers")
    split = sat_tf.requantize(model, BitPolicy.mobile(4, overrides={"c": {"activation_bits": 6}}))
    assert split.get_layer("quant_a_relu").quantize_config.output.num_bits == 6
    assert split.get_layer("quant_a_relu_to_4_bits").quantize_config.output.num_bits == 4
    images = float_models.images()
    assert np.isfinite(split(images)).all()
