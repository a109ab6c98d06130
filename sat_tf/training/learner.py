"""The model for `fit`, which trains another one by the rules of a run, and its optimizer."""

import dataclasses
import math
from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf
import tf_keras as keras

from sat_tf.exact.top_k import comes_before
from sat_tf.graph import layer_kinds
from sat_tf.graph.layers.kind import Role
from sat_tf.graph.layers.normalization import synchronized_class
from sat_tf.qat.layout import inner_layer
from sat_tf.qat.wrapper import QuantizedLayer, graphs_go_with
from sat_tf.training.config_sections import StageConfig
from sat_tf.training.data.source import NO_LABEL


class TopK(keras.metrics.Mean):
    """Share of images whose label has one of the k largest logits; NaN once a logit is non-finite.

    Among equal logits, that of the lower class counts as the larger, so that exactly k classes of
    an image count, however coarse logits are. NaN is reported because no logit is larger than NaN:
    a count of larger logits would give 100 %. Images whose label is `NO_LABEL` do not count.
    """

    def __init__(self, k: int, name: str | None = None, **options: Any) -> None:
        super().__init__(name=name or f"top{k}", **options)
        self.k = k

    def update_state(self, y_true: Any, y_pred: Any, sample_weight: Any = None) -> None:
        """Adds labels (batch,) or (batch, 1), and logits (batch, classes)."""
        logits = tf.convert_to_tensor(y_pred)
        labels = tf.reshape(tf.cast(y_true, tf.int32), [-1])
        counted = tf.not_equal(labels, NO_LABEL)
        classes = tf.range(tf.shape(logits)[-1])[None]
        is_label = classes == labels[:, None]
        zeros = tf.zeros_like(logits)
        of_label = tf.reduce_sum(tf.where(is_label, logits, zeros), axis=-1, keepdims=True)
        before = comes_before(logits, of_label, classes, labels[:, None])
        # The number of logits above that of the label, which may be of no class.
        rank = tf.reduce_sum(tf.cast(before, tf.int32), axis=-1)
        hits = counted & tf.reduce_any(is_label, axis=-1) & (rank < self.k)
        is_sound = ~counted | tf.reduce_all(tf.math.is_finite(logits), axis=-1)
        values = tf.where(is_sound, tf.cast(hits, tf.float32), float("nan"))
        super().update_state(values, sample_weight=tf.cast(counted, tf.float32))


def training_copy(
    model: keras.Model,
    *,
    weight_decay: float = 0.0,
    precision: str = "float32",
    synchronized: bool = False,
) -> keras.Model:
    """Copies a model with its weights; its regularizers are replaced.

    Weight decay is the paper's: weight_decay · sum(W²) / 2 is added to the loss for the kernel W of
    every convolution and dense layer, latent where it is quantized. Depthwise kernels, biases,
    BatchNormalization and clipping levels get none. Variables are float32 in every precision, and
    so is the arithmetic of quantizers.
    """

    def fresh(layer: keras.layers.Layer) -> keras.layers.Layer:
        float_layer = inner_layer(layer)
        config, layer_class = float_layer.get_config(), type(float_layer)
        if not isinstance(float_layer, keras.layers.InputLayer):
            config["dtype"] = precision
        if layer_kinds.role_of(float_layer) is Role.NORM:
            config["synchronized"] = synchronized
            layer_class = synchronized_class(layer_class, synchronized)
        copy = inner = layer_class.from_config(config)
        if isinstance(layer, QuantizedLayer):
            config = layer.get_config()
            copy = type(layer).from_config({**config, "layer": keras.layers.serialize(inner)})
            inner = copy.layer
        regularizer = keras.regularizers.L2(weight_decay / 2) if weight_decay else None
        kernels = layer_kinds.find_kind(inner).kernels
        if len(kernels) > 1:
            inner.pointwise_regularizer = regularizer
        elif hasattr(inner, "kernel_regularizer") and not any(k.depthwise for k in kernels):
            inner.kernel_regularizer = regularizer
        return copy

    copy = keras.models.clone_model(model, clone_function=fresh)
    copy.set_weights(model.get_weights())
    return copy


