import dataclasses
import importlib
import io
import math
import pathlib
import tomllib
import types

import numpy as np
import pytest
import tensorflow as tf
import tf_keras as keras
from rich.console import Console

import sat_tf
from sat_tf.exact.tflite.input_range import PIXELS
from sat_tf.messages import RunError
from sat_tf.report.layer_table import clipping_levels
from sat_tf.report.results import Results
from sat_tf.training.audit.kappa import kappa_0
from sat_tf.training.config import parse_config
from sat_tf.training.data.batches import ArraySource
from sat_tf.training.learner import Learner, make_optimizer, training_copy
from sat_tf.training.loop import stage
from sat_tf.training.loop.stage import (
    EpochLog,
    Run,
    StopWhenNotFinite,
    held_out_metrics,
    train_stage,
)
from sat_tf.training.loop.start import describe_environment
from sat_tf.training.run_folder import METRICS, TENSORBOARD, EpochMetrics, RunFolder, RunState
from tests.training.small import small_images, small_quantized_model

CONFIG = """
name: small
data: {name: digits}
model: {name: mobilenet_v1}
stages:
  float: {epochs: 2, batch_size: 32, base_learning_rate: 0.8, warmup_epochs: 1}
  quantized: {warmup_epochs: 0}
"""


def make_run(folder, *overrides, strategy=None, text=CONFIG):
    return Run(
        config=parse_config(text, overrides),
        source=ArraySource(small_images(), shift_pixels=1),
        input_range=PIXELS,
        folder=RunFolder(folder),
        strategy=strategy or tf.distribute.get_strategy(),
        console=Console(file=io.StringIO()),
        state=RunState(RunFolder(folder)),
    )


@pytest.mark.thorough
def test_a_stage_learns_and_leaves_its_start_alone(tmp_path):
    start = small_quantized_model()
    before = start.get_weights()
    run = make_run(tmp_path)
    _, model = train_stage(run, "float", start)
    assert [(row.stage, row.epoch) for row in run.rows] == [("float", epoch) for epoch in (1, 2)]
    assert run.rows[-1].loss < run.rows[0].loss
    assert run.rows[-1].learning_rate < run.rows[0].learning_rate
    measured = held_out_metrics(model, run.source, run.input_range)
    assert measured["top1"] == run.rows[-1].held_out_top1
    np.testing.assert_equal(before, start.get_weights())
    assert len((tmp_path / METRICS).read_text().splitlines()) == 3


@pytest.mark.thorough
def test_the_same_seed_gives_the_same_metrics_and_weights(tmp_path):
    rows, weights = [], []
    for name in ("first", "second"):
        (tmp_path / name).mkdir()
        run = make_run(tmp_path / name, "seed=3")
        weights.append(train_stage(run, "quantized", small_quantized_model())[1].get_weights())
        rows.append([dataclasses.replace(row, seconds=None) for row in run.rows])
    assert rows[0] == rows[1]
    np.testing.assert_equal(*weights)


@pytest.mark.thorough
def test_a_stage_can_have_a_number_of_steps_that_ends_within_an_epoch(tmp_path):
    run = make_run(tmp_path, "stages.float.steps=4", "stages.float.warmup_epochs=0.5")
    train_stage(run, "float", small_quantized_model())
    assert [row.epoch for row in run.rows] == [1, 2]
    # Two steps of warm-up and two of cooling, of which the last one is halfway down.
    assert run.rows[-1].learning_rate == pytest.approx(0.05)


@pytest.mark.thorough
def test_a_stage_ends_with_its_best_epoch(tmp_path):
    start = small_quantized_model()
    run = make_run(tmp_path, "training.keep=best")
    epoch, model = train_stage(run, "quantized", start)
    of_start, *of_epochs = run.rows
    assert (of_start.epoch, of_start.step, of_start.loss) == (0, 0, None)
    assert held_out_metrics(start, run.source, run.input_range)["top1"] == of_start.held_out_top1
    assert [row.epoch for row in of_epochs] == [1, 2]
    best = max(row.held_out_top1 for row in run.rows)
    assert held_out_metrics(model, run.source, run.input_range)["top1"] == best
    assert run.rows[epoch].held_out_top1 == best


