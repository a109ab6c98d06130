import html
import itertools
import re

import numpy as np
import pytest
import tensorflow_model_optimization as tfmot
import tf_keras as keras

import sat_tf
from sat_tf.exact.targets.operator_constraints import ACTIVATIONS
from sat_tf.planning.plan import Export, Fate, Plan
from sat_tf.qat.layout import inner_layer
from sat_tf.qat.policy import BitPolicy
from sat_tf.training import models
from tests.export import zoo
from tests.planning.models import (
    assert_followed,
    convolutions,
    problem_lines,
    residual,
    with_odd_activation,
)
from tests.qat import float_models
from tests.qat.float_models import L, model_of

annotate = tfmot.quantization.keras.quantize_annotate_layer


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


def test_numbers_of_a_residual_and_of_float_layers_are_those_worked_out_by_hand():
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
    # Float layers count with 32 bits.
    of_the_user = type("OfTheUser", (L.Conv2D,), {})(4, 3, padding="same", name="odd")
    policy = BitPolicy.mobile(4, unsupported="float")
    model = model_of(L.Conv2D(4, 3), of_the_user, shape=(10, 10, 3))
    # 8 x 8 places of 3 x 3 x 4 x 4 weights
    assert sat_tf.explain(model, policy)["odd"].bit_operations == 64 * 144 * 32 * 32


def test_a_plan_says_what_is_read_at_how_many_bits_and_how_weights_start():
    model = residual()
    model.get_layer("branch").kernel.assign(model.get_layer("branch").kernel * 100.0)
    plan = sat_tf.explain(model, BitPolicy.mobile(2, weight_quantizer="dorefa"))
    assert (plan["stem"].reading_bits, plan["stem"].reading_reason) == (8, "pixels")
    branch = plan["branch"]
    assert (branch.reading_bits, branch.reading_reason) == (8, "a stream, at its own bits")
    assert plan["classifier"].weights.start.startswith("keeps function and gradients")
    assert "weights reach beyond 0.9" in branch.weights.start
    assert "start: keeps the function" in str(plan)
    fewer = sat_tf.explain(model, BitPolicy.mobile(2, requantize_streams=True))
    assert (fewer["branch"].reading_bits, fewer["branch"].reading_reason) == (2, "")
    bent = sat_tf.explain(model, BitPolicy.paper(2))["branch"].weights.start
    assert "the clamp changes" in bent
    quantized = sat_tf.quantize_model(model, BitPolicy.mobile(2))
    again = sat_tf.explain(quantized, BitPolicy.mobile(4))
    assert again["branch"].weights.start == "keeps its latent weights"


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


MARKS = {
    ("preactivation", "paper"): [],
    ("residual", "mobile"): [],
    **{("mobile_block", policy): pytest.mark.thorough for policy in ("channels", "overrides")},
}
FOLLOWED = [
    *(("mobile_block", policy) for policy in ("channels", "overrides", "weights_only", "clamped")),
    *itertools.product(float_models.GRAPHS, ["mobile", "paper"]),
    *itertools.product(models.MODELS, ["mobile", "paper", "channels"]),
]


@pytest.mark.parametrize(
    ("name", "policy"),
    [pytest.param(*row, marks=MARKS.get(row, pytest.mark.slow)) for row in FOLLOWED],
)
def test_quantize_model_follows_the_plan(name, policy):
    if name in models.MODELS:
        size = {"image_size": 32, "num_classes": 10, "width_multiplier": 0.25, "seed": 0}
        model = models.build(name, **size, **({"hidden_units": 32} if "vgg" in name else {}))
    else:
        model = float_models.build(name)
    plan = sat_tf.explain(model, POLICIES[policy])
    assert_followed(plan, sat_tf.quantize_model(model, POLICIES[policy]))
    if name in float_models.GRAPHS:  # every layer of the model is there exactly once
        rows = sorted(row.name for row in plan.layers)
        assert rows == sorted(layer.name for layer in model.layers)


def planned_and_applied(annotated):
    """The plan of an annotated model, and what TFMOT makes of it."""
    scheme = sat_tf.SatQuantizeScheme(BitPolicy.mobile(4))
    quantized = tfmot.quantization.keras.quantize_apply(annotated, scheme=scheme)
    return sat_tf.explain(annotated, BitPolicy.mobile(4)), quantized


