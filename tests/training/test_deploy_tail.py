import csv
import json

import numpy as np
import pytest
import tensorflow as tf
import tf_keras as keras
from rich.console import Console

import sat_tf
from sat_tf import models
from sat_tf.commands import main
from sat_tf.export.deployed import DeployedModel
from sat_tf.messages import RunError
from sat_tf.training.config.config import parse_config
from sat_tf.training.loop import runner
from sat_tf.training.loop.deploy_tail import deploy_tail
from sat_tf.training.loop.stage import held_out_metrics
from sat_tf.training.loop.start import load_source
from sat_tf.training.state.run_folder import QUANTIZED_MODEL, RunFolder, RunState
from sat_tf.training.step.learner import training_copy
from tests.conftest import mirrored
from tests.training.loop.test_stage import make_run
from tests.training.small import small_float_model, small_images, small_quantized_model

TAIL = "stages.deploy_tail={epochs: 2, base_learning_rate: 0.08}"

TINY = """
name: tiny
data: {name: digits, options: {image_size: 8, test_fraction: 0.85}}
model: {name: mobilenet_v1}
stages:
  float: {epochs: 2, batch_size: 32, base_learning_rate: 0.4, warmup_epochs: 0}
  quantized: {epochs: 1}
  deploy_tail: {base_learning_rate: 0.04}
calibration: {num_images: 64}
export: {verify_images: 300}
"""


def copy_of(model):
    return training_copy(model)


def train_deploy_tail(run, start):
    ((_, deployed),) = runner.STAGES["deploy_tail"].candidates(run, start)
    return deployed


def batches(images, size=16):
    pairs = (images.train_images.astype(np.float32), images.train_labels)
    return tf.data.Dataset.from_tensor_slices(pairs).batch(size, drop_remainder=True)


@pytest.mark.thorough
def test_the_tail_trains_the_model_it_is_given_on_the_integers_of_its_file(tmp_path):
    images, model = small_images(), copy_of(small_quantized_model())
    before = model.get_weights()
    pixels, labels = images.test_images, images.test_labels
    sat_tf.export_tflite(model, tmp_path / "before.tflite")
    first = sat_tf.verify_tflite(model, tmp_path / "before.tflite", pixels, labels)
    tail = deploy_tail(model, batches(images), epochs=8, learning_rate=0.02)
    sat_tf.export_tflite(model, tmp_path / "after.tflite")
    last = sat_tf.verify_tflite(tail, tmp_path / "after.tflite", pixels, labels)
    assert tail.quantized is model
    assert not all(np.array_equal(*pair) for pair in zip(before, model.get_weights(), strict=True))
    assert first.trained_differing > 0 == last.trained_differing == last.codes_differing
    assert last.top1["quantized"] == last.top1["tflite"] > first.top1["tflite"]
    loss, top1 = tail.evaluate(pixels.astype(np.float32), labels, verbose=0)
    assert top1 == pytest.approx(last.top1["tflite"])
    assert np.isfinite(loss)


@pytest.mark.thorough
def test_the_learning_rate_goes_to_zero_over_the_epochs():
    tail = deploy_tail(copy_of(small_quantized_model()), batches(small_images()), epochs=2)
    schedule = tail.optimizer._learning_rate
    assert (float(schedule(0)), float(schedule(12))) == (pytest.approx(1e-3), 0.0)


def test_bad_arguments_are_listed_with_the_fix():
    endless = batches(small_images()).repeat()
    with pytest.raises(ValueError, match="deploy_tail: 4 problems") as error:
        deploy_tail(small_quantized_model(), endless, epochs=0, learning_rate=-1, momentum=1.0)
    text = str(error.value)
    assert len(text.splitlines()) == 5
    for expected in (
        "expected a tf.data.Dataset of known length",
        "epochs: received 0; expected an integer from 1",
        "learning_rate: received -1; expected a positive number",
        "momentum: received 1.0; expected a number from 0 to below 1",
    ):
        assert expected in text


@pytest.mark.thorough
def test_the_stage_leaves_its_start_alone_and_measures_what_the_file_computes(tmp_path):
    start = small_quantized_model()
    before = start.get_weights()
    run = make_run(tmp_path, TAIL)
    deployed = train_deploy_tail(run, start)
    assert isinstance(deployed, DeployedModel)
    assert [(row.stage, row.epoch) for row in run.rows] == [("deploy_tail", n) for n in range(3)]
    assert all(np.array_equal(*pair) for pair in zip(before, start.get_weights(), strict=True))
    assert held_out_metrics(deployed, run.source)["top1"] == run.rows[-1].held_out_top1
    path = tmp_path / "model.tflite"
    sat_tf.export_tflite(deployed, path)
    images = run.source.images
    found = sat_tf.verify_tflite(deployed, path, images.test_images, images.test_labels)
    assert found.trained_differing == 0
    assert found.top1["tflite"] == pytest.approx(run.rows[-1].held_out_top1)


@pytest.mark.thorough
def test_weight_decay_is_part_of_the_loss(tmp_path):
    losses = []
    for decay in (0.0, 1.0):
        run = make_run(tmp_path, TAIL, f"stages.deploy_tail.weight_decay={decay}")
        train_deploy_tail(run, small_quantized_model())
        losses.append(run.rows[1].loss)
    assert losses[1] > losses[0] + 1.0


