import math

import numpy as np
import pytest
import tf_keras as keras

import sat_tf
from sat_tf.graph.layer_kinds import role_of
from sat_tf.graph.layers.kind import Role
from sat_tf.graph.network import Network
from sat_tf.qat.placement import place
from sat_tf.qat.policy import BitPolicy
from sat_tf.quantizers.image import ImageQuantizer
from sat_tf.quantizers.pact import PactQuantizer, StreamQuantizer
from sat_tf.training import models

HEADS = ("gap", "pool_first")


def _build(**options):
    return models.mobilenet_v2_small(**{"num_classes": 10, "seed": 0, **options})


def _linear_layers(model):
    return [layer for layer in model.layers if role_of(layer) is Role.LINEAR]


def _source(layer):
    """The layer that made what enters this one, past layers that only move values."""
    source = layer.inbound_nodes[0].inbound_layers
    while role_of(source) is Role.MOVEMENT:
        source = source.inbound_nodes[0].inbound_layers
    return source


# Weights of the stem and the five blocks, counted by hand as 9·in·out, 9·channels or in·out:
# 432; 144 + 256; 1024 + 576 + 1536; 2304 + 864 + 2304; 2304 + 864 + 3840; 6400 + 1440 + 6400;
# 20480 in the last convolution, and two normalization parameters for each of 1,520 channels; the
# classifier 512·1000 + 1000.
@pytest.mark.parametrize("head", HEADS)
def test_a_thousand_classes_take_0_57_million_parameters(head):
    model = models.mobilenet_v2_small(head=head)
    assert sum(math.prod(v.shape) for v in model.trainable_weights) == 567_208


@pytest.mark.parametrize("head", HEADS)
@pytest.mark.parametrize("image_size", [24, 25, 1])
def test_feature_maps_halve_three_times(head, image_size):
    model = _build(image_size=image_size, head=head)
    sizes = [model.get_layer(f"block_{n}_project_conv").output_shape[1:3] for n in (1, 3, 5)]
    assert sizes == [(-(-image_size // stride),) * 2 for stride in (2, 4, 8)]


def test_the_head_pools_behind_or_in_front_of_the_last_convolution():
    assert _build(head="gap").get_layer("head_conv").output_shape == (None, 3, 3, 512)
    assert _build(head="pool_first").get_layer("head_conv").output_shape == (None, 1, 1, 512)


@pytest.mark.parametrize("head", HEADS)
def test_rectified_inputs_leave_no_linear_layer_but_the_stem_without_a_rectifier(head):
    stem, *others = _linear_layers(_build(head=head, rectified_inputs=True))
    assert stem.name == "stem_conv"
    assert {type(_source(layer)) for layer in others} == {keras.layers.ReLU}


@pytest.mark.parametrize("head", HEADS)
def test_without_them_rectifiers_stand_only_behind_normalizations(head):
    model = _build(head=head)
    rectifiers = [layer for layer in model.layers if isinstance(layer, keras.layers.ReLU)]
    assert {type(_source(layer)) for layer in rectifiers} == {keras.layers.BatchNormalization}
    names = [layer.name for layer in rectifiers]
    expected = ["stem_relu", "block_1_depthwise_relu"]
    for number in range(2, 6):
        expected += [f"block_{number}_expand_relu", f"block_{number}_depthwise_relu"]
    assert names == [*expected, "head_relu"]


def test_residual_sums_take_what_is_not_rectified():
    model = _build(rectified_inputs=True)
    for name, shortcut in (("block_3_add", "block_2_project_bn"), ("block_5_add", "block_4_")):
        sources = model.get_layer(name).inbound_nodes[0].inbound_layers
        assert sources[0].name.startswith(shortcut)
        assert not any(isinstance(source, keras.layers.ReLU) for source in sources)


@pytest.mark.thorough
def test_heads_and_rectifiers_do_not_change_the_initial_weights():
    reference = _build()
    for head in HEADS:
        for rectified in (False, True):
            model = _build(head=head, rectified_inputs=rectified)
            for one, other in zip(model.get_weights(), reference.get_weights(), strict=True):
                np.testing.assert_array_equal(one, other)


@pytest.mark.parametrize(("given", "expected"), [(None, 1000**-0.5), (0.01, 0.01)])
def test_classifier_stddev_is_that_of_the_initial_weights(given, expected):
    model = models.mobilenet_v2_small(classifier_stddev=given, seed=0)
    kernel = model.get_layer("classifier").kernel.numpy()
    # The standard error of a normal sample's deviation is 1/sqrt(2n) of it; five of them.
    assert kernel.std() == pytest.approx(expected, rel=5 / math.sqrt(2 * kernel.size))
    assert abs(kernel.mean()) < 5 * expected / math.sqrt(kernel.size)


@pytest.mark.parametrize("head", HEADS)
@pytest.mark.parametrize("rectified", [False, True])
def test_in_the_papers_setting_every_linear_layer_reads_codes(head, rectified):
    model = _build(head=head, rectified_inputs=rectified, rectifier_max=None)
    network = Network(model)
    placement = place(network, {node.name: None for node in network}, BitPolicy.paper(4))
    inserted = {
        reader: insertion.config.output
        for insertion in placement.insertions
        for reader in insertion.readers
    }
    stem, *others = _linear_layers(model)
    assert isinstance(inserted[stem.name], ImageQuantizer)
    for layer in others:
        quantizer = inserted.get(layer.name) or placement.configs[_source(layer).name].output
        # The linear bottlenecks can be negative where nothing rectifies them.
        kinds = PactQuantizer if rectified else (PactQuantizer, StreamQuantizer)
        assert isinstance(quantizer, kinds), layer.name
        assert quantizer.num_bits == 4


@pytest.mark.thorough
def test_clipping_levels_start_where_the_policy_says_if_rectifiers_have_no_maximum():
    policy = BitPolicy.paper(2, initial_clipping_level=2.5, initial_classifier_clipping_level=2.5)
    model = _build(head="pool_first", rectified_inputs=True, rectifier_max=None)
    quantized = sat_tf.quantize_model(model, policy)
    levels = [w for w in quantized.trainable_weights if "clipping_level" in w.name]
    assert len(levels) == len(_linear_layers(model)) - 1
    assert {float(level.numpy()) for level in levels} == {2.5}
