"""Tables of all figures, small enough to be made in a test."""

import functools

import tf_keras as keras

from sat_tf import models
from sat_tf.reproduction.figures import (
    clamp_variance,
    kappa_table,
    kappa_training,
    level_gradient,
    quantized_deviation,
    sigmoid,
)
from sat_tf.reproduction.figures.figure import Numbers


def nothing(share):
    """An `Advance` that shows nothing."""


def classifier_alone(features, *, classes=1000, pool=7):
    """A pooled map and the layer behind it: all of a network that κ₀ looks at."""
    image = keras.Input((pool, pool, features))
    pooled = keras.layers.GlobalAveragePooling2D(name="pool")(image)
    return keras.Model(image, keras.layers.Dense(classes, name="classifier")(pooled))


@functools.cache
def kappa_0_table(seed, samples):
    """Table S1 from classifiers of the networks' sizes."""
    built = models.build
    sizes = {name: printed.features for name, printed in kappa_table.PRINTED.items()}
    try:
        models.build = lambda name, **_: classifier_alone(sizes[name])
        return kappa_table.measure(seed, nothing, samples=samples)
    finally:
        models.build = built


def training_table(kappa_0=0.02, kappa_1=1.0):
    """A training of two convolutions, made up."""
    rows = []
    for step in (0, 10, 20):
        rows.append((step, 0, "loss", "", 7.0 - step / 10))
        rows.append((step, 0, "kappa_0", "classifier", kappa_0))
        rows.append((step, 0, "kappa_1", "stem_conv", 2.0))
        rows.append((step, 0, "kappa_1", "block_1_shortcut_conv", kappa_1))
        rows.append((step, 0, "kappa_1", "block_1_first_conv", 0.5))
    return Numbers(kappa_training.COLUMNS, tuple(rows))


@functools.cache
def tables():
    """A table for each figure, by name."""
    return {
        "figure2a": clamp_variance.measure(0, nothing, neurons=(16, 1000), samples=3),
        "figure_s1": sigmoid.measure(0, nothing),
        "table_s1": kappa_0_table(0, 25),
        "figure_s2": training_table(),
        "figure_s3": quantized_deviation.measure(0, nothing, channels=(8, 16), samples=2),
        "equation13": level_gradient.measure(0, nothing),
    }
