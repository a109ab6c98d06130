"""Classifiers of `small_images` that are right for pixels of one range."""

import numpy as np
import tf_keras as keras

from sat_tf.quantizers.input_range import InputRange
from tests.training.small import IMAGE_SIZE, NUM_CLASSES

L = keras.layers


def model_of_small_range(*, inside=False):
    """Sums min(max(8 x - 3, 0), 6) over the rows of each class, x being the brightness.

    Args:
        inside: a Rescaling makes x of pixels.
    """
    image = keras.Input((IMAGE_SIZE, IMAGE_SIZE, 3), name="image")
    tensor = L.Rescaling(1 / 255, name="rescale")(image) if inside else image
    tensor = L.ReLU(6.0, name="relu")(L.Conv2D(1, 1, name="conv")(tensor))
    model = keras.Model(image, L.Dense(NUM_CLASSES, name="head")(L.Flatten()(tensor)), name="range")
    rows = np.zeros((IMAGE_SIZE, IMAGE_SIZE, NUM_CLASSES), np.float32)
    for label in range(NUM_CLASSES):
        rows[2 * label : 2 * label + 3, :, label] = 0.1
    model.get_layer("conv").set_weights([np.full((1, 1, 3, 1), 8 / 3), np.full(1, -3.0)])
    model.get_layer("head").set_weights([rows.reshape(-1, NUM_CLASSES), np.zeros(NUM_CLASSES)])
    return model


def model_of_one_range(found: InputRange):
    """Counts the rows of each class as bright as those in `small_images`, neither less nor more.

    A peak of width w, (max(x - b + w, 0) - 2 max(x - b, 0) + max(x - b - w, 0)) / w, is 1 where the
    mean x of a row is the brightness b, and 0 from b ± w on. In another usual range no row of the
    pictures is near b, or few are.

    Args:
        found: where it is right.
    """
    dark, bright = (
        float(np.mean(found.fed(np.full((1, 1, 1, 3), pixel, np.uint8)))) for pixel in (64, 163)
    )
    width = 0.15 * (bright - dark)
    image = keras.Input((IMAGE_SIZE, IMAGE_SIZE, 3), name="image")
    tensor = L.ReLU(name="relu")(L.Conv2D(3, (1, IMAGE_SIZE), name="conv")(image))
    head = L.Dense(NUM_CLASSES, name="head")
    model = keras.Model(image, head(L.Flatten()(tensor)), name="one_range")
    mean = np.full((1, IMAGE_SIZE, 3, 3), 1 / (3 * IMAGE_SIZE * width))
    biases = np.array([width - bright, -bright, -width - bright]) / width
    rows = np.zeros((IMAGE_SIZE, 3, NUM_CLASSES), np.float32)
    for label in range(NUM_CLASSES):
        rows[2 * label : 2 * label + 3, :, label] = [1, -2, 1]
    model.get_layer("conv").set_weights([mean, biases])
    head.set_weights([rows.reshape(-1, NUM_CLASSES), np.zeros(NUM_CLASSES)])
    return model
