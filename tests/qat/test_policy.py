import contextlib
import copy
import dataclasses
import inspect
import itertools
import json
import pickle
import re
import warnings

import numpy as np
import pytest
import tf_keras as keras
from hypothesis import given
from hypothesis import strategies as st

import sat_tf
from sat_tf.core.dorefa import RESCALINGS
from sat_tf.core.gradients import CLIPPING_GRADIENTS
from sat_tf.core.grid import AUTOMATIC, GRIDS, find_grid
from sat_tf.qat import policy_fields
from sat_tf.qat.configs import LayerConfig, PlacedConfig
from sat_tf.qat.policy import PER_LAYER_FIELDS, BitPolicy
from sat_tf.qat.policy_fields import GRID_NAMES, known_weights
from sat_tf.quantizers.dorefa import DorefaQuantizer
from sat_tf.quantizers.observers import RangeObserver
from sat_tf.quantizers.pact import PactQuantizer, StreamQuantizer
from sat_tf.quantizers.protocol import WeightRequest
from sat_tf.quantizers.quantizer_table import WEIGHT_QUANTIZERS, make_weight_quantizer

L = keras.layers


def test_the_default_is_4_bits_and_integer_end_to_end_for_litert():
    policy = BitPolicy()
    assert policy == BitPolicy.mobile(4)
    assert (policy.weight_bits, policy.activation_bits, policy.stream_bits) == (4, 4, 8)
    assert policy.first_last_weight_bits == 8
    assert policy.latent_start == "keep_function"
    assert policy.processor.name == "litert"
    policy = BitPolicy.mobile(4, target="ethos-u85")
    assert policy.processor.native
    assert BitPolicy(**policy.to_dict()) == policy
    assert policy.changes()["target"] == "ethos-u85"


@pytest.mark.parametrize("bits", range(1, 9))
def test_the_paper_leaves_streams_float_and_weights_as_they_are(bits):
    policy = BitPolicy.paper(bits)
    assert (policy.weight_bits, policy.activation_bits, policy.stream_bits) == (bits, bits, None)
    assert policy.latent_start == "as_is"
    assert policy.first_last_weight_bits == 8
    levels = (policy.initial_clipping_level, policy.initial_classifier_clipping_level)
    assert levels == (8.0, 10.0)
    assert policy.weight_quantizer == "dorefa"
    assert BitPolicy.paper(bits, stream_bits=8, detach_max=True).stream_bits == 8


def test_numbers_of_numpy_become_plain_ones():
    policy = BitPolicy(
        weight_bits=np.int64(3),
        initial_clipping_level=np.float32(2.5),
        overrides={"a": {"weight_bits": np.int32(2)}},
    )
    assert type(policy.weight_bits) is int
    assert json.loads(json.dumps(policy.to_dict()))["overrides"] == {"a": {"weight_bits": 2}}
    assert policy.initial_clipping_level == 2.5


def test_names_are_those_of_the_core_and_the_signature_those_of_the_fields():
    names = [field.name for field in dataclasses.fields(BitPolicy)]
    assert list(inspect.signature(BitPolicy).parameters) == names
    assert {*AUTOMATIC, *GRIDS} == set(policy_fields.GRID_NAMES)
    for method in RESCALINGS:
        BitPolicy(rescale=method)
    for gradient in CLIPPING_GRADIENTS:
        BitPolicy(clipping_gradient=gradient)


def test_a_policy_is_frozen_and_changed_by_replace():
    policy = BitPolicy()
    with pytest.raises(dataclasses.FrozenInstanceError):
        policy.weight_bits = 2
    assert dataclasses.replace(policy, weight_bits=2).weight_bits == 2
    with pytest.raises(ValueError, match="weight_bits=12"):
        dataclasses.replace(policy, weight_bits=12)


_BITS = st.one_of(st.none(), st.integers(1, 8))


