"""Layers that act in training only, and pass their input through in inference."""

from typing import Any

import tensorflow as tf
import tf_keras as keras

from sat_tf.graph.layers.kind import SAME, Kinds, LayerKind, Role
from sat_tf.graph.operation_layers import StopGradient


def _contrasted(layer: Any, images: tf.Tensor) -> tf.Tensor:
    """RandomContrast in training: x becomes (x - mean) · factor + mean.

    Keras uses a kernel of TensorFlow that has no gradient, so that nothing in front of the layer
    could be trained, not even the clipping level of a quantized Normalization.
    """
    lowest, highest = 1.0 - layer.lower, 1.0 + layer.upper
    # Keras has no public name for a layer's random generator; saved models resume with it.
    generator = layer._random_generator
    seed = generator.make_seed_for_stateless_op()
    if seed is None:
        factor = tf.random.uniform([], lowest, highest, seed=generator.make_legacy_seed())
    else:
        factor = tf.random.stateless_uniform([], seed, lowest, highest)
    images = tf.cast(images, tf.float32)
    mean = tf.reduce_mean(images, [-3, -2], keepdims=True)
    changed = tf.clip_by_value((images - mean) * factor + mean, 0.0, 255.0)
    return tf.cast(changed, layer.compute_dtype)


_IDENTITY = LayerKind(Role.IDENTITY, keras3=SAME)

# RandomCrop does not belong here: it resizes in inference. Nor do RandomHeight and RandomWidth,
# behind which the size of images is unknown.
KINDS: Kinds = {
    keras.layers.ActivityRegularization: _IDENTITY,
    keras.layers.AlphaDropout: _IDENTITY,
    keras.layers.Dropout: _IDENTITY,
    keras.layers.GaussianDropout: _IDENTITY,
    keras.layers.GaussianNoise: _IDENTITY,
    keras.layers.Identity: _IDENTITY,
    keras.layers.RandomBrightness: _IDENTITY,
    keras.layers.RandomContrast: LayerKind(Role.IDENTITY, in_training=_contrasted, keras3=SAME),
    keras.layers.RandomFlip: _IDENTITY,
    keras.layers.RandomRotation: _IDENTITY,
    keras.layers.RandomTranslation: _IDENTITY,
    keras.layers.RandomZoom: _IDENTITY,
    keras.layers.SpatialDropout1D: _IDENTITY,
    keras.layers.SpatialDropout2D: _IDENTITY,
    keras.layers.SpatialDropout3D: _IDENTITY,
    StopGradient: _IDENTITY,
}
