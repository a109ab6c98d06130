"""The model that `fit` sees: one that trains another by the rules of a run."""

from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf
import tf_keras as keras

from sat_tf.qat.graph_lifetime import graphs_go_with
from sat_tf.training.draws import Draws
from sat_tf.training.top1 import accuracy_metrics

# From images (batch, rows, columns, 3), labels (batch,) and float32 logits (batch, classes) to a
# loss for each image (batch,), float32. What it says of images without a label does not count.
ImageLoss = Callable[[tf.Tensor, tf.Tensor, tf.Tensor], tf.Tensor]

_SIGNALS = ("stop", "save")


def cross_entropy(images: tf.Tensor, labels: tf.Tensor, logits: tf.Tensor) -> tf.Tensor:
    """The loss of the paper, -log softmax(logits)[label], for each image."""
    del images
    return tf.nn.sparse_softmax_cross_entropy_with_logits(tf.maximum(labels, 0), logits)


class Learner(keras.Model):
    """Trains a model whose output are logits, and measures it.

    The loss is the sum over the images of a global batch, divided by its size, plus what the
    regularizers of the model say. Every replica adds its own images' part, so that the sum of the
    gradients over replicas is the gradient of that loss, whatever share of the batch each has.
    Images with a negative label count for nothing. After a loss that is not finite no gradient
    reaches the variables any more.

    Its logs are `loss` (mean over the images of the epoch so far, regularization included), `top1`
    and `top5`; in training also `batch_loss` (of the last batch alone), and
    how many processes have raised the signals `stop` and `save`, the same on all of them.

    Args:
        student: the model that is trained; its variables are what is trained.
        batch_size: images of a global batch, over all replicas.
        image_loss: gives the loss of each image.
        after_step: called in every replica, inside the step, after the optimizer; with state in
            variables that the callables hold. Those that are `tf.Module` or Keras objects are
            part of the learner's checkpoints.
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
        # What the step returns is the same on every replica.
        self.distribute_reduction_method = "first"
        self._loss = keras.metrics.Mean("loss")
        self._accuracy = accuracy_metrics()
        self._draws = Draws(student)
        self._signals = tf.Variable(
            tf.zeros(len(_SIGNALS)),
            trainable=False,
            synchronization=tf.VariableSynchronization.ON_READ,
            aggregation=tf.VariableAggregation.SUM,
            name="signals",
        )

    def call(self, inputs: tf.Tensor, training: Any = None) -> tf.Tensor:
        """Logits in float32 for images of any type."""
        logits = self.student(tf.cast(inputs, tf.float32), training=training)
        return tf.cast(logits, tf.float32)

    def train_step(self, data: Any) -> dict[str, tf.Tensor]:
        """One step on this replica's images and labels."""
        images, labels = data
        graphs_go_with(self)
        context = tf.distribute.get_replica_context()
        self._draws.start_step(tf.convert_to_tensor(self.optimizer.iterations))
        with tf.GradientTape() as tape:
            logits = self(images, training=True)
            losses = _of_labelled(labels, self.image_loss(images, labels, logits))
            of_batch = tf.reduce_sum(losses) / self.batch_size
            penalty = tf.add_n([tf.constant(0.0), *self.student.losses])
            objective = of_batch + penalty / context.num_replicas_in_sync
        shared = tf.concat([of_batch[None], tf.convert_to_tensor(self._signals)], axis=0)
        if context.num_replicas_in_sync > 1:
            shared = context.all_reduce(tf.distribute.ReduceOp.SUM, shared)
        # A loss that is no number must not spread over all variables, which then could not tell
        # where it came from.
        sound = tf.math.is_finite(shared[0] + penalty)
        variables = self.student.trainable_variables
        gradients = self.optimizer.compute_gradients(objective, variables, tape)
        self.optimizer.apply_gradients(
            [(_kept_if(sound, gradient), variable) for gradient, variable in gradients]
        )
        for act in self.after_step:
            act()
        self._measure(labels, logits, losses + penalty)
        return {
            **self._results(),
            "batch_loss": shared[0] + penalty,
            **{name: shared[1 + index] for index, name in enumerate(_SIGNALS)},
        }

    def test_step(self, data: Any) -> dict[str, tf.Tensor]:
        """Measures this replica's images; the loss is that of the images alone."""
        images, labels = data
        logits = self(images, training=False)
        self._measure(labels, logits, cross_entropy(images, labels, logits))
        return self._results()

    def signal(self, name: str) -> None:
        """Raises a signal, which all processes see in the logs of their next step.

        Args:
            name: "stop" or "save".
        """
        raised = [float(known == name) for known in _SIGNALS]
        self._signals.assign(tf.maximum(self._signals.read_value(), tf.constant(raised)))

    def clear_signals(self) -> None:
        """Takes this process's signals back."""
        self._signals.assign(tf.zeros(len(_SIGNALS)))

    @property
    def metrics(self) -> list[keras.metrics.Metric]:
        """What is measured; starts anew every epoch."""
        return [self._loss, *self._accuracy]

    def _measure(self, labels: tf.Tensor, logits: tf.Tensor, losses: tf.Tensor) -> None:
        self._loss.update_state(losses, sample_weight=tf.cast(labels >= 0, tf.float32))
        for metric in self._accuracy:
            metric.update_state(labels, logits)

    def _results(self) -> dict[str, tf.Tensor]:
        return {metric.name: metric.result() for metric in self.metrics}


def _kept_if(sound: tf.Tensor, gradient: Any) -> Any:
    return None if gradient is None else tf.where(sound, gradient, tf.zeros_like(gradient))


def _of_labelled(labels: tf.Tensor, losses: tf.Tensor) -> tf.Tensor:
    """The losses, 0 where there is no label; not by a product, which NaN would survive."""
    return tf.where(labels >= 0, losses, tf.zeros_like(losses))
