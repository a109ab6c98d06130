import csv
import json
import re

import numpy as np
import pytest

import sat_tf
from sat_tf.export.tflite.contents import read_contents
from sat_tf.planning.plan import Plan
from sat_tf.presentation.overlay import BIT_COLORS
from sat_tf.qat.policy import BitPolicy
from tests.planning.models import convolutions, residual, with_odd_activation


@pytest.fixture(scope="module")
def plan():
    return sat_tf.explain(residual(), BitPolicy.mobile(4))


@pytest.fixture(scope="module")
def refused():
    return sat_tf.explain(with_odd_activation(), BitPolicy.mobile(4))


def test_rows_frame_and_csv_say_the_same(plan, tmp_path):
    rows = plan.to_rows()
    assert all(tuple(row) == Plan.COLUMNS for row in rows)
    frame = plan.to_frame()
    assert list(frame["name"]) == [row["name"] for row in rows]
    plan.write_csv(tmp_path / "plan.csv")
    with (tmp_path / "plan.csv").open(encoding="utf-8") as file:
        read = list(csv.DictReader(file))
    assert [row["name"] for row in read] == [row["name"] for row in rows]
    assert [int(row["multiply_adds"]) for row in read] == [row["multiply_adds"] for row in rows]


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
    assert "open; give image_size" in refused.table()
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
