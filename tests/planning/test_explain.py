import collections

import numpy as np
import pytest
import tensorflow_model_optimization as tfmot
import tf_keras as keras

import sat_tf
from sat_tf.exact.targets.table import ACTIVATIONS
from sat_tf.planning.plan import Export, Fate
from sat_tf.qat.layout import inner_layer
from sat_tf.qat.policy import BitPolicy
from sat_tf.training import models
from tests.export import zoo
from tests.export.proofs import calibrated
from tests.export.zoo import make_realistic
from tests.planning.models import (
    assert_followed,
    convolutions,
    problem_lines,
    residual,
    with_odd_activation,
)
from tests.planning.test_file_size import assert_near
from tests.qat import float_models
from tests.qat.models import nested_models

L = keras.layers
annotate = tfmot.quantization.keras.quantize_annotate_layer
OF_TORCH = BitPolicy(input_range="torch")


def depthwise_first():
    first = L.DepthwiseConv2D(3, use_bias=False, input_shape=(6, 6, 3), name="first")
    return keras.Sequential([first, L.ReLU(), L.Flatten(), L.Dense(2)])


def numbers(plan, *names):
    rows = [plan[name] for name in names]
    return [(row.parameters, row.multiply_adds, row.bit_operations) for row in rows]


def test_numbers_of_convolutions_are_those_worked_out_by_hand():
    plan = sat_tf.explain(convolutions(), BitPolicy.mobile(4))
    assert numbers(plan, "conv", "bn", "relu", "depthwise", "relu6", "pool", "classifier") == [
        # 8 x 8 places of 3 x 3 x 3 x 4 weights of 8 bits, on pixels of 8 bits
        (108, 64 * 108, 64 * 108 * 8 * 8),
        (16, 0, 0),
        (0, 0, 0),
        # 4 x 4 places of 3 x 3 x 4 weights and a bias, at 4 bits on 4 bits
        (36 + 4, 16 * 36, 16 * 36 * 4 * 4),
        (0, 0, 0),
        (0, 0, 0),
        # the last layer has weights of 8 bits, and reads a stream of 8
        (20 + 5, 20, 20 * 8 * 8),
    ]


def test_numbers_of_a_residual_are_those_worked_out_by_hand():
    plan = sat_tf.explain(residual(), BitPolicy.mobile(2))
    assert numbers(plan, "stem", "branch", "classifier") == [
        (8 + 4, 16 * 8, 16 * 8 * 8 * 8),
        (144 + 4, 16 * 144, 16 * 144 * 2 * 8),
        (192 + 3, 192, 192 * 8 * 2),
    ]
    plan = sat_tf.explain(residual(), BitPolicy.mobile(2, requantize_streams=True))
    assert numbers(plan, "branch", "classifier") == [
        (144 + 4, 16 * 144, 16 * 144 * 2 * 2),
        (192 + 3, 192, 192 * 8 * 2),
    ]
    assert plan.float_bit_operations == (128 + 2304 + 192) * 32 * 32


def test_a_plan_says_what_is_read_at_how_many_bits_and_how_weights_start():
    model = residual()
    model.get_layer("branch").kernel.assign(model.get_layer("branch").kernel * 100.0)
    plan = sat_tf.explain(model, BitPolicy.mobile(2, weight_quantizer="dorefa"))
    assert (plan["stem"].reading_bits, plan["stem"].reading_reason) == (8, "pixels")
    assert (plan["branch"].reading_bits, plan["branch"].reading_reason) == (
        8,
        "a stream, at its own bits",
    )
    assert plan["classifier"].weights.start.startswith("keeps function and gradients")
    assert "weights reach beyond 0.9" in plan["branch"].weights.start
    assert "start: keeps the function" in str(plan)
    fewer = sat_tf.explain(model, BitPolicy.mobile(2, requantize_streams=True))
    assert (fewer["branch"].reading_bits, fewer["branch"].reading_reason) == (2, "")
    bent = sat_tf.explain(model, BitPolicy.paper(2))["branch"].weights.start
    assert "the clamp changes" in bent
    quantized = sat_tf.quantize_model(model, BitPolicy.mobile(2))
    again = sat_tf.explain(quantized, BitPolicy.mobile(4))
    assert again["branch"].weights.start == "keeps its latent weights"