@pytest.mark.thorough
def test_a_learning_rate_that_blows_up_is_an_error_that_names_stage_step_layer_and_fix(tmp_path):
    run = make_run(tmp_path, "stages.quantized.base_learning_rate=4e9")
    with pytest.raises(RunError) as error:
        train_stage(run, "quantized", small_quantized_model())
    text = str(error.value)
    assert text.startswith("quantized stage, epoch 2, step 5: the loss is NaN or infinite (")
    assert "quant_" in text
    assert "stages.quantized.base_learning_rate" in text
    assert "Epochs of the stage that are saved: 1." in text


def test_top1_counts_every_held_out_image_once_and_nan_logits_are_an_error():
    model, images = training_copy(small_quantized_model()), small_images()
    logits = model(images.test_images.astype(np.float32), training=False).numpy()
    hits = np.argmax(logits, axis=1) == images.test_labels
    found = held_out_metrics(model, ArraySource(images), PIXELS)
    assert found["top1"] == pytest.approx(np.mean(hits), abs=1e-7)
    assert found["images"] == len(images.test_labels)
    model.layers[-1].layer.kernel.assign(tf.fill(model.layers[-1].layer.kernel.shape, np.nan))
    with pytest.raises(RunError, match="NaN or infinite logits for held-out images"):
        held_out_metrics(model, ArraySource(images), PIXELS)


@pytest.mark.thorough
@pytest.mark.parametrize("precision", ["mixed_float16", "mixed_bfloat16"])
def test_mixed_precision_trains_float32_variables_and_exports_exactly(
    tmp_path, precision, monkeypatch
):
    run = make_run(tmp_path, f"training.precision={precision}", "stages.quantized.epochs=4")
    seen = {}

    def learner_of(trained, **settings):
        seen["dtypes"] = {variable.dtype for variable in trained.variables}
        seen["computes"] = trained.get_layer("quant_stem").layer.compute_dtype
        return Learner(trained, **settings)

    monkeypatch.setattr(stage, "Learner", learner_of)
    _, model = train_stage(run, "quantized", small_quantized_model())
    assert seen == {"dtypes": {tf.float32}, "computes": precision.removeprefix("mixed_")}
    assert run.rows[-1].loss < run.rows[1].loss
    # The model handed back computes in float32, and its file the same in integers.
    assert model.get_layer("quant_stem").layer.compute_dtype == "float32"
    sat_tf.export_tflite(model, tmp_path / "model.tflite")
    pixels = run.source.images.test_images
    assert sat_tf.verify_tflite(model, tmp_path / "model.tflite", pixels).codes_differing == 0


@pytest.mark.thorough
def test_mixed_float16_scales_the_loss_so_that_small_gradients_are_not_lost():
    stage = parse_config(CONFIG).stages.float
    optimizer = make_optimizer(stage, 3, precision="mixed_float16")
    assert isinstance(optimizer, keras.mixed_precision.LossScaleOptimizer)
    assert optimizer.dynamic
    images = small_images()
    changes = []
    for precision in ("float32", "mixed_float16"):
        model = training_copy(small_quantized_model(), precision=precision)
        before = model.get_layer("quant_classifier").layer.kernel.numpy()
        learner = Learner(model, batch_size=32)
        learner.compile(optimizer=make_optimizer(stage, 3, precision=precision))
        learner.train_on_batch(images.train_images[:32], images.train_labels[:32])
        changes.append(model.get_layer("quant_classifier").layer.kernel.numpy() - before)
    # Half precision keeps eleven binary digits, and codes flip where it rounds.
    scatter = np.linalg.norm(changes[1] - changes[0]) / np.linalg.norm(changes[0])
    assert scatter < 0.05


