import html

import pytest
import tf_keras as keras

import sat_tf
from sat_tf.qat.policy import BitPolicy

L = keras.layers


def _model(first=None):
    image = keras.Input((6, 6, 3), name="image")
    tensor = (first or L.Conv2D(4, 3, name="conv1"))(image)
    return keras.Model(image, L.Dense(2, name="head")(L.Flatten()(L.ReLU()(tensor))), name="net")


PIXELS = "image: pixels 0 to 255 stand for"


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
        (
            {"input_type": "int8"},
            "image: real values, int8 codes of their calibrated range in the file",
        ),
        (
            {"input_type": "float32"},
            "image: real values, float32 in the file, which quantizes them",
        ),
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


def test_a_first_layer_that_cannot_take_the_range_in_is_a_problem_of_the_plan():
    model, policy = (
        _model(L.DepthwiseConv2D(3, use_bias=False, name="first")),
        BitPolicy(input_range="torch"),
    )
    plan = sat_tf.explain(model, policy)
    assert "cannot fold into its weights" in plan["first"].problems[0]
    with pytest.raises(ValueError, match="cannot fold into its weights"):
        sat_tf.quantize_model(model, policy)


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


def test_a_range_of_other_channels_than_the_input_is_a_problem_of_the_plan():
    model = keras.Sequential([keras.Input((6, 6, 1), name="grey"), L.Conv2D(2, 3, name="conv")])
    plan = sat_tf.explain(model, BitPolicy(input_range="torch"))
    assert "3 channels for the input shape (6, 6, 1)" in plan.problems[0]


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
