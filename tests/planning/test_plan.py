import csv
import re
import xml.etree.ElementTree as ElementTree

import pytest
from PIL import Image

import sat_tf
from sat_tf.planning.diagram import BIT_COLORS, boxes_of, legend
from sat_tf.planning.plan import COLUMNS, plan_page
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
    assert all(tuple(row) == COLUMNS for row in rows)
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


def test_the_page_has_the_diagram_and_every_layer_and_loads_nothing(plan, refused, tmp_path):
    for made in (plan, refused):
        made.write_page(tmp_path / "plan.html")
        page = (tmp_path / "plan.html").read_text(encoding="utf-8")
        assert page.count("<svg") == 1
        assert all(f"<td>{row.name}</td>" in page for row in made.rows)
        assert not re.search(r"<link|src=|url\(|@import|https?://(?!www.w3.org/2000/svg)", page)
        assert page.count("<script>") == 1
    assert "&#39;sin&#39;, expected one of linear" in page


def test_a_diagram_is_well_formed_svg_and_png(plan, refused, tmp_path):
    for made in (plan, refused):
        made.write_diagram(tmp_path / "plan.svg")
        root = ElementTree.parse(tmp_path / "plan.svg").getroot()
        words = " ".join(element.text or "" for element in root.iter())
        assert all(box.main.name[:6] in words for box in boxes_of(made.rows) if not box.is_small)
        made.write_diagram(tmp_path / "plan.png")
        with Image.open(tmp_path / "plan.png") as image:
            assert image.width > 600
            assert len(image.getcolors(2**24)) > 8


def test_the_same_plan_gives_the_same_files(plan, tmp_path):
    for name in ("plan.svg", "plan.png", "plan.html"):
        contents = []
        for folder in ("a", "b"):
            (tmp_path / folder).mkdir(exist_ok=True)
            write = plan.write_page if name.endswith("html") else plan.write_diagram
            write(tmp_path / folder / name)
            contents.append((tmp_path / folder / name).read_bytes())
        assert contents[0] == contents[1]


def test_problems_are_outlined(refused, tmp_path):
    refused.write_diagram(tmp_path / "plan.svg")
    assert "#d0021b" in (tmp_path / "plan.svg").read_text(encoding="utf-8")


def test_every_row_is_in_one_box_and_fused_layers_share_it(plan):
    boxes = boxes_of(sat_tf.explain(convolutions(), BitPolicy.mobile(4)).rows)
    assert [[row.name for row in box.rows] for box in boxes] == [
        ["image", "image_image"],
        ["conv", "bn", "relu"],
        ["depthwise", "relu6"],
        ["pool"],
        ["classifier"],
    ]
    assert [box.title() for box in boxes][1:3] == [
        "Conv2D 3x3 + BN + ReLU",
        "Depthwise 3x3 /2 + ReLU",
    ]
    held = [row.name for box in boxes_of(plan.rows) for row in box.rows]
    assert sorted(held) == sorted(row.name for row in plan.rows)


@pytest.mark.parametrize("name", ["plan.pdf", "plan", "nowhere/plan.svg"])
def test_a_diagram_of_another_kind_or_place_is_refused(plan, name, tmp_path):
    with pytest.raises(ValueError, match="received"):
        plan.write_diagram(tmp_path / name)
    assert not list(tmp_path.iterdir())


def test_no_two_swatches_of_the_legend_look_alike_in_the_light_or_the_dark(refused):
    style = plan_page(refused).split("</style>")[0]
    for dark in (False, True):
        own = {name: re.findall(rf"--{name}: (#\w+)", style)[dark] for name in ("float", "plain")}
        fills = [*own.values(), "none", *BIT_COLORS.values()]
        assert len(set(fills)) == len(fills)
    swatches = [swatch[1:] for swatch in legend(boxes_of(refused.rows))]
    assert len(set(swatches)) == len(swatches) > 2


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