def test_quantize_apply_follows_the_plan_of_an_annotated_model():
    config = sat_tf.configs.LayerConfig(weight_bits=5, activation_bits=6)
    annotated = model_of(
        *(annotate(L.Conv2D(4, 3, name="conv")), annotate(L.ReLU(name="relu"))),
        *(annotate(L.Conv2D(4, 3, name="second"), config), L.ReLU(name="plain")),
        *(L.GlobalAveragePooling2D(name="pool"), annotate(L.Dense(2, name="classifier"))),
    )
    plan, quantized = planned_and_applied(annotated)
    assert_followed(plan, quantized)
    assert plan["second"].weights.bits == 5
    assert plan["plain"].reason == "it is not annotated"
    whole = tfmot.quantization.keras.quantize_annotate_model(float_models.build("plain"))
    assert_followed(*planned_and_applied(whole))
    # A Sequential model keeps its names.
    model = float_models.sequential_built_later()
    annotated = tfmot.quantization.keras.quantize_annotate_model(model)
    plan, quantized = planned_and_applied(annotated)
    names = {row.name for row in plan.rows}
    assert names == {inner_layer(layer).name for layer in quantized.layers} | {
        name for name in names if name.endswith("_input")
    }


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


# A first layer that cannot take the range in.
FIRST = L.DepthwiseConv2D(3, use_bias=False, input_shape=(6, 6, 3), name="first")


