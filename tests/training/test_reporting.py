"""What a run shows: metrics file, curves, progress, table, environment."""

import csv
import io
import types

import matplotlib.image
import pytest
from rich.console import Console

from sat_tf.training.curves import draw_curves
from sat_tf.training.environment import describe_environment
from sat_tf.training.errors import RunError
from sat_tf.training.history import COLUMNS, EpochMetrics, to_csv
from sat_tf.training.progress import ProgressBar
from sat_tf.training.recorder import Recorder, StopWhenNotFinite
from sat_tf.training.results import Results
from sat_tf.training.run_folder import METRICS, RunFolder

LOGS = {"loss": 0.5, "top1": 0.9, "val_loss": 0.6, "val_top1": 0.8}
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
            learning_rate=0.1 / epoch,
            loss=2.0 / epoch,
            train_top1=0.4 + 0.1 * epoch,
            held_out_top1=0.5,
            seconds=1.5,
        )
        for stage in ("float", "quantized")
        for epoch in (1, 2, 3)
    ]


def test_the_metrics_file_has_a_header_and_a_row_an_epoch():
    read = list(csv.DictReader(io.StringIO(to_csv(rows()))))
    assert tuple(read[0]) == COLUMNS
    assert [(row["stage"], row["epoch"]) for row in read[2:4]] == [
        ("float", "3"),
        ("quantized", "1"),
    ]
    assert float(read[2]["loss"]) == pytest.approx(2 / 3, rel=1e-5)


def test_the_metrics_file_is_complete_after_every_epoch(tmp_path):
    all_rows = rows()[:3]
    recorder = Recorder("quantized", all_rows, RunFolder(tmp_path))
    optimizer = types.SimpleNamespace(learning_rate=0.25)
    recorder.set_model(types.SimpleNamespace(optimizer=optimizer))
    for epoch in (0, 1):
        recorder.on_epoch_begin(epoch)
        recorder.on_epoch_end(epoch, LOGS)
        assert (tmp_path / METRICS).read_text() == to_csv(all_rows)
    assert [path.name for path in tmp_path.iterdir()] == [METRICS]
    last = all_rows[-1]
    assert len(all_rows) == 5
    assert (last.stage, last.epoch, last.learning_rate) == ("quantized", 2, 0.25)
    assert (last.loss, last.train_top1, last.held_out_top1) == (0.5, 0.9, 0.8)


@pytest.mark.parametrize("count", [1, 6])
def test_the_curves_are_a_picture(tmp_path, count):
    draw_curves(rows()[:count], "a run", tmp_path / "curves.png")
    picture = matplotlib.image.imread(tmp_path / "curves.png")
    assert picture.shape[:2] == (600, 1350)
    assert picture.std() > 0


@pytest.mark.parametrize("terminal", [True, False])
def test_progress_shows_stage_epoch_speed_loss_and_top1(terminal):
    text = io.StringIO()
    console = Console(file=text, force_terminal=terminal, width=120)
    with ProgressBar(
        "float", epochs=12, steps_per_epoch=2, batch_size=32, console=console
    ) as progress:
        for epoch in (0, 1):
            progress.on_epoch_begin(epoch)
            progress.on_train_batch_end(0, LOGS)
            progress.on_train_batch_end(1, LOGS)
            progress.on_epoch_end(epoch, LOGS)
    lines = [line for line in text.getvalue().splitlines() if "held out" in line]
    assert len(lines) == 2
    for part in ("float", "epoch  1/12", "images/s", "loss 0.5000", "top-1  90.0 %", "80.0 %"):
        assert part in lines[0]


def test_a_broken_stage_still_gives_the_terminal_back():
    text = io.StringIO()
    console = Console(file=text, force_terminal=True)
    progress = ProgressBar("float", epochs=1, steps_per_epoch=1, batch_size=1, console=console)

    def break_down():
        with progress:
            progress.on_epoch_begin(0)
            raise RunError("stop")

    with pytest.raises(RunError, match="stop"):
        break_down()
    # The sequence that shows the cursor again is the last thing a bar writes.
    assert "\x1b[?25h" in text.getvalue()


@pytest.mark.parametrize(
    ("logs", "what"),
    [
        ({"loss": float("nan"), "top1": 0.5}, "the loss"),
        ({"loss": float("inf"), "top1": 0.5}, "the loss"),
        ({"loss": 0.5, "top1": float("nan")}, "a logit"),
    ],
)
def test_a_loss_or_logit_that_is_not_finite_stops_the_stage(logs, what):
    stop = StopWhenNotFinite("quantized")
    stop.on_epoch_begin(2)
    stop.on_train_batch_end(6, LOGS)
    with pytest.raises(RunError, match=f"quantized stage, epoch 3, step 8: {what} is NaN or inf"):
        stop.on_train_batch_end(7, logs)
    with pytest.raises(RunError, match=r"held-out images.*stages\.quantized\.base_learning_rate"):
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


def test_the_environment_names_seed_versions_and_devices():
    found = describe_environment(7)
    assert found["seed"] == 7
    assert found["tensorflow"].startswith("2.")
    assert found["sat_tf"]
    assert any(device.startswith("CPU") for device in found["devices"])
    assert found["commit"] is None or len(found["commit"].rstrip("+")) == 40
