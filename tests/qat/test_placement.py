"""Placements worked out by hand, which `placements.txt` has, and single rules."""

import configparser
import functools
import pathlib

import pytest
import tf_keras as keras

from sat_tf.exact.tflite.input_range import range_of
from sat_tf.graph.network import Network
from sat_tf.graph.operation_layers import Scaling
from sat_tf.qat.configs import LayerConfig
from sat_tf.qat.placement import place
from sat_tf.qat.policy import BitPolicy
from sat_tf.quantizers.dorefa import DorefaQuantizer
from sat_tf.quantizers.observers import ImageQuantizer, RangeObserver
from sat_tf.quantizers.pact import PactQuantizer, StreamQuantizer, UnitQuantizer
from tests.qat import float_models

L = keras.layers


TABLE = configparser.ConfigParser(delimiters="=")
TABLE.optionxform = str
TABLE.read(pathlib.Path(__file__).parent / "placements.txt", "utf-8")
MOBILE, REQUANTIZED, PAPER = (
    {name: dict(part.split(": ") for part in text.split(", ")) for name, text in TABLE[of].items()}
    for of in ("mobile", "requantized", "paper")
)


@functools.cache
def _network(name):
    return Network(float_models.build(name))


def _place(network, policy, annotations=None):
    return place(network, {**{node.name: None for node in network}, **(annotations or {})}, policy)


def _short(quantizer):
    """The notation of the tables."""
    match quantizer:
        case DorefaQuantizer():
            return f"w{quantizer.num_bits or ''}{'*' if quantizer.rescale else ''}"
        case PactQuantizer():
            return f"u{quantizer.num_bits}"
        case StreamQuantizer():
            return f"s{quantizer.num_bits}"
        case ImageQuantizer():
            return "image"
        case RangeObserver():
            return "o"
    return None


def _sketch(placement):
    found = {}
    for name, config in placement.configs.items():
        parts = [_short(config.weights), _short(config.output)]
        if any(parts):
            found[name] = " ".join(part for part in parts if part)
    for insertion in placement.insertions:
        key = f"{insertion.tensor} > {' '.join(sorted(insertion.readers))}"
        found[key] = _short(insertion.config.output)
    return found


def _sketch_of(name, policy):
    return _sketch(_place(_network(name), policy))


@pytest.mark.parametrize("name", MOBILE)
def test_integer_end_to_end(name):
    assert _sketch_of(name, BitPolicy.mobile(4)) == MOBILE[name]


def test_every_graph_has_a_placement_worked_out():
    assert set(MOBILE) == {*float_models.EVERY}


@pytest.mark.parametrize("name", REQUANTIZED)
def test_streams_may_be_requantized_in_front_of_linear_layers(name):
    policy = BitPolicy.mobile(4, requantize_streams=True)
    assert _sketch_of(name, policy) == REQUANTIZED[name]


@pytest.mark.parametrize("name", PAPER)
def test_the_paper_leaves_streams_float(name):
    assert _sketch_of(name, BitPolicy.paper(4)) == PAPER[name]


@pytest.mark.parametrize("name", MOBILE)
def test_without_bits_weights_are_clamped_and_nothing_else_is_quantized(name):
    sketch = _sketch_of(name, BitPolicy(weight_bits=None, activation_bits=None))
    linear = {key: value.split()[0] for key, value in MOBILE[name].items() if value[0] == "w"}
    expected = {key: "w*" if "*" in value else "w" for key, value in linear.items()}
    # The image changes nothing either; what the model is fed is remembered.
    assert sketch == expected | {k: v for k, v in MOBILE[name].items() if v == "image"}


def test_without_activation_bits_weights_are_still_quantized():
    expected = {"a": "w8", "b": "w4", "classifier": "w8*", "image > a": "image"}
    assert _sketch_of("plain", BitPolicy(activation_bits=None)) == expected


