"""A run shows its metrics file, curves, table and environment."""

import io
import types

import matplotlib.image
import pytest
import tensorflow as tf
from rich.console import Console

from sat_tf.messages import RunError
from sat_tf.output_folder import CONFIG
from sat_tf.report.results import Results
from sat_tf.training.config import config_text, parse_config
from sat_tf.training.data.batches import ArraySource
from sat_tf.training.loop.callbacks import StopWhenNotFinite
from sat_tf.training.loop.outcome import write_curves
from sat_tf.training.loop.start import describe_environment
from sat_tf.training.run_folder import EpochMetrics, RunFolder
from tests.training.report_folder import write_rows
from tests.training.small import small_images, small_quantized_model

LOGS = {"loss": 0.5, "top1": 0.9, "val_loss": 0.6, "val_top1": 0.8, "top5": 0.99, "val_top5": 0.95}
RESULTS = Results(
    float_top1=0.98765,
    quantized_top1=0.9825,
    tflite_top1=0.98,
    held_out_images=359,
    verified_images=128,
    parameters=423018,
    file_bytes=636432,
    gzip_bytes=296109,
    codes_compared=54379166,
    codes_differing=0,
    trained_differing=0.000123,
    seconds=119.7,
)


def rows():
    return [
        EpochMetrics(
            stage=stage,
            epoch=epoch,
            step=7 * epoch,
            learning_rate=0.1 / epoch,
            loss=2.0 / epoch,
            train_top1=0.4 + 0.1 * epoch,
            train_top5=0.9 if stage == "float" else None,
            held_out_top1=0.5,
            seconds=1.5,
        )
        for stage in ("float", "quantized")
        for epoch in (1, 2, 3)
    ]


@pytest.mark.parametrize("count", [1, 6])
def test_the_curves_are_a_picture(tmp_path, count):
    folder = RunFolder(tmp_path)
    write_rows(folder, rows()[:count])
    config = parse_config("name: demo", ["data.name=digits", "model.name=mobilenet_v2"])
    folder.write_text(CONFIG, config_text(config))
    write_curves(folder)
    picture = matplotlib.image.imread(tmp_path / "curves.png")
    assert picture.shape[:2] == (736, 1664)
    assert picture.std() > 0


@pytest.mark.parametrize(
    ("logs", "what"),
    [
        ({"loss": float("nan"), "batch_loss": float("nan"), "top1": 0.5}, "the loss"),
        ({"loss": float("inf"), "batch_loss": float("inf"), "top1": 0.5}, "the loss"),
        ({"loss": 0.5, "batch_loss": 0.5, "top1": float("nan")}, "a logit"),
    ],
)
def test_a_loss_or_logit_that_is_not_finite_stops_the_stage_and_says_what_is_saved(logs, what):
    backup = types.SimpleNamespace(epochs=3)
    stop = StopWhenNotFinite("quantized", ArraySource(small_images()), backup)
    optimizer = types.SimpleNamespace(iterations=tf.Variable(8))
    stop.set_model(types.SimpleNamespace(student=small_quantized_model(), optimizer=optimizer))
    stop.on_epoch_begin(2)
    stop.on_train_batch_end(6, {**LOGS, "batch_loss": 0.5})
    with pytest.raises(RunError, match=f"quantized stage, epoch 3, step 8: {what} is NaN or inf"):
        stop.on_train_batch_end(7, logs)
    with pytest.raises(RunError, match=r"held-out images.*step 8.*base_learning_rate.*saved: 3\."):
        stop.on_test_batch_end(0, logs)


@pytest.mark.parametrize("differing", [0, 12])
def test_the_table_holds_every_number_of_a_run(differing):
    text = io.StringIO()
    results = Results(**{**RESULTS.to_dict(), "codes_differing": differing})
    Console(file=text, width=100).print(results.table("a run"))
    for part in (
        "float model, held-out top-1 (359 images)",
        "98.77 %",
        "98.25 %",
        "(128 images)",
        "98.00 %",
        "423,018",
        "636,432",
        "296,109",
        "54,379,166",
        f" {differing} ",
        "120",
    ):
        assert part in text.getvalue()


def test_a_notebook_shows_the_table_of_a_run():
    assert repr(RESULTS).startswith("<Results: float model 98.77 %, quantized model 98.25 %")
    assert repr(RESULTS).endswith(f"{RESULTS.codes_differing} of 54,379,166 codes differ>")
    assert "TFLite in LiteRT 98.00 % on 128 of 359 images" in repr(RESULTS)
    assert "<td>parameters</td>" in RESULTS._repr_html_()


def test_the_table_has_top5_where_it_is_known():
    text = io.StringIO()
    results = Results(**{**RESULTS.to_dict(), "quantized_top5": 0.999})
    Console(file=text, width=100).print(results.table("a run"))
    assert "98.25 % (top-5 99.90 %)" in text.getvalue()
    assert text.getvalue().count("top-5") == 1


def test_the_environment_names_seed_versions_and_devices():
    found = describe_environment(7)
    assert found["seed"] == 7
    assert found["tensorflow"].startswith("2.")
    assert found["sat_tf"]
    assert any(device.startswith("CPU") for device in found["devices"])
    assert found["commit"] is None or len(found["commit"].rstrip("+")) == 40
