"""Small float models whose bits are chosen in the tests."""

import numpy as np
import tf_keras as keras

from sat_tf.training import models
from tests.qat.float_models import pretend_trained

L = keras.layers


def residual() -> keras.Model:
    """Two blocks around skips; the second block and its shortcut read one rectified tensor."""
    image = keras.Input((8, 8, 3), name="image")
    tensor = L.ReLU(name="stem_relu")(L.Conv2D(8, 3, padding="same", name="stem")(image))
    branch = L.ReLU(name="one_relu")(L.Conv2D(8, 1, name="one")(tensor))
    branch = L.Conv2D(8, 3, padding="same", name="two")(branch)
    tensor = L.ReLU(name="sum_relu")(L.Add(name="sum")([tensor, branch]))
    branch = L.ReLU(name="three_relu")(L.Conv2D(16, 1, name="three")(tensor))
    branch = L.Conv2D(16, 3, padding="same", name="four")(branch)
    shortcut = L.Conv2D(16, 1, name="shortcut")(tensor)
    tensor = L.ReLU(name="end_relu")(L.Add(name="end")([branch, shortcut]))
    tensor = L.GlobalAveragePooling2D(name="pool")(tensor)
    model = keras.Model(image, L.Dense(4, name="classifier")(tensor), name="residual")
    pretend_trained(model)
    # Pixels up to 255 would make it so certain of its classes that its loss has no curvature.
    ends = model.get_layer("classifier")
    ends.set_weights([weight / 1000 for weight in ends.get_weights()])
    return model


def joined() -> keras.Model:
    """Two branches into one concatenation, which two layers read."""
    image = keras.Input((8, 8, 3), name="image")
    stem = L.Conv2D(8, 3, padding="same", activation="relu", name="stem")(image)
    left = L.Conv2D(4, 1, activation="relu", name="left")(stem)
    right = L.Conv2D(4, 3, padding="same", activation="relu", name="right")(stem)
    both = L.Concatenate(name="both")([left, right])
    up = L.Conv2D(8, 1, activation="relu", name="up")(both)
    down = L.Conv2D(8, 3, padding="same", activation="relu", name="down")(both)
    tensor = L.Flatten(name="flat")(L.Add(name="sum")([up, down]))
    return pretend_trained(keras.Model(image, L.Dense(4, name="classifier")(tensor), name="joined"))


def family(name: str) -> keras.Model:
    """A small network of a family, with random weights."""
    return models.build(name, image_size=32, num_classes=10, width_multiplier=0.25, seed=0)


def images_for(model: keras.Model, count: int = 64, seed: int = 1) -> np.ndarray:
    """Pixels 0 to 255 as float32."""
    draw = np.random.default_rng(seed)
    return draw.integers(0, 256, (count, *model.input_shape[1:])).astype(np.float32)
