"""A classifier of `small_images` that is right for pixels from 0 to 1 alone."""

import numpy as np
import tf_keras as keras

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
