"""Fine-tuning of a quantized model by Keras' own `fit`, with its float model as the teacher.

A short trial chooses the learning rate, which then rises for a tenth of the steps, and falls to 0
on half a cosine. After each epoch the model is measured as it would be shipped, and the best is
kept, the start included. An interrupted training goes on from the end of its last epoch, to the
same model, except for what layers such as Dropout draw.
"""

import contextlib
import dataclasses
import functools
import hashlib
import math
import pathlib
import shutil
import warnings
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf
import tf_keras as keras

from sat_tf.exact.tflite.input_range import PIXELS
from sat_tf.graph import layer_kinds
from sat_tf.graph.network import Network
from sat_tf.graph.rewrite import network_of_layers
from sat_tf.messages import ProblemsError, RunError, reason_of
from sat_tf.pictures import Pictures
from sat_tf.qat.calibrate import calibrate, estimate_statistics
from sat_tf.qat.images import BATCH_SIZE, TrainingBatches, TrainingImages, fed, held_out_batches
from sat_tf.qat.inputs import input_ranges
from sat_tf.qat.reconstruction.fit import (
    TEMPERATURE,
    key_of,
    logits_of,
    rows_of_classes,
    soft_divergence,
)
from sat_tf.qat.wrapper import ConstantWeights, weight_quantizer

# The rates that are tried go from steps that change nearly nothing to those of a fresh network.
TRIED_RATES = (0.0001, 0.0003, 0.001, 0.003, 0.01, 0.03)
# The steps of a trial at each of the rates, and the images by which it is judged.
_TRIED_STEPS, _TRIED_IMAGES = 16, 256
_WARMUP_SHARE = 0.1
_MOMENTUM, _WEIGHT_DECAY = 0.9, 4e-5
# The teacher's share of the loss where there are labels, whose share is the other half.
_TEACHERS_SHARE = 0.5
_KEY_LENGTH = 16
RESTART = "start over with --no-resume"


class Epoch(NamedTuple):
    """One epoch of a training."""

    epoch: int  # Counted from 1; 0 is the start.
    learning_rate: float  # The rate of its last step.
    loss: float  # The training loss, the mean over the images; NaN at the start.
    score: float  # The share of held-out images whose class is right.
    held_out_loss: float  # The cross-entropy of the classes of held-out images.


@dataclasses.dataclass(frozen=True, kw_only=True)
class FineTuned:
    """The outcome of a training."""

    epochs: tuple[Epoch, ...]  # The start, and each epoch that was trained.
    kept_epoch: int  # The epoch whose weights the model has; 0 is the start.
    learning_rate: float  # The highest rate of the training.
    # How far the model was from the float one after a few steps at each rate of the trial, or None
    # where it diverged; empty where the rate was given.
    tried: dict[float, float | None]
    passed_over: tuple[int, ...] = ()  # The places of images that could not be read.


def row_of(float_model: keras.Model) -> tuple[str, str]:
    """Tells what a row of a model's only output holds, "logits" or "probabilities".

    If the quantized form of the model cannot be fine-tuned, it returns "" and the reason, in words.
    """
    if len(float_model.outputs) > 1:
        return "", f"a model of {len(float_model.outputs)} outputs"
    network = network_of_layers(float_model)
    shape = network[network.output].shape
    if len(shape) == 1 and (row := rows_of_classes(network, network.output, shape)):
        return row, ""
    sizes = tuple(float_model.output_shape[1:])
    return "", f"a model with outputs of shape {sizes} that are no row of classes"