# It takes images (batch, rows, columns, 3), labels (batch,) and float32 logits (batch, classes).
# It gives a loss for each image (batch,), float32; losses of images without a label are ignored.
ImageLoss = Callable[[tf.Tensor, tf.Tensor, tf.Tensor], tf.Tensor]


def cross_entropy(images: tf.Tensor, labels: tf.Tensor, logits: tf.Tensor) -> tf.Tensor:
    """The loss of the paper, -log softmax(logits)[label], for each image."""
    return tf.nn.sparse_softmax_cross_entropy_with_logits(tf.maximum(labels, 0), logits)


class Learner(keras.Model):
    """Trains a model that outputs logits, and measures it.

    The loss is the sum over the images of a global batch, divided by its size, plus the model's
    regularization losses. Every replica adds the losses of its own images, so that the sum of the
    gradients over replicas is the gradient of that loss, however the batch is divided.

    Its logs are `loss` (mean over the images of the epoch so far, regularization included), `top1`,
    and `top5` of more than 5 classes; in training also `data_loss` (the mean without
    regularization), and `batch_loss` (of the last batch alone). What comes `after_step` is called
    in every replica, inside the step, after the optimizer. What the model draws at random depends
    on seed, step and replica alone.
    """

    def __init__(
        self,
        student: keras.Model,
        *,
        batch_size: int,
        image_loss: ImageLoss = cross_entropy,
        after_step: Sequence[Callable[[], None]] = (),
    ) -> None:
        super().__init__(name=f"learner_of_{student.name}")
        self.student = student
        self.batch_size = batch_size
        self.image_loss = image_loss
        self.after_step = list(after_step)
        # Every replica returns the same from a step.
        self.distribute_reduction_method = "first"
        self._loss = keras.metrics.Mean("loss")
        self._data_loss = keras.metrics.Mean("data_loss")
        num_classes = student.output_shape[-1]
        is_of_few = num_classes is not None and num_classes <= 5
        self._accuracy = [TopK(1)] if is_of_few else [TopK(1), TopK(5)]
        # The names are private: Keras has no public ones.
        holders = (getattr(layer, "_random_generator", None) for layer in student._flatten_layers())
        generators = (getattr(holder, "_generator", None) for holder in holders)
        self._generators = [g for g in generators if isinstance(g, tf.random.Generator)]
        self.built = True  # Keras' backup warns of a model that is not

    def call(self, inputs: tf.Tensor, training: Any = None) -> tf.Tensor:
        """Logits in float32 for images of any type."""
        logits = self.student(tf.cast(inputs, tf.float32), training=training)
        return tf.cast(logits, tf.float32)

    def train_step(self, data: Any) -> dict[str, tf.Tensor]:
        """One step on this replica's images and labels."""
        images, labels = data
        graphs_go_with(self)
        context = tf.distribute.get_replica_context()
        step = tf.convert_to_tensor(self.optimizer.iterations)
        for generator in self._generators:
            # Philox has a counter of 128 bits and a key: the counter's upper half is the step.
            state = generator.state.read_value()
            begin = tf.concat([tf.zeros_like(state[:1]), step[None], state[2:]], axis=0)
            # The generator itself does so: `assign` would not reach the replica's own copy.
            tf.raw_ops.AssignVariableOp(resource=generator.state.handle, value=begin)
        with tf.GradientTape() as tape:
            logits = self(images, training=True)
            losses = self.image_loss(images, labels, logits)
            # Not by a product, which would keep NaN where there is no label.
            losses = tf.where(labels >= 0, losses, tf.zeros_like(losses))
            of_batch = tf.reduce_sum(losses) / self.batch_size
            penalty = tf.add_n([tf.constant(0.0), *self.student.losses])
            objective = of_batch + penalty / context.num_replicas_in_sync
        batch_loss = of_batch
        if context.num_replicas_in_sync > 1:
            batch_loss = context.all_reduce(tf.distribute.ReduceOp.SUM, of_batch)
        batch_loss += penalty
        # A non-finite loss must not spread over all variables, which would hide where it came from.
        sound = tf.math.is_finite(batch_loss)
        variables = self.student.trainable_variables
        gradients = self.optimizer.compute_gradients(objective, variables, tape)
        self.optimizer.apply_gradients(
            (None if slope is None else tf.where(sound, slope, tf.zeros_like(slope)), variable)
            for slope, variable in gradients
        )
        for act in self.after_step:
            act()
        self._data_loss.update_state(losses, sample_weight=tf.cast(labels >= 0, tf.float32))
        return {
            **self._measure(labels, logits, losses + penalty),
            "data_loss": self._data_loss.result(),
            "batch_loss": batch_loss,
        }

    def test_step(self, data: Any) -> dict[str, tf.Tensor]:
        """Measures this replica's images; the loss is that of the images alone."""
        images, labels = data
        logits = self(images, training=False)
        return self._measure(labels, logits, cross_entropy(images, labels, logits))

    @property
    def metrics(self) -> list[keras.metrics.Metric]:
        return [self._loss, self._data_loss, *self._accuracy]

    def _measure(
        self, labels: tf.Tensor, logits: tf.Tensor, losses: tf.Tensor
    ) -> dict[str, tf.Tensor]:
        self._loss.update_state(losses, sample_weight=tf.cast(labels >= 0, tf.float32))
        for metric in self._accuracy:
            metric.update_state(labels, logits)
        return {metric.name: metric.result() for metric in (self._loss, *self._accuracy)}


