import io
import pathlib
import typing

import numpy as np
import pytest
from pydantic import ValidationError
from rich.console import Console

from sat_tf.commands.train import folder_config
from sat_tf.export.lowering.packing import PACKINGS
from sat_tf.messages import RunError
from sat_tf.qat.policy import BitPolicy
from sat_tf.training.config import (
    DEMO,
    FOLDER,
    SHIPPED,
    Config,
    FolderChoice,
    config_text,
    parse_config,
    read_config,
    size_of,
)
from sat_tf.training.config_sections import RecipesConfig, StageConfig
from sat_tf.training.data import DATA_SETS
from sat_tf.yaml_text import load_yaml
from tests.training.small import write_pictures

SMALLEST = "{name: small, data: {name: digits}, model: {name: mobilenet_v2}}"


def test_what_a_config_leaves_out_is_the_papers_recipe():
    config = parse_config(SMALLEST)
    for stage in (config.stages.float, config.stages.quantized):
        assert (stage.epochs, stage.batch_size, stage.warmup_epochs) == (150, 2048, 5)
        assert (stage.momentum, stage.nesterov, stage.weight_decay) == (0.9, True, 4e-5)
        assert (stage.first_learning_rate, stage.peak_learning_rate) == (0.05, 0.05 * 8)
    assert config.policy == BitPolicy.mobile(4)
    assert (config.seed, config.distribution) == (0, "auto")
    with pytest.raises(ValidationError):  # it cannot be changed
        config.seed = 1


def test_the_quantized_stage_inherits_what_it_leaves_out_from_the_float_stage():
    start = "stages.float={epochs: 20, batch_size: 32, warmup_epochs: 3, nesterov: false}"
    config = parse_config(SMALLEST, [start, "stages.quantized={epochs: 4, weight_decay: 0.0}"])
    quantized = config.stages.quantized
    assert (quantized.epochs, quantized.weight_decay) == (4, 0.0)
    assert (quantized.batch_size, quantized.warmup_epochs, quantized.nesterov) == (32, 3, False)
    assert config.stages.float.weight_decay == 4e-5
    # Its epochs win over the steps of the stage before.
    for stage, steps in (("{epochs: 9}", 270), ("{}", 100)):
        config = parse_config(SMALLEST, [f"stages={{float: {{steps: 100}}, quantized: {stage}}}"])
        assert config.stages.quantized.total_steps(30) == steps


@pytest.mark.parametrize(
    ("fields", "rate"),
    [
        ({"batch_size": 1024}, 0.05),
        ({"batch_size": 64}, 0.0125),
        ({"batch_size": 64, "warmup_learning_rate": 0.001}, 0.001),
    ],
)
def test_the_warm_up_starts_at_the_rate_of_batches_of_256_unless_the_peak_is_lower(fields, rate):
    assert StageConfig(base_learning_rate=0.05, **fields).first_learning_rate == rate


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


def test_a_run_may_pack_its_file_as_the_export_does():
    assert parse_config(SMALLEST).export.pack == "auto"
    for pack in PACKINGS:
        assert parse_config(SMALLEST, [f"export.pack={pack}"]).export.pack == pack


def test_a_resolved_config_reads_back_as_itself():
    policy = "{activation_bits: null, stream_bits: null, overrides: {'b_*': {weight_bits: 8}}}"
    options = "{width_multiplier: 0.35, rectifier_max: null}"
    changes = [f"policy={policy}", f"model.options={options}", "stages.quantized=null"]
    config = parse_config(SMALLEST, changes)
    assert parse_config(config_text(config)) == config
    assert config.policy.activation_bits is None
    assert config.policy.overrides == {"b_*": {"weight_bits": 8}}
    assert list(config.stages.by_name()) == ["float"]


# -- recipes ---------------------------------------------------------------------------------


@pytest.mark.parametrize("name", RecipesConfig.model_fields)
def test_true_is_a_recipe_with_its_defaults_and_it_is_off_where_nothing_is_said(name):
    on = parse_config(SMALLEST, [f"recipes.{name}=true"])
    assert on == parse_config(SMALLEST, [f"recipes.{name}={{}}"])
    assert getattr(on.recipes, name) is not None
    assert parse_config(config_text(on)) == on
    off = parse_config(SMALLEST, [f"recipes.{name}=false"])
    assert off == parse_config(SMALLEST)
    assert getattr(off.recipes, name) is None


@pytest.mark.parametrize("name", ["oscillation", "weight_average"])
def test_a_transition_rate_is_refused_beside_recipes_that_look_at_weights_before_it(name):
    with pytest.raises(RunError, match=f"transition_rate with {name}: .* the others to null"):
        parse_config(SMALLEST, ["recipes.transition_rate={}", f"recipes.{name}={{}}"])


CONFIGS = sorted(SHIPPED.glob("*/*.yaml"))


@pytest.mark.parametrize("path", CONFIGS, ids=lambda path: path.stem)
def test_every_shipped_config_is_valid_and_named_after_its_file(path):
    changes = [] if "tfds" in DATA_SETS else ["data={name: digits}"]
    assert read_config(path, changes).name == f"{path.parent.name}_{path.stem}"


def test_a_shipped_config_is_found_from_any_folder_and_is_that_of_the_repository(
    tmp_path, monkeypatch
):
    assert SHIPPED.resolve() == pathlib.Path(__file__).parents[3] / "configs"
    monkeypatch.chdir(tmp_path)
    name = "configs/digits/mobilenet_v2_w4a4.yaml"
    assert read_config(name) == read_config(DEMO)
    (tmp_path / "configs" / "digits").mkdir(parents=True)
    (tmp_path / name).write_text(SMALLEST)
    assert read_config(name).name == "small"  # one's own goes first


