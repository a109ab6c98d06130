"""Targets beside the labels: distillation and label smoothing."""

import tensorflow as tf
import tf_keras as keras

from sat_tf.training.step.learner import ImageLoss


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


def distilled(
    image_loss: ImageLoss, teacher: keras.Model, *, temperature: float, weight: float
) -> ImageLoss:
    """A loss that also asks for the logits of a teacher.

    (1 - w) image_loss + w T² KL(softmax(teacher / T) || softmax(student / T)). The teacher sees the
    same images, as in inference, and its logits are constants to the gradient.

    Reference: Hinton, Vinyals and Dean, "Distilling the Knowledge in a Neural Network", 2015.

    Args:
        image_loss: the loss of the labels.
        teacher: gives logits for what the student is fed. It is not saved with anything; under a
            strategy, create it in the strategy's scope.
        temperature: T > 0; the higher, the more the classes count that the teacher finds unlikely.
        weight: w, in [0, 1].
    """

    def loss(images: tf.Tensor, labels: tf.Tensor, logits: tf.Tensor) -> tf.Tensor:
        target = tf.cast(teacher(tf.cast(images, tf.float32), training=False), tf.float32)
        soft = soft_divergence(target, logits, temperature)
        return (1.0 - weight) * image_loss(images, labels, logits) + weight * soft

    return loss


def smoothed_cross_entropy(amount: float) -> ImageLoss:
    """Cross-entropy with label smoothing.

    -Σ_k t_k log softmax(logits)_k with t_k = (1 - ε) [k = label] + ε / K over K classes, that is
    (1 - ε) times the usual loss plus ε times its mean over all classes.

    Reference: Szegedy et al., "Rethinking the Inception Architecture for Computer Vision", 2016.

    Args:
        amount: ε, from 0 (the usual loss) to below 1.

    Returns:
        The loss of each image; for a negative label it is meaningless.

    >>> loss = smoothed_cross_entropy(0.1)
    >>> round(float(loss(None, tf.constant([0]), tf.math.log([[0.5, 0.25, 0.25]]))[0]), 4)
    0.7394
    """

    def image_loss(images: tf.Tensor, labels: tf.Tensor, logits: tf.Tensor) -> tf.Tensor:
        del images
        certain = tf.nn.sparse_softmax_cross_entropy_with_logits(tf.maximum(labels, 0), logits)
        if not amount:
            return certain
        of_all_classes = -tf.reduce_mean(tf.nn.log_softmax(logits), axis=-1)
        return (1.0 - amount) * certain + amount * of_all_classes

    return image_loss