@given(
    st.fixed_dictionaries(
        {
            **dict.fromkeys(["weight_bits", "activation_bits"], _BITS),
            "stream_bits": st.one_of(st.none(), st.integers(2, 8)),
            "rescale": st.sampled_from(RESCALINGS),
            "initial_clipping_level": st.floats(1e-3, 100),
            "overrides": _BITS.map(lambda bits: {"block_*": {"weight_bits": bits}}),
        }
    )
)
def test_a_policy_survives_a_trip_through_json(fields):
    policy = BitPolicy(**fields)
    assert BitPolicy(**json.loads(json.dumps(policy.to_dict()))) == policy


def test_overrides_name_layers_by_pattern_and_later_ones_win():
    overrides = {"block_*": {"weight_bits": 3, "rescale": "none"}, "block_1_*": {"weight_bits": 8}}
    policy = BitPolicy(weight_bits=4, overrides=overrides)

    def at(name, annotation=None):
        layer = policy.at(name, annotation)
        assert layer.overrides == ({} if "block" in name else overrides)
        return layer.weight_bits, layer.rescale

    assert at("stem") == at("Block_1_conv") == (4, "stddev")  # case matters
    assert at("block_2_conv") == (3, "none")
    assert at("block_1_conv") == (8, "none")
    assert at("block_1_conv", {"weight_bits": 2}) == (2, "none")  # an annotation is stronger


def test_what_is_asked_of_one_layer_holds_for_the_first_and_the_last_as_well():
    overrides = {"stem": {"weight_bits": 3}, "pool": {"initial_clipping_level": 8.0}}
    policy = BitPolicy(overrides=overrides)
    assert policy.at("stem").first_last_weight_bits is None
    assert policy.at("pool").initial_classifier_clipping_level == 8.0
    assert policy.at("other").first_last_weight_bits == 8
    assert policy.at("other").initial_classifier_clipping_level is None


def test_patterns_that_match_nothing_are_told_and_a_number_of_bits_is_the_mobile_policy():
    for bits in (1, 4, 8):
        assert sat_tf.SatQuantizeScheme(bits).policy == BitPolicy.mobile(bits)
    policy = BitPolicy(overrides={"conv_*": {}, "cnv_*": {}, "dense": {}})
    assert policy.unmatched_overrides(["conv_1", "classifier"]) == ["cnv_*", "dense"]


def test_overrides_cannot_be_changed_and_a_policy_has_a_hash():
    given = {"a": {"weight_bits": 3}}
    policy = BitPolicy(overrides=given)
    given["a"]["weight_bits"] = 99
    given["b"] = {}
    assert policy.overrides == {"a": {"weight_bits": 3}}
    with pytest.raises(TypeError, match="item assignment"):
        policy.overrides["b"] = {"weight_bits": 99}
    with pytest.raises(TypeError, match="item assignment"):
        policy.overrides["a"]["weight_bits"] = 99
    again = pickle.loads(pickle.dumps(copy.deepcopy(policy)))
    assert again == policy
    assert len({policy, again, BitPolicy()}) == 2


def test_a_warning_of_a_policy_names_the_line_of_its_user():
    with pytest.warns(UserWarning, match="rounds down.*trains badly") as seen:
        BitPolicy(weight_grid="modified")
    assert [warning.filename for warning in seen] == [__file__]


def test_eight_bits_are_beyond_int8_on_every_grid_but_the_narrow_one():
    beyond = {
        (name, bits, row.largest_code(bits))
        for name, row in GRIDS.items()
        for bits in range(row.fewest_bits, 9)
        if not row.fits_int8(bits)
    }
    largest = {"dorefa": 255, "rounded": 128, "modified": 128, "nested": 255}
    assert beyond == {(name, 8, code) for name, code in largest.items()}
    for name in GRID_NAMES:
        fits = name == "narrow" or name in AUTOMATIC
        assert policy_fields.fitting_grid(name, 8) == (name if fits else "auto")
        assert policy_fields.fitting_grid(name, 7) == name


