"""The rules of efficient training, watched while a model trains."""

import csv
import io
import logging
import os
from collections.abc import Iterable, Mapping
from typing import Any

import tensorflow as tf
import tf_keras as keras

from sat_tf.analysis.labelled_images import USUAL_IMAGES, labelled_images
from sat_tf.files import check_writable, read_text, refusals_explained, write_text
from sat_tf.messages import kind_of, reason_of
from sat_tf.messages.tables import write_table
from sat_tf.qat.transition_rate import changed_share
from sat_tf.qat.walk import as_graph
from sat_tf.training.audit.audit import Auditor
from sat_tf.training.audit.audited_model import Audit, Verdict, share_of

# A measurement of a hundred layers takes 50 kB.
_MOST_BYTES = 2**30

_FIRST = ("row", "verdict", "name")
RULE_COLUMNS = (
    *("step", *_FIRST),
    *(name for name in Audit.COLUMNS if name not in (*_FIRST, "remedies")),
    *("flipped", "moved"),
)


class RuleLog:
    """Adds rows to a CSV file, all rows of a measurement at once.

    An existing file is continued: its rows up to the step that training starts from are kept.
    """

    def __init__(self, path: str) -> None:
        self._path = check_writable(path)
        self._earlier: list[dict[str, str]] | None = []
        if self._path.exists():
            try:
                reader = csv.DictReader(io.StringIO(read_text(self._path, _MOST_BYTES)))
                self._earlier = list(reader)
            except (OSError, ValueError, csv.Error) as error:
                raise ValueError(
                    f"{self._path}: cannot be read ({reason_of(error)}), expected a table that "
                    "TrainingRules has written; choose another name."
                ) from error
            if self._earlier and tuple(reader.fieldnames or ()) != RULE_COLUMNS:
                raise ValueError(
                    f"{self._path}: received another table, expected one that TrainingRules has "
                    "written; choose another name."
                )

    def write(self, step: int, rows: Iterable[Mapping[str, Any]]) -> None:
        """Adds the rows of a step."""
        if self._earlier is not None:
            earlier_rows = [
                row.values()
                for row in self._earlier
                # The last line is truncated where the process was killed while it wrote.
                if (row["step"] or "").isdecimal() and None not in row.values()
                if int(row["step"]) < step
            ]
            write_text(self._path, write_table(RULE_COLUMNS, earlier_rows))
            self._earlier = None
        values = [[{"step": step, **row}.get(name) for name in RULE_COLUMNS] for row in rows]
        _, _, lines = write_table(RULE_COLUMNS, values).partition("\n")
        with (
            refusals_explained(self._path),
            self._path.open("a", newline="", encoding="utf-8") as file,
        ):
            file.write(lines)


def _changed_shares(
    earlier: dict[str, tf.Tensor], now: dict[str, tf.Tensor]
) -> dict[str, tf.Tensor]:
    """The shares of weights whose code has changed, by layer; none without earlier codes."""
    return {name: changed_share(codes, now[name]) for name, codes in earlier.items()}


_log = logging.getLogger(__name__)


