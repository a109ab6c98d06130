import html
import json
import re

import numpy as np
import pytest
import tf_keras as keras

import sat_tf
from sat_tf.exact.tflite.contents import read_contents
from sat_tf.messages.charts import BIT_COLORS
from sat_tf.planning.plan import Plan
from sat_tf.qat.policy import BitPolicy
from tests.planning.models import convolutions, residual, with_odd_activation


@pytest.fixture(scope="module")
def plan():
    return sat_tf.explain(residual(), BitPolicy.mobile(4))


@pytest.fixture(scope="module")
def refused():
    return sat_tf.explain(with_odd_activation(), BitPolicy.mobile(4))


def test_rows_have_the_numbers_of_the_layers(plan):
    rows = plan.to_rows()
    assert all(tuple(row) == Plan.COLUMNS for row in rows)
    assert [row["multiply_adds"] for row in rows] == [row.multiply_adds for row in plan.rows]


@pytest.mark.parametrize("width", [80, 120, 200])
def test_the_table_names_every_layer_and_fits(plan, width):
    text = plan.table(width)
    for row in plan.rows:
        assert row.name[:8] in text
    table = text.split("can be quantized")[0]
    assert max(map(len, table.splitlines())) <= width
    assert "rescale: no BatchNormalization directly after it" in text


def test_a_notebook_shows_the_verdict_and_every_layer(plan, refused):
    assert repr(plan) == f"<Plan: {plan.model} can be quantized and exported>"
    html = plan._repr_html_()
    assert all(f"<td>{row.name}</td>" in html for row in plan.rows)
    assert "in all" in html
    assert "cannot be quantized as asked" in repr(refused)
    assert "&#39;sin&#39;, expected one of linear" in refused._repr_html_()


def test_the_table_lists_every_problem_and_the_way_to_float(refused):
    for problem in (*refused.problems, *refused.export_problems):
        assert problem in refused.table()
    assert "give image_size where it is open" in refused.table()
    assert "--unsupported=float" in " ".join(refused.table().split())


def test_the_page_has_every_layer_and_loads_nothing(plan, refused, tmp_path):
    for made in (plan, refused):
        made.write_page(tmp_path / "plan.html")
        page = (tmp_path / "plan.html").read_text(encoding="utf-8")
        assert all(f"<td>{row.name}</td>" in page for row in made.rows)
        assert not re.search(r"<svg|<script|<link|src=|url\(|@import|https?://", page)
    assert "&#39;sin&#39;, expected one of linear" in page


@pytest.mark.parametrize("output_type", ["float32", "int8"])
@pytest.mark.parametrize("build", [residual, convolutions])
def test_an_overlay_has_every_tensor_that_holds_a_layer_of_the_file(build, output_type, tmp_path):
    model, policy = build(), BitPolicy.mobile(4)
    plan = sat_tf.explain(model, policy)
    plan.write_overlay(tmp_path / "plan.json")
    quantized = sat_tf.quantize_model(model, policy)
    images = np.random.default_rng(0).integers(0, 256, (64, *model.input_shape[1:]))
    quantized = sat_tf.calibrate(quantized, images.astype(np.uint8))
    path = tmp_path / "model.tflite"
    sat_tf.export_tflite(quantized, path, output_type=output_type)
    operators = read_contents(path.read_bytes(), "model").operators
    in_file = {tensor.name for operator in operators for tensor in operator.outputs}
    overlay = json.loads((tmp_path / "plan.json").read_text(encoding="utf-8"))
    marked = set(overlay["results"])
    # The codes of the classifier have another name where they are the output.
    assert marked - in_file <= ({"classifier_codes"} if output_type == "int8" else set())
    assert {name for row in plan.rows if row.weights for name in plan.tensors(row.name)} <= marked


def test_an_overlay_says_bits_range_and_bytes_in_the_colour_of_the_bits(tmp_path):
    plan = sat_tf.explain(convolutions(), BitPolicy.mobile(4))
    plan.write_overlay(tmp_path / "plan.json")
    overlay = json.loads((tmp_path / "plan.json").read_text(encoding="utf-8"))
    assert list(overlay["results"]) == ["image_image", "relu", "relu6", "pool", "classifier_codes"]
    mark, depthwise = overlay["results"]["relu6"], plan["depthwise"]
    assert mark["value"].startswith("weights 4 bits narrow; output u8 stream from ")
    assert mark["value"].endswith(f"; {depthwise.bytes:,} bytes")
    assert mark["bgColor"] == BIT_COLORS[4]
    assert plan.tensors("depthwise") == plan.tensors("relu6") == ("relu6",)


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


# -- what a model is fed ---------------------------------------------------------------------------

L = keras.layers


def _model():
    image = keras.Input((6, 6, 3), name="image")
    tensor = L.Conv2D(4, 3, name="conv1")(image)
    return keras.Model(image, L.Dense(2, name="head")(L.Flatten()(L.ReLU()(tensor))), name="net")


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
    grey = keras.Sequential([keras.Input((6, 6, 1), name="grey"), L.Conv2D(2, 3, name="conv")])
    refused = sat_tf.explain(grey, BitPolicy(input_range="torch")).problems
    assert "3 channels for the input shape (6, 6, 1)" in refused[0]


@pytest.mark.parametrize("input_type", ["int8", "float32"])
def test_an_input_of_real_values_is_never_called_pixels(input_type):
    plan = sat_tf.explain(_model(), BitPolicy.mobile(4, input_type=input_type))
    assert plan["image"].activation_reason.startswith("real values")
    assert plan["conv1"].reading_reason == "an input of real values"
    assert "pixels" not in str(plan)


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
    mel = keras.Input(shape, name="mel")
    model = keras.Model(mel, L.Dense(2, name="head")(L.Flatten()(mel)))
    (line,) = sat_tf.explain(model).inputs
    assert line.startswith(f"mel: {guess}")
    assert "input_type='int8' or 'float32'" in line
    (said,) = sat_tf.explain(model, BitPolicy.mobile(8, input_range=(0, 255))).inputs
    assert said == "mel: pixels 0 to 255 stand for 0 to 255, uint8 in the file"
    scaled = L.Rescaling(1 / 255)(mel)
    converting = keras.Model(mel, L.Dense(2, name="head")(L.Flatten()(scaled)))
    assert sat_tf.explain(converting).inputs[0].startswith("mel: pixels 0 to 255")
