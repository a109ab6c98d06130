import collections
import dataclasses
import glob
import itertools
import warnings

import numpy as np
import pytest
import tensorflow as tf
import tf_keras as keras

import sat_tf
from sat_tf.graph.network import Network
from sat_tf.graph.operation_layers import RMSNormalization
from sat_tf.planning.deployment import multiply_adds
from sat_tf.planning.explain import read_source
from sat_tf.planning.file_size import FileSizes, file_bytes
from sat_tf.planning.plan import Export
from sat_tf.qat.policy import BitPolicy
from sat_tf.training import models
from tests.analysis.allocation.small_models import family, images_for, joined, residual
from tests.export import operators, zoo
from tests.export.proofs import calibrated
from tests.export.zoo import Specimen, block, chain, convolution, head
from tests.planning.models import assert_followed, problem_lines, with_odd_activation
from tests.qat.float_models import L, model_of
from tests.qat.float_models import chain as chained
from tests.qat.models import nested_models

# The plan is made before training: it knows no float head, and takes all clipping levels to be
# different and none to be tiny.
HANGS_ON_LEVELS = ("residual_with_a_branch_next_to_nothing", "densely_connected")
PLANNED = [
    name
    for name, specimen in zoo.ZOO.items()
    if not specimen.float_head and name not in HANGS_ON_LEVELS
]


def operators_of(plan):
    return collections.Counter(name for row in plan.rows for name in row.operators)


# A few say most; the others are for the long run.
QUICK = ("preactivation_float_streams", "inception", "residual_rectified")


@pytest.mark.parametrize(
    "name",
    [name if name in QUICK else pytest.param(name, marks=pytest.mark.slow) for name in PLANNED],
)
def test_operators_of_the_zoo_are_those_of_its_files(name):
    specimen = zoo.ZOO[name]
    plan = sat_tf.explain(specimen.build(), specimen.policy)
    assert operators_of(plan) == operators.counts(operators.read()[name])
    assert (plan.problems, plan.export_problems) == ((), ())
    # Layers are fused into those that make the tensors.
    for row in plan.rows if name in (*QUICK, "residual") else ():
        assert not (row.fused_into and row.operators)
        assert all(plan[into].operators for into in row.fused_into)


@pytest.mark.thorough
@pytest.mark.parametrize(
    "policy",
    [
        BitPolicy.mobile(4, unsupported="float"),
        BitPolicy.paper(3, unsupported="float"),
        pytest.param(BitPolicy(activation_bits=None, unsupported="float"), marks=pytest.mark.slow),
    ],
    ids=["mobile", "paper", "weights_only"],
)
def test_float_layers_and_float_operators_are_those_that_the_export_reports(policy, tmp_path):
    model = model_of(
        *(L.Conv2D(4, 3, name="conv"), L.CenterCrop(8, 8, name="odd")),
        *(L.Conv2D(4, 3, name="second"), L.ReLU(name="relu")),
        *(L.GlobalAveragePooling2D(name="pool"), L.Dense(3, name="classifier")),
        L.UnitNormalization(name="last"),
    )
    plan = sat_tf.explain(model, policy)
    report = sat_tf.export_tflite(calibrated(model, policy), tmp_path / "odd.tflite")
    assert list(plan.float_layers) == report.float_layers
    planned = operators_of(plan)
    planned_floats = {name: count for name, count in planned.items() if name.startswith("float ")}
    assert sum(planned_floats.values()) == len(report.float_layers)
    for name, count in planned.items():
        assert name in planned_floats or report.operators[name] >= count
    # The model alone can have been fed nothing.
    seen = [warning for warning in report.warnings if "nothing was seen of what" not in warning]
    assert set(plan.notes) == set(seen)


