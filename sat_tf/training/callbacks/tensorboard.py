"""A run in TensorBoard."""

import contextlib
import pathlib
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import tensorflow as tf
import tf_keras as keras

from sat_tf.analysis.activations import ActivationProbe
from sat_tf.analysis.kappa import kappa_0
from sat_tf.analysis.measurement import scalar_events
from sat_tf.atomic_file import renamed_when_done
from sat_tf.training.callbacks.step_recorder import StepCallback
from sat_tf.training.state.history import StepMetrics
from sat_tf.training.step.stage_plan import StagePlan

_AT_EPOCHS = {"val_loss": "held_out/loss", "val_top1": "held_out/top1", "val_top5": "held_out/top5"}


class TensorBoardSummaries(StepCallback):
    """Writes scalars for TensorBoard; a context manager.

    Steps count on from stage to stage. With every row that the `StepRecorder` before it adds:
    train/loss, train/data_loss (without weight decay), train/top1, train/top5, learning_rate, and
    clipping_level/<layer>. At the start of the stage and after every epoch: clipped/<layer>, the
    share of a tensor that is clipped, and kappa_0. After every epoch: held_out/loss,
    held_out/top1, held_out/top5.

    Args:
        plan: the steps of the stage.
        folder: where the event files go; it is created.
        rows: those that the `StepRecorder` fills.
        model: the model whose κ₀ to write.
        probe: measures what is clipped; about one forward pass over its images each time.
    """

    def __init__(
        self,
        plan: StagePlan,
        folder: pathlib.Path,
        rows: Sequence[StepMetrics],
        *,
        model: keras.Model,
        probe: ActivationProbe,
    ) -> None:
        super().__init__(plan)
        self.rows = rows
        self._watched = model
        self._probe = probe
        self._writer = tf.summary.create_file_writer(str(folder))

    def __enter__(self) -> "TensorBoardSummaries":
        return self

    def __exit__(self, *exception: object) -> None:
        self._writer.close()

    def flush(self) -> None:
        """Writes out what is still in memory."""
        self._writer.flush()

    def on_train_begin(self, logs: Any = None) -> None:
        """Measures the model the stage starts from, unless that has been done."""
        del logs
        if self.step == 0:
            self._write(self._state())

    def on_step(self, before: int, logs: Any) -> None:
        """Writes the row of this step, if there is one."""
        del before, logs
        row = self.rows[-1] if self.rows else None
        if row is None or row.step_of_run != self.plan.step_of_run(self.step):
            return
        values = {
            "train/loss": row.loss,
            "train/top1": row.top1,
            "learning_rate": row.learning_rate,
            **{f"clipping_level/{name}": level for name, level in row.clipping_levels.items()},
        }
        for tag, value in (("train/data_loss", row.data_loss), ("train/top5", row.top5)):
            if value is not None:
                values[tag] = value
        self._write(values)

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        """Writes what the held-out images gave, and the state of the model."""
        del epoch
        held_out = {tag: float(logs[name]) for name, tag in _AT_EPOCHS.items() if name in logs}
        self._write({**held_out, **self._state()})
        self._writer.flush()

    def _state(self) -> dict[str, float]:
        values = {f"clipped/{name}": use.clipped for name, use in self._probe().items()}
        kappa = kappa_0(self._watched)
        return values if kappa is None else {**values, "kappa_0": kappa}

    def _write(self, values: Mapping[str, float]) -> None:
        with self._writer.as_default():
            step = self.plan.step_of_run(self.step)
            tf.summary.experimental.write_raw_pb(scalar_events(values), step=step)


def drop_events_after(folder: pathlib.Path, step_of_run: int) -> None:
    """Removes later steps from the event files in a folder, so that a run can resume from a step.

    A truncated file keeps its whole records. Files without later steps stay as they are.

    Args:
        folder: where the event files are; it need not exist.
        step_of_run: the last step to keep.
    """
    for path in sorted(folder.glob("*tfevents*")):
        records, truncated = _records(path)
        kept = [record for record in records if not _comes_later(record, step_of_run)]
        if len(kept) < len(records) or truncated:
            with renamed_when_done(path) as temporary, _writer(temporary) as writer:
                for record in kept:
                    writer.write(record)


def _records(path: pathlib.Path) -> tuple[list[bytes], bool]:
    """The whole records of an event file, and whether a truncated one follows them."""
    records: list[bytes] = []
    try:
        for record in tf.data.TFRecordDataset(str(path)).as_numpy_iterator():
            records.append(record)
    except tf.errors.DataLossError:
        return records, True
    return records, False


def _comes_later(record: bytes, step: int) -> bool:
    event = tf.compat.v1.Event.FromString(record)
    return event.WhichOneof("what") == "summary" and event.step > step


@contextlib.contextmanager
def _writer(path: pathlib.Path) -> Iterator[tf.io.TFRecordWriter]:
    writer = tf.io.TFRecordWriter(str(path))
    try:
        yield writer
    finally:
        writer.close()