@pytest.mark.thorough
def test_two_replicas_train_like_one_device(tmp_path):
    runs, weights = [], []
    for strategy in (None, mirrored()):
        run = make_run(tmp_path, TAIL, strategy=strategy)
        weights.append(train_deploy_tail(run, small_quantized_model()).quantized.get_weights())
        runs.append([(row.held_out_loss, row.held_out_top1) for row in run.rows])
        runs[-1] += [(row.loss, row.train_top1) for row in run.rows[1:]]
    # Sums over the batch are taken in another order, in float32.
    np.testing.assert_allclose(runs[1], runs[0], rtol=1e-5)
    for of_one, of_two in zip(*weights, strict=True):
        np.testing.assert_allclose(of_two, of_one, rtol=1e-4, atol=1e-5)


@pytest.mark.thorough
def test_a_learning_rate_that_blows_up_is_an_error_that_names_stage_and_fix(tmp_path):
    run = make_run(tmp_path, TAIL, "stages.deploy_tail.base_learning_rate=4e9")
    with pytest.raises(
        RunError, match=r"deploy_tail stage, epoch 2, .* NaN or infinite \(.*\), expected"
    ):
        train_deploy_tail(run, small_quantized_model())


def test_a_model_without_an_integer_form_is_an_error_that_says_where_the_trained_one_is(tmp_path):
    policy = sat_tf.BitPolicy(weight_bits=None)
    model = sat_tf.quantize_model(small_float_model(), policy)
    with pytest.raises(RunError, match="model of the quantized stage is in") as error:
        train_deploy_tail(make_run(tmp_path, TAIL), model)
    assert "weights are not quantized" in str(error.value)


def test_what_the_tail_leaves_out_is_as_in_the_quantized_stage():
    config = parse_config(TINY, ["stages.quantized.momentum=0.8"])
    tail = config.stages.deploy_tail
    assert (tail.epochs, tail.batch_size, tail.momentum) == (1, 32, 0.8)
    assert tail.base_learning_rate == 0.04
    assert list(config.stages.by_name()) == ["float", "quantized", "deploy_tail"]
    assert parse_config(TINY, ["stages.deploy_tail=null"]).stages.deploy_tail is None


def test_what_is_wrong_with_the_tail_is_said_once_and_by_its_name():
    with pytest.raises(RunError) as error:
        parse_config(TINY, ["stages.deploy_tail={epochs: 3, warmup_epochs: 3, epoch: 1}"])
    assert "stages.deploy_tail.epoch is not a key. Did you mean epochs?" in str(error.value)
    with pytest.raises(RunError) as error:
        parse_config(TINY, ["stages.deploy_tail={epochs: 3, warmup_epochs: 3}"])
    assert str(error.value).splitlines()[1:] == [
        "  - stages.deploy_tail.warmup_epochs=3 with epochs=3: expected a warm-up shorter than the "
        "stage; lower warmup_epochs."
    ]


@pytest.mark.thorough
def test_a_run_with_a_tail_reports_what_the_file_computes(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(
        models, "build", lambda *_, num_classes, **__: small_float_model(num_classes)
    )
    (tmp_path / "tiny.yaml").write_text(TINY)
    folder = tmp_path / "run"
    command = ["train", "--config", str(tmp_path / "tiny.yaml"), "--out", str(folder)]
    assert main.main(command) == 0
    assert "deployed model, held-out top-1" in capsys.readouterr().out
    results = json.loads((folder / "results.json").read_text())
    certificate = json.loads((folder / "certificate.json").read_text())
    with (folder / "metrics.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert [(row["stage"], row["epoch"]) for row in rows] == [
        ("float", "1"),
        ("float", "2"),
        ("quantized", "0"),
        ("quantized", "1"),
        ("deploy_tail", "0"),
        ("deploy_tail", "1"),
    ]
    assert (results["codes_differing"], results["trained_differing"]) == (0, 0)
    assert certificate["top1"]["quantized"] == certificate["top1"]["tflite"]
    assert results["deployed_top1"] == pytest.approx(float(rows[-1]["held_out_top1"]), abs=1e-5)
    model = keras.models.load_model(folder / "quantized.keras")
    source = load_source(parse_config(TINY))
    carried = {"labels": source.class_names, "preprocessing": source.preprocessing}
    report = sat_tf.export_tflite(model, tmp_path / "again.tflite", **carried)
    assert report.sha256 == certificate["sha256"]
    assert main.main(["evaluate", str(folder)]) == 0
    assert f"top-1 {100 * results['deployed_top1']:.2f} %" in capsys.readouterr().out


@pytest.mark.thorough
def test_a_tail_that_dies_before_it_is_noted_starts_from_the_quantized_model_again(
    tmp_path, monkeypatch
):
    monkeypatch.setattr(
        models, "build", lambda *_, num_classes, **__: small_float_model(num_classes)
    )
    folder = RunFolder(tmp_path / "run")
    finish, quantized = RunState.finish, []

    def dying(self, stage, metrics):
        if stage == "deploy_tail":
            quantized.append(folder.file(QUANTIZED_MODEL).read_bytes())
            raise KeyboardInterrupt
        finish(self, stage, metrics)
        quantized.append(folder.file(QUANTIZED_MODEL).read_bytes() if stage != "float" else b"")

    monkeypatch.setattr(RunState, "finish", dying)
    with pytest.raises(KeyboardInterrupt):
        runner.train(parse_config(TINY), folder, Console(quiet=True))
    assert quantized[1] == quantized[2] != b""
