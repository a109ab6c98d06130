import typing

import pytest
from pydantic import ValidationError

from sat_tf.export.lowering.packing import PACKINGS
from sat_tf.messages import RunError
from sat_tf.qat.policy import BitPolicy
from sat_tf.training.config import Config, config_text, parse_config
from sat_tf.training.config_sections import RecipesConfig, StageConfig

SMALLEST = "{name: small, data: {name: digits}, model: {name: mobilenet_v2}}"


def test_what_a_config_leaves_out_is_the_papers_recipe():
    config = parse_config(SMALLEST)
    for stage in (config.stages.float, config.stages.quantized):
        assert (stage.epochs, stage.batch_size, stage.warmup_epochs) == (150, 2048, 5)
        assert (stage.momentum, stage.nesterov, stage.weight_decay) == (0.9, True, 4e-5)
        assert (stage.first_learning_rate, stage.peak_learning_rate) == (0.05, 0.05 * 8)
    assert config.policy == BitPolicy.mobile(4)
    assert config.seed == 0
    assert config.distribution == "auto"


def test_the_quantized_stage_inherits_what_it_leaves_out_from_the_float_stage():
    config = parse_config(
        SMALLEST,
        [
            "stages.float={epochs: 20, batch_size: 32, warmup_epochs: 3, nesterov: false}",
            "stages.quantized={epochs: 4, weight_decay: 0.0}",
        ],
    )
    quantized = config.stages.quantized
    assert (quantized.epochs, quantized.weight_decay) == (4, 0.0)
    assert (quantized.batch_size, quantized.warmup_epochs, quantized.nesterov) == (32, 3, False)
    assert config.stages.float.weight_decay == 4e-5


def test_the_warm_up_starts_at_the_rate_of_batches_of_256_unless_the_peak_is_lower():
    def first(**fields):
        return StageConfig(**fields).first_learning_rate

    assert first(base_learning_rate=0.05, batch_size=1024) == 0.05
    assert first(base_learning_rate=0.05, batch_size=64) == 0.0125
    assert first(base_learning_rate=0.05, batch_size=64, warmup_learning_rate=0.001) == 0.001


def test_behind_a_given_model_the_rate_is_stated():
    def rates(*overrides):
        config = parse_config(SMALLEST, overrides)
        assert parse_config(config_text(config)) == config
        return [stage.base_learning_rate for stage in config.stages.by_name().values()]

    given = "training.float_model=float.h5"
    assert rates() == [0.05, 0.05]
    assert rates(given, "stages.float.base_learning_rate=0.1") == [0.1, 0.1]
    assert rates(given, "stages.quantized.base_learning_rate=0.1") == [0.05, 0.1]


def numeric_keys(section=Config, prefix=""):
    """The dotted keys of all numbers, with a list where the key takes one."""
    for name, field in section.model_fields.items():
        arms = typing.get_args(field.annotation)
        kinds = [field.annotation, *arms, *(kind for arm in arms for kind in typing.get_args(arm))]
        inner = next((kind for kind in kinds if hasattr(kind, "model_fields")), None)
        if inner is not None:
            yield from numeric_keys(inner, f"{prefix}{name}.")
        elif {int, float} & {*kinds}:
            yield f"{prefix}{name}", typing.get_origin(field.annotation) is list


def test_every_number_has_an_upper_bound_that_names_its_key():
    keys = dict(numeric_keys())
    assert len(keys) > 30
    for key, takes_list in keys.items():
        for huge in ("1000000000000000", "1.0e+300"):
            value = f"[{huge}]" if takes_list else huge
            with pytest.raises(RunError) as error:
                parse_config(SMALLEST, [f"{key}={value}"])
            assert key.split(".")[-1] in str(error.value), key


def test_a_run_may_end_with_the_float_model():
    config = parse_config(SMALLEST, ["stages.quantized=null"])
    assert list(config.stages.by_name()) == ["float"]
    assert parse_config(config_text(config)) == config


@pytest.mark.parametrize("pack", PACKINGS)
def test_a_run_may_pack_its_file_as_the_export_does(pack):
    assert parse_config(SMALLEST, [f"export.pack={pack}"]).export.pack == pack
    assert parse_config(SMALLEST).export.pack == "auto"


def test_activations_may_stay_float():
    assert parse_config(SMALLEST, ["policy.activation_bits=null"]).policy.activation_bits is None


def test_a_config_cannot_be_changed():
    config = parse_config(SMALLEST)
    with pytest.raises(ValidationError):
        config.seed = 1


def test_a_resolved_config_reads_back_as_itself():
    config = parse_config(
        SMALLEST,
        [
            "policy={stream_bits: null, overrides: {'block_1_*': {weight_bits: 8}}}",
            "stages.quantized={epochs: 20, weight_decay: 1e-5}",
            "model.options={width_multiplier: 0.35, rectifier_max: null}",
        ],
    )
    assert parse_config(config_text(config)) == config
    assert config.policy.overrides == {"block_1_*": {"weight_bits": 8}}


def test_epochs_of_a_stage_win_over_the_steps_of_the_stage_before():
    config = parse_config(SMALLEST, ["stages={float: {steps: 100}, quantized: {epochs: 9}}"])
    assert config.stages.quantized.total_steps(30) == 270
    config = parse_config(SMALLEST, ["stages={float: {steps: 100}, quantized: {}}"])
    assert config.stages.quantized.total_steps(30) == 100


# -- recipes ---------------------------------------------------------------------------------

RECIPES = (
    "distillation",
    "progressive_bits",
    "oscillation",
    "weight_average",
    "label_smoothing",
)


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


def test_recipes_can_be_cut_down_to_those_of_some_stages():
    recipes = RecipesConfig.model_validate(
        {"distillation": {}, "oscillation": {}, "weight_average": None, "label_smoothing": {}}
    )
    of_float = recipes.in_stages(["float"])
    assert (of_float.distillation, of_float.oscillation, of_float.weight_average) == (None,) * 3
    assert of_float.label_smoothing.stages == ["float"]
    assert recipes.in_stages(["float", "quantized"]) == recipes