def test_float_layers_count_with_32_bits():
    class OfTheUser(keras.layers.Conv2D):
        pass

    policy = BitPolicy.mobile(4, unsupported="float")
    layers = [keras.layers.Conv2D(4, 3), OfTheUser(4, 3, padding="same", name="odd")]
    model = keras.Sequential([keras.Input((10, 10, 3)), *layers])
    # 8 x 8 places of 3 x 3 x 4 x 4 weights
    assert sat_tf.explain(model, policy)["odd"].bit_operations == 64 * 144 * 32 * 32


@pytest.mark.parametrize("build", [convolutions, residual, with_odd_activation])
@pytest.mark.parametrize("bits", [2, 8])
def test_totals_are_sums_of_rows(build, bits):
    plan = sat_tf.explain(build(), BitPolicy.mobile(bits, unsupported="float"), image_size=None)
    for name in ("parameters", "multiply_adds", "bit_operations", "bytes", "float_bytes"):
        values = [getattr(row, name) for row in plan.rows]
        assert getattr(plan, name) == (None if None in values else sum(values))
    assert plan.parameters == build().count_params()


POLICIES = {
    "mobile": BitPolicy.mobile(4),
    "paper": BitPolicy.paper(2),
    "channels": BitPolicy.mobile(8, weight_range="channel", rescale="stddev"),
    "weights_only": BitPolicy(activation_bits=None),
    "clamped": BitPolicy(weight_bits=None, clipping_gradient="pact"),
    "overrides": BitPolicy(overrides={"*a*": {"activation_bits": 8, "weight_grid": "narrow"}}),
}


def _family(name):
    options = {"hidden_units": 32} if "vgg" in name else {}
    return models.build(
        name, image_size=32, num_classes=10, width_multiplier=0.25, seed=0, **options
    )


def _followed(marks, build, names, policies):
    """Rows of a test: a model and a policy."""
    return [
        pytest.param(build, name, policy, marks=marks, id=f"{name}-{policy}")
        for name in names
        for policy in policies
    ]


@pytest.mark.parametrize(
    ("build", "name", "policy"),
    [
        *_followed((), float_models.build, ["preactivation"], ["paper"]),
        *_followed((), float_models.build, ["residual"], ["mobile"]),
        *_followed(
            pytest.mark.thorough, float_models.build, ["mobile_block"], ["channels", "overrides"]
        ),
        *_followed(
            pytest.mark.slow, float_models.build, ["mobile_block"], ["weights_only", "clamped"]
        ),
        *_followed(pytest.mark.slow, float_models.build, float_models.GRAPHS, ["mobile", "paper"]),
        *_followed(pytest.mark.slow, _family, models.MODELS, ["mobile", "paper", "channels"]),
    ],
)
def test_quantize_model_follows_the_plan(build, name, policy):
    model = build(name)
    plan = sat_tf.explain(model, POLICIES[policy])
    assert_followed(plan, sat_tf.quantize_model(model, POLICIES[policy]))


def annotated_model():
    image = keras.Input((8, 8, 3), name="image")
    config = sat_tf.configs.LayerConfig(weight_bits=5, activation_bits=6)
    tensor = annotate(L.Conv2D(4, 3, name="conv"))(image)
    tensor = annotate(L.ReLU(name="relu"))(tensor)
    tensor = annotate(L.Conv2D(4, 3, name="second"), config)(tensor)
    tensor = L.ReLU(name="plain")(tensor)
    tensor = L.GlobalAveragePooling2D(name="pool")(tensor)
    return keras.Model(image, annotate(L.Dense(2, name="classifier"))(tensor))


@pytest.mark.parametrize("by_hand", [True, False])
def test_quantize_apply_follows_the_plan_of_an_annotated_model(by_hand):
    annotated = annotated_model()
    if not by_hand:
        plain = float_models.build("plain")
        annotated = tfmot.quantization.keras.quantize_annotate_model(plain)
    plan = sat_tf.explain(annotated, BitPolicy.mobile(4))
    scheme = sat_tf.SatQuantizeScheme(BitPolicy.mobile(4))
    quantized = tfmot.quantization.keras.quantize_apply(annotated, scheme=scheme)
    assert_followed(plan, quantized)
    if by_hand:
        assert plan["second"].weights.bits == 5
        assert plan["plain"].reason == "it is not annotated"