def events(folder):
    """(tag, step) -> value of all event files in a folder."""
    found = {}
    for path in sorted(folder.rglob("*events.*")):
        for record in tf.data.TFRecordDataset(str(path)).as_numpy_iterator():
            event = tf.compat.v1.Event.FromString(record)
            for value in event.summary.value:
                found[value.tag, event.step] = float(tf.make_ndarray(value.tensor))
    return found


@pytest.mark.thorough
def test_a_stage_leaves_metrics_and_events(tmp_path, capsys):
    run = make_run(tmp_path, "training.keep=last")
    _, model = train_stage(run, "quantized", small_quantized_model())
    rows = EpochMetrics.read(run.folder)
    assert rows == run.rows
    assert [(row.epoch, row.step) for row in rows] == [(0, 0), (1, 3), (2, 6)]
    of_training = events(tmp_path / TENSORBOARD / "quantized" / "train")
    held_out = events(tmp_path / TENSORBOARD / "quantized" / "validation")
    for row in rows[1:]:
        at = row.epoch - 1
        values = (row.loss, row.data_loss, row.train_top1, row.clipping_level)
        tags = ("loss", "data_loss", "top1", "clipping_level")
        assert [of_training[f"epoch_{tag}", at] for tag in tags] == pytest.approx(values)
        assert held_out["epoch_top1", at] == pytest.approx(row.held_out_top1)
        assert row.seconds > 0
    assert of_training["epoch_kappa_0", 1] == pytest.approx(kappa_0(model))
    levels = clipping_levels(model)
    assert len(levels) > 1
    for name, level in levels.items():
        assert of_training[f"epoch_clipping_level/{name}", 1] == pytest.approx(float(level))
    # Keras' progress goes where that of the run goes.
    assert "Epoch 2/2" in run.console.file.getvalue()
    assert "Epoch" not in capsys.readouterr().out


def test_tensorboard_comes_with_the_package():
    project = pathlib.Path(__file__).parents[3] / "pyproject.toml"
    dependencies = tomllib.loads(project.read_text(encoding="utf-8"))["project"]["dependencies"]
    assert any(words.startswith("tensorboard>") for words in dependencies)