@pytest.mark.essential
@pytest.mark.filterwarnings("ignore:.*not exported")
@pytest.mark.parametrize(
    ("bits", "fields"),
    [(4, {"weight_bits": None}), (8, {"first_last_weight_grid": "dorefa"})],
    ids=["no_codes", "codes_beyond_int8"],
)
def test_refusals_are_those_of_the_export(bits, fields, tmp_path):
    model, policy = zoo.ZOO["residual"].build(), BitPolicy.paper(bits, **fields)
    plan = sat_tf.explain(model, policy)
    quantized = sat_tf.quantize_model(model, policy)
    with pytest.raises(ValueError, match="problem") as error:
        sat_tf.export_tflite(quantized, tmp_path / "model.tflite")
    lines = problem_lines(error)
    assert list(plan.export_problems) == lines
    refused = [row.name for row in plan.rows if row.export is Export.REFUSED]
    assert refused == list(dict.fromkeys(line.split(":")[0] for line in lines))


def test_an_open_image_size_is_refused_unless_one_is_given(tmp_path):
    policy = BitPolicy.mobile(4, unsupported="float")
    quantized = sat_tf.quantize_model(with_odd_activation(), policy)
    with pytest.raises(ValueError, match="fixed sizes") as error:
        sat_tf.export_tflite(quantized, tmp_path / "model.tflite")
    assert sat_tf.explain(with_odd_activation(), policy).export_problems[0] in str(error.value)
    plan = sat_tf.explain(with_odd_activation(), policy, image_size=16)
    assert plan.export_problems == ()
    assert plan.bytes > 0


def test_float_layers_that_do_not_convert_are_refused_before_training():
    # A function that TFLite has no operator for.
    bessel = type("Bessel", (L.Layer,), {"call": lambda self, x: tf.math.bessel_i0e(x)})
    layers = [L.Conv2D(4, 3, activation="relu", name="conv"), bessel(name="bessel"), L.Flatten()]
    model = model_of(*layers, L.Dense(3, name="classifier"))
    plan = sat_tf.explain(model, BitPolicy.mobile(8, unsupported="float"))
    assert not plan.problems
    (problem,) = plan.export_problems
    assert problem.startswith("bessel: received a Bessel that is left float")
    assert plan["bessel"].export is Export.REFUSED


@pytest.mark.parametrize(
    ("layer", "shape", "expected"),
    [
        (L.Conv2D(5, 3, strides=2, padding="same"), (8, 6, 2), 4 * 3 * 9 * 2 * 5),
        (L.Conv2D(4, (1, 3), groups=2), (8, 6, 2), 8 * 4 * 3 * 1 * 4),
        (L.Conv1D(3, 2), (8, 4), 7 * 2 * 4 * 3),
        (L.DepthwiseConv2D(3, depth_multiplier=2), (5, 5, 3), 9 * 9 * 3 * 2),
        (L.SeparableConv2D(7, 3), (5, 5, 3), 9 * (9 * 3 + 3 * 7)),
        # Each input is multiplied by the whole kernel.
        (L.Conv2DTranspose(4, 3, strides=2), (5, 5, 3), 25 * 9 * 3 * 4),
        (L.Dense(4), (6,), 24),
        (L.Dense(4), (5, 6), 5 * 24),
        (L.BatchNormalization(), (5, 5, 3), 0),
        (L.ReLU(), (5, 5, 3), 0),
        (L.PReLU(), (5, 5, 3), 0),
        (L.Conv2D(4, 3), (None, None, 3), None),
        (L.LSTM(4), (5, 3), None),
    ],
)
def test_products_of_weights_and_inputs(layer, shape, expected):
    network = Network(keras.Sequential([keras.Input(shape), layer]))
    node = network[layer.name]
    assert multiply_adds(node, [network[name].shape for name in node.inputs]) == expected


def activated():
    """Functions that files for CPUs look up, and a mean that they compute as a convolution."""
    return chain(
        (16, 16, 3),
        *block(convolution(8, name="stem"), L.Activation("swish", name="swish")),
        L.AveragePooling2D(4, name="pool"),
        *block(convolution(8, 1, name="point"), L.LeakyReLU(0.2, name="leaky")),
        L.UpSampling2D(2, interpolation="bilinear", name="wider"),
        *head(),
    )