def test_a_sequential_model_that_is_annotated_keeps_its_names():
    model = float_models.sequential_built_later()
    annotated = tfmot.quantization.keras.quantize_annotate_model(model)
    names = {row.name for row in sat_tf.explain(annotated).rows}
    scheme = sat_tf.SatQuantizeScheme()
    quantized = tfmot.quantization.keras.quantize_apply(annotated, scheme=scheme)
    assert names == {inner_layer(layer).name for layer in quantized.layers} | {
        name for name in names if name.endswith("_input")
    }


@pytest.mark.parametrize(
    "name",
    ["residual", *(pytest.param(name, marks=pytest.mark.slow) for name in float_models.GRAPHS)],
)
def test_every_layer_of_the_model_is_there_exactly_once(name):
    model = float_models.build(name)
    rows = [row.name for row in sat_tf.explain(model).layers]
    assert sorted(rows) == sorted(layer.name for layer in model.layers)


def test_the_model_is_not_changed_and_the_plan_can_be_made_again():
    model = convolutions()
    before = model.get_config(), [value.copy() for value in model.get_weights()]
    first, second = sat_tf.explain(model), sat_tf.explain(model)
    assert first == second
    assert model.get_config() == before[0]
    np.testing.assert_equal(model.get_weights(), before[1])
    assert_followed(first, sat_tf.quantize_model(model))


def with_nan():
    model = convolutions()
    model.get_layer("classifier").bias.assign(np.full(5, np.nan))
    return model


@pytest.mark.parametrize(
    ("build", "policy"),
    [
        (with_odd_activation, BitPolicy.mobile(1)),
        (with_nan, BitPolicy()),
        (zoo.ZOO["residual"].build, BitPolicy.mobile(4, stream_bits=4)),
        # Of no layer:
        (residual, BitPolicy(overrides={"nothing": {"weight_bits": 2}})),
        (lambda: float_models.build("mobile_block"), BitPolicy.mobile(1, requantize_streams=True)),
        # A first layer that cannot take the range in.
        (depthwise_first, OF_TORCH),
    ],
)
def test_problems_are_those_that_quantize_model_raises(build, policy):
    model = build()
    plan = sat_tf.explain(model, policy)
    with pytest.raises(ValueError, match="problem") as error:
        sat_tf.quantize_model(model, policy)
    lines = problem_lines(error)
    assert list(plan.problems) == lines
    of_rows = [f"{row.name}: {problem}" for row in plan.rows for problem in row.problems]
    assert set(of_rows) <= set(lines)


def test_problems_stand_with_their_layers_and_the_others_are_planned():
    plan = sat_tf.explain(with_odd_activation(), BitPolicy.mobile(4))
    assert plan["odd_activation"].fate is Fate.PROBLEM
    assert f"odd_activation: {plan['odd_activation'].problems[0]}" == plan.problems[0]
    assert [plan[name].weights.bits for name in ("first", "odd", "second")] == [8, 4, 4]
    # An override of no layer leaves all layers their plan.
    model = float_models.build("mobile_block")
    policy = BitPolicy(overrides={"nothing": {"weight_bits": 2}})
    plan, usual = sat_tf.explain(model, policy), sat_tf.explain(model, BitPolicy())
    assert len(plan.problems) == 1
    assert plan.rows == usual.rows


def test_a_model_without_linear_layers_or_with_an_input_without_axes_has_a_plan():
    image = keras.Input((8, 8, 3), name="image")
    plan = sat_tf.explain(keras.Model(image, L.ReLU(name="relu")(image)))
    assert "whose weights can be quantized" in plan.problems[0]
    assert [row.name for row in plan.rows] == ["image", "relu"]
    assert plan["relu"].export is Export.REFUSED
    number = keras.Input((), name="number")
    plan = sat_tf.explain(keras.Model(number, L.Dense(2)(L.Reshape((1,))(number))))
    assert "a shape of () is no picture's" in plan.inputs[0]