@pytest.mark.parametrize("text", ["4e-5", "4.0e-5", "4E-5", "0.00004", "+4e-5"])
def test_a_number_with_an_exponent_needs_no_point(text):
    config = parse_config(SMALLEST, [f"stages.float.weight_decay={text}"])
    assert config.stages.float.weight_decay == 4e-5


def test_overrides_win_over_the_file_and_later_ones_over_earlier_ones():
    config = parse_config(
        SMALLEST, ["seed=1", "stages.float.epochs=7", "seed=2", "model.options.rectifier_max=null"]
    )
    assert (config.seed, config.stages.float.epochs) == (2, 7)
    assert config.model.options == {"rectifier_max": None}


@pytest.mark.parametrize(
    ("text", "value"),
    [
        (str(2**63 - 1), 2**63 - 1),
        (str(-(2**63)), -(2**63)),
        ("0x7fff_ffff_ffff_ffff", 2**63 - 1),
        ("-0b" + "1" * 63, -(2**63) + 1),
        ("0" * 100 + "7", 7),
        ("1:30", 90),
    ],
)
def test_integers_of_64_bits_are_read(text, value):
    assert load_yaml(text) == value


@pytest.mark.parametrize("name", ["1e5", "5E-8", "0x1f", "1_000", "yes", "null"])
def test_words_that_look_like_values_read_back_as_words(name):
    config = parse_config(SMALLEST).model_copy(update={"name": name})
    assert parse_config(config_text(config)) == config


def test_aliases_and_merge_keys_of_an_honest_size_are_read():
    text = "usual: &usual {epochs: 3, momentum: 0.9}\nlong: {<<: *usual, epochs: 30}\nb: *usual"
    found = load_yaml(text)
    assert found["long"] == {"epochs": 30, "momentum": 0.9}
    assert found["b"] == found["usual"]


# -- of a folder of pictures -----------------------------------------------------------------------


def choice(num_train, side=300):
    return FolderChoice("photos", "/photos", num_train, size_of(num_train, side))


def test_the_shipped_configuration_is_the_one_that_is_chosen_for_hundreds():
    config = read_config(FOLDER)
    changed = read_config(FOLDER, choice(500).overrides())
    assert changed.model_copy(update={"name": "folder"}) == config


@pytest.mark.parametrize(
    ("num_train", "side", "image_size", "batch_size"),
    [
        (500, 300, 64, 16),
        (5_000, 300, 96, 32),
        (50_000, 300, 128, 64),
        (1_000_000, 300, 224, 256),
        (5_000, 70, 64, 32),  # no larger than the pictures
        (5_000, 2, 32, 32),
        (5_000, None, 96, 32),
        (40, 300, 64, 8),  # four batches at least
        (3, 300, 64, 2),
    ],
)
def test_sizes_follow_from_the_set(num_train, side, image_size, batch_size):
    config = read_config(FOLDER, choice(num_train, side).overrides())
    assert config.data.options["image_size"] == image_size
    assert config.stages.float.batch_size == batch_size
    assert config.stages.quantized.batch_size == batch_size
    assert config.stages.quantized.epochs == config.stages.float.epochs // 2
    assert config.model.options["stem_stride"] == (2 if image_size >= 64 else 1)


@pytest.fixture(scope="module")
def root(tmp_path_factory):
    """Ten pictures of either of two classes."""
    folder = tmp_path_factory.mktemp("folder") / "my 'photos'"
    write_pictures(folder, np.zeros((20, 80, 70, 3), np.uint8), np.arange(20) % 2)
    return folder


def test_a_folder_is_all_that_is_needed_and_a_file_decides_everything_else(root, monkeypatch):
    monkeypatch.chdir(root.parent)
    console = Console(file=io.StringIO(), width=300)
    overrides = ["stages.float.epochs=9", "seed=3"]
    config = folder_config("my 'photos'", console, overrides=overrides)
    assert config.name == "my_photos_"
    assert config.data.options == {"data_dir": str(root), "image_size": 64}
    assert (config.stages.float.epochs, config.seed) == (9, 3)
    said = console.file.getvalue()
    assert said == (
        "Chosen for 16 pictures to train on: mobilenet_v2 of width 0.35, 64x64 pixels, batches of "
        "4, 60 + 30 epochs; --set changes each.\n"
    )
    config = folder_config(str(root), console, str(FOLDER))
    assert config == read_config(FOLDER, [f'data.options.data_dir="{root}"'])
    assert console.file.getvalue() == said


@pytest.mark.parametrize(("epochs", "warmups"), [(9, (0.9, 1)), (1, (0.1, 1)), (10, (2, 1))])
def test_stages_that_are_made_short_warm_up_for_less(root, epochs, warmups):
    console, settings = Console(file=io.StringIO()), [f"stages.float.epochs={epochs}"]
    stages = folder_config(str(root), console, overrides=settings).stages
    found = stages.float.warmup_epochs, stages.quantized.warmup_epochs
    assert found == pytest.approx(warmups)
    longer = [*settings, "stages.float.warmup_epochs=0.5"]
    config = folder_config(str(root), console, overrides=longer)
    assert config.stages.float.warmup_epochs == 0.5