@pytest.mark.thorough
@pytest.mark.parametrize("name", ["tf_keras", "keras"])
def test_a_quantized_model_of_either_keras_is_trained_with_tensorboard(name, tmp_path):
    keras = importlib.import_module(name)
    keras.utils.set_random_seed(0)
    layers = keras.layers
    ends = layers.GlobalAveragePooling2D(), layers.Dense(3)
    start = layers.Input((8, 8, 3)), layers.Conv2D(4, 3), layers.BatchNormalization()
    quantized = sat_tf.quantize_model(keras.Sequential([*start, layers.ReLU(), *ends]), 4)
    quantized.compile("sgd", keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    board = keras.callbacks.TensorBoard(str(tmp_path), histogram_freq=1)
    images = small_images()
    pixels = images.train_images.astype(np.float32)
    quantized.fit(pixels, images.train_labels, verbose=0, callbacks=[board])
    (events,) = (tmp_path / "train").glob("events.*")
    text = events.read_bytes()
    assert b"epoch_loss" in text
    assert b"histogram" in text


def row(stage, epoch):
    return EpochMetrics(stage=stage, epoch=epoch, step=epoch, loss=1 / 3, held_out_top1=0.1)


def write(folder, stage, rows, added, *, epochs=0, writes=True):
    log = EpochLog(folder, stage, rows, epochs=epochs, writes=writes)
    log.on_train_begin()
    for number in added:
        log.add(row(stage, number))
    log.on_train_end()


def places(rows):
    return " ".join(f"{row.stage[0]}{row.epoch}" for row in rows)


def test_rows_behind_the_epoch_that_is_resumed_from_are_dropped(tmp_path):
    folder, rows = RunFolder(tmp_path), []
    write(folder, "float", rows, (1, 2))
    write(folder, "quantized", rows, (0, 1, 2))
    assert places(EpochMetrics.read(folder)) == "f1 f2 q0 q1 q2"
    file = folder.file(METRICS)
    file.write_text(file.read_text() + "3,quan")  # cut by a full disk
    assert EpochMetrics.read(folder) == rows  # to the last digit
    write(folder, "quantized", rows, (2,), epochs=1)
    assert EpochMetrics.read(folder) == rows
    assert places(rows) == "f1 f2 q0 q1 q2"
    write(folder, "quantized", rows, (0,))
    assert places(EpochMetrics.read(folder)) == "f1 f2 q0"
    assert file.read_text().startswith("epoch,stage,step,")


def test_a_worker_that_does_not_write_keeps_the_rows(tmp_path):
    write(RunFolder(tmp_path), "float", rows := [], (1,), writes=False)
    assert rows == [row("float", 1)]
    assert not list(tmp_path.iterdir())


RESULTS = {"float_top1": 0.98765, "quantized_top1": 0.9825, "quantized_top5": 0.999}
RESULTS |= {"tflite_top1": 0.98, "held_out_images": 359, "verified_images": 128}
RESULTS |= {"parameters": 423018, "file_bytes": 636432, "gzip_bytes": 296109, "seconds": 119.7}
RESULTS |= {"codes_compared": 54379166, "trained_differing": 0.000123}


@pytest.mark.parametrize(
    ("loss", "top1", "what"),
    [(math.nan, 0.5, "the loss"), (math.inf, 0.5, "the loss"), (0.5, math.nan, "a logit")],
)
def test_a_loss_or_logit_that_is_not_finite_stops_the_stage_and_says_what_is_saved(
    loss, top1, what
):
    logs = {"loss": loss, "batch_loss": loss, "top1": top1}
    backup = types.SimpleNamespace(epochs=3)
    stop = StopWhenNotFinite("quantized", ArraySource(small_images()), backup)
    optimizer = types.SimpleNamespace(iterations=tf.Variable(8))
    stop.set_model(types.SimpleNamespace(student=small_quantized_model(), optimizer=optimizer))
    stop.on_epoch_begin(2)
    stop.on_train_batch_end(6, {"loss": 0.5, "batch_loss": 0.5, "top1": 0.9})
    with pytest.raises(RunError, match=f"quantized stage, epoch 3, step 8: {what} is NaN or inf"):
        stop.on_train_batch_end(7, logs)
    with pytest.raises(RunError, match=r"held-out images.*step 8.*base_learning_rate.*saved: 3\."):
        stop.on_test_batch_end(0, logs)


@pytest.mark.parametrize("differing", [0, 12])
def test_the_table_holds_every_number_of_a_run_and_the_interpreter_shows_it_in_a_line(differing):
    text = io.StringIO()
    results = Results(**RESULTS, codes_differing=differing)
    Console(file=text, width=100).print(results.table("a run"))
    for part in (
        "float model, held-out top-1 (359 images)",
        *("98.77 %", "98.25 % (top-5 99.90 %)", "(128 images)", "98.00 %", "423,018", "636,432"),
        *("296,109", "54,379,166", f" {differing} ", "120"),
    ):
        assert part in text.getvalue()
    assert repr(results).startswith("<Results: float model 98.77 %, quantized model 98.25 %")
    assert repr(results).endswith(f"{differing} of 54,379,166 codes differ>")
    assert "TFLite in LiteRT 98.00 % on 128 of 359 images" in repr(results)
    assert text.getvalue().count("top-5") == 1


def test_the_environment_names_seed_versions_and_devices():
    found = describe_environment(7)
    assert (found["seed"], found["tensorflow"][:2]) == (7, "2.")
    assert found["sat_tf"]
    assert any(device.startswith("CPU") for device in found["devices"])
    assert found["commit"] is None or len(found["commit"].rstrip("+")) == 40
