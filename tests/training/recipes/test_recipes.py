import csv
import dataclasses

import numpy as np
import pytest

from sat_tf.messages import RunError
from sat_tf.output_folder import FLOAT_MODEL
from sat_tf.training.config import parse_config
from sat_tf.training.data.batches import ArraySource
from sat_tf.training.loop.stage import held_out_metrics, train_stage
from sat_tf.training.run_folder import OSCILLATIONS, EpochMetrics
from sat_tf.training.trained_models import read_teacher
from tests.training.loop import test_stage
from tests.training.small import small_float_model, small_images, small_quantized_model
from tests.training.stopped import stop_behind

CONFIG = """
name: small
data: {name: digits, shift_pixels: 1}
model: {name: mobilenet_v1}
stages:
  float: {epochs: 8, batch_size: 32, base_learning_rate: 1.6, warmup_epochs: 0}
"""
RECIPES = {
    "distillation": "{temperature: 2.0}",
    "progressive_bits": "{bits: [8, 6], shares: [0.2, 0.2]}",
    "oscillation": "{start: 0.5, momentum: 0.5, last_threshold: 0.02}",
    "weight_average": "{decay: 0.5}",
    "label_smoothing": "{amount: 0.2}",
}
ALL = [f"recipes.{name}={value}" for name, value in RECIPES.items()]


def make_run(folder, *overrides, strategy=None):
    folder.mkdir(exist_ok=True)
    small_float_model().save(folder / FLOAT_MODEL)
    return test_stage.make_run(folder, *overrides, strategy=strategy, text=CONFIG)


def trained(run):
    return train_stage(run, "quantized", small_quantized_model())[1]


@pytest.fixture(scope="module")
def without_recipes(tmp_path_factory):
    return trained(make_run(tmp_path_factory.mktemp("without"))).get_weights()


@pytest.mark.slow
@pytest.mark.parametrize("name", RECIPES)
def test_each_recipe_changes_what_a_stage_learns(name, tmp_path, without_recipes):
    run = make_run(tmp_path, f"recipes.{name}={RECIPES[name]}")
    model = trained(run)
    assert all(np.isfinite(weight).all() for weight in model.get_weights())
    pairs = zip(without_recipes, model.get_weights(), strict=True)
    assert not all(np.array_equal(*pair) for pair in pairs)
    # The stage hands back the model that was measured after the last epoch.
    assert held_out_metrics(model, run.source)["top1"] == run.rows[-1].held_out_top1


@pytest.mark.slow
def test_a_recipe_stays_out_of_other_stages(tmp_path, without_recipes):
    run = make_run(tmp_path, "recipes.distillation.teacher=missing.keras", *ALL[1:4])
    config = run.config.recipes
    assert config.distillation.stages == config.weight_average.stages == ["quantized"]
    _, model = train_stage(run, "float", small_quantized_model())
    assert all(
        np.array_equal(*pair) for pair in zip(without_recipes, model.get_weights(), strict=True)
    )


@pytest.mark.slow
def test_oscillating_and_frozen_weights_are_listed_by_epoch_and_layer(tmp_path):
    trained(make_run(tmp_path, "recipes.oscillation=true"))
    rows = list(csv.DictReader((tmp_path / OSCILLATIONS).open()))
    assert [(row["epoch"], row["layer"], row["bits"]) for row in rows] == [
        (epoch, layer, "4") for epoch in "12345678" for layer in ("depthwise", "pointwise")
    ]
    assert all(int(row["oscillating"]) + int(row["frozen"]) <= int(row["weights"]) for row in rows)


@pytest.mark.thorough
def test_a_stage_with_every_recipe_goes_on_bit_for_bit_behind_its_last_epoch(tmp_path, monkeypatch):
    whole = make_run(tmp_path / "whole", *ALL)
    weights = trained(whole).get_weights()
    with monkeypatch.context() as patch:
        stop_behind(patch, 11)  # in the fourth epoch
        stopped = make_run(tmp_path / "parts", *ALL)
        with pytest.raises(KeyboardInterrupt, match="epoch 3 of the quantized stage is saved"):
            trained(stopped)
    run = make_run(tmp_path / "parts", *ALL)
    run.rows[:] = EpochMetrics.read(run.folder)
    again = trained(run).get_weights()
    assert all(np.array_equal(*pair) for pair in zip(weights, again, strict=True))
    assert [dataclasses.replace(row, seconds=None) for row in EpochMetrics.read(run.folder)] == [
        dataclasses.replace(row, seconds=None) for row in whole.rows
    ]


@pytest.mark.thorough
def test_a_stage_that_is_stopped_in_its_first_epoch_begins_again(tmp_path, monkeypatch):
    stop_behind(monkeypatch, 1)
    with pytest.raises(KeyboardInterrupt, match="no epoch of the quantized stage was finished"):
        trained(make_run(tmp_path))


@pytest.mark.thorough
@pytest.mark.parametrize("replicas", [2], indirect=True)
def test_every_recipe_works_on_two_replicas(tmp_path, replicas):
    run = make_run(tmp_path, *ALL, "training.keep=last", strategy=replicas)
    model = trained(run)
    assert all(np.isfinite(weight).all() for weight in model.get_weights())
    assert held_out_metrics(model, run.source)["top1"] == run.rows[-1].held_out_top1


def test_a_teacher_that_is_missing_is_an_error_before_any_training():
    source = ArraySource(small_images())
    config = parse_config(CONFIG, ["recipes.distillation={teacher: nowhere.keras}"])
    with pytest.raises(RunError, match=r"^recipes.distillation.teacher='nowhere\.keras': no"):
        read_teacher(config, source)
    read_teacher(parse_config(CONFIG, ["recipes.distillation={}"]), source)