def test_float_activations_know_what_a_pixel_stands_for():
    policy = BitPolicy(activation_bits=None, input_max=1.0)
    (insertion,) = _place(_network("plain"), policy).insertions
    assert insertion.config.output == ImageQuantizer.of_range(range_of((0, 1)))


@pytest.mark.parametrize(("bits", "expected"), [(None, "w3"), (4, "w4"), (1, "w1")])
def test_first_and_last_layers_may_have_weight_bits_of_their_own(bits, expected):
    sketch = _sketch_of("plain", BitPolicy(weight_bits=3, first_last_weight_bits=bits))
    assert (sketch["a"], sketch["b"], sketch["classifier"]) == (expected, "w3", f"{expected}* o")


def test_an_override_holds_for_the_first_layer_too():
    sketch = _sketch_of("plain", BitPolicy(overrides={"a": {"weight_bits": 3}}))
    assert (sketch["a"], sketch["classifier"]) == ("w3", "w8* o")


def test_two_readers_of_one_tensor_may_ask_for_different_bits():
    policy = BitPolicy(activation_bits=4, overrides={"c": {"activation_bits": 6}})
    sketch = _sketch_of("two_readers", policy)
    # The rectifier gives the finer grid; the coarser one is inserted for its reader.
    assert sketch["a_relu"] == "u6"
    assert sketch["a_relu > b"] == "u4"
    assert "a_relu > c" not in sketch


def test_a_float_reader_leaves_the_rectifier_float():
    policy = BitPolicy(overrides={"c": {"activation_bits": None}})
    sketch = _sketch_of("two_readers", policy)
    assert "a_relu" not in sketch
    assert sketch["a_relu > b"] == "u4"


@pytest.mark.parametrize(("stream_bits", "inserted"), [(8, True), (4, False), (3, False)])
def test_a_stream_that_is_coarse_already_is_not_quantized_again(stream_bits, inserted):
    policy = BitPolicy.mobile(4, stream_bits=stream_bits, requantize_streams=True)
    sketch = _sketch(_place(Network(_rectified_sum()), policy))
    assert sketch["sum"] == f"u{stream_bits}"
    assert ("sum > a" in sketch) is inserted


def _rectified_sum():
    """A stream that is never negative, which a convolution reads, and a sum."""
    image = keras.Input((8, 8, 3), name="image")
    stem, other = (L.Conv2D(4, 3, activation="relu", name=name)(image) for name in ("c", "d"))
    stream = L.Add(name="sum")([stem, other])
    branch = L.Conv2D(4, 1, activation="relu", name="a")(stream)
    x = L.GlobalAveragePooling2D(name="pool")(L.Add(name="end")([stream, branch]))
    return keras.Model(image, L.Dense(3, name="classifier")(x))


@pytest.mark.parametrize("bits", [2, 4, 8])
def test_activation_bits_given_for_a_layer_hold_for_the_stream_it_reads(bits):
    policy = BitPolicy.mobile(3, overrides={"last": {"activation_bits": bits}})
    sketch = _sketch_of("mobile_block", policy)
    assert sketch.get("add > last") == (None if bits == 8 else f"s{bits}")
    assert "project_bn > expand" not in sketch


def test_readers_of_one_stream_may_differ():
    policy = BitPolicy.mobile(4, overrides={"b": {"requantize_streams": True}})
    sketch = _sketch_of("sum_of_three", policy)
    assert sketch["a_relu > b"] == "u4"
    assert "a_relu > c" not in sketch


def test_a_bottleneck_that_linear_layers_alone_read_has_the_finest_bits_it_is_asked_for():
    network = _network("max_pool_between")
    for stream_bits, activation_bits, expected in [(8, 4, 8), (4, 8, 8), (None, 4, 4)]:
        policy = BitPolicy(stream_bits=stream_bits, activation_bits=activation_bits)
        assert _sketch(_place(network, policy))["a"] == f"w8* s{expected}"