def test_an_image_size_reaches_models_inside_and_leaves_losses_refused():
    image = keras.Input((None, None, 3))
    inner = keras.Sequential([keras.Input((None, None, 3)), L.Conv2D(4, 3, name="c")], name="in")
    model = keras.Model(image, L.Dense(2)(L.GlobalAveragePooling2D()(inner(image))))
    assert sat_tf.explain(model, image_size=6)["in/c"].multiply_adds == 4 * 4 * 4 * 27
    model.add_loss(keras.backend.sum(model.output))
    assert "a loss of its own" in sat_tf.explain(model, image_size=6).problems[0]


def test_open_image_sizes_make_multiply_adds_unknown():
    model = float_models.any_image_size()
    plan = sat_tf.explain(model)
    assert plan.multiply_adds is plan.bit_operations is None
    assert plan["a"].multiply_adds is None
    assert "unknown" in plan.table()
    sized = sat_tf.explain(model, image_size=(6, 8))
    assert sized["a"].multiply_adds == 48 * 108
    assert sized["a"].shape == (6, 8, 4)


def test_a_quantized_model_is_explained_as_requantize_makes_it_or_by_its_own_policy():
    quantized = sat_tf.quantize_model(convolutions(), BitPolicy.mobile(4))
    fewer = sat_tf.requantize(quantized, BitPolicy.mobile(2))
    assert_followed(sat_tf.explain(quantized, BitPolicy.mobile(2)), fewer)
    own, given = sat_tf.explain(quantized), sat_tf.explain(quantized, 4)
    assert own.policy == given.policy
    assert str(own) == str(given)
    assert sat_tf.explain(fewer).policy.weight_bits == 2


def test_a_plan_for_an_npu_ends_in_codes():
    image = keras.Input((8, 8, 3), name="image")
    ends = L.Dense(3, activation="softmax", name="end")(L.Flatten()(L.Conv2D(4, 3)(image)))
    model = keras.Model(image, ends)
    of_target = {
        target: sat_tf.explain(model, BitPolicy.mobile(4, target=target))
        for target in ("litert", "ethos-u55")
    }
    operators = {
        target: [name for row in plan.rows for name in row.operators]
        for target, plan in of_target.items()
    }
    assert operators["litert"] == [*operators["ethos-u55"][:-1], "DEQUANTIZE", "SOFTMAX"]
    assert operators["ethos-u55"][-1] == "SOFTMAX"
    assert len(operators["ethos-u55"]) == of_target["ethos-u55"].file_operators
    assert of_target["ethos-u55"].cpu_fallback == ()


def test_each_clipping_level_of_a_tensor_says_where_its_own_comes_from():
    image = keras.Input((8, 8, 3), name="image")
    tensor = keras.layers.BatchNormalization(name="bn")(keras.layers.Conv2D(4, 3)(image))
    tensor = keras.layers.AveragePooling2D(name="pool")(tensor)  # it rounds to what it reads
    model = keras.Model(image, keras.layers.Conv2D(4, 3)(tensor))
    policy = BitPolicy.mobile(4, target="ethos-u55", requantize_streams=True)
    plan = sat_tf.explain(model, policy)
    assert "level from γ and β of bn" in plan["pool"].activation_reason
    before = "level from the normalizations before pool"
    assert before in plan["pool_to_4_bits"].activation_reason


def test_a_plan_of_weights_alone_advises_no_type_of_outputs():
    policy = BitPolicy.mobile(4, activation_bits=None, target="ethos-u55")
    plan = sat_tf.explain(convolutions(), policy)
    assert plan.cpu_fallback
    assert {one.fix for one in plan.cpu_fallback} == {ACTIVATIONS}


# -- models of every structure ---------------------------------------------------------------------


def _image(name="image"):
    return keras.Input((8, 8, 3), name=name)


def _head(tensor, name="classifier"):
    return L.Dense(3, name=name)(L.GlobalAveragePooling2D(name=f"{name}_pool")(tensor))


def _several():
    """Two images in, a class and a mask out."""
    left, right = _image("left"), _image("right")
    both = [
        L.Conv2D(4, 3, activation="relu", padding="same", name=f"{image.node.layer.name}_conv")(
            image
        )
        for image in (left, right)
    ]
    tensor = L.Add(name="add")(both)
    mask = L.Conv2D(1, 1, name="mask")(tensor)
    return keras.Model([left, right], [_head(tensor), mask], name="several")