@pytest.mark.parametrize(
    ("build", "policy"),
    [
        (with_odd_activation, BitPolicy.mobile(1)),
        (with_nan, BitPolicy()),
        (zoo.ZOO["residual"].build, BitPolicy.mobile(4, stream_bits=4)),
        # Of no layer:
        (residual, BitPolicy(overrides={"nothing": {"weight_bits": 2}})),
        (lambda: float_models.build("mobile_block"), BitPolicy.mobile(1, requantize_streams=True)),
        (
            lambda: keras.Sequential([FIRST, L.ReLU(), L.Flatten(), L.Dense(2)]),
            BitPolicy(input_range="torch"),
        ),
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
    plan = sat_tf.explain(model_of(L.ReLU(name="relu")))
    assert "whose weights can be quantized" in plan.problems[0]
    assert [row.name for row in plan.rows] == ["image", "relu"]
    assert plan["relu"].export is Export.REFUSED
    plan = sat_tf.explain(model_of(L.Reshape((1,)), L.Dense(2), shape=()))
    assert "a shape of () is no picture's" in plan.inputs[0]


def test_an_image_size_reaches_models_inside_and_leaves_losses_refused():
    inner = keras.Sequential([keras.Input((None, None, 3)), L.Conv2D(4, 3, name="c")], name="in")
    model = model_of(inner, L.GlobalAveragePooling2D(), L.Dense(2), shape=(None, None, 3))
    assert sat_tf.explain(model, image_size=6)["in/c"].multiply_adds == 4 * 4 * 4 * 27
    model.add_loss(keras.backend.sum(model.output))
    assert "a loss of its own" in sat_tf.explain(model, image_size=6).problems[0]
    # Without one, multiply-adds are unknown.
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
    model = model_of(L.Conv2D(4, 3), L.Flatten(), L.Dense(3, activation="softmax", name="end"))
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
    pool = L.AveragePooling2D(name="pool")  # it rounds to what it reads
    model = model_of(L.Conv2D(4, 3), L.BatchNormalization(name="bn"), pool, L.Conv2D(4, 3))
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


@pytest.fixture(scope="module")
def plans():
    """The plan of a model, and of one that is refused."""
    return [
        sat_tf.explain(build(), BitPolicy.mobile(4)) for build in (residual, with_odd_activation)
    ]


def test_rows_and_the_table_name_every_layer_and_problem_and_the_way_to_float(plans):
    plan, refused = plans
    rows = plan.to_rows()
    assert all(tuple(row) == Plan.COLUMNS for row in rows)
    assert [row["multiply_adds"] for row in rows] == [row.multiply_adds for row in plan.rows]
    for width in (80, 120, 200):
        text = plan.table(width)
        assert all(row.name[:8] in text for row in plan.rows)
        table = text.split("can be quantized")[0]
        assert max(map(len, table.splitlines())) <= width
        assert "rescale: no BatchNormalization directly after it" in text
    said = refused.table()
    assert all(problem in said for problem in (*refused.problems, *refused.export_problems))
    assert "give image_size where it is open" in said
    assert "--unsupported=float" in " ".join(said.split())


def test_a_notebook_and_the_page_show_every_layer_and_the_page_loads_nothing(plans, tmp_path):
    plan, refused = plans
    assert repr(plan) == f"<Plan: {plan.model} can be quantized and exported>"
    assert "cannot be quantized as asked" in repr(refused)
    assert "in all" in plan._repr_html_()
    for each in (plan, refused):
        each.write_page(tmp_path / "plan.html")
        page = (tmp_path / "plan.html").read_text(encoding="utf-8")
        assert not re.search(r"<svg|<script|<link|src=|url\(|@import|https?://", page)
        for shown in (page, each._repr_html_()):
            assert all(f"<td>{row.name}</td>" in shown for row in each.rows)
            assert ("&#39;sin&#39;, expected one of linear" in shown) == (each is refused)


def test_a_plan_says_which_field_gave_the_bits_of_weights():
    policy = BitPolicy.mobile(
        4, weight_grid="rounded", overrides={"classifier": {"weight_bits": 8}}
    )
    rows = sat_tf.explain(convolutions(), policy).rows
    reasons = {row.name: row.weights.bits_reason for row in rows if row.weights}
    unfit = "; rounded does not fit int8 at 8 bits"
    assert reasons == {
        "conv": f"first linear layer{unfit}",
        "depthwise": "",
        # Its own bits are those that it would have had as the last layer, too.
        "classifier": f"by an override or annotation{unfit}",
    }


def _model():
    layers = [L.Conv2D(4, 3, name="conv1"), L.ReLU(), L.Flatten(), L.Dense(2, name="head")]
    return model_of(*layers, shape=(6, 6, 3), name="net")


PIXELS, REAL = "image: pixels 0 to 255 stand for", "image: real values"


@pytest.mark.parametrize(
    ("fields", "line"),
    [
        ({}, f"{PIXELS} 0 to 255, uint8 in the file"),
        ({"input_range": (0, 1)}, f"{PIXELS} 0 to 1, uint8 in the file"),
        ({"input_range": (-1, 1)}, f"{PIXELS} -1 to 1, uint8 in the file, folded into conv1"),
        (
            {"input_range": "torch"},
            f'{PIXELS} (-2.118, -2.036, -1.804) to (2.249, 2.429, 2.64) ("torch"), uint8 in the '
            "file, folded into conv1",
        ),
        (
            {"input_range": {"image": "caffe"}},
            f'{PIXELS} (-103.9, -116.8, -123.7) to (151.1, 138.2, 131.3) ("caffe"), channels '
            "reversed (BGR), uint8 in the file, folded into conv1",
        ),
        ({"input_type": "int8"}, f"{REAL}, int8 codes of their calibrated range in the file"),
        ({"input_type": "float32"}, f"{REAL}, float32 in the file, which quantizes them"),
    ],
    ids=str,
)
def test_a_plan_says_what_its_model_is_fed_and_what_the_file_takes(fields, line, tmp_path):
    plan = sat_tf.explain(_model(), BitPolicy(**fields))
    assert plan.inputs == (line,)
    assert plan.problems == ()
    assert line in plan.table()
    plan.write_page(tmp_path / "plan.html")
    shown = (tmp_path / "plan.html").read_text(encoding="utf-8")
    assert line in html.unescape(shown)
    if "input_type" in fields:
        assert plan["image"].activation_reason.startswith("real values")
        assert plan["conv1"].reading_reason == "an input of real values"
        assert "pixels" not in str(plan)


def test_a_quantized_model_brings_its_own_range_and_refuses_another_of_its_channels():
    quantized = sat_tf.quantize_model(_model(), BitPolicy(input_range="torch"))
    plan = sat_tf.explain(quantized, BitPolicy.mobile(2))
    assert '("torch")' in plan.inputs[0]
    assert plan.problems == ()
    other = BitPolicy.mobile(2, input_range=(0, 1))
    refused = sat_tf.explain(quantized, other).problems
    assert "whose channels differ in another way" in refused[0]
    with pytest.raises(ValueError, match="whose channels differ in another way"):
        sat_tf.requantize(quantized, other)
    grey = model_of(L.Conv2D(2, 3, name="conv"), shape=(6, 6, 1))
    refused = sat_tf.explain(grey, BitPolicy(input_range="torch")).problems
    assert "3 channels for the input shape (6, 6, 1)" in refused[0]


@pytest.mark.parametrize(
    ("shape", "guess"),
    [
        ((96, 64), "taken for integers 0 to 255, though a shape of (96, 64) is no picture's"),
        ((40,), "taken for integers 0 to 255, though a shape of (40,) is no picture's"),
        ((96, 64, 1), "taken for grey pictures, pixels 0 to 255, though it may be other maps"),
        ((96, 64, 4), "taken for integers 0 to 255"),
    ],
)
def test_what_may_be_no_picture_is_not_called_one(shape, guess):
    model = model_of(L.Flatten(), L.Dense(2, name="head"), shape=shape)
    (line,) = sat_tf.explain(model).inputs
    assert line.startswith(f"image: {guess}")
    assert "input_type='int8' or 'float32'" in line
    (said,) = sat_tf.explain(model, BitPolicy.mobile(8, input_range=(0, 255))).inputs
    assert said == "image: pixels 0 to 255 stand for 0 to 255, uint8 in the file"
    converting = model_of(L.Rescaling(1 / 255), L.Flatten(), L.Dense(2, name="head"), shape=shape)
    assert sat_tf.explain(converting).inputs[0].startswith("image: pixels 0 to 255")