def finetune(
    quantized: keras.Model,
    float_model: keras.Model,
    images: TrainingImages,
    labels: np.ndarray | None,
    *,
    held_out: tuple[np.ndarray, np.ndarray | None],
    sample: np.ndarray,
    epochs: int,
    learning_rate: float | None = None,
    batch_size: int = 32,
    seed: int = 0,
    folder: pathlib.Path | None = None,
    is_expected: bool = False,
    finish: Callable[[keras.Model], object] = lambda model: None,
    say: Callable[[str], object] = lambda words: None,
    callbacks: Sequence[keras.callbacks.Callback] = (),
) -> FineTuned:
    """Trains a quantized model on labels and the answers of its float model, in place.

    The loss is half the cross-entropy of the labels and half T² KL(p_float || p) of probabilities
    at a temperature of T = 4; without labels it is the latter alone, and the float model's class is
    the right one. Frozen layers stay frozen. The trial is judged by the `sample` of the training,
    on which statistics are measured, too; the best epoch is chosen by the held-out images. `finish`
    completes the model for shipping. The backup of the last epoch stays in the folder until it is
    removed; without one, the training begins anew, or fails if a backup `is_expected`.
    """
    row, reason = row_of(float_model)
    problems = []
    if not row:
        problems.append(f"received {reason}, expected one row of logits or probabilities.")
    if not quantized.trainable_variables:
        problems.append("received a frozen model, expected one to train; set trainable=True.")
    if len(images) < batch_size:
        problems.append(f"received {len(images)} images, expected {batch_size} or more, a batch.")
    if labels is not None and len(labels) != len(images):
        problems.append(
            f"received {len(labels)} labels, expected {len(images)}, one of each image."
        )
    if problems:
        raise ProblemsError("finetune", problems)
    network, title = Network(quantized), "agreement" if labels is None else "top-1"
    feed = input_ranges(network).get(network.input, PIXELS).fed
    classes = np.zeros(len(images), np.int32) if labels is None else np.asarray(labels, np.int32)
    backup = None
    if folder is not None:
        settings = {"epochs": epochs, "rate": learning_rate, "batch_size": batch_size, "seed": seed}
        reference = network_of_layers(float_model)
        arrays = (sample, classes, *(array for array in held_out if array is not None))
        key = key_of(network, reference, arrays, title=title, files=_hashes(images), **settings)
        backup = Backup(folder / key[:_KEY_LENGTH])
        if is_expected and not backup.epochs:
            raise RunError(
                f"--resume: {folder}: received no unfinished training of this model with these "
                "images and settings, expected one; leave out --resume to begin a new one."
            )
        remove_backups(folder, but=backup.folder.name)
        backup.folder.mkdir(parents=True, exist_ok=True)
        if backup.epochs:
            say(f"going on behind epoch {backup.epochs} of {epochs}, which {backup.folder} holds")

    keras.utils.set_random_seed(seed)
    batches = TrainingBatches(images, classes, held_out[0].shape[1:], feed, batch_size, seed)
    share = 1.0 if labels is None else _TEACHERS_SHARE
    trainer = _Trainer(quantized, float_model, row, share, epochs)
    trainer.compile(
        keras.optimizers.SGD(0.0, momentum=_MOMENTUM, nesterov=True),
        keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        [keras.metrics.SparseCategoricalAccuracy("score")],
    )
    validation = held_out_batches(*held_out, feed=feed, teacher=trainer.teacher)
    measure = functools.partial(trainer.measure, validation, sample, finish)
    start = measure(0, math.nan)
    say(f"before training: held-out {title} {100 * start.score:.2f} %")
    if learning_rate is not None:
        trainer.peak.assign(learning_rate)
    elif backup is None or not backup.epochs:
        low, high = TRIED_RATES[0], TRIED_RATES[-1]
        say(f"trying learning rates from {low:g} to {high:g}, for {_TRIED_STEPS} steps each")
        trainer.distances.assign(_tried(trainer, batches, sample[:_TRIED_IMAGES]))
        # The lowest rate is taken where all have diverged.
        trainer.peak.assign(TRIED_RATES[int(np.argmin(trainer.distances))])
        say(f"learning rate {float(trainer.peak):g}: {distances_in_words(trainer.tried)}")

    def end_epoch(epoch: int, logs: Mapping[str, float]) -> None:
        done = measure(epoch + 1, logs["loss"])
        score = f"held-out {title} {100 * done.score:.2f} %"
        say(f"epoch {done.epoch}/{epochs}: loss {done.loss:.4g}, {score}")

    total = epochs * batches.steps
    warmup = min(round(_WARMUP_SHARE * total), total - 1)
    schedule = _schedule(trainer, batches, trainer.peak, total_steps=total, warmup_steps=warmup)
    measuring = keras.callbacks.LambdaCallback(on_epoch_end=end_epoch)
    course = [schedule, keras.callbacks.TerminateOnNaN(), measuring]
    course += [*([] if backup is None else [backup]), *callbacks]
    trainer.fit(batches.dataset, epochs=epochs, callbacks=course, verbose=0)
    quantized.set_weights([weight.numpy() for weight in trainer.best])
    rows = enumerate(trainer.rows.numpy().tolist())
    return FineTuned(
        epochs=tuple(Epoch(epoch, *row) for epoch, row in rows if not math.isnan(row[0])),
        kept_epoch=int(trainer.best_epoch),
        learning_rate=float(str(trainer.peak.numpy())),  # of float32, the shortest that is the same
        tried=trainer.tried,
        passed_over=tuple(sorted(batches.passed_over)),
    )