SPECIMENS = {
    "activated": Specimen(activated),
    **{
        name: zoo.ZOO[name]
        for name in (
            *("residual", "preactivation", "average_pooling", "softmax", "zero_padding"),
            *("sums_of_many", "flattened", "dilated", "signed_mean_float_streams"),
        )
    },
}
TARGETS = ("ethos-u55", "ethos-u85", "int8", "micro")
FEW = {("activated", "ethos-u55"), ("softmax", "int8")}
EACH = [
    pytest.param(name, target, marks=[] if (name, target) in FEW else pytest.mark.thorough)
    for name in SPECIMENS
    for target in TARGETS
]


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(("name", "target"), EACH)
def test_a_plan_names_the_operators_that_the_file_leaves_to_the_cpu(name, target, tmp_path):
    policy = SPECIMENS[name].policy
    model = SPECIMENS[name].build()
    zoo.make_realistic(model)
    plan = sat_tf.explain(model, policy, target=target)
    quantized = sat_tf.quantize_model(model, dataclasses.replace(policy, target=target))
    sat_tf.calibrate(quantized, zoo.images_for(quantized))
    report = sat_tf.export_tflite(quantized, tmp_path / "model.tflite")
    assert report.target == plan.target.name == target
    assert plan.file_operators == sum(report.operators.values())
    assert list(plan.cpu_fallback) == report.cpu_fallback


def test_a_plan_for_a_cpu_names_what_it_refuses_alone():
    plan = sat_tf.explain(zoo.bottleneck(), BitPolicy.mobile(4), target="micro")
    assert plan.cpu_fallback == ()
    assert "TFLite Micro" not in str(plan)
    assert plan.policy.target == "micro"
    # Its kernels have 8 bits.
    packed = sat_tf.explain(zoo.bottleneck(), BitPolicy.mobile(4))
    assert plan.bytes > packed.bytes
    # What TFLite Micro refuses is named.
    layers = [convolution(4), lambda x: tf.reduce_prod(x, [1, 2]), L.Dense(2)]
    model = model_of(*layers)
    plan = sat_tf.explain(model, BitPolicy.mobile(4, unsupported="float", target="micro"))
    assert [one.operator for one in plan.cpu_fallback] == ["REDUCE_PROD"]
    assert "TFLite Micro refuses 1 of " in str(plan)


def test_a_plan_shows_its_target_on_the_terminal_and_on_the_page(tmp_path):
    plan = sat_tf.explain(activated(), BitPolicy.mobile(4, target="ethos-u55"))
    shown = {"text": str(plan), "page": tmp_path / "plan.html"}
    plan.write_page(shown["page"])
    for text in (shown["text"], shown["page"].read_text(encoding="utf-8")):
        assert plan.target.statements(plan.cpu_fallback, plan.file_operators)[0].words in text


def test_a_model_of_open_sizes_is_refused_for_an_npu_before_it_is_quantized():
    image, other = keras.Input((None, None, 3), name="a"), keras.Input((None, 8, 3), name="b")
    both = L.Add()([convolution(4)(image), convolution(4)(other)])
    model = keras.Model([image, other], L.GlobalAveragePooling2D()(both))
    policy = BitPolicy.mobile(4, target="int8")
    with pytest.raises(ValueError, match="2 problems") as error:
        sat_tf.quantize_model(model, policy)
    said = str(error.value)
    assert "a: received an input of shape (None, None, 3) for TFLite's int8" in said
    assert "b: received an input of shape (None, 8, 3)" in said
    plan = sat_tf.explain(model, policy)
    assert sum("constant shapes" in problem for problem in plan.problems) == 2


SIZED = {
    "residual": residual,
    "joined": joined,
    "mobilenet_v2": lambda: family("mobilenet_v2"),
    "resnet18": lambda: family("resnet18"),
}
SMALL_FIRST = [
    pytest.param(name, marks=[] if name in ("residual", "joined") else pytest.mark.thorough)
    for name in SIZED
]
EVERYWHERE = {"first_last_weight_bits": None}


