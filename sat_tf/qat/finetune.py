"""Fine-tuning of a quantized model by Keras' own `fit`, with its float model as the teacher.

A short trial chooses the learning rate, unless transition rates are scheduled. It then rises for a
tenth of the steps, and falls to 0 on half a cosine. After each epoch the model is measured as it
would be shipped, and the best is kept, the start included. An interrupted training goes on from the
end of its last epoch, to the same model, except for what layers such as Dropout draw.
"""

import contextlib
import dataclasses
import json
import math
import pathlib
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
from sat_tf.messages import RunError, reason_of
from sat_tf.pictures import Pictures
from sat_tf.qat.calibrate import calibrate, estimate_statistics
from sat_tf.qat.images import BATCH_SIZE, TrainingBatches, TrainingImages, fed, held_out_batches
from sat_tf.qat.inputs import input_ranges
from sat_tf.qat.reconstruction.fit import TEMPERATURE, key_of, logits_of, row_of, soft_divergence
from sat_tf.qat.transition_rate import TransitionRate
from sat_tf.qat.wrapper import constant_weights, weight_quantizer

# The rates that are tried go from steps that change nearly nothing to those of a fresh network.
TRIED_RATES = (0.0001, 0.0003, 0.001, 0.003, 0.01, 0.03)
# The rate where factors on the steps of kernels make up for what is wrong with it.
_SCHEDULED_RATE = 0.01
# The steps of a trial at each of the rates, and the images by which it is judged.
_TRIED_STEPS, _TRIED_IMAGES = 16, 256
_WARMUP_SHARE = 0.1
_MOMENTUM, _WEIGHT_DECAY = 0.9, 4e-5
# The teacher's share of the loss where there are labels, whose share is the other half.
_TEACHERS_SHARE = 0.5
RESTART = "start over with --no-resume"


class Epoch(NamedTuple):
    """One epoch of a training."""

    epoch: int  # Counted from 1; 0 is the start.
    learning_rate: float  # The rate of its last step.
    loss: float  # The training loss, the mean over the images; NaN at the start.
    score: float  # The share of held-out images whose class is right.
    held_out_loss: float  # The cross-entropy of the classes of held-out images.


