"""Everything that watches a stage, around plain Keras training."""

import csv
import io

import numpy as np
import pytest
import tensorflow as tf
import tf_keras as keras

import sat_tf
from sat_tf.report.layers import ActivationProbe, clipping_levels
from sat_tf.training.kappa import kappa_0
from sat_tf.training.loop.callbacks import Recorder, RunningMeans
from sat_tf.training.state.history import EpochMetrics, StepMetrics, drop_events_after
from sat_tf.training.state.run_folder import METRICS, STEPS, TENSORBOARD, RunFolder
from sat_tf.training.step.learner import Top1, Top5
from sat_tf.training.step.schedule import Position, StagePlan
from tests.training.small import small_float_model, small_images, small_quantized_model

BATCH = 8
STEPS_PER_EPOCH = 12


def batches(first=0):
    images = small_images()
    data = tf.data.Dataset.from_tensor_slices(
        (images.train_images.astype(np.float32), images.train_labels)
    )
    return data.batch(BATCH).skip(first)


def train(
    model, folder, *, epochs=2, first_step=0, stage="quantized", before=0, every=5, rows=None
):
    """Trains from some step of a stage on; metrics.csv is complete after every epoch."""
    epoch, skipped = divmod(first_step, STEPS_PER_EPOCH)
    plan = StagePlan(
        stage=stage,
        batch_size=BATCH,
        steps_per_epoch=STEPS_PER_EPOCH,
        total_steps=epochs * STEPS_PER_EPOCH,
        start=Position(epoch, skipped),
        steps_before=before,
    )
    rows = [] if rows is None else rows

    class Complete(keras.callbacks.Callback):
        def on_epoch_end(self, epoch, logs=None):
            assert folder.file(METRICS).read_text() == EpochMetrics.to_csv(rows)

    with Recorder(
        plan, model, folder, rows=rows, sample=small_images().train_images[:16], every=every
    ) as recorder:
        callbacks = [recorder, Complete()]
        if skipped:
            model.fit(batches(skipped), validation_data=batches(), callbacks=callbacks, verbose=0)
            epoch += 1
        model.fit(
            batches(),
            initial_epoch=epoch,
            epochs=epochs,
            validation_data=batches(),
            callbacks=callbacks,
            verbose=0,
        )
    return rows


def compiled(model):
    model.compile(
        keras.optimizers.SGD(0.01),
        keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        metrics=[Top1(), Top5()],
    )
    return model


@pytest.fixture(scope="module")
def model():
    return compiled(sat_tf.requantize(small_quantized_model(), sat_tf.BitPolicy.mobile(4)))


def events(folder):
    """(tag, step) -> values of all event files, in the order of the files."""
    found = {}
    for path in sorted(folder.file(TENSORBOARD).iterdir()):
        for record in tf.data.TFRecordDataset(str(path)).as_numpy_iterator():
            event = tf.compat.v1.Event.FromString(record)
            for value in event.summary.value:
                number = float(tf.make_ndarray(value.tensor))
                found.setdefault((value.tag, event.step), []).append(number)
    return found