def assert_exact(model, policy, path, pack="auto"):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the weights are random, and the images few
        quantized = sat_tf.calibrate(sat_tf.quantize_model(model, policy), images_for(model, 8))
    exported = sat_tf.export_tflite(quantized, path, pack=pack)
    assert file_bytes(model, policy, pack=pack) == exported.bytes


@pytest.mark.essential
@pytest.mark.parametrize("pack", ["auto", "int4"])
@pytest.mark.parametrize("name", SMALL_FIRST)
def test_the_bytes_are_those_of_the_file(name, pack, tmp_path):
    policy = BitPolicy.mobile(4, **EVERYWHERE)
    assert_exact(SIZED[name](), policy, tmp_path / "model.tflite", pack)


# Two packings; and kernels of as many bytes, 8 x 8 weights of 8 bits and 8 x 16 of 4 bits.
@pytest.mark.parametrize(
    ("policy", "pack"),
    [
        (BitPolicy.mobile(2, weight_grid="rounded", **EVERYWHERE), "none"),
        (BitPolicy.mobile(2, weight_grid="rounded", **EVERYWHERE), "int2"),
        (BitPolicy.mobile(4, overrides={"one": {"weight_bits": 8}}), "auto"),
    ],
    ids=["none", "int2", "two_storages"],
)
def test_packings_and_storages_are_those_of_the_file(policy, pack, tmp_path):
    assert_exact(residual(), policy, tmp_path / "model.tflite", pack)


def test_equal_kernels_of_two_layers_are_not_taken_for_one(tmp_path):
    model = residual()
    four = model.get_layer("four")
    four.set_weights([np.ones_like(weight) for weight in four.get_weights()])
    assert_exact(model, BitPolicy.mobile(4), tmp_path / "model.tflite")


@pytest.mark.parametrize("pack", ["auto", "int4"])
@pytest.mark.parametrize("name", SMALL_FIRST)
def test_mixtures_are_as_long_as_their_files(name, pack):
    model, draw, choices = SIZED[name](), np.random.default_rng(0), (2, 4, 8)
    rows = [row for row in sat_tf.explain(model, BitPolicy.mobile(4)).layers if row.weights]
    names = [row.name for row in rows if row.weights.bits == 4]

    def mixed(bits):
        fields = {glob.escape(name): {"weight_bits": own} for name, own in bits.items()}
        return BitPolicy.mobile(4, overrides=fields)

    source, policy_at = read_source(model), lambda own: mixed(dict.fromkeys(names, own))
    sizes = FileSizes(source, policy_at, choices, pack=pack)
    for _ in range(3):
        bits = {layer: int(draw.choice(choices)) for layer in names}
        whole = file_bytes(model, mixed(bits), pack=pack)
        # Entries that a file has once for all layers, and its alignment.
        assert -8 <= sizes.base + sum(itertools.starmap(sizes.added, bits.items())) - whole <= 64
    if (name, pack) == ("residual", "auto"):
        # A 1x1 convolution of 8 channels, and a 3x3 one.
        assert [sizes.stored_bits("one", bits) for bits in choices] == [4, 4, 8]
        assert [sizes.stored_bits("two", bits) for bits in choices] == [8, 8, 8]
        assert [sizes.kernel_bytes("one", bits) for bits in (4, 8)] == [32, 64]
        assert sizes.kernel_bytes("stem", 8) == 3 * 3 * 3 * 8


# Nothing that is decided by an estimate hangs on more.
_LARGE, _LARGE_FILE = 0.03, 100_000
# Small files are tables of the flatbuffer for the most part.
_SMALL = 0.10


def assert_near(planned, real):
    assert abs(planned / real - 1.0) < (_LARGE if real > _LARGE_FILE else _SMALL), (planned, real)


def siamese():
    """One tower for two images."""
    one, other, image = (L.Input((16, 16, 3), name=name) for name in ("one", "other", "image"))
    tensor = image
    for filters in (16, 32):
        tensor = L.Conv2D(filters, 3, padding="same", use_bias=False)(tensor)
        tensor = L.ReLU()(L.BatchNormalization()(tensor))
    tower = keras.Model(image, L.GlobalAveragePooling2D()(tensor), name="tower")
    difference = L.Subtract(name="difference")([tower(one), tower(other)])
    return keras.Model([one, other], L.Dense(2, name="same")(difference))