class Backup(keras.callbacks.BackupAndRestore):
    """Keras' backup of a training at the end of each epoch, which stays until it is removed."""

    def __init__(self, folder: pathlib.Path) -> None:
        super().__init__(str(folder), delete_checkpoint=False)
        self.folder = folder

    @property
    def epochs(self) -> int:
        """How many epochs are saved: there is a checkpoint for each, and Keras numbers them."""
        latest = tf.train.latest_checkpoint(str(self.folder / "chief"))
        return 0 if latest is None else int(latest.rpartition("-")[2])

    def on_train_begin(self, logs: Any = None) -> None:
        try:
            super().on_train_begin(logs)
        except Exception as error:  # TensorFlow has many types for a file that is damaged.
            raise RunError(
                f"{self.folder}: the checkpoint cannot be read ({reason_of(error)}), expected that "
                f"of this run; {RESTART}."
            ) from error

    def _backup(self, epoch: int, batch: int = 0) -> None:
        try:
            super()._backup(epoch, batch)
        except (tf.errors.OpError, OSError):
            for path in self.folder.glob("*/*temp*"):
                shutil.rmtree(path, ignore_errors=True)
                path.unlink(missing_ok=True)
            raise


def _hashes(images: TrainingImages) -> list[str]:
    """Returns a hash of each image, or of its file; "" of one that cannot be read."""
    hashes = [""] * len(images)
    for place in range(len(images)):
        with contextlib.suppress(OSError, ValueError):
            if isinstance(images, Pictures) and images.array is None:
                content = images.encoded(place)
            else:
                pixels = np.ascontiguousarray(images[place])
                content = repr((pixels.shape, pixels.dtype.str)).encode() + pixels.tobytes()
            hashes[place] = hashlib.sha256(content).hexdigest()
    return hashes


def remove_backups(folder: pathlib.Path, but: str = "") -> None:
    """Removes the backups in a folder, if any, and the folder if that was all."""
    for place in folder.glob("[0-9a-f]" * _KEY_LENGTH):
        if place.name != but:
            shutil.rmtree(place)
    with contextlib.suppress(OSError):
        folder.rmdir()


def distances_in_words(tried: Mapping[float, float | None]) -> str:
    """How far a model was from the float one after a few steps at each learning rate."""
    words = [
        f"{'diverged' if distance is None else f'{distance:.3g}'} at {rate:g}"
        for rate, distance in tried.items()
    ]
    return f"distance from the float model {', '.join(words)}"


class _Trainer(keras.Model):
    """Trains a student by labels and, for a share of the loss, the answers of a teacher.

    Its variables are all that a training knows besides weights and momentum; backups hold them.
    """

    def __init__(
        self, student: keras.Model, teacher: keras.Model, row: str, share: float, epochs: int
    ) -> None:
        super().__init__(name=f"trainer_of_{student.name}")
        self.student, self._row, self._share = student, row, share
        # A function hides it from Keras, so that it is in no backup.
        self.teacher = lambda images: logits_of(teacher(images, training=False), row)
        self._kernels = [
            layer_kinds.kernel_of(layer.layer)
            for layer in student.layers
            if weight_quantizer(layer) is not None
            and not any(kernel.depthwise for kernel in layer_kinds.find_kind(layer.layer).kernels)
        ]
        self._loss = keras.metrics.Mean("loss_of_step")
        new_variable = functools.partial(tf.Variable, trainable=False)
        self.best = [new_variable(weight) for weight in student.get_weights()]
        self.best_epoch = new_variable(0, dtype=tf.int64)  # that has these weights
        self.peak = new_variable(0.0)
        self.distances = new_variable(tf.fill(len(TRIED_RATES), math.nan))
        self.rows = new_variable(tf.fill((epochs + 1, len(Epoch._fields) - 1), math.nan))

    @property
    def tried(self) -> dict[float, float | None]:
        """The distance of each rate that was tried; None where the model diverged."""
        pairs = zip(TRIED_RATES, self.distances.numpy().tolist(), strict=True)
        return {r: None if math.isinf(far) else far for r, far in pairs if not math.isnan(far)}

    def call(self, images: tf.Tensor, training: Any = None) -> tf.Tensor:
        return logits_of(self.student(images, training=training), self._row)

    def train_step(self, data: tuple[tf.Tensor, tf.Tensor]) -> dict[str, tf.Tensor]:
        images, labels = data
        with tf.GradientTape() as tape:
            logits = self(images, training=True)
            of_labels = tf.nn.sparse_softmax_cross_entropy_with_logits(labels, logits)
            of_teacher = soft_divergence(self.teacher(images), logits, TEMPERATURE)
            losses = (1.0 - self._share) * of_labels + self._share * of_teacher
            decay = 0.5 * _WEIGHT_DECAY * tf.add_n([tf.reduce_sum(k**2) for k in self._kernels])
            objective = tf.reduce_mean(losses) + decay
        self.optimizer.minimize(objective, self.student.trainable_variables, tape)
        self._loss.update_state(losses)
        return {"loss": self._loss.result()}

    def measure(
        self,
        validation: tf.data.Dataset,
        sample: np.ndarray,
        finish: Callable[[keras.Model], object],
        epoch: int,
        loss: float,
    ) -> Epoch:
        """Measures the student as it would be shipped, and keeps the best: by score, then by loss.

        Statistics and ranges are measured again, and `finish` is called; training goes on from the
        model as it was.
        """
        before, effective = self.student.get_weights(), ConstantWeights(self.student)
        # A model that cannot be finished is measured as it is.
        with contextlib.suppress(ValueError), warnings.catch_warnings():
            if epoch:
                warnings.simplefilter("ignore")  # the calibration before has said it
                settings = {"clipping_levels": False, "progress": False}
                calibrate(self.student, sample, num_images=len(sample), **settings)
            finish(self.student)
        effective.fill()
        logs = self.evaluate(validation, verbose=0, return_dict=True)
        effective.clear()
        rate = float(self.optimizer.learning_rate)
        done = Epoch(epoch, rate, loss, logs["score"], logs["loss"])
        self.rows[epoch].assign(done[1:])
        # In the precision in which they are kept, so that equal ones stay equal.
        (score, lost), (best, least) = self.rows.numpy()[[epoch, int(self.best_epoch)], 2:]
        if not epoch or (np.isfinite(lost) and (score, -lost) > (best, -least)):
            self.best_epoch.assign(epoch)
            for best_weight, weight in zip(self.best, self.student.get_weights(), strict=True):
                best_weight.assign(weight)
        self.student.set_weights(before)
        return done