class TrainingRules(keras.callbacks.Callback):
    """Measures what `sat_tf.audit` does at intervals, and warns when a rule is broken.

        model.fit(batches, callbacks=[sat_tf.callbacks.TrainingRules((images, labels))])

    Measured at the start and then after every `every` steps, always on the same images: κ₀, the
    variances of weights and gradients, κ₁ and κ₂, clipped activations, codes used, the gradients of
    the clipping levels; and for each layer with codes two shares of its weights: `flipped`, of
    those whose code differs from the one a step before, and `moved`, of those whose code differs
    from the one at the last measurement. Where `flipped` times the steps in between is far above
    `moved`, weights oscillate. `latest` is the last audit, None before the first one; `flipped` and
    `moved` have these shares by layer.

    The first time that a layer breaks a rule, the logger of this module warns and names both. The
    model and its training do not change. Under `tf.distribute` the first replica's copies are
    measured; every worker has to have the callback.

    Args:
        dataset: images and labels to measure on; see `sat_tf.audit`. Without labels there are no
            gradients.
        every: how many steps lie between measurements.
        log_dir: folder for TensorBoard's events; None writes none.
        csv: file for a table with a row for each step, layer and activation; an existing table is
            continued. None writes none.
        num_images: how many images to take at most; the cost of a measurement grows with it.
        model: what to measure, if the model that is fitted only calls it.

    Raises:
        ValueError: a number is too small, the data hold no images, or a file cannot be written;
            when training begins, the model cannot be audited.
    """

    # Keras would otherwise fetch every logged value after every step, and wait for the device.
    _supports_tf_logs = True

    def __init__(
        self,
        dataset: Any,
        every: int = 100,
        log_dir: str | os.PathLike[str] | None = None,
        csv: str | os.PathLike[str] | None = None,
        *,
        num_images: int = USUAL_IMAGES,
        model: keras.Model | None = None,
    ) -> None:
        super().__init__()
        if every < 1:
            raise ValueError(f"every: received {every}, expected 1 step or more.")
        self.every = every
        self.latest: Audit | None = None
        self.flipped: dict[str, float] = {}
        self.moved: dict[str, float] = {}
        self._sample = labelled_images(dataset, most=num_images)
        self._measured_model = model
        self._audited: keras.Model | None = None
        self._shares = as_graph(_changed_shares)
        # The codes of weights before a step that is measured, and when they were last measured.
        self._before: dict[str, tf.Tensor] = {}
        self._at_last_measurement: dict[str, tf.Tensor] = {}
        self._rule_log = None if csv is None else RuleLog(os.fspath(csv))
        self._log_dir = None if log_dir is None else os.fspath(log_dir)
        self._writer: Any = None
        self._warned: set[tuple[str, str]] = set()
        self._step = self._first_batch = self._stride = 0

    def set_model(self, model: Any) -> None:
        """Takes the model that is going to be trained."""
        if not isinstance(model, keras.Model):
            raise ValueError(
                f"TrainingRules: received {kind_of(model)}, expected a model of tf_keras, whose "
                "steps it measures; train sat_tf.from_keras3(model) with it, or measure between "
                "epochs with sat_tf.audit(model, (images, labels))."
            )
        super().set_model(model)

    def on_train_begin(self, logs: Any = None) -> None:
        """Measures the model that training starts from."""
        model = self._measured_model or self.model
        if self._audited is not model:
            self._auditor = Auditor(model, self._sample, compiled=True)
            self._codes = as_graph(self._auditor.codes)
            self._before = self._at_last_measurement = {}
            self._audited = model
        if self._log_dir is not None and self._writer is None:
            self._writer = tf.summary.create_file_writer(self._log_dir)
        self._step = int(self.model.optimizer.iterations.numpy())
        self._stride = 1
        self._measure()

    def on_train_batch_begin(self, batch: int, logs: Any = None) -> None:
        """Remembers where the step starts: Keras may take several batches at once."""
        self._first_batch = batch

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        """Measures, after every `every` steps."""
        before = self._step
        self._stride = batch - self._first_batch + 1
        self._step += self._stride
        if self._step // self.every > before // self.every:
            self._measure()
        if (self._step + self._stride) // self.every > self._step // self.every:
            self._before = self._codes()

    def on_train_end(self, logs: Any = None) -> None:
        """Writes out what is still in memory."""
        if self._writer is not None:
            self._writer.flush()

    def _measure(self) -> None:
        self.latest = self._auditor()
        now = self._codes()
        self.flipped, self.moved = (
            {name: float(share) for name, share in self._shares(earlier, now).items()}
            for earlier in (self._before, self._at_last_measurement)
        )
        self._before, self._at_last_measurement = {}, now
        self._warn(self.latest)
        if self._rule_log is not None:
            rows = self.latest.to_rows()
            for row in rows:
                if row["row"] == "layer":
                    name = row["name"]
                    row |= {"flipped": self.flipped.get(name), "moved": self.moved.get(name)}
            self._rule_log.write(self._step, rows)
        if self._writer is not None:
            with self._writer.as_default(step=self._step):
                for tag, value in self._scalars(self.latest).items():
                    tf.summary.scalar(tag, value)

    def _warn(self, audit: Audit) -> None:
        """Warns of each broken rule of a layer, and of each note, the first time."""
        messages = {
            (name, finding.rule): f"{name} breaks {finding.rule}: {finding.reason}. "
            f"Remedy: {finding.remedy}."
            for name, finding in audit.findings()
            if finding.verdict is Verdict.BROKEN
        } | {("", note): note for note in audit.notes}
        for key, message in messages.items():
            if key not in self._warned:
                self._warned.add(key)
                _log.warning("step %d: %s", self._step, message)

    def _scalars(self, audit: Audit) -> dict[str, float]:
        values: dict[str, float | None] = {
            "rules/kappa_0": audit.kappa_0,
            "rules/loss": audit.loss,
            "rules/logit_variance": audit.logit_variance,
        }
        for layer in audit.layers:
            name, codes = layer.name, share_of(layer.weight_codes_used, layer.weight_codes)
            values |= {
                f"kappa/{name}": layer.kappa,
                f"gradient_variance/{name}": layer.gradient_variance,
                f"weight_variance/{name}": layer.effective_variance,
                f"weight_codes_used/{name}": codes,
            }
        for activation in audit.activations:
            name, codes = activation.name, share_of(activation.codes_used, activation.codes)
            values |= {
                f"clipped/{name}": activation.clipped,
                f"clipping_level/{name}": activation.clipping_level,
                f"clipping_level_gradient/{name}": activation.level_gradient,
                f"codes_used/{name}": codes,
            }
        values |= {f"flipped/{name}": share for name, share in self.flipped.items()}
        values |= {f"moved/{name}": share for name, share in self.moved.items()}
        return {tag: value for tag, value in values.items() if value is not None}
