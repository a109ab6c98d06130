"""What training does to a pretrained model that is quantized: never harm, and how much good.

Each task of `pretrained_tasks.py` has a trained float model. It is quantized, and trained for some
epochs at the rate that the trial chooses, as `sat-tf quantize` does it; signals, which that command
does not take, are trained with `fit` as the documentation says. Accuracy is on held-out
examples, which the float model has not seen.

    python benchmarks/pretrained.py
    python benchmarks/pretrained.py --tasks=digits,signals --bits=4 --epochs=1,5

Rows that the CSV file has are not made again.
"""

import pathlib
import tempfile
import time
from typing import Any

import numpy as np
import rich.console
import tf_keras as keras
from absl import app, flags
from pretrained_tasks import TASKS, prepare
from rows import as_table, read_csv, write_csv

import sat_tf
from sat_tf.commands.images import find_pictures
from sat_tf.commands.models import read_keras_model
from sat_tf.qat.finetune import finetune
from sat_tf.qat.policy import BitPolicy

_TASKS = flags.DEFINE_list("tasks", list(TASKS), "which ones")
_BITS = flags.DEFINE_list("bits", ["4", "2"], "of weights and activations")
_EPOCHS = flags.DEFINE_list("epochs", ["1", "5", "20"], "of training")
_FOLDER = flags.DEFINE_string("folder", "runs/pretrained", "for pictures, models and files")
_OUTPUT = flags.DEFINE_string("output", "benchmarks/results/pretrained.csv", "rows")


def main(argv: list[str]) -> None:
    """Measures what is missing."""
    if len(argv) > 1:
        raise app.UsageError(f"received {argv[1:]}, expected flags only.")
    rows: list[dict[str, Any]] = [*read_csv(_OUTPUT.value)]
    done = {(row["task"], row["bits"], row["epochs"]) for row in rows}
    for name in _TASKS.value:
        file = prepare(TASKS[name], pathlib.Path(_FOLDER.value) / name)
        kind = _Pictures if TASKS[name].is_of_pictures else _Signals
        for bits in _BITS.value:
            missing = [epochs for epochs in _EPOCHS.value if (name, bits, epochs) not in done]
            measure = kind(file, bits) if missing else None
            for epochs in missing:
                started = time.perf_counter()
                found = measure(epochs)
                rows.append(
                    {
                        "task": name,
                        "kind": TASKS[name].kind,
                        "examples": TASKS[name].train,
                        "bits": bits,
                        "epochs": epochs,
                        **found,
                        "seconds": round(time.perf_counter() - started),
                    }
                )
                write_csv(rows, _OUTPUT.value)
                print(*rows[-1].values(), flush=True)
    print_table(rows)


def print_table(rows: list[dict[str, Any]]) -> None:
    """Prints the rows."""
    rich.console.Console(width=160).print(as_table(rows, "Pretrained models, top-1 in percent"))


class _Pictures:
    """A float model, quantized and calibrated as `sat-tf quantize` does it, and trained likewise.

    What the command does besides, the file and its proof, is left out.
    """

    def __init__(self, file: pathlib.Path, bits: str) -> None:
        self._rate: float | None = None
        self._model = read_keras_model(file, "expected that of a task.", trust=False)
        policy = BitPolicy.mobile(int(bits), input_range=(0, 255))
        quiet = rich.console.Console(quiet=True)
        self._pictures = find_pictures(
            file.parent / "photos", self._model, policy, quiet, to_train=True
        )
        self._quantized = sat_tf.quantize_model(self._model, policy)
        sat_tf.calibrate(self._quantized, self._pictures.images, keep_function=True, progress=False)
        self._start = self._quantized.get_weights()
        held_out = self._pictures.held_out.images.astype(np.float32)
        answers = np.argmax(self._model.predict(held_out, verbose=0), axis=-1)
        self._float = float(np.mean(answers == self._pictures.held_out.labels))

    def __call__(self, epochs: str) -> dict[str, Any]:
        """Trains for some epochs; a row."""
        self._quantized.set_weights(self._start)
        tuned = finetune(
            self._quantized,
            self._model,
            self._pictures.training,
            self._pictures.training.labels,
            held_out=(self._pictures.held_out.images, self._pictures.held_out.labels),
            sample=self._pictures.images,
            epochs=int(epochs),
            learning_rate=self._rate,
            finish=sat_tf.export.snap_biases,
            say=print,
        )
        # The trial does not depend on the number of epochs: what it chose is taken again.
        self._rate = tuned.learning_rate
        start, kept = tuned.epochs[0], tuned.epochs[tuned.kept_epoch]
        return _row(self._float, start.score, kept.score, kept.epoch, tuned.learning_rate)


class _Signals:
    """A float model of signals, quantized and trained as docs/start/mobile_engineer.md says."""

    def __init__(self, file: pathlib.Path, bits: str) -> None:
        self._file, self._bits = file, bits

    def __call__(self, epochs: str) -> dict[str, Any]:
        """Trains for some epochs; a row."""
        values = np.load(self._file.parent / "signals.npz")
        count = TASKS[self._file.parent.name].train
        train = values["examples"][:count], values["labels"][:count]
        held_out = values["examples"][count:], values["labels"][count:]
        model = keras.models.load_model(self._file, compile=False)
        loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
        model.compile(loss=loss, metrics=["accuracy"])
        of_float = model.evaluate(*held_out, verbose=0, return_dict=True)["accuracy"]
        keras.utils.set_random_seed(0)
        q = sat_tf.quantize_model(
            model, sat_tf.BitPolicy.mobile(int(self._bits), input_type="int8")
        )
        sat_tf.calibrate(q, train[0][:512], progress=False)
        q.compile(keras.optimizers.Adam(1e-4), loss, metrics=["accuracy"])
        start = q.evaluate(*held_out, verbose=0, return_dict=True)["accuracy"]
        with tempfile.TemporaryDirectory() as folder:
            best = f"{folder}/best.weights.h5"
            q.save_weights(best)
            keep = keras.callbacks.ModelCheckpoint(
                best,
                monitor="val_accuracy",
                save_best_only=True,
                save_weights_only=True,
                initial_value_threshold=start,
            )
            history = q.fit(
                *train,
                epochs=int(epochs),
                validation_data=held_out,
                callbacks=[keep],
                verbose=0,
            )
            q.load_weights(best)
        end = q.evaluate(*held_out, verbose=0, return_dict=True)["accuracy"]
        of_epochs = [start, *history.history["val_accuracy"]]
        return _row(of_float, start, end, int(np.argmax(of_epochs)), 1e-4)


def _row(of_float: float, start: float, end: float, epoch: int, rate: float) -> dict[str, Any]:
    percent = {"float": of_float, "start": start, "trained": end}
    return {
        **{name: f"{100 * value:.2f}" for name, value in percent.items()},
        "kept epoch": epoch,
        "rate": f"{rate:g}",
    }


if __name__ == "__main__":
    app.run(main)