@pytest.mark.thorough
def test_a_stage_leaves_metrics_steps_and_events(tmp_path, model):
    folder = RunFolder(tmp_path)
    rows = train(model, folder, before=100)
    assert [(row.stage, row.epoch, row.step) for row in rows] == [
        ("quantized", 1, 12),
        ("quantized", 2, 24),
    ]
    assert rows[-1].learning_rate == pytest.approx(0.01)
    for name in ("loss", "train_top1", "train_top5", "held_out_loss", "held_out_top5", "seconds"):
        assert getattr(rows[-1], name) >= 0
    steps = StepMetrics.read(folder)
    assert [(row.step, row.step_of_run) for row in steps] == [(n, 100 + n) for n in (5, 10, 15, 20)]
    levels = clipping_levels(model)
    assert all(list(row.clipping_levels) == list(levels) for row in steps)
    assert steps[0].clipping_levels != steps[-1].clipping_levels
    assert steps[0].learning_rate == pytest.approx(0.01)
    found = events(folder)
    assert all(len(values) == 1 for values in found.values())
    for row in steps:
        assert found["train/loss", row.step_of_run] == pytest.approx([row.loss], rel=1e-5)
        assert ("train/top1", row.step_of_run) in found
        assert ("train/top5", row.step_of_run) in found
        assert ("learning_rate", row.step_of_run) in found
        for name, level in row.clipping_levels.items():
            assert found[f"clipping_level/{name}", row.step_of_run] == pytest.approx(
                [level], rel=1e-5
            )
    for step in (112, 124):
        for tag in ("held_out/loss", "held_out/top1", "held_out/top5"):
            assert (tag, step) in found
    last = rows[-1]
    held_out = {"loss": last.held_out_loss, "top1": last.held_out_top1, "top5": last.held_out_top5}
    for name, value in held_out.items():
        assert found[f"held_out/{name}", 124] == pytest.approx([value], rel=1e-5)
    assert {step for tag, step in found if tag == "kappa_0"} == {100, 112, 124}
    assert found["kappa_0", 124] == pytest.approx([kappa_0(model)], rel=1e-5)
    for name, use in ActivationProbe(model, small_images().train_images[:16])().items():
        assert found[f"clipped/{name}", 124] == pytest.approx([use.clipped], rel=1e-5)


@pytest.mark.thorough
def test_tensorboard_reads_the_events_as_scalars(tmp_path, model):
    event_accumulator = pytest.importorskip(
        "tensorboard.backend.event_processing.event_accumulator", reason="TensorBoard is missing"
    )
    train(model, RunFolder(tmp_path), epochs=1)
    found = event_accumulator.EventAccumulator(str(tmp_path / TENSORBOARD)).Reload()
    assert "train/loss" in found.Tags()["tensors"]
    assert found.SummaryMetadata("train/loss").plugin_data.plugin_name == "scalars"
    (row, _) = StepMetrics.read(RunFolder(tmp_path))
    event = found.Tensors("train/loss")[0]
    assert event.step == 5
    assert float(tf.make_ndarray(event.tensor_proto)) == pytest.approx(row.loss, rel=1e-5)


@pytest.mark.thorough
def test_values_of_steps_are_means_over_the_steps_between(tmp_path, model):
    rows = train(model, RunFolder(tmp_path), every=3)
    steps = StepMetrics.read(RunFolder(tmp_path))
    assert np.mean([row.loss for row in steps[:4]]) == pytest.approx(rows[0].loss, rel=1e-5)
    assert np.mean([row.top1 for row in steps[4:]]) == pytest.approx(rows[1].train_top1, rel=1e-5)


@pytest.mark.thorough
@pytest.mark.parametrize("killed_after", [12, 17])
def test_a_run_that_goes_on_has_neither_gaps_nor_duplicates(tmp_path, model, killed_after):
    folder = RunFolder(tmp_path)
    train(model, folder)
    assert events(folder)
    train(model, folder, first_step=killed_after)
    expected = [5, 10, 15, 20]
    assert [row.step for row in StepMetrics.read(folder)] == expected
    found = events(folder)
    assert all(len(values) == 1 for values in found.values()), found
    assert sorted(step for tag, step in found if tag == "train/loss") == expected
    assert sorted(step for tag, step in found if tag == "kappa_0") == [0, 12, 24]


@pytest.mark.thorough
def test_the_next_stage_goes_on_in_the_same_files(tmp_path, model):
    folder = RunFolder(tmp_path)
    rows = train(model, folder, stage="float", epochs=1)
    train(model, folder, stage="quantized", epochs=1, before=12, rows=rows)
    steps = StepMetrics.read(folder)
    assert [(row.stage, row.step, row.step_of_run) for row in steps] == [
        ("float", 5, 5),
        ("float", 10, 10),
        ("quantized", 5, 17),
        ("quantized", 10, 22),
    ]
    assert len((tmp_path / METRICS).read_text().splitlines()) == 3
    assert {step for _, step in events(folder)} == {0, 5, 10, 12, 17, 22, 24}


