"""Models at 224x224 with 1000 classes whose statistics are as hard as trained ones, and images."""

import numpy as np
import tensorflow as tf
import tf_keras as keras

from sat_tf.training.models import build

IMAGE_SIZE = 224
# Those of the published results; `sat_tf.training.models.MODELS` knows more.
MODELS = ("mobilenet_v1", "mobilenet_v2", "resnet18", "resnet50", "preresnet50", "vgg16_bn")

# What a normalization's γ can be besides ordinary: of the other sign, zero, next to zero.
_NEGATIVE, _ZERO, _TINY = 0.1, 0.02, 0.01


def realistic_model(name: str, seed: int = 0, *, dead_channels: bool = True) -> keras.Model:
    """A model with random weights and normalizations as trained ones have them: γ of either sign.

    Moving statistics and clipping levels are for `sat_tf.calibrate` to find.

    Args:
        name: of its family.
        seed: of weights and statistics.
        dead_channels: some γ are zero or next to zero.
    """
    model = build(name, image_size=IMAGE_SIZE, num_classes=1000, seed=seed)
    make_realistic(model, seed, dead_channels=dead_channels)
    return model


def make_realistic(model: keras.Model, seed: int = 0, *, dead_channels: bool = True) -> None:
    """Gives the normalizations of a model such statistics, and the biases of other layers values.

    Args:
        model: with random weights.
        seed: of the statistics.
        dead_channels: some γ are zero or next to zero.
    """
    rng = np.random.default_rng(seed)
    for layer in model.layers:
        if isinstance(layer, keras.layers.BatchNormalization):
            count = layer.gamma.shape[0]
            gamma = rng.normal(1.0, 0.4, count)
            kinds = [-1.0, 0.0, 1e-7, 1.0]
            rare = [_NEGATIVE, _ZERO * dead_channels, _TINY * dead_channels]
            layer.gamma.assign(gamma * rng.choice(kinds, count, p=[*rare, 1.0 - sum(rare)]))
            layer.beta.assign(rng.normal(0.0, 0.3, count))
            layer.moving_mean.assign(rng.normal(0.0, 0.3, count))
            layer.moving_variance.assign(rng.uniform(0.3, 2.0, count))
        elif getattr(layer, "use_bias", False):
            layer.bias.assign(rng.normal(0.0, 0.1, layer.bias.shape))


def smooth_images(count: int, size: int = IMAGE_SIZE, seed: int = 0) -> np.ndarray:
    """Images with large shapes and some noise, as photographs have them, rather than noise alone.

    Args:
        count: how many.
        size: rows and columns.
        seed: of all of them.

    Returns:
        uint8, (count, size, size, 3).
    """
    rng = np.random.default_rng(seed)
    images = np.zeros((count, size, size, 3), np.float32)
    # Four scales, from a quarter of an image to single pixels.
    for parts, spread in ((4, 40.0), (14, 30.0), (56, 15.0), (IMAGE_SIZE, 5.0)):
        cells = max(parts * size // IMAGE_SIZE, 1)
        coarse = rng.normal(0.0, spread, (count, cells, cells, 3)).astype(np.float32)
        images += tf.image.resize(coarse, (size, size), "bicubic").numpy()
    return np.clip(np.rint(images + 120.0), 0, 255).astype(np.uint8)
