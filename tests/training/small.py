"""A quantized model and a data set small enough to train in a moment."""

import functools

import numpy as np
import tf_keras as keras

import sat_tf
from sat_tf.data.source import ImageSet
from sat_tf.qat.policy import BitPolicy
from tests.methods import METHODS

IMAGE_SIZE = 8
NUM_CLASSES = 3


@functools.cache
def small_float_model(num_classes: int = NUM_CLASSES) -> keras.Model:
    """Every kind of layer that weight decay treats in its own way; tests must not change it."""
    keras.utils.set_random_seed(0)
    layers = keras.layers
    images = keras.Input((IMAGE_SIZE, IMAGE_SIZE, 3), name="image")
    features = layers.Conv2D(6, 3, strides=2, padding="same", name="stem")(images)
    features = layers.BatchNormalization(name="stem_bn")(features)
    features = layers.ReLU(name="stem_relu")(features)
    features = layers.DepthwiseConv2D(3, padding="same", use_bias=False, name="depthwise")(features)
    features = layers.BatchNormalization(name="depthwise_bn")(features)
    features = layers.ReLU(name="depthwise_relu")(features)
    features = layers.Conv2D(6, 1, use_bias=False, name="pointwise")(features)
    features = layers.BatchNormalization(name="pointwise_bn")(features)
    features = layers.GlobalAveragePooling2D(name="pool")(features)
    logits = layers.Dense(num_classes, name="classifier")(features)
    return keras.Model(images, logits, name="small")


@functools.cache
def small_quantized_model(method: str = "sat") -> keras.Model:
    """One model for all tests of a method, which must not change it."""
    policy = BitPolicy.mobile(4, **METHODS.get(method, {}))
    model = sat_tf.quantize_model(small_float_model(), policy)
    images = small_images()
    return sat_tf.calibrate(model, images.train_images)


def small_images(train: int = 96, test: int = 33) -> ImageSet:
    """Noise, brighter in the third of the rows that is the class."""
    generator = np.random.RandomState(0)
    count = train + test
    labels = np.arange(count, dtype=np.int32) % NUM_CLASSES
    pixels = generator.randint(0, 128, (count, IMAGE_SIZE, IMAGE_SIZE, 3))
    for image, label in zip(pixels, labels, strict=True):
        image[2 * label : 2 * label + 3] += 100
    images = pixels.astype(np.uint8)
    return ImageSet(
        name="noise",
        train_images=images[:train],
        train_labels=labels[:train],
        test_images=images[train:],
        test_labels=labels[train:],
        num_classes=NUM_CLASSES,
    )