@keras.utils.register_keras_serializable(package="sat_tf")
@dataclasses.dataclass(eq=False, kw_only=True)
class WarmupCosine(keras.optimizers.schedules.LearningRateSchedule):
    """The paper's learning rate at step i = 0, 1, ... of T, of which the first w warm up.

    first + (peak - first) · i / w                  for i < w
    peak · (1 + cos(π · (i - w) / (T - w))) / 2     for w <= i < T
    0                                               from T on
    """

    first_learning_rate: float
    peak_learning_rate: float
    warmup_steps: int
    total_steps: int

    def __call__(self, step: Any) -> tf.Tensor:
        """The learning rate at a step, a float32 scalar."""
        # float32 counts steps exactly up to 2^24, more than 16 million.
        step, warmup = tf.cast(step, tf.float32), self.warmup_steps
        first, peak = self.first_learning_rate, self.peak_learning_rate
        warming = first + (peak - first) * step / max(warmup, 1)
        done = (step - warmup) / (self.total_steps - warmup)
        cooling = peak * 0.5 * (1.0 + tf.cos(math.pi * tf.minimum(done, 1.0)))
        return tf.where(step < warmup, warming, cooling)

    def get_config(self) -> dict[str, Any]:
        """The arguments of the constructor."""
        return dataclasses.asdict(self)


def make_optimizer(
    stage: StageConfig, steps_per_epoch: int, *, precision: str = "float32"
) -> keras.optimizers.Optimizer:
    """The optimizer of a stage: v <- μ v - η g, W <- W + μ v - η g with Nesterov momentum μ."""
    total_steps = stage.total_steps(steps_per_epoch)
    rate = WarmupCosine(
        first_learning_rate=stage.first_learning_rate,
        peak_learning_rate=stage.peak_learning_rate,
        warmup_steps=min(round(stage.warmup_epochs * steps_per_epoch), total_steps - 1),
        total_steps=total_steps,
    )
    optimizer = keras.optimizers.SGD(rate, momentum=stage.momentum, nesterov=stage.nesterov)
    if precision == "mixed_float16":
        return keras.mixed_precision.LossScaleOptimizer(optimizer)
    return optimizer