@pytest.mark.parametrize("grid", ["dorefa", "rounded", "modified"])
@pytest.mark.parametrize("bits", [2, 4, 7])
@pytest.mark.filterwarnings("ignore:weight_grid='modified' rounds")
def test_layers_whose_8_bits_do_not_fit_on_the_grid_get_one_that_fits(grid, bits):
    policy = BitPolicy.mobile(bits, weight_grid=grid, overrides={"eight": {"weight_bits": 8}})

    def kernel(name, end):
        at = policy.at(name, end=end)
        return at.weight_bits, at.weight_grid

    assert kernel("inner", end=False) == (bits, grid)
    assert kernel("stem", end=True) == (8, "auto")
    assert kernel("eight", end=False) == kernel("eight", end=True) == (8, "auto")
    seven = dataclasses.replace(policy, first_last_weight_bits=7)
    assert seven.at("stem", end=True).weight_grid == grid
    narrow = dataclasses.replace(policy, first_last_weight_grid="narrow")
    assert narrow.at("stem", end=True).weight_grid == "narrow"


@pytest.mark.filterwarnings("ignore:weight_grid=")
@pytest.mark.parametrize("name", [*WEIGHT_QUANTIZERS, None])
def test_no_weights_are_refused_by_the_export_alone(name):
    """Every quantizer, at all bits and grids of a policy for files, inside and at the ends."""
    choices = itertools.product(range(1, 9), GRID_NAMES, [None, 8], [None, *GRID_NAMES])
    policies = []
    for bits, grid, end_bits, end_grid in choices:
        fields = {"first_last_weight_bits": end_bits, "first_last_weight_grid": end_grid}
        fields |= {"weight_quantizer": name, "weight_grid": grid}
        with contextlib.suppress(ValueError):
            policies.append(BitPolicy.mobile(bits, **fields))
    assert policies
    for policy, end in itertools.product(policies, (False, True)):
        at = policy.at("layer", end=end)
        request = WeightRequest(num_bits=at.weight_bits, grid=at.weight_grid)
        quantizer = make_weight_quantizer(known_weights(vars(at)), request)
        assert quantizer.export_problem() is None, (policy, end)


@pytest.mark.filterwarnings("ignore:weight_grid='dorefa'")
def test_the_paper_may_have_its_own_grid_in_all_layers():
    policy = BitPolicy.paper(4, weight_grid="dorefa")
    fits = BitPolicy.paper(4, weight_grid="dorefa", first_last_weight_grid="auto")
    ends = [each.at("stem", end=True) for each in (policy, fits)]
    assert [(at.weight_bits, at.weight_grid) for at in ends] == [(8, "dorefa"), (8, "auto")]


@pytest.mark.parametrize("preset", [BitPolicy.mobile, BitPolicy.paper])
@pytest.mark.parametrize("weight_range", ["layer", "channel"])
def test_every_policy_fits_int8_or_says_so_when_it_is_made(preset, weight_range):
    """All bits, bits of first and last layers, and grids."""
    said, fitting = 0, 0
    ends = [[None, *range(1, 9)], [None, *GRID_NAMES]]
    choices = itertools.product(range(1, 9), ends[0], GRID_NAMES, ends[1])
    for bits, end_bits, grid, end_grid in choices:
        fields = {
            "weight_range": weight_range,
            "first_last_weight_bits": end_bits,
            "weight_grid": grid,
            "first_last_weight_grid": end_grid,
        }
        with warnings.catch_warnings(record=True) as cautions:
            warnings.simplefilter("always")
            try:
                policy = preset(bits, **fields)
            except ValueError as error:
                problem, policy = str(error), None
        if policy is None:
            assert re.search("do not fit int8|a single value at 1 bit", problem)
            said += 1
            continue
        kernels = [policy.at("a", end=end) for end in (False, True)]
        found = [(at.weight_bits, find_grid(at.weight_grid, at.weight_bits)) for at in kernels]
        assert [bits for bits, _ in found] == [bits, end_bits or bits]
        is_beyond = any(row.largest_code(bits) > 127 for bits, row in found)
        is_told = any("not exported" in str(caution.message) for caution in cautions)
        assert is_told == is_beyond
        said, fitting = said + is_beyond, fitting + (not is_beyond)
    assert said > 0
    assert fitting > 1000


