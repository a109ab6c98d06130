"""Placements worked out by hand, which `placements.txt` has, and single rules."""

import configparser
import functools
import json
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
from tests.qat.float_models import L, model_of

TABLE = configparser.ConfigParser(delimiters="=")
TABLE.optionxform = str
TABLE.read(pathlib.Path(__file__).parent / "placements.txt", "utf-8")
MOBILE, REQUANTIZED, PAPER = (
    {name: dict(part.split(": ") for part in text.split(", ")) for name, text in TABLE[of].items()}
    for of in ("mobile", "requantized", "paper")
)
RULES = TABLE["rules"]


@functools.cache
def _network(name):
    return Network(float_models.build(name))


def _model(*layers):
    return Network(model_of(*layers))


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
    configs = {name: (c.weights, c.output) for name, c in placement.configs.items()}
    for inserted in placement.insertions:
        key = f"{inserted.tensor} > {' '.join(sorted(inserted.readers))}"
        configs[key] = (inserted.config.output,)
    sketch = {key: " ".join(filter(None, map(_short, parts))) for key, parts in configs.items()}
    return {key: words for key, words in sketch.items() if words or ">" in key}


def _sketch_of(name, policy):
    return _sketch(_place(_network(name), policy))


@pytest.mark.parametrize("name", sorted({*float_models.EVERY, *MOBILE, *REQUANTIZED, *PAPER}))
def test_integer_end_to_end(name):
    assert _sketch_of(name, BitPolicy.mobile(4)) == MOBILE.get(name)
    # Streams may be requantized in front of linear layers, and the paper leaves them float.
    if name in REQUANTIZED:
        policy = BitPolicy.mobile(4, requantize_streams=True)
        assert _sketch_of(name, policy) == REQUANTIZED[name]
    if name in PAPER:
        assert _sketch_of(name, BitPolicy.paper(4)) == PAPER[name]


@pytest.mark.parametrize("rule", RULES)
def test_a_rule_holds_in_a_graph(rule):
    name, policy, expected = RULES[rule].split(" | ")
    sketch = _sketch_of(name, BitPolicy(**json.loads(policy)))
    for key, words in (part.split(": ") for part in expected.split(", ")):
        assert sketch.get(key, "-") == words, key


@pytest.mark.parametrize("name", MOBILE)
def test_without_bits_weights_are_clamped_and_nothing_else_is_quantized(name):
    sketch = _sketch_of(name, BitPolicy(weight_bits=None, activation_bits=None))
    linear = {key: value.split()[0] for key, value in MOBILE[name].items() if value[0] == "w"}
    expected = {key: "w*" if "*" in value else "w" for key, value in linear.items()}
    # The image changes nothing either; what the model is fed is remembered.
    assert sketch == expected | {k: v for k, v in MOBILE[name].items() if v == "image"}


def test_without_activation_bits_weights_are_quantized_and_pixels_known():
    expected = {"a": "w8", "b": "w4", "classifier": "w8*", "image > a": "image"}
    assert _sketch_of("plain", BitPolicy(activation_bits=None)) == expected
    policy = BitPolicy(activation_bits=None, input_max=1.0)
    (insertion,) = _place(_network("plain"), policy).insertions
    assert insertion.config.output == ImageQuantizer.of_range(range_of((0, 1)))


@pytest.mark.parametrize(("bits", "expected"), [(None, "w3"), (4, "w4"), (1, "w1")])
def test_first_and_last_layers_may_have_weight_bits_of_their_own(bits, expected):
    sketch = _sketch_of("plain", BitPolicy(weight_bits=3, first_last_weight_bits=bits))
    assert (sketch["a"], sketch["b"], sketch["classifier"]) == (expected, "w3", f"{expected}* o")


@pytest.mark.parametrize(("stream_bits", "inserted"), [(8, True), (4, False), (3, False)])
def test_a_stream_that_is_coarse_already_is_not_quantized_again(stream_bits, inserted):
    # A stream that is never negative, which a convolution reads, and a sum.
    c, d = (L.Conv2D(4, 3, activation="relu", name=name) for name in "cd")
    a = L.Conv2D(4, 1, activation="relu", name="a")
    sums = [lambda x: L.Add(name="sum")([c(x), d(x)]), lambda x: L.Add(name="end")([x, a(x)])]
    network = _model(*sums, L.GlobalAveragePooling2D(name="pool"), L.Dense(3, name="classifier"))
    policy = BitPolicy.mobile(4, stream_bits=stream_bits, requantize_streams=True)
    sketch = _sketch(_place(network, policy))
    assert sketch["sum"] == f"u{stream_bits}"
    assert ("sum > a" in sketch) is inserted


