import collections
import dataclasses

import pytest
import tensorflow as tf
import tf_keras as keras

import sat_tf
from sat_tf.graph.network import Network
from sat_tf.planning.deployment import multiply_adds
from sat_tf.planning.plan import Export
from sat_tf.qat.policy import BitPolicy
from tests.export import operators, zoo
from tests.export.proofs import calibrated
from tests.export.zoo import Specimen, block, chain, convolution, head
from tests.planning.models import problem_lines, with_odd_activation

L = keras.layers

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
    assert not plan.problems
    assert not plan.export_problems


def odd_model():
    """Layers that are left float in the middle and at the end."""
    image = keras.Input((8, 8, 3), name="image")
    tensor = L.Conv2D(4, 3, name="conv")(image)
    tensor = L.UnitNormalization(name="odd")(tensor)
    tensor = L.ReLU(name="relu")(L.Conv2D(4, 3, name="second")(tensor))
    tensor = L.Dense(3, name="classifier")(L.GlobalAveragePooling2D(name="pool")(tensor))
    return keras.Model(image, L.UnitNormalization(name="last")(tensor), name="odd_model")


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
    model = odd_model()
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
    "make",
    [
        lambda: BitPolicy(weight_bits=None),
        lambda: BitPolicy.paper(8, first_last_weight_grid="dorefa"),
    ],
    ids=["no_codes", "codes_beyond_int8"],
)
def test_refusals_are_those_of_the_export(make, tmp_path):
    model, policy = zoo.ZOO["residual"].build(), make()
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


def test_layers_are_fused_into_those_that_make_the_tensors():
    plan = sat_tf.explain(zoo.ZOO["residual"].build(), BitPolicy.mobile(4))
    for row in plan.rows:
        for name in row.fused_into:
            assert plan[name].operators
            assert not row.operators


class Bessel(L.Layer):
    """A function that TFLite has no operator for."""

    def call(self, tensor):
        return tf.math.bessel_i0e(tensor)


def test_float_layers_that_do_not_convert_are_refused_before_training():
    image = keras.Input((8, 8, 3), name="image")
    tensor = L.Conv2D(4, 3, activation="relu", name="conv")(image)
    tensor = L.Dense(3, name="classifier")(L.Flatten()(Bessel(name="bessel")(tensor)))
    plan = sat_tf.explain(keras.Model(image, tensor), BitPolicy.mobile(8, unsupported="float"))
    assert not plan.problems
    (problem,) = plan.export_problems
    assert problem.startswith("bessel: received a Bessel that is left float")
    assert plan["bessel"].export is Export.REFUSED


def counted(layer, shape):
    network = Network(keras.Sequential([keras.Input(shape), layer]))
    node = network[layer.name]
    return multiply_adds(node, [network[name].shape for name in node.inputs])


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
    assert counted(layer, shape) == expected


# -- on a target -----------------------------------------------------------------------------------

layers = keras.layers


def activated():
    """Functions that files for CPUs look up, and a mean that they compute as a convolution."""
    return chain(
        (16, 16, 3),
        *block(convolution(8, name="stem"), layers.Activation("swish", name="swish")),
        layers.AveragePooling2D(4, name="pool"),
        *block(convolution(8, 1, name="point"), layers.LeakyReLU(0.2, name="leaky")),
        layers.UpSampling2D(2, interpolation="bilinear", name="wider"),
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


def test_a_plan_for_a_cpu_names_none_that_it_computes():
    plan = sat_tf.explain(zoo.bottleneck(), BitPolicy.mobile(4), target="micro")
    assert plan.cpu_fallback == ()
    assert "TFLite Micro" not in str(plan)
    assert plan.policy.target == "micro"
    # Its kernels have 8 bits.
    packed = sat_tf.explain(zoo.bottleneck(), BitPolicy.mobile(4))
    assert plan.bytes > packed.bytes


def test_a_plan_names_what_tflite_micro_refuses():
    image = keras.Input((8, 8, 3))
    normal = layers.LayerNormalization()(convolution(4)(image))
    model = keras.Model(image, layers.Dense(2)(layers.GlobalAveragePooling2D()(normal)))
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
    both = layers.Add()([convolution(4)(image), convolution(4)(other)])
    model = keras.Model([image, other], layers.GlobalAveragePooling2D()(both))
    policy = BitPolicy.mobile(4, target="int8")
    with pytest.raises(ValueError, match="2 problems") as error:
        sat_tf.quantize_model(model, policy)
    said = str(error.value)
    assert "a: received an input of shape (None, None, 3) for TFLite's int8" in said
    assert "b: received an input of shape (None, 8, 3)" in said
    plan = sat_tf.explain(model, policy)
    assert sum("constant shapes" in problem for problem in plan.problems) == 2