def reused():
    """A convolution that is called three times, with its rectifier."""
    again = L.Conv2D(16, 3, padding="same", activation="relu", name="again")
    return model_of(*[again] * 3, L.GlobalAveragePooling2D(), L.Dense(3), shape=(8, 8, 16))


def normalized(*norms):
    """Convolutions with such normalizations behind."""
    layers = [[L.Conv2D(16, 3, padding="same"), norm, L.ReLU()] for norm in norms]
    return model_of(*layers, L.GlobalAveragePooling2D(), L.Dense(3))


FEW_PERCENT = 0.04
# A MAXIMUM, which a tensor needs unless calibration gives it a zero point: that is not planned.
ONE_OPERATOR = 300
ESTIMATED = {
    "siamese": siamese,
    "reused": reused,
    "layer": lambda: normalized(L.LayerNormalization(), L.LayerNormalization(scale=False)),
    "group": lambda: normalized(L.GroupNormalization(4), L.GroupNormalization(2)),
    "unit": lambda: normalized(L.UnitNormalization()),
    "rms": lambda: normalized(RMSNormalization()),
    "prelu": lambda: normalized(L.PReLU()),
}


@pytest.mark.thorough
@pytest.mark.parametrize("preset", [BitPolicy.mobile, BitPolicy.paper])
@pytest.mark.parametrize("name", ESTIMATED)
def test_shared_kernels_are_counted_once_and_float_layers_as_the_converter_writes_them(
    name, preset, tmp_path
):
    keras.utils.set_random_seed(1)
    model, policy = ESTIMATED[name](), preset(4, unsupported="float")
    planned = sat_tf.explain(model, policy).bytes
    images = [zoo.images_for(keras.Model(image, image)) for image in model.inputs]
    quantized = calibrated(model, policy, images[0] if len(images) == 1 else images)
    real = sat_tf.export_tflite(quantized, tmp_path / "model.tflite").bytes
    assert planned == pytest.approx(real, rel=FEW_PERCENT, abs=ONE_OPERATOR)


SIZES = {"image_size": 32, "num_classes": 10, "width_multiplier": 0.5, "seed": 0}


@pytest.mark.slow
@pytest.mark.parametrize("name", models.MODELS)
@pytest.mark.parametrize("bits", [4, 8])
def test_files_of_the_families_and_float_ones_are_within_3_percent(name, bits, tmp_path):
    model = models.build(name, **SIZES, **({"hidden_units": 64} if "vgg" in name else {}))
    policy = BitPolicy.mobile(bits, weight_range="channel" if bits == 8 else "layer")
    planned = sat_tf.explain(model, policy).bytes
    report = sat_tf.export_tflite(calibrated(model, policy), tmp_path / "model.tflite")
    assert_near(planned, report.bytes)
    if bits == 8 and name in ("mobilenet_v2", "resnet18", "preresnet50"):
        content = tf.lite.TFLiteConverter.from_keras_model(model).convert()
        assert_near(sat_tf.explain(model).float_bytes, len(content))


def _conv(name, **options):
    return L.Conv2D(4, 3, **{"activation": "relu", "padding": "same", "name": name, **options})


def _several():
    """Two images in, a class and a mask out."""
    images = [keras.Input((8, 8, 3), name=name) for name in ("left", "right")]
    both = [_conv(f"{image.node.layer.name}_conv")(image) for image in images]
    tensor = L.Add(name="add")(both)
    return keras.Model(
        images, [chained(tensor, nested_models.head()), L.Conv2D(1, 1, name="mask")(tensor)]
    )


def _shared():
    """A convolution with two calls, of which each has a quantizer of its own."""
    again = _conv("conv", activation=None)
    return model_of(_conv("stem"), again, again, nested_models.head(), name="shared")


