"""Fine-tuning of a quantized model by Keras' own `fit`, with its float model as the teacher.

A short trial chooses the learning rate, which then rises for a tenth of the steps, and falls to 0
on half a cosine. After each epoch the model is measured as it would be shipped, and the best is
kept, the start included: training cannot make a model worse. `BackupAndRestore` keeps the end of
the last epoch, from which the same call goes on after an interruption, to the same model, but for
what layers such as Dropout draw.
"""

import contextlib
import dataclasses
import functools
import itertools
import math
import pathlib
import shutil
import warnings
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf
import tf_keras as keras
from PIL import Image

from sat_tf.graph import layer_kinds
from sat_tf.graph.network import Network
from sat_tf.graph.rewrite import with_layers_for_operations
from sat_tf.messages import ProblemsError, RunError
from sat_tf.qat.calibrate import calibrate, estimate_statistics
from sat_tf.qat.inputs import input_ranges
from sat_tf.qat.reconstruction.checkpoint import key_of
from sat_tf.qat.reconstruction.fit import rows_of_classes
from sat_tf.qat.wrapper import ConstantWeights, weight_quantizer
from sat_tf.quantizers.input_range import PIXELS

# The rates that are tried go from steps that change nearly nothing to those of a fresh network.
TRIED_RATES = (0.0001, 0.0003, 0.001, 0.003, 0.01, 0.03)
# A trial takes so many steps at each of them, and is judged by so many images.
_TRIED_STEPS, _TRIED_IMAGES = 16, 256
_WARMUP_SHARE = 0.1
_MOMENTUM, _WEIGHT_DECAY = 0.9, 4e-5
# With labels, the loss is theirs and the teacher's in equal parts.
_TEMPERATURE, _TEACHERS_SHARE = 4.0, 0.5
_AT_ONCE = 64
# A cut has such a share of a picture's area at least, and such a ratio of sides at most. Nothing is
# mirrored: how the float model was trained is not known, and letters have a left and a right.
_SMALLEST_AREA, _WIDEST_ASPECT = 0.6, 4 / 3
_CHANNELS_OF_PICTURES = (1, 3)
_KEY_LENGTH = 16

Images = Sequence[np.ndarray] | np.ndarray
Feed = Callable[[np.ndarray], np.ndarray]


class Epoch(NamedTuple):
    """One epoch of a training."""

    epoch: int  # Counted from 1; 0 is the start.
    learning_rate: float  # Of its last step.
    loss: float  # Of training, the mean over its images; NaN at the start.
    score: float  # The share of held-out images whose class is right.
    held_out_loss: float  # The cross-entropy of their classes.


@dataclasses.dataclass(frozen=True, kw_only=True)
class FineTuned:
    """The outcome of a training."""

    epochs: tuple[Epoch, ...]  # The start, and each epoch that was trained.
    kept_epoch: int  # The one whose weights the model has; 0 is the start.
    learning_rate: float  # The highest.
    # How far the model was from the float one after a few steps at each rate of the trial, or None
    # where it diverged; empty where the rate was given.
    tried: dict[float, float | None]
    passed_over: tuple[int, ...] = ()  # The places of images that could not be read.


def row_of(float_model: keras.Model) -> str:
    """What the only output of a model is a row of: "logits", "probabilities", or "" of neither."""
    network = Network(with_layers_for_operations(float_model))
    shape = network[network.output].shape
    return rows_of_classes(network, network.output, shape) if len(shape) == 1 else ""


def refusal(float_model: keras.Model) -> str:
    """Why the quantized form of a model cannot be fine-tuned, in words; empty where it can."""
    if len(float_model.outputs) > 1:
        return f"a model of {len(float_model.outputs)} outputs"
    shape = tuple(float_model.output_shape[1:])
    is_row = row_of(float_model)
    return "" if is_row else f"a model with outputs of shape {shape} that are no row of classes"


