import io

import numpy as np
import pytest
import tensorflow as tf
import tf_keras as keras
from rich.console import Console

import sat_tf
from sat_tf.messages import RunError
from sat_tf.training.config import parse_config
from sat_tf.training.data.batches import ArraySource
from sat_tf.training.learner import Learner, make_optimizer, training_copy
from sat_tf.training.loop import stage
from sat_tf.training.loop.stage import Run, held_out_metrics, train_stage
from sat_tf.training.loop.start import batch_size_problems
from sat_tf.training.run_folder import (
    METRICS,
    RunFolder,
)
from tests.training.small import small_images, small_quantized_model

CONFIG = """
name: small
data: {name: digits}
model: {name: mobilenet_v1}
stages:
  float: {epochs: 2, batch_size: 32, base_learning_rate: 0.8, warmup_epochs: 1}
  quantized: {warmup_epochs: 0}
"""


def make_run(folder, *overrides, strategy=None, source=None, text=CONFIG):
    return Run(
        config=parse_config(text, overrides),
        source=source or ArraySource(small_images(), shift_pixels=1),
        folder=RunFolder(folder),
        strategy=strategy or tf.distribute.get_strategy(),
        console=Console(file=io.StringIO()),
    )


def metrics(run):
    return [(row.stage, row.epoch, row.loss, row.train_top1, row.held_out_top1) for row in run.rows]


@pytest.mark.thorough
def test_a_stage_learns_and_leaves_its_start_alone(tmp_path):
    start = small_quantized_model()
    before = start.get_weights()
    run = make_run(tmp_path)
    _, model = train_stage(run, "float", start)
    assert [(row.stage, row.epoch) for row in run.rows] == [("float", epoch) for epoch in (1, 2)]
    assert run.rows[-1].loss < run.rows[0].loss
    assert run.rows[-1].learning_rate < run.rows[0].learning_rate
    assert held_out_metrics(model, run.source)["top1"] == run.rows[-1].held_out_top1
    assert all(np.array_equal(*pair) for pair in zip(before, start.get_weights(), strict=True))
    assert len((tmp_path / METRICS).read_text().splitlines()) == 3


@pytest.mark.thorough
def test_the_same_seed_gives_the_same_metrics_and_weights(tmp_path):
    runs, weights = [], []
    for name in ("first", "second"):
        (tmp_path / name).mkdir()
        run = make_run(tmp_path / name, "seed=3")
        weights.append(train_stage(run, "quantized", small_quantized_model())[1].get_weights())
        runs.append(metrics(run))
    assert runs[0] == runs[1]
    assert all(np.array_equal(*pair) for pair in zip(*weights, strict=True))


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
    assert held_out_metrics(start, run.source)["top1"] == of_start.held_out_top1
    assert [row.epoch for row in of_epochs] == [1, 2]
    best = max(row.held_out_top1 for row in run.rows)
    assert held_out_metrics(model, run.source)["top1"] == best
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


def test_the_top1_of_a_model_with_nan_logits_is_an_error():
    model = training_copy(small_quantized_model())
    model.layers[-1].layer.kernel.assign(tf.fill(model.layers[-1].layer.kernel.shape, np.nan))
    with pytest.raises(RunError, match="NaN or infinite logits for held-out images"):
        held_out_metrics(model, ArraySource(small_images()))


def test_top1_counts_every_held_out_image_once():
    model, images = training_copy(small_quantized_model()), small_images()
    logits = model(images.test_images.astype(np.float32), training=False).numpy()
    hits = np.argmax(logits, axis=1) == images.test_labels
    found = held_out_metrics(model, ArraySource(images))
    assert found["top1"] == pytest.approx(np.mean(hits), abs=1e-7)
    assert found["images"] == len(images.test_labels)


def test_batches_larger_than_the_data_and_warm_ups_longer_than_the_stage_are_problems():
    source = ArraySource(small_images(train=30))
    config = parse_config(CONFIG, ["stages.quantized.batch_size=16"])
    assert batch_size_problems(config, source) == [
        "stages.float.batch_size=32: expected at most 30, the number of training images; lower it."
    ]
    config = parse_config(
        CONFIG, ["stages.float.steps=3", "stages.float.batch_size=10", "stages.quantized.steps=9"]
    )
    assert batch_size_problems(config, source) == [
        "stages.float.warmup_epochs=1: 3 steps of 3; expected a warm-up shorter than the stage; "
        "lower it."
    ]
    config = parse_config(CONFIG, ["stages.float.batch_size=1", "stages.quantized.batch_size=2"])
    assert batch_size_problems(config, source, replicas=2) == [
        "stages.float.batch_size=1: expected at least 2, the number of devices that share a batch; "
        "raise it, or train on fewer."
    ]


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
