"""The task that all peers share: data, budget, training loop, and how top-1 is counted.

It needs TensorFlow, Keras and NumPy only, because QKeras lives in an environment of its own. Keras
is tf_keras, but for TF_USE_LEGACY_KERAS=0: then it is Keras 3.
"""

import dataclasses
import math
import os
import time
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import tensorflow as tf

if os.environ.get("TF_USE_LEGACY_KERAS") == "0":
    import keras  # noqa: TID251 - what QKeras for Keras 3 is made of
else:
    import tf_keras as keras

BATCH_SIZE = 64
PEAK_LEARNING_RATE = 0.3
WARMUP_STEPS = 25
MOMENTUM = 0.9
WEIGHT_DECAY = 4e-5
STATISTICS_IMAGES = 1024

Images = tuple[np.ndarray, np.ndarray]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Recipe:
    """What a quantized phase may vary without changing its budget of steps and images.

    Attributes:
        steps: training steps of 64 images.
        peak_learning_rate: where the warm-up of 25 steps ends, before the cosine.
        weight_decay: coupled L2 on normal kernels and the classifier.
        label_smoothing: share of the label that is spread over all classes.
        distillation: weight w of what the float model says, as in `training.recipes.targets`;
            the label has the rest. The teacher's forward passes are extra cost.
        temperature: T of the distillation.
        statistics: normalization statistics are measured again at the end, on training images.
    """

    steps: int
    peak_learning_rate: float = PEAK_LEARNING_RATE
    weight_decay: float = WEIGHT_DECAY
    label_smoothing: float = 0.0
    distillation: float = 0.0
    temperature: float = 1.0
    statistics: bool = False


def one_thread() -> None:
    """Keeps TensorFlow to one thread, so that runs side by side do not slow each other down."""
    tf.config.threading.set_intra_op_parallelism_threads(1)
    tf.config.threading.set_inter_op_parallelism_threads(1)


def batches(images: Images, steps: int, seed: int) -> Iterator[tuple[tf.Tensor, tf.Tensor]]:
    """Training batches, the same ones for the same seed: every epoch in an order of its own."""
    pixels, labels = images
    order = np.random.RandomState(seed)
    members = np.empty(0, np.int64)
    for _ in range(steps):
        if len(members) < BATCH_SIZE:
            members = order.permutation(len(labels))
        chosen, members = members[:BATCH_SIZE], members[BATCH_SIZE:]
        yield tf.constant(pixels[chosen], tf.float32), tf.constant(labels[chosen])