def test_a_network_of_rectifiers_alone_works_at_one_bit():
    policy = BitPolicy.mobile(1, first_last_weight_bits=1, requantize_streams=True)
    sketch = _sketch_of("plain", policy)
    assert (sketch["a"], sketch["a_relu"], sketch["b"], sketch["pool"]) == ("w1", "u1", "w1", "u1")


def _level(name, layer, **fields):
    return _place(_network(name), BitPolicy(**fields)).configs[layer].output.initial_clipping_level


def test_clipping_levels_start_where_the_policy_says():
    fields = {"initial_clipping_level": 3.0, "initial_classifier_clipping_level": 5.0}
    fields["overrides"] = {"b_relu": {"initial_clipping_level": 2.0}}
    levels = [_level("plain", layer, **fields) for layer in ("a_relu", "b_relu", "pool")]
    assert levels == [3.0, 2.0, 5.0]


def test_a_level_given_for_the_classifiers_input_counts_even_if_it_is_the_general_one():
    fields = {"initial_classifier_clipping_level": 10.0}
    overrides = {"pool": {"initial_clipping_level": 8.0}}
    assert _level("plain", "pool", **fields, overrides=overrides) == 8.0
    # Seen from its reader, a layer in between makes no difference.
    assert _level("average_pool_same", "pool", **fields) == 10.0


@pytest.mark.parametrize(
    ("name", "layer", "ceiling"),
    [
        ("relu6", "a_relu", 6.0),
        ("relu6", "pool", 6.0),  # a mean does not exceed what it is of
        ("activation_layers", "a_relu", None),
        ("activation_layers", "b_relu", 6.0),
        ("depthwise", "c", 6.0),
        ("plain", "a_relu", None),
        ("sum_with_itself", "add", None),
    ],
)
def test_a_rectifiers_maximum_is_known(name, layer, ceiling):
    assert _place(_network(name), BitPolicy()).configs[layer].output.ceiling == ceiling


def test_the_policy_reaches_every_quantizer():
    of_weights = {"detach_max": True, "rescale": "stddev"}
    fields = {"weight_grid": "rounded", "weight_range": "channel", "clipping_gradient": "pact"}
    policy = BitPolicy(weight_bits=3, input_max=1.0, **fields, **of_weights)
    placement = _place(_network("depthwise"), policy)
    axes = {"range_axes": (2, 3), "gain_axes": (2, 3)}
    expected = DorefaQuantizer(num_bits=3, grid="rounded", fan_out=9, **axes, **of_weights)
    assert placement.configs["c"].weights == expected
    assert placement.configs["a"].weights.range_axes == (3,)
    assert placement.configs["classifier"].weights.range_axes == (1,)
    assert placement.configs["a_relu"].output.gradient == "pact"
    assert placement.insertions[0].config.output == ImageQuantizer.of_range(range_of((0, 1)))


def test_norms_behind_are_those_that_alone_read_a_linear_layer():
    assert _place(_network("plain"), BitPolicy()).norms_behind == {"a": ("a_bn",), "b": ("b_bn",)}
    both = _place(_network("two_normalizations"), BitPolicy()).norms_behind["a"]
    assert set(both) == {"a_bn", "b_bn"}
    # The sum reads the stem, too; and a rectifier stands in between.
    assert "stem" not in _place(_network("preactivation"), BitPolicy()).norms_behind
    assert not _place(_network("rectified_before_normalization"), BitPolicy()).norms_behind


def test_layers_without_an_annotation_stay_float():
    network = _network("plain")
    sketch = _sketch(place(network, {"b": None, "b_relu": None}, BitPolicy()))
    # The only linear layer left is the first and the last; its input is quantized in front of it.
    # Only layers without an annotation read the image, which stays as it is.
    assert sketch == {"a_relu > b": "u4", "b": "w8", "b_relu": "u8"}


