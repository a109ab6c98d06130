"""Small models that nest, share, freeze and branch, as users bring them."""

import functools

import numpy as np
import tf_keras as keras

from tests.qat.float_models import chain, conv_bn_relu, images, model_of  # noqa: F401 -- for readers

L = keras.layers


def head():
    return [L.GlobalAveragePooling2D(name="pool"), L.Dense(3, name="classifier")]


def backbone():
    """A Functional model with a Sequential one inside."""
    pixels = keras.Input((8, 8, 3), name="pixels")
    layers = [L.Conv2D(4, 1, name="conv"), L.BatchNormalization(name="bn"), L.ReLU(name="relu")]
    block = keras.Sequential(layers, name="block")
    return keras.Model(pixels, chain(pixels, conv_bn_relu("conv"), block), name="backbone")


def nested(frozen=False, training=None):
    """A backbone inside a model with layers of the same names."""
    inner = backbone()
    inner.trainable = not frozen
    options = {} if training is None else {"training": training}
    called = functools.partial(inner, **options)
    return _ready(model_of(called, conv_bn_relu("conv"), head(), name="nested"))


def nested_in_a_sequential():
    inner = keras.Sequential([L.Conv2D(4, 3, name="conv"), L.ReLU(name="relu")], name="inner")
    middle = keras.Sequential([inner, L.Conv2D(4, 3, name="conv")], name="middle")
    layers = [middle, L.Flatten(name="flatten"), L.Dense(3, name="classifier")]
    model = keras.Sequential(layers, name="outer")
    model.build((None, 8, 8, 3))
    return _ready(model)


def shared():
    """Weights with two uses: of convolutions with and without normalizations, and of a stem."""
    image = keras.Input((8, 8, 3), name="image")
    stem = L.Conv2D(4, 3, padding="same", activation="relu", name="stem")(image)
    conv = L.Conv2D(4, 3, padding="same", use_bias=False, name="conv")
    norm, relu = L.BatchNormalization(name="norm"), L.ReLU(name="relu")
    mix = L.Conv2D(4, 1, activation="relu6", name="mix")
    plain = L.Conv2D(4, 1, name="plain")
    once = relu(norm(conv(stem)))
    twice = relu(norm(conv(once)))
    total = L.Add(name="add")([mix(once), mix(twice)])
    return _ready(keras.Model(image, chain(total, plain, plain, head()), name="shared"))


def partly_normalized():
    """One convolution, with a normalization of its own behind the first of two uses."""
    image = keras.Input((8, 8, 3), name="image")
    stem = L.Conv2D(4, 3, padding="same", activation="relu", name="stem")(image)
    conv = L.Conv2D(4, 3, padding="same", name="conv")
    one = L.ReLU(name="one")(L.BatchNormalization(name="norm")(conv(stem)))
    two = L.ReLU(name="two")(conv(one))
    total = L.Add(name="add")([one, two])
    return _ready(keras.Model(image, chain(total, head()), name="partly"))


def shared_backbone():
    inner = backbone()
    image = keras.Input((8, 8, 3), name="image")
    other = L.Conv2D(3, 3, padding="same", activation="relu", name="other")(image)
    total = L.Concatenate(name="both")([inner(image), inner(other)])
    return _ready(keras.Model(image, chain(total, head()), name="two_uses"))


def _ready(model):
    """Gives normalizations weights and statistics that are no initial ones."""
    rng = np.random.default_rng(5)
    for layer in model._flatten_layers(include_self=False, recursive=True):
        if isinstance(layer, keras.layers.BatchNormalization):
            gamma, beta, mean = rng.normal([[1.0], [0.0], [0.0]], 0.3, (3, *layer.gamma.shape))
            layer.set_weights([gamma, beta, mean, rng.uniform(0.5, 2.0, layer.gamma.shape)])
    return model


MODELS = {
    build.__name__: build
    for build in (nested, nested_in_a_sequential, shared, partly_normalized, shared_backbone)
}