def finetune(
    quantized: keras.Model,
    float_model: keras.Model,
    images: Images,
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
    at a temperature of T = 4; without labels it is the latter alone, and the class that is right is
    that of the float model. The optimizer is SGD with Nesterov momentum. Pictures are cut at
    random; other inputs are taken as they are. Frozen layers stay frozen.

    Args:
        quantized: calibrated; of one input and one output, a row of classes.
        float_model: that it was made from; it is not changed.
        images: to train on: an array, or a sequence that reads a picture of any size when it is
            asked for one; one that raises ValueError or OSError is passed over for the next. uint8
            pixels are scaled to the input range of the model; other numbers are what it is fed.
        labels: their class numbers; None without labels.
        held_out: images of the size that the model takes, by which the best epoch is chosen, and
            their labels.
        sample: some images of the training, prepared like those held out: the trial is judged by
            them, and statistics are measured on them.
        epochs: how many, each of all full batches.
        learning_rate: the highest; None has a trial choose one of `TRIED_RATES`.
        batch_size: images a step.
        seed: of the order and the cuts.
        folder: of the backup of the last epoch, which stays until it is removed; None keeps none.
        is_expected: a backup must be there; by default the training begins anew without one.
        finish: what else the end does to the model, such as moving biases to those of its file.
        say: is told how far it is.
        callbacks: further ones, which come after the backup.

    Raises:
        ValueError: the model or the images cannot be trained; lists every problem.
        RunError: a backup was expected.
    """
    _refuse(quantized, float_model, images, labels, batch_size)
    network, title = Network(quantized), "agreement" if labels is None else "top-1"
    feed = input_ranges(network).get(network.input, PIXELS).fed
    classes = np.zeros(len(images), np.int32) if labels is None else np.asarray(labels, np.int32)
    backup, is_resumed = [], False
    if folder is not None:
        settings = {"epochs": epochs, "rate": learning_rate, "batch_size": batch_size, "seed": seed}
        reference = Network(with_layers_for_operations(float_model))
        key = key_of(network, reference, (sample, held_out[0], classes), title=title, **settings)
        place = _place(folder, key, is_expected=is_expected)
        saved = tf.train.latest_checkpoint(place / "chief")
        is_resumed = saved is not None
        if is_resumed:
            done = tf.train.load_variable(saved, "ckpt_saved_epoch/.ATTRIBUTES/VARIABLE_VALUE") + 1
            say(f"going on behind epoch {done} of {epochs}, which {place} holds")
        backup = [keras.callbacks.BackupAndRestore(str(place), delete_checkpoint=False)]
    keras.utils.set_random_seed(seed)
    batches = _Batches(images, classes, held_out[0].shape[1:], feed, batch_size, seed)
    trainer = _Trainer(quantized, float_model, 1.0 if labels is None else _TEACHERS_SHARE)
    optimizer = keras.optimizers.SGD(0.0, momentum=_MOMENTUM, nesterov=True)
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    trainer.compile(optimizer, loss, [keras.metrics.SparseCategoricalAccuracy("score")])
    trainer.state = state = _State(quantized, epochs)
    measured = _held_out_batches(*held_out, feed=feed, teacher=trainer.teacher)
    measuring = _Measuring(quantized, state, sample, finish)

    def end_epoch(epoch: int, logs: Mapping[str, float]) -> None:
        row = state.add(epoch + 1, schedule.rate, logs["loss"], logs["val_score"], logs["val_loss"])
        score = f"held-out {title} {100 * row.score:.2f} %"
        say(f"epoch {row.epoch}/{epochs}: loss {row.loss:.4g}, {score}")

    found = trainer.evaluate(measured, verbose=0, callbacks=[measuring], return_dict=True)
    state.add(0, 0.0, math.nan, found["score"], found["loss"])
    say(f"before training: held-out {title} {100 * found['score']:.2f} %")
    if learning_rate is not None:
        state.rate.assign(learning_rate)
    elif not is_resumed:
        low, high = TRIED_RATES[0], TRIED_RATES[-1]
        say(f"trying learning rates from {low:g} to {high:g}, for {_TRIED_STEPS} steps each")
        state.distances.assign(_tried(trainer, batches, sample[:_TRIED_IMAGES], feed))
        # The lowest rate is taken where all have diverged.
        state.rate.assign(TRIED_RATES[int(np.argmin(state.distances))])
        say(f"learning rate {float(state.rate):g}: {distances_in_words(state.tried)}")
    total = epochs * batches.steps
    warmup = min(round(_WARMUP_SHARE * total), total - 1)
    schedule = _Schedule(batches, lambda: float(state.rate), total, warmup)
    trainer.fit(
        batches.dataset,
        epochs=epochs,
        validation_data=measured,
        callbacks=[
            schedule,
            measuring,
            keras.callbacks.TerminateOnNaN(),
            keras.callbacks.LambdaCallback(on_epoch_end=end_epoch),
            *backup,
            *callbacks,
        ],
        verbose=0,
    )
    quantized.set_weights([weight.numpy() for weight in state.weights])
    return FineTuned(
        epochs=state.epochs,
        kept_epoch=int(state.epoch),
        learning_rate=float(str(state.rate.numpy())),  # of float32, the shortest that is the same
        tried=state.tried,
        passed_over=tuple(sorted(batches.passed_over)),
    )


def _refuse(
    quantized: keras.Model,
    float_model: keras.Model,
    images: Images,
    labels: np.ndarray | None,
    batch_size: int,
) -> None:
    """Raises ValueError for what cannot be trained; lists every problem."""
    problems = []
    if reason := refusal(float_model):
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


def _place(folder: pathlib.Path, key: str, *, is_expected: bool) -> pathlib.Path:
    """The folder of the backup of one training; those of others are removed."""
    place = folder / key[:_KEY_LENGTH]
    if is_expected and tf.train.latest_checkpoint(place / "chief") is None:
        raise RunError(
            f"--resume: {folder}: received no unfinished training of this model with these images "
            "and settings, expected one; leave out --resume to begin a new one."
        )
    remove_backups(folder, but=place.name)
    place.mkdir(parents=True, exist_ok=True)
    return place


def remove_backups(folder: pathlib.Path, but: str = "") -> None:
    """Removes the backups that trainings have left in a folder, and the folder if that was all.

    Args:
        folder: it need not exist.
        but: the name of one that stays.
    """
    for place in folder.glob("[0-9a-f]" * _KEY_LENGTH):
        if place.name != but:
            shutil.rmtree(place)
    with contextlib.suppress(OSError):
        folder.rmdir()


def distances_in_words(tried: Mapping[float, float | None]) -> str:
    """How far a model was from the float one after a few steps at each learning rate.

    >>> distances_in_words({0.001: 0.52, 0.01: 0.4, 0.1: None})
    'distance from the float model 0.52 at 0.001, 0.4 at 0.01, diverged at 0.1'
    """
    words = [
        f"{'diverged' if distance is None else f'{distance:.3g}'} at {rate:g}"
        for rate, distance in tried.items()
    ]
    return f"distance from the float model {', '.join(words)}"


def soft_divergence(teacher: tf.Tensor, student: tf.Tensor, temperature: float) -> tf.Tensor:
    """How far the student's probabilities are from the teacher's: T² KL(p || q).

    p = softmax(teacher / T), q = softmax(student / T), KL(p || q) = Σ_k p_k (log p_k - log q_k).
    The gradient is T (q - p); without the factor T² it would shrink with T².

    Args:
        teacher: float32 logits (batch, classes); they get no gradient.
        student: float32 logits (batch, classes).
        temperature: T > 0.

    Returns:
        (batch,), float32, 0 or more.

    >>> teacher, student = tf.math.log([[0.5, 0.5]]), tf.math.log([[0.25, 0.75]])
    >>> round(float(soft_divergence(teacher, student, 1.0)[0]), 6)
    0.143841
    """
    log_p = tf.nn.log_softmax(tf.stop_gradient(teacher) / temperature)
    log_q = tf.nn.log_softmax(student / temperature)
    return temperature**2 * tf.reduce_sum(tf.exp(log_p) * (log_p - log_q), axis=-1)


class _Trainer(keras.Model):
    """Trains a student by labels and the answers of a teacher, and measures it by labels.

    Args:
        student: the quantized model.
        teacher: the float model.
        share: of the teacher in the loss.
    """

    def __init__(self, student: keras.Model, teacher: keras.Model, share: float) -> None:
        super().__init__(name=f"trainer_of_{student.name}")
        self._are_logits = row_of(teacher) == "logits"
        self.student, self._share = student, share
        # A function hides it from Keras, so that it is in no backup.
        self.teacher = lambda images: self._logits(teacher(images, training=False))
        self._kernels = [
            layer_kinds.kernel_of(layer.layer)
            for layer in student.layers
            if weight_quantizer(layer) is not None
            and not any(kernel.depthwise for kernel in layer_kinds.find_kind(layer.layer).kernels)
        ]
        self._loss = keras.metrics.Mean("loss_of_step")

    def _logits(self, outputs: tf.Tensor) -> tf.Tensor:
        """Logits, which up to a constant are the logarithms of probabilities."""
        outputs = tf.cast(outputs, tf.float32)
        tiny = np.finfo(np.float32).tiny
        return outputs if self._are_logits else tf.math.log(tf.maximum(outputs, tiny))

    def call(self, images: tf.Tensor, training: Any = None) -> tf.Tensor:
        """The logits of the student."""
        return self._logits(self.student(images, training=training))

    def train_step(self, data: tuple[tf.Tensor, tf.Tensor]) -> dict[str, tf.Tensor]:
        """One step on a batch; logs the mean of the losses so far."""
        images, labels = data
        with tf.GradientTape() as tape:
            logits = self(images, training=True)
            of_labels = tf.nn.sparse_softmax_cross_entropy_with_logits(labels, logits)
            of_teacher = soft_divergence(self.teacher(images), logits, _TEMPERATURE)
            losses = (1.0 - self._share) * of_labels + self._share * of_teacher
            decay = 0.5 * _WEIGHT_DECAY * tf.add_n([tf.reduce_sum(k**2) for k in self._kernels])
            objective = tf.reduce_mean(losses) + decay
        self.optimizer.minimize(objective, self.student.trainable_variables, tape)
        self._loss.update_state(losses)
        return {"loss": self._loss.result()}


class _Batches:
    """The training batches of one epoch, in an order and with cuts that its number decides.

    Args:
        images: see `finetune`.
        labels: of each.
        shape: of the images that the model takes.
        feed: makes of pixels what it is fed.
        batch_size: images a batch; what is left over is dropped.
        seed: of all that is drawn.
    """

    def __init__(
        self,
        images: Images,
        labels: np.ndarray,
        shape: tuple[int, ...],
        feed: Feed,
        batch_size: int,
        seed: int,
    ) -> None:
        self._images, self._labels, self._shape, self._feed = images, labels, shape, feed
        self._batch_size, self._seed = batch_size, seed
        self.steps = len(images) // batch_size
        self.passed_over: set[int] = set()
        self.begin(0)
        self.dataset = _dataset(self._batch, self.steps, shape)

    def begin(self, epoch: int) -> None:
        """Makes what is read next an epoch."""
        self._epoch = epoch
        self._order = np.random.default_rng((self._seed, epoch)).permutation(len(self._images))

    def _batch(self, step: np.int64) -> tuple[np.ndarray, np.ndarray]:
        places = self._order[step * self._batch_size :][: self._batch_size]
        images, labels = zip(*map(self._example, places), strict=True)
        return _fed(np.stack(images), self._feed), np.stack(labels)

    def _example(self, place: np.int64) -> tuple[np.ndarray, np.int32]:
        """The image at a place, or the next one that can be read, and its label."""
        failure: Exception | None = None
        for number in itertools.chain(range(place, len(self._images)), range(place)):
            try:
                image = np.asarray(self._images[number])
            except (OSError, ValueError) as error:
                failure = failure or error
                self.passed_over.add(number)
                continue
            draw = np.random.default_rng((self._seed, self._epoch, int(place)))
            return _cut(image, self._shape, draw), self._labels[number]
        raise ValueError(f"no image of the training can be read ({failure})")


def _cut(image: np.ndarray, shape: tuple[int, ...], draw: np.random.Generator) -> np.ndarray:
    """A random part of a picture, resized to a shape; other values than pixels as they are."""
    if image.dtype != np.uint8 or len(shape) != 3 or shape[2] not in _CHANNELS_OF_PICTURES:
        return image
    height, width = image.shape[:2]
    area = draw.uniform(_SMALLEST_AREA, 1.0) * height * width
    aspect = shape[1] / shape[0] * _WIDEST_ASPECT ** draw.uniform(-1.0, 1.0)
    rows, columns = math.sqrt(area / aspect), math.sqrt(area * aspect)
    share = min(1.0, height / rows, width / columns)  # of a long picture there is less
    rows, columns = min(share * rows, height), min(share * columns, width)  # of rounding
    top, left = draw.uniform(0.0, height - rows), draw.uniform(0.0, width - columns)
    picture = Image.fromarray(image[..., 0] if shape[2] == 1 else image)
    box = (left, top, min(left + columns, width), min(top + rows, height))
    cut = picture.resize((shape[1], shape[0]), Image.Resampling.BILINEAR, box=box)
    return np.asarray(cut, np.uint8).reshape(shape)


def _held_out_batches(
    images: np.ndarray,
    labels: np.ndarray | None,
    *,
    feed: Feed,
    teacher: Callable[[np.ndarray], tf.Tensor],
) -> tf.data.Dataset:
    """Batches of held-out images in order; without labels, their class is that of the teacher."""
    spans = [slice(start, start + _AT_ONCE) for start in range(0, len(images), _AT_ONCE)]
    if labels is None:
        answers = [teacher(_fed(images[span], feed)).numpy() for span in spans]
        labels = np.argmax(np.concatenate(answers), axis=-1)
    classes = labels.astype(np.int32)
    return _dataset(
        lambda number: (_fed(images[spans[number]], feed), classes[spans[number]]),
        len(spans),
        images.shape[1:],
    )


def _dataset(
    batch: Callable[[np.int64], tuple[np.ndarray, np.ndarray]], count: int, shape: tuple[int, ...]
) -> tf.data.Dataset:
    """Batches that a function gives, of float32 images of a shape and int32 labels."""

    def read(number: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        images, labels = tf.numpy_function(batch, [number], (tf.float32, tf.int32))
        return tf.ensure_shape(images, (None, *shape)), tf.ensure_shape(labels, (None,))

    return tf.data.Dataset.range(count).map(read, tf.data.AUTOTUNE).prefetch(tf.data.AUTOTUNE)


def _fed(batch: np.ndarray, feed: Feed) -> np.ndarray:
    """Pixels as a model is fed them; other numbers as they are."""
    return np.asarray(feed(batch) if batch.dtype == np.uint8 else batch, np.float32)


class _Schedule(keras.callbacks.Callback):
    """Sets the learning rate of each step, and begins the batches of each epoch.

    Step i = 0, 1, ... of T, of which w warm up, has the rate peak · i / w for i < w, and from there
    on peak · (1 + cos(π (i - w) / (T - w))) / 2.

    Args:
        batches: of an epoch.
        peak: gives the highest rate.
        total: T.
        warmup: w.
    """

    def __init__(
        self, batches: _Batches, peak: Callable[[], float], total: int, warmup: int = 0
    ) -> None:
        super().__init__()
        self._batches, self._peak_now, self._total, self._warmup = batches, peak, total, warmup
        self._peak = self.rate = 0.0
        self._first = 0

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        """Begins an epoch."""
        self._batches.begin(epoch)
        self._peak, self._first = self._peak_now(), epoch * self._batches.steps

    def on_train_batch_begin(self, batch: int, logs: Any = None) -> None:
        """Sets the rate of a step."""
        step = self._first + batch
        done = (step - self._warmup) / (self._total - self._warmup)
        share = step / self._warmup if done < 0 else 0.5 * (1.0 + math.cos(math.pi * done))
        self.rate = self._peak * share
        self.model.optimizer.learning_rate = self.rate


def _tried(trainer: _Trainer, batches: _Batches, images: np.ndarray, feed: Feed) -> list[float]:
    """How far a model is from its teacher after a few steps at each of `TRIED_RATES`.

    Each trial is a training in miniature, from the same weights: the same batches, momentum from 0,
    and a rate that falls to 0. The loss of the steps themselves is no guide, because a model that
    leaves all that it knows behind for the batches at hand lowers it fastest. The distance is the
    mean divergence Σ p log(p / q) of the teacher's probabilities p from the model's q, whose
    statistics of normalization are measured first: a few steps leave moving averages behind.

    Args:
        trainer: whose student has its weights again afterwards.
        batches: of the training.
        images: that judge.
        feed: makes of pixels what the models are fed.

    Returns:
        The distances; infinity where the model is no longer finite.
    """
    student, weights = trainer.student, trainer.student.get_weights()
    parts = [_fed(part, feed) for part in np.array_split(images, -(-len(images) // _AT_ONCE))]
    wanted = [trainer.teacher(part) for part in parts]
    distances = []
    for rate in TRIED_RATES:
        schedule = _Schedule(batches, functools.partial(float, rate), _TRIED_STEPS)
        steps = batches.dataset.repeat()
        trainer.fit(steps, steps_per_epoch=_TRIED_STEPS, callbacks=[schedule], verbose=0)
        distance = math.inf
        with contextlib.suppress(ValueError):  # an activation is not finite
            estimate_statistics(student, images, num_images=len(images))
            pairs = zip(wanted, (trainer(part, training=False) for part in parts), strict=True)
            far = tf.concat([soft_divergence(*pair, temperature=1.0) for pair in pairs], axis=0)
            distance = float(tf.reduce_mean(far))
        distances.append(distance if math.isfinite(distance) else math.inf)
        student.set_weights(weights)
        for variable in trainer.optimizer.variables:
            variable.assign(tf.zeros_like(variable))
    return distances


class _State(tf.Module):
    """All that a training knows beside weights and momentum; the trainer's backups hold it.

    Args:
        student: the model that is trained.
        epochs: how many it has.
    """

    def __init__(self, student: keras.Model, epochs: int) -> None:
        super().__init__()
        names = {"trainable": False}
        self.weights = [tf.Variable(weight, **names) for weight in student.get_weights()]
        self.epoch = tf.Variable(0, dtype=tf.int64, **names)  # that has these weights
        self.rate = tf.Variable(0.0, **names)
        self.distances = tf.Variable(tf.fill(len(TRIED_RATES), math.nan), **names)
        self.rows = tf.Variable(tf.fill((epochs + 1, len(Epoch._fields) - 1), math.nan), **names)

    def add(self, epoch: int, *values: float) -> Epoch:
        """Adds what an epoch has done."""
        self.rows[epoch].assign(values)
        return Epoch(epoch, *values)

    @property
    def epochs(self) -> tuple[Epoch, ...]:
        """The epochs so far."""
        rows = enumerate(self.rows.numpy().tolist())
        return tuple(Epoch(epoch, *row) for epoch, row in rows if not math.isnan(row[0]))

    @property
    def tried(self) -> dict[float, float | None]:
        """The distance of each rate that was tried; None where the model diverged."""
        pairs = zip(TRIED_RATES, self.distances.numpy().tolist(), strict=True)
        known = {rate: distance for rate, distance in pairs if not math.isnan(distance)}
        return {rate: None if math.isinf(far) else far for rate, far in known.items()}


class _Measuring(keras.callbacks.Callback):
    """Measures the student as it would be shipped, and keeps the best: by score, then by loss.

    Behind an epoch, statistics of normalization and ranges of outputs are measured again, and the
    end does what it does to the model; training goes on from the model as it was. Effective weights
    are computed once for each measurement.

    Args:
        student: that is measured.
        state: of the training.
        sample: images to measure statistics on.
        finish: see `finetune`.
    """

    def __init__(
        self,
        student: keras.Model,
        state: _State,
        sample: np.ndarray,
        finish: Callable[[keras.Model], object],
    ) -> None:
        super().__init__()
        self._student, self._state, self._sample, self._finish = student, state, sample, finish
        self._kernels, self._epoch = ConstantWeights(student), 0
        self._before: list[np.ndarray] = []

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        """Notes which epoch is measured next."""
        self._epoch = epoch + 1

    def on_test_begin(self, logs: Any = None) -> None:
        """Makes the student what it would be as the last."""
        self._before = self._student.get_weights()
        # One that cannot be finished is measured as it is.
        with contextlib.suppress(ValueError), warnings.catch_warnings():
            if self._epoch:
                warnings.simplefilter("ignore")  # the calibration before has said it
                calibrate(
                    self._student,
                    self._sample,
                    num_images=len(self._sample),
                    clipping_levels=False,
                    progress=False,
                )
            self._finish(self._student)
        self._kernels.fill()

    def on_test_end(self, logs: Any = None) -> None:
        """Keeps the student if it is the best, and gives it back as it was."""
        self._kernels.clear()
        # In the precision in which they are kept, so that equal ones stay equal.
        found = np.float32(logs["score"]), -np.float32(logs["loss"])
        _, _, score, loss = self._state.rows[int(self._state.epoch)].numpy()
        if not self._epoch or (np.isfinite(found[1]) and found > (score, -loss)):
            self._state.epoch.assign(self._epoch)
            for kept, weight in zip(self._state.weights, self._student.get_weights(), strict=True):
                kept.assign(weight)
        self._student.set_weights(self._before)