def _level(name, layer, **fields):
    return _place(_network(name), BitPolicy(**fields)).configs[layer].output.initial_clipping_level


def test_clipping_levels_start_where_the_policy_says():
    fields = {"initial_clipping_level": 3.0, "initial_classifier_clipping_level": 5.0}
    fields["overrides"] = {"b_relu": {"initial_clipping_level": 2.0}}
    levels = [_level("plain", layer, **fields) for layer in ("a_relu", "b_relu", "pool")]
    assert levels == [3.0, 2.0, 5.0]
    # One given for the classifier's input counts even if it is the general one.
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


@pytest.mark.parametrize(
    "layer",
    [
        *(L.ReLU(negative_slope=0.1, name="odd"), L.Activation("tanh", name="odd")),
        *(L.LeakyReLU(name="odd"), L.BatchNormalization(axis=1, name="odd")),
    ],
)
def test_nothing_is_assumed_of_a_float_layer_the_table_does_not_hold(layer):
    network = _model(L.Conv2D(4, 3, name="a"), layer, L.Conv2D(4, 3, name="b"))
    sketch = _sketch(place(network, {"a": None, "b": None}, BitPolicy()))
    # Its output may be negative, and has no grid.
    assert sketch == {"image > a": "image", "a": "w8* o", "odd > b": "s4", "b": "w8* o"}


def test_functions_are_quantized_on_the_range_they_have():
    network = _model(
        *(L.Conv2D(4, 3, name="a"), L.Activation("swish", name="swish")),
        *(L.Conv2D(4, 3, name="b"), L.Activation("sigmoid", name="sigmoid")),
        *(L.Conv2D(4, 3, name="c"), L.Softmax(name="softmax")),
        *(L.Conv2D(4, 1, name="d"), L.LayerNormalization(name="normalized")),
        *(L.Conv2D(4, 1, name="e"), L.Activation("tanh", name="tanh")),
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
        *(L.Conv2D(4, 3, name="a"), Scaling("x * c", 2.0, name="twice")),
        *(Scaling("x + c", 1.0, name="plus"), L.ReLU(6.0, name="relu")),
        *(Scaling("x / c", 6.0, name="sixth"), L.Conv2D(4, 3, name="b")),
    )
    configs = _place(network, BitPolicy.mobile(4)).configs
    assert [configs[name].output for name in ("a", "twice", "plus")] == [None, None, None]
    assert isinstance(configs["relu"].output, PactQuantizer)
    assert isinstance(configs["sixth"].output, PactQuantizer)
    assert configs["a"].weights.rescale == "stddev"  # a number is no normalization


def test_refused_layers_stay_float_where_the_policy_says_so():
    network = _model(
        *(L.Conv2D(4, 3, name="a"), L.Conv2D(4, 3, activation="tanh", name="odd")),
        *(L.UpSampling2D(name="up"), L.Conv2D(4, 3, name="b")),
    )
    sketch = _sketch(_place(network, BitPolicy(unsupported="float")))
    assert sketch == {"image > a": "image", "a": "w8* o", "up > b": "s4", "b": "w8* o"}


@pytest.mark.parametrize(("bits", "of_output"), [(8, 8), (16, 16)])
def test_each_layer_is_looked_at_once_however_many_ways_lead_to_it(bits, of_output):
    """As in the steps of a GRU, whose states are read by several layers of the next one."""
    tensor = image = L.Input((4, 4, 3), name="image")
    tensor = L.Conv2D(2, 1, name="stem")(tensor)
    for _ in range(40):
        tensor = L.Add()([tensor, L.ReLU()(tensor)])
    network = Network(keras.Model(image, L.Dense(2, name="head")(L.Flatten()(tensor))))
    configs = _place(network, BitPolicy(weight_bits=8, activation_bits=bits)).configs
    assert configs["head"].output.num_bits == of_output