@dataclasses.dataclass(eq=False)
class FineTuned(tf.train.experimental.PythonState):
    """The outcome of a training, which its backups hold as far as it has got."""

    # The start, and each epoch that was trained.
    epochs: list[Epoch] = dataclasses.field(default_factory=list)
    kept_epoch: int = 0  # The epoch whose weights the model has; 0 is the start.
    learning_rate: float = math.nan  # The highest rate of the training.
    # How far the model was from the float one after a few steps at each rate of the trial, or None
    # where it diverged; empty where the rate was given.
    tried: dict[float, float | None] = dataclasses.field(default_factory=dict)
    passed_over: tuple[int, ...] = ()  # The places of images that could not be read.

    @property
    def trial(self) -> str:
        """The outcome of the trial, in words; "" where the rate was given."""
        words = ", ".join(
            f"{'diverged' if far is None else f'{far:.3g}'} at {rate:g}"
            for rate, far in self.tried.items()
        )
        return f"distance from the float model {words}" if words else ""

    def serialize(self) -> str:
        """Returns what a training that goes on needs to know."""
        return json.dumps([self.epochs, self.kept_epoch, self.learning_rate, [*self.tried.items()]])

    def deserialize(self, text: str) -> None:
        """Takes up what `serialize` has returned."""
        epochs, self.kept_epoch, self.learning_rate, tried = json.loads(text)
        self.epochs, self.tried = [Epoch(*row) for row in epochs], dict(tried)


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
    transition_rate: float | None = None,
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
    the right one. Frozen layers stay frozen. A transition rate is the `first_rate` of
    `TransitionRate`. The trial is judged by the `sample` of the training, on which statistics are
    measured, too; the best epoch is chosen by the held-out images. `finish` completes the model for
    shipping. The backup of the last epoch stays in the folder until it is removed; without one, the
    training begins anew, or fails if a backup `is_expected`.
    """
    row, reason = row_of(float_model)
    if reason or not quantized.trainable_variables:
        raise ValueError(
            f"finetune: received {reason or 'a frozen model'}, expected one to train, of one row "
            "of logits or probabilities; set trainable=True where it is frozen."
        )
    network, title = Network(quantized), "agreement" if labels is None else "top-1"
    feed = input_ranges(network).get(network.input, PIXELS).fed
    classes = np.zeros(len(images), np.int32) if labels is None else np.asarray(labels, np.int32)
    backup = None
    if folder is not None:
        settings = {"epochs": epochs, "rate": learning_rate, "batch_size": batch_size, "seed": seed}
        settings |= {} if transition_rate is None else {"transition_rate": transition_rate}
        files = images.hashes() if isinstance(images, Pictures) else {}
        arrays = (sample, classes, *(array for array in held_out if array is not None))
        arrays = arrays if files else (*arrays, *images)
        reference = network_of_layers(float_model)
        key = key_of(network, reference, arrays, title=title, files=files, **settings)
        backup = Backup(folder / key)
        if is_expected and not backup.epochs:
            raise RunError(
                f"--resume: {folder}: received no unfinished training of this model with these "
                "images and settings, expected one; leave out --resume to begin a new one."
            )

    keras.utils.set_random_seed(seed)
    batches = TrainingBatches(images, classes, held_out[0].shape[1:], feed, batch_size, seed)
    trainer = _Trainer(quantized, float_model, row, 1.0 if labels is None else _TEACHERS_SHARE)
    trainer.compile(
        keras.optimizers.SGD(trainer.rates, momentum=_MOMENTUM, nesterov=True),
        keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        [keras.metrics.SparseCategoricalAccuracy("score")],
    )
    total, scheduled = epochs * batches.steps, list[TransitionRate]()
    if transition_rate is not None:
        scheduled = [TransitionRate(total, first_rate=transition_rate, most_bits=8)]
        trainer.transition_rate = StateInBackups(scheduled[0])
        learning_rate = learning_rate or _SCHEDULED_RATE
    validation = held_out_batches(*held_out, feed=feed, teacher=trainer.teacher)
    outcome = trainer.outcome

    def measure(epoch: int, logs: Mapping[str, float]) -> None:
        """Measures the model as it would be shipped, and keeps the best: by score, then by loss.

        Statistics and ranges are measured again, and `finish` is called; training goes on from the
        model as it was.
        """
        epoch += 1  # Keras counts from 0.
        before = quantized.get_weights()
        # A model that cannot be finished is measured as it is.
        with contextlib.suppress(ValueError), warnings.catch_warnings():
            if epoch:
                warnings.simplefilter("ignore")  # the calibration before has said it
                settings = {"clipping_levels": False, "progress": False}
                calibrate(quantized, sample, num_images=len(sample), **settings)
            finish(quantized)
        with constant_weights(quantized):
            held = trainer.evaluate(validation, verbose=0, return_dict=True)
        rate = float(trainer.optimizer.learning_rate)
        outcome.epochs.append(Epoch(epoch, rate, logs["loss"], held["score"], held["loss"]))
        sound = [row for row in outcome.epochs if not row.epoch or math.isfinite(row.held_out_loss)]
        outcome.kept_epoch = max(sound, key=lambda row: (row.score, -row.held_out_loss)).epoch
        if outcome.kept_epoch == epoch:
            for best, weight in zip(trainer.best, quantized.get_weights(), strict=True):
                best.assign(weight)
        quantized.set_weights(before)
        when = f"epoch {epoch}/{epochs}: loss {logs['loss']:.4g}," if epoch else "before training:"
        say(f"{when} held-out {title} {100 * held['score']:.2f} %")

    if backup is not None and backup.epochs:
        say(f"going on after epoch {backup.epochs} of {epochs}, which {folder} holds")
        backup.set_model(trainer)
        backup.on_train_begin()
    else:
        measure(-1, {"loss": math.nan})
        if learning_rate is None:
            say(f"trying {len(TRIED_RATES)} learning rates, for {_TRIED_STEPS} steps each")
            outcome.tried = trainer.tried(batches, sample[:_TRIED_IMAGES])
            distances = {rate: far for rate, far in outcome.tried.items() if far is not None}
            learning_rate = min(distances, key=distances.__getitem__, default=TRIED_RATES[0])
            say(f"learning rate {learning_rate:g}: {outcome.trial}")
        outcome.learning_rate = learning_rate

    warmup = min(round(_WARMUP_SHARE * total), total - 1)
    # It is in float32, as Keras has learning rates.
    trainer.rates.warmup_target.assign(float(np.float32(outcome.learning_rate)))
    trainer.rates.warmup_steps.assign(warmup)
    trainer.rates.decay_steps.assign(total - warmup)
    measuring = keras.callbacks.LambdaCallback(on_epoch_end=measure)
    course = [*scheduled, batches, keras.callbacks.TerminateOnNaN(), measuring]
    course += [*([] if backup is None else [backup]), *callbacks]
    trainer.fit(batches.dataset, epochs=epochs, callbacks=course, verbose=0)
    quantized.set_weights([weight.numpy() for weight in trainer.best])
    outcome.passed_over = tuple(sorted(batches.passed_over))
    return outcome


class StateInBackups(tf.train.experimental.PythonState):
    """The state of a callback, in the backups of the model that has this as an attribute."""

    def __init__(self, callback: Any) -> None:
        super().__init__()
        self._callback = callback

    def serialize(self) -> str:
        """Returns the state."""
        return json.dumps(self._callback.state)

    def deserialize(self, text: str) -> None:
        """Gives it to the callback of this process."""
        self._callback.state = json.loads(text)


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


class _Trainer(keras.Model):
    """Trains a student by labels and, for a share of the loss, the answers of a teacher."""

    def __init__(self, student: keras.Model, teacher: keras.Model, row: str, share: float) -> None:
        super().__init__(name=f"trainer_of_{student.name}")
        self.built = True  # Keras' backup warns of a model that is not
        self.student, self._row, self._share = student, row, share
        # A function hides it from Keras, so that it is in no backup.
        self.teacher = lambda images: logits_of(teacher(images, training=False), row)
        layers = [layer.layer for layer in student.layers if weight_quantizer(layer) is not None]
        layers = [layer for layer in layers if not layer_kinds.kernels_of(layer)[0].depthwise]
        self._kernels = [layer_kinds.kernel_of(layer) for layer in layers]
        self._loss = keras.metrics.Mean("loss_of_step")
        # Backups hold all that Keras tracks: these, the outcome, the student, the optimizer.
        self.best = [tf.Variable(weight, trainable=False) for weight in student.get_weights()]
        self.outcome = FineTuned()
        # Keras traces the steps only once, so that a schedule for each rate has the same variables.
        self.rates = keras.optimizers.schedules.CosineDecay(
            np.float64(0.0),
            tf.Variable(1),
            warmup_target=tf.Variable(np.float64(0.0)),
            warmup_steps=tf.Variable(0),
        )

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

    def tried(self, batches: TrainingBatches, images: np.ndarray) -> dict[float, float | None]:
        """How far the student is from its teacher after a few steps at each of `TRIED_RATES`.

        The distance is the mean divergence Σ p log(p / q) of the teacher's probabilities p from the
        student's q, with statistics measured first; it is None where the student is no longer
        finite. The loss of the steps is no guide: a model that leaves all that it knows behind for
        the batches at hand lowers it fastest. The student has its weights again afterwards.
        """
        weights, distances = self.student.get_weights(), dict[float, float | None]()
        pieces = np.array_split(fed(images, batches.feed), -(-len(images) // BATCH_SIZE))
        steps = {"steps_per_epoch": _TRIED_STEPS, "callbacks": [batches], "verbose": 0}
        self.rates.decay_steps.assign(_TRIED_STEPS)
        for rate in TRIED_RATES:
            self.rates.warmup_target.assign(rate)
            self.fit(batches.dataset.repeat(), **steps)
            distance = math.inf
            with contextlib.suppress(ValueError):  # an activation is not finite
                estimate_statistics(self.student, images, num_images=len(images))
                pairs = [(self.teacher(piece), self(piece, training=False)) for piece in pieces]
                far = tf.concat([soft_divergence(*pair, temperature=1.0) for pair in pairs], axis=0)
                distance = float(tf.reduce_mean(far))
            distances[rate] = distance if math.isfinite(distance) else None
            self.student.set_weights(weights)
            for variable in self.optimizer.variables:
                variable.assign(tf.zeros_like(variable))
        return distances