@pytest.mark.thorough
def test_a_stage_without_quantizers_has_no_levels(tmp_path):
    model = compiled(keras.models.clone_model(small_float_model()))
    train(model, RunFolder(tmp_path), epochs=1)
    header = (tmp_path / STEPS).read_text().splitlines()[0]
    assert "clipping_level" not in header
    assert ("kappa_0", 12) in events(RunFolder(tmp_path))


def test_files_are_whole_when_training_breaks(tmp_path, model):
    folder = RunFolder(tmp_path)

    class Break(keras.callbacks.Callback):
        def on_train_batch_end(self, batch, logs=None):
            if batch == 7:
                raise KeyboardInterrupt

    plan = StagePlan(stage="float", batch_size=8, steps_per_epoch=12, total_steps=24)
    with (
        pytest.raises(KeyboardInterrupt),
        Recorder(
            plan, model, folder, rows=[], sample=small_images().train_images[:4], every=1
        ) as recorder,
    ):
        model.fit(batches(), callbacks=[recorder, Break()], verbose=0)
    assert len(list(csv.DictReader(io.StringIO((tmp_path / STEPS).read_text())))) == 8
    assert ("train/loss", 8) in events(folder)
    assert sorted(path.name for path in tmp_path.iterdir()) == [STEPS, TENSORBOARD]


def test_events_after_a_step_are_dropped_and_a_torn_file_is_mended(tmp_path):
    writer = tf.summary.create_file_writer(str(tmp_path))
    with writer.as_default():
        for step in range(10):
            tf.summary.scalar("loss", float(step), step=step)
    writer.close()
    (path,) = tmp_path.iterdir()
    whole = path.read_bytes()

    def steps():
        records = tf.data.TFRecordDataset(str(path)).as_numpy_iterator()
        parsed = map(tf.compat.v1.Event.FromString, records)
        return [event.step for event in parsed if event.WhichOneof("what") == "summary"]

    drop_events_after(tmp_path, 9)
    assert path.read_bytes() == whole
    path.write_bytes(whole[:-5])
    drop_events_after(tmp_path, 9)
    assert steps() == list(range(9))
    drop_events_after(tmp_path, 3)
    assert steps() == [0, 1, 2, 3]
    assert list(tmp_path.iterdir()) == [path]
    drop_events_after(tmp_path / "nowhere", 3)


@pytest.mark.parametrize("every", [1, 3, 4, 100])
def test_readings_are_means_over_the_steps_since_the_last_one(every):
    losses = np.random.RandomState(0).uniform(0, 5, (3, 10))
    means, read, waiting = RunningMeans(["loss"]), [], []
    expected = []
    for epoch in losses:
        for step in range(1, len(epoch) + 1):
            means.advance()
            waiting.append(epoch[step - 1])
            if step % every == 0:
                read.append(means.take({"loss": np.float32(epoch[:step].mean())})["loss"])
                expected.append(np.mean(waiting))
                waiting = []
        means.end_epoch({"loss": np.float32(epoch.mean())})
    # Running means are float32, and ten of them are added up.
    np.testing.assert_allclose(read, expected, rtol=1e-5)


def test_a_name_that_is_not_logged_has_no_mean():
    means = RunningMeans(["loss", "top5"])
    means.advance()
    means.advance()
    assert means.take({"loss": 1.0}) == {"loss": 1.0, "top5": None}


def test_within_an_epoch_that_goes_on_readings_begin_with_the_next_step():
    means = RunningMeans(["loss"])
    means.resume(6, {"loss": 4.0})
    means.advance()
    means.advance()
    assert means.take({"loss": 3.5})["loss"] == pytest.approx(2.0)
