"""A Keras callback that writes how many weights of each layer oscillate."""

import csv
import dataclasses
import io
from typing import Any

import tf_keras as keras

from sat_tf.training.csv_table import read_table
from sat_tf.training.oscillation import Oscillation, OscillationCount
from sat_tf.training.run_folder import OSCILLATIONS, RunFolder

_COLUMNS = ("epoch", *(field.name for field in dataclasses.fields(OscillationCount)))


class OscillationLog(keras.callbacks.Callback):
    """Adds the oscillating and the frozen weights of all layers to the logs of every epoch.

    The logs get their shares of all weights that are followed, `oscillating` and `frozen`; the run
    folder gets a table with a row for every epoch and layer.

    Args:
        oscillation: of the model that is trained.
        folder: where the table goes; None writes none.
    """

    def __init__(self, oscillation: Oscillation, folder: RunFolder | None) -> None:
        super().__init__()
        self.oscillation = oscillation
        self.folder = folder

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        """Writes the rows of an epoch."""
        counts = self.oscillation.counts()
        weights = max(sum(count.weights for count in counts), 1)
        if logs is not None:
            logs["oscillating"] = sum(count.oscillating for count in counts) / weights
            logs["frozen"] = sum(count.frozen for count in counts) / weights
        if self.folder is not None:
            rows = [{"epoch": epoch + 1, **dataclasses.asdict(count)} for count in counts]
            self.folder.write_text(OSCILLATIONS, _table(self._rows_before(epoch + 1) + rows))

    def _rows_before(self, epoch: int) -> list[dict[str, Any]]:
        """What the table holds of earlier epochs; a resumed run writes the others anew."""
        if self.folder is None:
            return []
        rows: list[dict[str, Any]] = read_table(
            self.folder.read_text(OSCILLATIONS),
            lambda row: {**{name: row[name] for name in _COLUMNS}, "epoch": int(row["epoch"])},
            name=str(self.folder.file(OSCILLATIONS)),
            columns=_COLUMNS,
        )
        return [row for row in rows if row["epoch"] < epoch]


def _table(rows: list[dict[str, Any]]) -> str:
    text = io.StringIO()
    writer = csv.DictWriter(text, _COLUMNS, lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return text.getvalue()
