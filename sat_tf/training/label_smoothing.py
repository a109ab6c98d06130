"""Label smoothing: targets that leave every class a little (Szegedy et al., 2016)."""

import tensorflow as tf

from sat_tf.training.learner import ImageLoss


def smoothed_cross_entropy(amount: float) -> ImageLoss:
    """The loss of an image whose target is not quite certain.

    -Σ_k t_k log softmax(logits)_k with t_k = (1 - ε) [k = label] + ε / K over K classes, that is
    (1 - ε) times the usual loss plus ε times its mean over all classes.

    Reference: Szegedy et al., "Rethinking the Inception Architecture for Computer Vision", 2016.

    Args:
        amount: ε, from 0 (the usual loss) to below 1.

    Returns:
        The loss of each image; images whose label is negative have one without meaning.

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
