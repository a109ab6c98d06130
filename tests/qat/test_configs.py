import json

import pytest
import tf_keras as keras

import sat_tf
from sat_tf.qat.configs import LayerConfig, PlacedConfig
from sat_tf.qat.policy import PER_LAYER_FIELDS, BitPolicy
from sat_tf.quantizers.dorefa import DorefaQuantizer
from sat_tf.quantizers.observers import RangeObserver
from sat_tf.quantizers.pact import PactQuantizer, StreamQuantizer

L = keras.layers

ANNOTATION = {
    "weight_bits": 3,
    "activation_bits": None,
    "stream_bits": 6,
    "requantize_streams": True,
    "weight_grid": "rounded",
    "weight_range": "channel",
    "detach_max": True,
    "rescale": "none",
    "clipping_gradient": "pact",
    "initial_clipping_level": 2.5,
    "weight_quantizer": "dorefa",
    "weight_options": {},
    "activation_quantizer": "pact",
    "activation_options": {},
}


def test_a_layer_config_takes_every_field_of_one_layer():
    assert set(ANNOTATION) == set(PER_LAYER_FIELDS)
    config = LayerConfig(**ANNOTATION)
    assert config.get_config() == ANNOTATION
    again = LayerConfig.from_config(json.loads(json.dumps(config.get_config())))
    assert again == config
    assert hash(again) == hash(config)
    assert config != LayerConfig(weight_bits=3)
    assert LayerConfig() != ANNOTATION


def test_a_layer_config_can_be_made_of_a_policy():
    config = LayerConfig.from_policy(BitPolicy(weight_bits=2, stream_bits=None))
    assert config.fields["weight_bits"] == 2
    assert config.fields["stream_bits"] is None
    assert set(config.fields) == set(PER_LAYER_FIELDS)


PLACED = PlacedConfig(
    weights=DorefaQuantizer(num_bits=3, range_axes=(3,)),
    output=StreamQuantizer(num_bits=8, ceiling=6.0),
    annotation={"weight_bits": 3},
    inserted=True,
)


def test_a_placed_config_survives_a_trip_through_json():
    again = PlacedConfig.from_config(json.loads(json.dumps(PLACED.get_config())))
    assert again == PLACED
    assert hash(again) == hash(PLACED)
    assert PlacedConfig.from_config(PlacedConfig().get_config()) == PlacedConfig()
    assert PlacedConfig() != PLACED
    assert "DorefaQuantizer(num_bits=3" in repr(PLACED)


@pytest.mark.parametrize(
    ("layer", "output", "at_activation", "replaces"),
    [
        (L.Conv2D(2, 3, activation="relu"), PactQuantizer(num_bits=4), True, False),
        (L.Conv2D(2, 3, activation="relu"), RangeObserver(), False, False),
        (L.Conv2D(2, 3), StreamQuantizer(num_bits=8), False, False),
        (L.Dense(2, activation="softmax"), RangeObserver(), True, False),
        (L.Activation("relu"), PactQuantizer(num_bits=4), True, False),
        (L.ReLU(), PactQuantizer(num_bits=4), False, True),
        (L.ReLU(), RangeObserver(), False, False),
        (L.Add(), PactQuantizer(num_bits=8), False, False),
    ],
)
def test_an_output_quantizer_stands_at_the_activation_or_behind_the_layer(
    layer, output, at_activation, replaces
):
    config = PlacedConfig(output=output)
    assert bool(config.get_activations_and_quantizers(layer)) is at_activation
    behind = [one.quantizer for one in config.get_output_quantizers(layer)]
    assert behind == ([] if at_activation else [output])
    assert config.replaces(layer) is replaces


def test_a_config_without_quantizers_has_nothing_to_do():
    config = PlacedConfig()
    layer = L.Conv2D(2, 3, activation="relu")
    assert config.get_weights_and_quantizers(layer) == []
    assert config.get_activations_and_quantizers(layer) == []
    assert config.get_output_quantizers(layer) == []


def test_configs_are_public_by_their_module():
    assert sat_tf.configs.LayerConfig is LayerConfig