def test_a_layer_config_is_stronger_than_the_policy():
    annotations = {
        "b": LayerConfig(weight_bits=3, activation_bits=3),
        "classifier": LayerConfig(weight_bits=5),
        "b_relu": LayerConfig(stream_bits=6),
    }
    policy = BitPolicy(overrides={"b": {"weight_bits": 7}})
    placement = _place(_network("plain"), policy, annotations)
    sketch = _sketch(placement)
    assert (sketch["a_relu"], sketch["b"], sketch["classifier"]) == ("u3", "w3", "w5* o")
    assert sketch["b_relu"] == "u6"
    assert placement.configs["b"].annotation == {"weight_bits": 3, "activation_bits": 3}
    assert placement.configs["a"].annotation is None


def _model(*layers):
    tensor = image = keras.Input((8, 8, 3), name="image")
    for layer in layers:
        tensor = layer(tensor)
    return Network(keras.Model(image, tensor, name="custom"))


@pytest.mark.parametrize(
    "layer",
    [
        L.ReLU(negative_slope=0.1, name="odd"),
        L.Activation("tanh", name="odd"),
        L.LeakyReLU(name="odd"),
        L.BatchNormalization(axis=1, name="odd"),
    ],
)
def test_nothing_is_assumed_of_a_float_layer_the_table_does_not_hold(layer):
    network = _model(L.Conv2D(4, 3, name="a"), layer, L.Conv2D(4, 3, name="b"))
    sketch = _sketch(place(network, {"a": None, "b": None}, BitPolicy()))
    # Its output may be negative, and has no grid.
    assert sketch == {"image > a": "image", "a": "w8* o", "odd > b": "s4", "b": "w8* o"}


def test_functions_are_quantized_on_the_range_they_have():
    network = _model(
        L.Conv2D(4, 3, name="a"),
        L.Activation("swish", name="swish"),
        L.Conv2D(4, 3, name="b"),
        L.Activation("sigmoid", name="sigmoid"),
        L.Conv2D(4, 3, name="c"),
        L.Softmax(name="softmax"),
        L.Conv2D(4, 1, name="d"),
        L.LayerNormalization(name="normalized"),
        L.Conv2D(4, 1, name="e"),
        L.Activation("tanh", name="tanh"),
    )
    configs = _place(network, BitPolicy.mobile(4)).configs
    # A function reads a stream; a tensor that only a linear layer reads has its bits.
    for name in "abcd":
        assert configs[name].output.num_bits == 8
    assert (configs["swish"].output.num_bits, configs["swish"].output.lowest) == (4, -0.2785)
    assert configs["sigmoid"].output == UnitQuantizer(num_bits=4)
    assert configs["softmax"].output == UnitQuantizer(num_bits=4)
    assert isinstance(configs["normalized"].output, StreamQuantizer)
    # The last one is part of the output: its input is observed, as logits are.
    assert isinstance(configs["e"].output, RangeObserver)
    assert configs["tanh"].output is None


def test_numbers_go_into_the_layers_around_them():
    network = _model(
        L.Conv2D(4, 3, name="a"),
        Scaling("x * c", 2.0, name="twice"),
        Scaling("x + c", 1.0, name="plus"),
        L.ReLU(6.0, name="relu"),
        Scaling("x / c", 6.0, name="sixth"),
        L.Conv2D(4, 3, name="b"),
    )
    configs = _place(network, BitPolicy.mobile(4)).configs
    assert [configs[name].output for name in ("a", "twice", "plus")] == [None, None, None]
    assert isinstance(configs["relu"].output, PactQuantizer)
    assert isinstance(configs["sixth"].output, PactQuantizer)
    assert configs["a"].weights.rescale == "stddev"  # a number is no normalization


def test_refused_layers_stay_float_where_the_policy_says_so():
    network = _model(
        L.Conv2D(4, 3, name="a"),
        L.Conv2D(4, 3, activation="tanh", name="odd"),
        L.UpSampling2D(name="up"),
        L.Conv2D(4, 3, name="b"),
    )
    sketch = _sketch(_place(network, BitPolicy(unsupported="float")))
    assert sketch == {"image > a": "image", "a": "w8* o", "up > b": "s4", "b": "w8* o"}
