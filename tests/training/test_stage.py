import io

import numpy as np
import pytest
import tensorflow as tf
import tf_keras as keras
from rich.console import Console

from sat_tf.qat.layout import inner_layer
from sat_tf.training.config_file import parse_config
from sat_tf.training.errors import RunError
from sat_tf.training.run_folder import METRICS, RunFolder
from sat_tf.training.stage import Run, batch_size_problems, held_out_top1, train_stage
from sat_tf.training.training_copy import training_copy
from tests.training.small import small_images, small_quantized_model

CONFIG = """
name: small
data: {name: digits, shift_pixels: 1}
model: {name: mobilenet_v1}
stages:
  float: {epochs: 2, batch_size: 32, base_learning_rate: 0.8, warmup_epochs: 1}
  quantized: {warmup_epochs: 0}
"""


def make_run(folder, *overrides, strategy=None, images=None):
    return Run(
        config=parse_config(CONFIG, overrides),
        images=images or small_images(),
        folder=RunFolder(folder),
        strategy=strategy or tf.distribute.get_strategy(),
        console=Console(file=io.StringIO()),
    )


def metrics(run):
    return [(row.stage, row.epoch, row.loss, row.train_top1, row.held_out_top1) for row in run.rows]


def test_a_stage_learns_and_leaves_its_start_alone(tmp_path):
    start = small_quantized_model()
    before = start.get_weights()
    run = make_run(tmp_path)
    model = train_stage(run, "float", start)
    assert [(row.stage, row.epoch) for row in run.rows] == [("float", epoch) for epoch in (1, 2)]
    assert run.rows[-1].loss < run.rows[0].loss
    assert run.rows[-1].learning_rate < run.rows[0].learning_rate
    assert held_out_top1(model, run.images) == run.rows[-1].held_out_top1
    assert all(np.array_equal(*pair) for pair in zip(before, start.get_weights(), strict=True))
    assert len((tmp_path / METRICS).read_text().splitlines()) == 3


def test_the_same_seed_gives_the_same_metrics_and_weights(tmp_path):
    runs, weights = [], []
    for _ in range(2):
        run = make_run(tmp_path, "seed=3")
        weights.append(train_stage(run, "quantized", small_quantized_model()).get_weights())
        runs.append(metrics(run))
    assert runs[0] == runs[1]
    assert all(np.array_equal(*pair) for pair in zip(*weights, strict=True))


def test_two_replicas_train_like_one_device(tmp_path):
    # Frozen, because statistics of half a batch on each device are not those of the whole one.
    start = training_copy(small_quantized_model())
    for layer in start.layers:
        if isinstance(inner_layer(layer), keras.layers.BatchNormalization):
            layer.trainable = False
    runs, weights = [], []
    # The default, collective operations, can serve only one strategy a process.
    mirrored = tf.distribute.MirroredStrategy(
        ["CPU:0", "CPU:1"], cross_device_ops=tf.distribute.ReductionToOneDevice()
    )
    for strategy in (None, mirrored):
        run = make_run(tmp_path, strategy=strategy)
        weights.append(train_stage(run, "quantized", start).trainable_weights)
        runs.append(run.rows)
    one, two = ([(row.loss, row.train_top1, row.held_out_top1) for row in rows] for rows in runs)
    # Sums over the batch are taken in another order, in float32.
    np.testing.assert_allclose(two, one, rtol=1e-5)
    for of_one, of_two in zip(*weights, strict=True):
        np.testing.assert_allclose(of_two, of_one, rtol=1e-4, atol=1e-5)


def test_a_learning_rate_that_blows_up_is_an_error_that_names_stage_and_fix(tmp_path):
    run = make_run(tmp_path, "stages.quantized.base_learning_rate=1e30")
    with pytest.raises(RunError, match=r"quantized stage, epoch 1, .* NaN or infinite, expected"):
        train_stage(run, "quantized", small_quantized_model())


def test_the_top1_of_a_model_with_nan_logits_is_an_error():
    model = training_copy(small_quantized_model())
    bias = model.get_layer("quant_classifier").layer.bias
    bias.assign([np.nan, 0.0, 0.0])
    with pytest.raises(RunError, match="gives NaN or infinite logits for held-out images"):
        held_out_top1(model, small_images())


def test_top1_counts_the_held_out_images():
    model, images = training_copy(small_quantized_model()), small_images()
    logits = model(images.test_images.astype(np.float32), training=False).numpy()
    expected = np.mean(np.argmax(logits, axis=1) == images.test_labels)
    assert held_out_top1(model, images) == pytest.approx(expected)


def test_batches_larger_than_the_data_set_are_problems_of_both_stages():
    images = small_images(train=30)
    found = batch_size_problems(parse_config(CONFIG), images)
    assert found == [
        f"stages.{stage}.batch_size=32: expected at most 30, the number of training images; lower "
        "it."
        for stage in ("float", "quantized")
    ]
    assert batch_size_problems(parse_config(CONFIG, ["stages.float.batch_size=30"]), images) == []