def learning_rate(step: int, recipe: Recipe) -> float:
    """Linear warm-up, then half a cosine down to 0."""
    warmup = min(WARMUP_STEPS, recipe.steps // 2)
    if step < warmup:
        return recipe.peak_learning_rate * (step + 1) / warmup
    done = (step - warmup) / (recipe.steps - warmup)
    return recipe.peak_learning_rate * 0.5 * (1.0 + math.cos(math.pi * done))


def _decays(variable: Any) -> bool:
    """Normal kernels and the classifier's: not depthwise ones, biases, γ, β or quantizers'."""
    name = variable.name.split("/")[-1]
    return name.startswith("kernel") and len(variable.shape) in (2, 4)


def train(
    model: keras.Model,
    images: Images,
    recipe: Recipe,
    *,
    seed: int,
    teacher: keras.Model | None = None,
    after_step: Callable[[int], None] = lambda step: None,
) -> list[float]:
    """Trains a model in place: SGD with Nesterov momentum on the cross-entropy of its logits.

    Args:
        model: from uint8-valued images to logits.
        images: training images and labels.
        recipe: how.
        seed: of the order of the images.
        teacher: the float model, for distillation.
        after_step: called with the number of every step that is done.

    Returns:
        The loss of every step.
    """
    optimizer = keras.optimizers.SGD(0.0, momentum=MOMENTUM, nesterov=True)
    variables = model.trainable_variables
    decaying = [variable for variable in variables if _decays(variable)]
    optimizer.build(variables)

    @tf.function
    def step(pixels: tf.Tensor, labels: tf.Tensor) -> tf.Tensor:
        with tf.GradientTape() as tape:
            logits = model(pixels, training=True)
            classes = logits.shape[-1]
            wanted = tf.one_hot(labels, classes)
            if recipe.label_smoothing:
                wanted = (1.0 - recipe.label_smoothing) * wanted + recipe.label_smoothing / classes
            losses = tf.nn.softmax_cross_entropy_with_logits(wanted, logits)
            if recipe.distillation:
                taught = tf.nn.softmax(teacher(pixels, training=False) / recipe.temperature)
                soft = tf.nn.softmax_cross_entropy_with_logits(taught, logits / recipe.temperature)
                weight = recipe.distillation
                losses = (1.0 - weight) * losses + weight * recipe.temperature**2 * soft
            loss = tf.reduce_mean(losses)
            decay = tf.add_n([tf.nn.l2_loss(variable) for variable in decaying])
            total = loss + recipe.weight_decay * decay
        optimizer.apply_gradients(zip(tape.gradient(total, variables), variables, strict=True))
        return loss

    losses = []
    for number, (pixels, labels) in enumerate(batches(images, recipe.steps, seed)):
        optimizer.learning_rate.assign(learning_rate(number, recipe))
        losses.append(float(step(pixels, labels)))
        if not math.isfinite(losses[-1]):
            break
        after_step(number + 1)
    if recipe.statistics:
        measure_statistics(model, images, seed)
    return losses


def measure_statistics(model: keras.Model, images: Images, seed: int) -> None:
    """Sets the moving statistics of every normalization to their mean over training batches."""
    layers = getattr(model, "submodules", model.layers)  # Keras 3 has layers only
    norms = [layer for layer in layers if isinstance(layer, keras.layers.BatchNormalization)]
    momenta = [norm.momentum for norm in norms]
    for index, (pixels, _) in enumerate(batches(images, STATISTICS_IMAGES // BATCH_SIZE, seed + 1)):
        for norm in norms:
            norm.momentum = index / (index + 1.0)
        model(pixels, training=True)
    for norm, momentum in zip(norms, momenta, strict=True):
        norm.momentum = momentum


def top1(model: keras.Model, images: Images) -> float:
    """Share of images whose largest logit is that of their class, in percent.

    An image with a logit that is not finite counts as wrong.
    """
    pixels, labels = images
    predict = tf.function(lambda batch: model(batch, training=False))
    right = 0
    for start in range(0, len(labels), 500):
        logits = predict(tf.constant(pixels[start : start + 500], tf.float32)).numpy()
        finite = np.all(np.isfinite(logits), axis=1)
        right += int(np.sum(finite & (np.argmax(logits, axis=1) == labels[start : start + 500])))
    return 100.0 * right / len(labels)


def read(path: str) -> tuple[Images, Images]:
    """Training and held-out images with their labels, from the file that `peers.py` writes."""
    with np.load(path) as arrays:
        return tuple(
            (arrays[f"{part}_images"], arrays[f"{part}_labels"]) for part in ("train", "test")
        )


def first_half(images: Images) -> Images:
    """The first half of every class's held-out images: settings are chosen on it."""
    pixels, labels = images
    count = len(labels) // len(np.unique(labels))
    chosen = np.arange(len(labels)) % count < count // 2
    return pixels[chosen], labels[chosen]


def second_half(images: Images) -> Images:
    """The other half, which nothing is chosen on."""
    pixels, labels = images
    count = len(labels) // len(np.unique(labels))
    chosen = np.arange(len(labels)) % count >= count // 2
    return pixels[chosen], labels[chosen]


def measure(model: keras.Model, test: Images) -> dict[str, float]:
    """Top-1 in percent on both halves of the held-out images and on all of them."""
    halves = [top1(model, half(test)) for half in (first_half, second_half)]
    return {"top1": sum(halves) / 2, "chosen_on": halves[0], "not_chosen_on": halves[1]}


def train_and_measure(
    model: keras.Model,
    train_images: Images,
    test: Images,
    recipe: Recipe,
    *,
    seed: int,
    teacher: keras.Model | None = None,
) -> dict[str, float]:
    """Trains a model in place, and gives its last losses, its top-1 and the seconds it took."""
    start = time.perf_counter()
    losses = train(model, train_images, recipe, seed=seed, teacher=teacher)
    seconds = time.perf_counter() - start
    return {"loss": float(np.mean(losses[-20:])), **measure(model, test), "seconds": seconds}