def _operations():
    image = _image()
    tensor = L.Conv2D(4, 3, activation="relu", name="conv")(image / 127.5 - 1.0)
    tensor = L.Conv2D(4, 3, name="second")(tensor[:, 1:, ::2])
    return keras.Model(image, _head(tensor * 2.0), name="operations")


def _swish():
    image = _image()
    tensor = L.Conv2D(4, 3, activation="swish", name="conv")(image)
    return keras.Model(image, _head(L.Conv2D(4, 3, activation="relu", name="second")(tensor)))


def _transposed():
    image = _image()
    tensor = L.Conv2D(4, 3, 2, padding="same", activation="relu", name="down")(image)
    tensor = L.Conv2DTranspose(4, 3, 2, padding="same", use_bias=False, name="up")(tensor)
    tensor = L.ReLU(name="relu")(L.BatchNormalization(name="bn")(tensor))
    return keras.Model(image, L.Conv2D(2, 1, name="mask")(tensor), name="transposed")


def _shared():
    """A convolution with two calls, of which each has a quantizer of its own."""
    image = _image()
    tensor = L.Conv2D(4, 3, padding="same", activation="relu", name="stem")(image)
    conv = L.Conv2D(4, 3, padding="same", name="conv")
    return keras.Model(image, _head(conv(conv(tensor))), name="shared")


MODELS = {
    "nested": nested_models.nested,
    "shared": _shared,
    "shared_with_activations": nested_models.shared,
    "several": _several,
    "operations": _operations,
    "swish": _swish,
    "transposed": _transposed,
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
    make_realistic(model)
    plan = sat_tf.explain(model, POLICY)
    draw = np.random.default_rng(4)
    images = [draw.integers(0, 256, (64, 8, 8, 3)).astype(np.float32) for _ in model.inputs]
    quantized = calibrated(model, POLICY, [images] if len(images) > 1 else images[0])
    path = tmp_path_factory.mktemp("planned") / "model.tflite"
    return plan, quantized, sat_tf.export_tflite(quantized, path)


def test_the_bits_of_the_rows_are_those_of_the_quantizers(planned):
    plan, quantized, _ = planned
    assert not plan.problems
    assert not plan.export_problems
    assert_followed(plan, quantized)


def test_the_file_has_the_planned_operators_and_bytes(planned):
    plan, _, report = planned
    operators = collections.Counter(name for row in plan.rows for name in row.operators)
    assert dict(operators) == report.operators
    assert_near(plan.bytes, report.bytes)


def test_both_calls_of_a_shared_layer_have_rows_and_one_has_the_weights():
    plan = sat_tf.explain(_shared(), POLICY)
    one, other = plan["conv"], plan["conv@2"]
    assert one.weights == other.weights
    assert one.operators == other.operators == ("CONV_2D",)
    assert one.multiply_adds == other.multiply_adds == 64 * 9 * 4 * 4
    assert (one.parameters, other.parameters) == (9 * 4 * 4 + 4, 0)
    # The kernel of 144 bytes is in the file once; the names of the two calls differ in length.
    assert 100 < one.bytes - other.bytes < 144


def test_every_layer_of_models_inside_every_input_output_and_operation_has_a_row():
    plan = sat_tf.explain(nested_models.nested(), POLICY)
    assert {"backbone/conv", "backbone/block/conv", "conv"} <= {row.name for row in plan.rows}
    plan = sat_tf.explain(_several(), POLICY)
    for name in ("left", "right"):
        assert plan[name].kind == "InputLayer"
        assert plan[f"{name}_image"].operators == ("QUANTIZE",)
    assert plan["classifier"].observed
    assert plan["mask"].observed
    kinds = [row.kind for row in sat_tf.explain(_operations(), POLICY).rows]
    assert (kinds.count("Scaling"), kinds.count("Slice")) == (3, 1)
    # A swish is a table, which reads the codes of the convolution's output as they are.
    assert sat_tf.explain(_swish(), POLICY)["conv_swish"].operators == ("CAST", "ADD", "GATHER")
    # Each input of a transposed convolution is multiplied by the whole kernel.
    assert sat_tf.explain(_transposed(), POLICY)["up"].multiply_adds == 4 * 4 * 9 * 4 * 4
