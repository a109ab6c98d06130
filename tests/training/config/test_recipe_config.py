import subprocess
import sys

import pytest

from sat_tf.messages import RunError
from sat_tf.training.config.config import config_text, parse_config
from sat_tf.training.config.recipes import RecipesConfig

SMALLEST = "{name: small, data: {name: digits}, model: {name: mobilenet_v2}}"
RECIPES = (
    "distillation",
    "progressive_bits",
    "oscillation",
    "weight_average",
    "label_smoothing",
)


def problems(*overrides):
    with pytest.raises(RunError) as error:
        parse_config(SMALLEST, overrides)
    return [line.removeprefix("  - ") for line in str(error.value).splitlines()[1:]]


def test_every_recipe_is_off_where_nothing_is_said():
    assert parse_config(SMALLEST).recipes.model_dump() == dict.fromkeys(RECIPES)


@pytest.mark.parametrize("name", RECIPES)
def test_true_is_a_recipe_with_its_defaults_and_false_is_none(name):
    on = parse_config(SMALLEST, [f"recipes.{name}=true"])
    assert on == parse_config(SMALLEST, [f"recipes.{name}={{}}"])
    assert getattr(on.recipes, name) is not None
    assert parse_config(config_text(on)) == on
    off = parse_config(SMALLEST, [f"recipes.{name}=false"])
    assert off == parse_config(SMALLEST)


def test_all_problems_are_reported_at_once():
    found = problems(
        "recipes.distillation={temprature: 3, weight: 0}",
        "recipes.progressive_bits={bits: [4, 9], shares: [0.5, 0.5, 0.1]}",
        "recipes.oscillation={first_threshold: 0.01, last_threshold: 0.02}",
        "recipes.weight_average.stages=[deploy_tail]",
        "recipes.label_smoothing.amount=1.0",
        "recipes.osillation=true",
    )
    assert found == [
        "recipes.distillation.weight=0: expected a number above 0, to 1 (the labels do not count).",
        "recipes.distillation.temprature is not a key. Did you mean temperature?",
        "recipes.progressive_bits.bits=[4, 9]: expected integers from 2 to 8.",
        "recipes.progressive_bits.bits=[4, 9]: expected each to be fewer than the one before.",
        "recipes.progressive_bits.shares=[0.5, 0.5, 0.1]: expected 2 of them, one for each of "
        "bits.",
        "recipes.progressive_bits.shares=[0.5, 0.5, 0.1]: expected positive numbers with a sum "
        "below 1; the rest of the stage has the bits of the policy.",
        "recipes.oscillation.last_threshold=0.02: expected at most first_threshold, 0.01.",
        "recipes.weight_average.stages.0='deploy_tail': expected a list of stages, out of float "
        "and quantized.",
        "recipes.label_smoothing.amount=1.0: expected a number between 0 and 1.",
        "recipes.osillation is not a key. Did you mean oscillation?",
    ]


def test_the_float_stage_cannot_be_its_own_teacher():
    (found,) = problems("recipes.distillation.stages=[float, quantized]")
    assert "the float stage cannot learn from its own outcome" in found
    other = ["recipes.distillation.stages=[float]", "recipes.distillation.teacher=other.keras"]
    assert parse_config(SMALLEST, other).recipes.distillation.teacher == "other.keras"
    (found,) = problems("recipes.distillation.model.name=vgg16")
    assert "the model of the float stage is known" in found


def test_oscillations_are_followed_when_bits_have_come_down():
    both = ["recipes.progressive_bits={bits: [8, 4], shares: [0.1, 0.2]}"]
    (found,) = problems(*both, "recipes.oscillation.start=0.2")
    assert "codes are those of the policy from 0.3 of the stage on" in found
    parse_config(SMALLEST, [*both, "recipes.oscillation.start=0.3"])


def test_a_recipe_of_a_stage_that_does_not_exist_is_a_problem():
    smoothing = "recipes.label_smoothing.stages=[quantized, deploy_tail]"
    (found,) = problems(smoothing)
    assert "the run has no stage deploy_tail" in found
    parse_config(SMALLEST, [smoothing, "stages.deploy_tail={epochs: 6}"])


def test_errors_do_not_wait_for_tensorflow():
    code = (
        "import sys; from sat_tf.training.config.config import parse_config\n"
        f"try: parse_config({SMALLEST!r}, ['recipes.oscillation.start=2'])\n"
        "except Exception: print('tensorflow' in sys.modules)"
    )
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert found.stdout.strip() == "False"


def test_recipes_can_be_cut_down_to_those_of_some_stages():
    recipes = RecipesConfig.model_validate(
        {"distillation": {}, "oscillation": {}, "weight_average": None, "label_smoothing": {}}
    )
    of_float = recipes.in_stages(["float"])
    assert (of_float.distillation, of_float.oscillation, of_float.weight_average) == (None,) * 3
    assert of_float.label_smoothing.stages == ["float"]
    assert recipes.in_stages(["float", "quantized"]) == recipes