def warmup_cosine(
    n: Any, step: Any, *, first: float, peak: float, warmup_steps: int, total_steps: int
) -> Any:
    """The learning rate at step i = 0, 1, ... of T, of which the first w warm up.

    first + (peak - first) · i / w                  for i < w
    peak · (1 + cos(π · (i - w) / (T - w))) / 2     for w <= i < T
    0                                               from T on

    It is computed by the functions of `n`, which is NumPy or TensorFlow.
    """
    warming = first + (peak - first) * step / max(warmup_steps, 1)
    done = (step - warmup_steps) / (total_steps - warmup_steps)
    cooling = peak * 0.5 * (1.0 + n.cos(math.pi * n.minimum(done, 1.0)))
    return n.where(step < warmup_steps, warming, cooling)


def _schedule(
    trainer: _Trainer, batches: TrainingBatches, peak: float | tf.Variable, **steps: int
) -> keras.callbacks.Callback:
    """Sets the learning rate of each step by `warmup_cosine`, and begins the batches of epochs."""

    def begin(batch: int, logs: Any) -> None:
        optimizer = trainer.optimizer
        share = warmup_cosine(np, int(optimizer.iterations), first=0.0, peak=1.0, **steps)
        optimizer.learning_rate = float(peak) * float(share)

    return keras.callbacks.LambdaCallback(
        on_epoch_begin=lambda epoch, logs: batches.begin(epoch), on_batch_begin=begin
    )


def _tried(trainer: _Trainer, batches: TrainingBatches, images: np.ndarray) -> list[float]:
    """How far a model is from its teacher after a few steps at each of `TRIED_RATES`.

    The distance is the mean divergence Σ p log(p / q) of the teacher's probabilities p from the
    model's q, with statistics measured first; it is infinite where the model is no longer finite.
    The loss of the steps is no guide: a model that leaves all that it knows behind for the batches
    at hand lowers it fastest. The student has its weights again afterwards.
    """
    student, weights = trainer.student, trainer.student.get_weights()
    pieces = np.array_split(images, -(-len(images) // BATCH_SIZE))
    scaled = [fed(piece, batches.feed) for piece in pieces]
    answers = [trainer.teacher(piece) for piece in scaled]
    distances = []
    for rate in TRIED_RATES:
        schedule = _schedule(trainer, batches, rate, total_steps=_TRIED_STEPS, warmup_steps=0)
        steps = batches.dataset.repeat()
        trainer.fit(steps, steps_per_epoch=_TRIED_STEPS, callbacks=[schedule], verbose=0)
        distance = math.inf
        with contextlib.suppress(ValueError):  # an activation is not finite
            estimate_statistics(student, images, num_images=len(images))
            pairs = zip(answers, (trainer(piece, training=False) for piece in scaled), strict=True)
            far = tf.concat([soft_divergence(*pair, temperature=1.0) for pair in pairs], axis=0)
            distance = float(tf.reduce_mean(far))
        distances.append(distance if math.isfinite(distance) else math.inf)
        student.set_weights(weights)
        for variable in trainer.optimizer.variables:
            variable.assign(tf.zeros_like(variable))
    return distances