MODELS = {
    "nested": nested_models.nested,
    "shared": _shared,
    "shared_with_activations": nested_models.shared,
    "several": _several,
    "operations": lambda: model_of(
        *(lambda image: image / 127.5 - 1.0, _conv("conv"), lambda tensor: tensor[:, 1:, ::2]),
        *(_conv("second", activation=None), lambda tensor: tensor * 2.0, nested_models.head()),
    ),
    "swish": lambda: model_of(
        _conv("conv", activation="swish"), _conv("second"), nested_models.head()
    ),
    "transposed": lambda: model_of(
        _conv("down", strides=2),
        L.Conv2DTranspose(4, 3, 2, padding="same", use_bias=False, name="up"),
        *(L.BatchNormalization(name="bn"), L.ReLU(name="relu"), L.Conv2D(2, 1, name="mask")),
    ),
}
POLICY = BitPolicy.mobile(4)

# Statistics are made up, and calibration says so.
pytestmark = pytest.mark.filterwarnings("ignore:calibrate")


@pytest.fixture(
    scope="module",
    params=[
        pytest.param(name, marks=pytest.mark.slow) if name == "shared_with_activations" else name
        for name in MODELS
    ],
)
def planned(request, tmp_path_factory):
    """A plan, the quantized model, and the report of its export."""
    keras.utils.set_random_seed(3)
    model = MODELS[request.param]()
    zoo.make_realistic(model)
    plan = sat_tf.explain(model, POLICY)
    draw = np.random.default_rng(4)
    images = [draw.integers(0, 256, (64, 8, 8, 3)).astype(np.float32) for _ in model.inputs]
    quantized = calibrated(model, POLICY, [images] if len(images) > 1 else images[0])
    path = tmp_path_factory.mktemp("planned") / "model.tflite"
    return plan, quantized, sat_tf.export_tflite(quantized, path)


def test_bits_operators_and_bytes_of_the_rows_are_those_of_the_model_and_its_file(planned):
    plan, quantized, report = planned
    assert (plan.problems, plan.export_problems) == ((), ())
    assert_followed(plan, quantized)
    assert dict(operators_of(plan)) == report.operators
    assert_near(plan.bytes, report.bytes)


def test_both_calls_of_a_shared_layer_have_rows_and_one_has_the_weights():
    plan = sat_tf.explain(_shared(), POLICY)
    one, other = plan["conv"], plan["conv@2"]
    assert one.weights == other.weights
    assert one.operators == other.operators == ("CONV_2D",)
    assert one.multiply_adds == other.multiply_adds == 64 * 9 * 4 * 4
    assert (one.parameters, other.parameters) == (9 * 4 * 4 + 4, 0)
    # The kernel of 144 bytes and its tensor of some 150 are in the file once.
    assert 144 + 100 < one.bytes - other.bytes < 144 + 160


def test_every_layer_of_models_inside_every_input_output_and_operation_has_a_row():
    plan = sat_tf.explain(nested_models.nested(), POLICY)
    assert {"backbone/conv", "backbone/block/conv", "conv"} <= {row.name for row in plan.rows}
    plan = sat_tf.explain(_several(), POLICY)
    for name in ("left", "right"):
        assert plan[name].kind == "InputLayer"
        assert plan[f"{name}_image"].operators == ("QUANTIZE",)
    assert plan["classifier"].observed
    assert plan["mask"].observed
    kinds = [row.kind for row in sat_tf.explain(MODELS["operations"](), POLICY).rows]
    assert (kinds.count("Scaling"), kinds.count("Slice")) == (3, 1)
    # A swish is a table, which reads the codes of the convolution's output as they are.
    assert sat_tf.explain(MODELS["swish"](), POLICY)["conv_swish"].operators == (
        "CAST",
        "ADD",
        "GATHER",
    )
    # Each input of a transposed convolution is multiplied by the whole kernel.
    assert sat_tf.explain(MODELS["transposed"](), POLICY)["up"].multiply_adds == 4 * 4 * 9 * 4 * 4