@pytest.mark.parametrize(
    ("policy", "text"),
    [
        (BitPolicy(), "BitPolicy()"),
        (BitPolicy.mobile(2), "BitPolicy(weight_bits=2, activation_bits=2)"),
        (BitPolicy(input_range=(0, 255)), "BitPolicy(input_range=(0.0, 255.0))"),
        (
            BitPolicy(overrides={"block_*": {"weight_bits": 8}}),
            "BitPolicy(overrides={'block_*': {'weight_bits': 8}})",
        ),
    ],
)
def test_a_policy_shows_the_fields_that_are_not_as_usual(policy, text):
    assert repr(policy) == text
    read = eval(text)
    assert read == policy
    assert read.states_input_range == policy.states_input_range


def _weights(policy):
    return known_weights(vars(policy))


def test_weights_that_nothing_names_are_the_best_known_at_the_bits_of_the_layer():
    names = [_weights(BitPolicy.mobile(bits).at("inside")) for bits in range(1, 9)]
    assert names == ["dorefa", "l1", *["dorefa"] * 6]
    assert _weights(BitPolicy.mobile(2).at("stem", end=True)) == "dorefa"
    mixed = BitPolicy.mobile(4, overrides={"a": {"weight_bits": 2}})
    assert (_weights(mixed.at("a")), _weights(mixed.at("b"))) == ("l1", "dorefa")


@pytest.mark.parametrize(
    "fields",
    [
        {"weight_quantizer": "dorefa"},
        {"weight_options": {"surrogate": "ewgs"}},
        {"rescale": "none"},
        {"detach_max": False},
        {"weight_grid": "nested"},
        {"latent_start": "as_is"},
        {"weight_bits": None},
    ],
)
def test_what_is_said_of_dorefas_weights_asks_for_them(fields):
    assert _weights(BitPolicy.mobile(2, **fields).at("inside")) == "dorefa"


def test_a_layer_config_takes_every_field_of_one_layer_and_can_be_made_of_a_policy():
    own = {"weight_bits": 3, "activation_bits": None, "stream_bits": 6, "rescale": "none"}
    own |= {"requantize_streams": True, "weight_grid": "rounded", "clipping_gradient": "pact"}
    own |= {"weight_range": "layer", "detach_max": False, "initial_clipping_level": 2.5}
    config = LayerConfig.from_policy(BitPolicy(**own))
    assert set(config.fields) == set(PER_LAYER_FIELDS)
    assert config.fields.items() >= own.items()
    again = LayerConfig.from_config(json.loads(json.dumps(config.get_config())))
    assert again == config
    assert hash(again) == hash(config)
    assert config != LayerConfig(**own)
    assert LayerConfig() != config.fields


def test_a_placed_config_survives_a_trip_through_json():
    weights, output = DorefaQuantizer(num_bits=3, range_axes=(3,)), StreamQuantizer(num_bits=8)
    marks = {"annotation": {"weight_bits": 3}, "inserted": True}
    placed = PlacedConfig(weights=weights, output=output, **marks)
    again = PlacedConfig.from_config(json.loads(json.dumps(placed.get_config())))
    assert again == placed
    assert hash(again) == hash(placed)
    assert PlacedConfig.from_config(PlacedConfig().get_config()) == PlacedConfig()
    assert PlacedConfig() != placed
    assert "DorefaQuantizer(num_bits=3" in repr(placed)


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
    assert config.stands_at_activation(layer) is at_activation
    assert config.replaces(layer) is replaces
