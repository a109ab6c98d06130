"""What a stage records as it goes."""

import csv

import pytest
import tensorflow as tf

from sat_tf.report.layers import clipping_levels
from sat_tf.training.audit.kappa import kappa_0
from sat_tf.training.loop.callbacks import EpochLog
from sat_tf.training.loop.stage import train_stage
from sat_tf.training.run_folder import METRICS, TENSORBOARD, EpochMetrics, RunFolder
from tests.training.loop.test_stage import make_run
from tests.training.small import small_quantized_model


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
        assert of_training["epoch_loss", at] == pytest.approx(row.loss)
        assert of_training["epoch_data_loss", at] == pytest.approx(row.data_loss)
        assert of_training["epoch_top1", at] == pytest.approx(row.train_top1)
        assert of_training["epoch_clipping_level", at] == pytest.approx(row.clipping_level)
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


def row(stage, epoch):
    return EpochMetrics(stage=stage, epoch=epoch, step=epoch, loss=1 / 3, held_out_top1=0.1)


def write(folder, stage, rows, added, *, epochs=0):
    log = EpochLog(folder, stage, rows, epochs=epochs, writes=True)
    log.on_train_begin()
    for number in added:
        log.add(row(stage, number))
    log.on_train_end()


def test_rows_behind_the_epoch_that_is_resumed_from_are_dropped(tmp_path):
    folder, rows = RunFolder(tmp_path), []
    write(folder, "float", rows, (1, 2))
    write(folder, "quantized", rows, (0, 1, 2))
    places = [("float", 1), ("float", 2), ("quantized", 0), ("quantized", 1), ("quantized", 2)]
    assert [(one.stage, one.epoch) for one in EpochMetrics.read(folder)] == places
    file = folder.file(METRICS)
    file.write_text(file.read_text() + "3,quan")  # cut by a full disk
    assert EpochMetrics.read(folder) == rows  # to the last digit
    write(folder, "quantized", rows, (2,), epochs=1)
    assert EpochMetrics.read(folder) == rows
    assert [(one.stage, one.epoch) for one in rows] == places
    write(folder, "quantized", rows, (0,))
    assert [(one.stage, one.epoch) for one in EpochMetrics.read(folder)] == places[:3]
    with file.open() as opened:
        assert next(csv.reader(opened))[:3] == ["epoch", "stage", "step"]


def test_a_worker_that_does_not_write_keeps_the_rows(tmp_path):
    rows = []
    log = EpochLog(RunFolder(tmp_path), "float", rows, epochs=0, writes=False)
    log.on_train_begin()
    log.add(row("float", 1))
    assert rows == [row("float", 1)]
    assert not list(tmp_path.iterdir())
