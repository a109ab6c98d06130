"""A MobileNet-V2 for images of about 24 pixels: five blocks, and a choice of heads."""

from collections.abc import Callable, Mapping
from typing import Any

import tf_keras as keras

from sat_tf.models.blocks import LayerBuilder, make_divisible
from sat_tf.models.mobilenet_v2 import (
    InvertedResidualStage,
    Rectify,
    inverted_residuals,
    leave,
)
from sat_tf.models.options import check_options

STEM_CHANNELS = 16
STAGES = (
    InvertedResidualStage(expansion=1, channels=16, repeats=1, stride=1),
    InvertedResidualStage(expansion=4, channels=24, repeats=2, stride=2),
    InvertedResidualStage(expansion=4, channels=40, repeats=2, stride=2),
)
HEAD_CHANNELS = 512


def mobilenet_v2_small(
    image_size: int = 24,
    num_classes: int = 1000,
    *,
    width_multiplier: float = 1.0,
    head: str = "gap",
    rectified_inputs: bool = False,
    classifier_stddev: float | None = None,
    rectifier_max: float | None = 6.0,
    dropout: float = 0.0,
    seed: int | None = None,
) -> keras.Model:
    """Builds a small MobileNet-V2 as a functional Keras model.

    Args:
        image_size: height and width of the images in pixels, at least 1.
        num_classes: number of logits, at least 1.
        width_multiplier: factor on all channel counts, above 0; each is rounded to a multiple of 8.
            The last convolution never has fewer than 512 channels.
        head: "gap" averages over the positions behind the last convolution, as MobileNet-V2 does;
            "pool_first" does so in front of it, as MobileNet-V3 does, so that the last rectifier
            stands right in front of the classifier.
        rectified_inputs: True puts a rectifier in front of every convolution and dense layer whose
            input is not the output of one, so that a quantized model, which clips all of these
            inputs at 0, computes the same except for the rounding. False: rectifiers only where
            MobileNet-V2 has them.
        classifier_stddev: standard deviation of the classifier's initial weights, above 0; None for
            sqrt(1 / num_classes).
        rectifier_max: upper end of the rectifiers, above 0; None for none.
        dropout: share of the classifier's inputs that training drops, in [0, 1).
        seed: makes the initial weights and the dropout repeatable; None draws fresh ones.

    Returns:
        A `tf_keras.Model` from images (batch, image_size, image_size, 3) with values in [0, 255],
        not standardized, to logits (batch, num_classes).

    Raises:
        ValueError: an argument is out of its range; lists all such arguments.

    Example:
        >>> mobilenet_v2_small(24, 10, head="pool_first", seed=0).output_shape
        (None, 10)
    """
    check_options(
        "mobilenet_v2_small",
        image_size=image_size,
        num_classes=num_classes,
        width_multiplier=width_multiplier,
        head=head,
        rectified_inputs=rectified_inputs,
        classifier_stddev=classifier_stddev,
        rectifier_max=rectifier_max,
        dropout=dropout,
        seed=seed,
    )
    layers = LayerBuilder(rectifier_max=rectifier_max, seed=seed)
    rectify: Rectify = layers.rectify if rectified_inputs else leave
    images = keras.Input((image_size, image_size, 3), name="image")
    features = layers.convolution(
        images,
        "stem",
        channels=make_divisible(STEM_CHANNELS * width_multiplier),
        kernel_size=3,
        stride=2,
    )
    features = inverted_residuals(
        layers, features, STAGES, width_multiplier=width_multiplier, rectify=rectify
    )
    channels = make_divisible(HEAD_CHANNELS * max(1.0, width_multiplier))
    features = _HEADS[head](layers, rectify, features, channels)
    logits = layers.logits(
        layers.drop(features, "dropout", dropout),
        num_classes=num_classes,
        stddev=classifier_stddev,
    )
    return keras.Model(images, logits, name="mobilenet_v2_small")


def _convolve_then_pool(layers: LayerBuilder, rectify: Rectify, inputs: Any, channels: int) -> Any:
    features = layers.convolution(rectify(inputs, "head_input"), "head", channels=channels)
    pooled = keras.layers.GlobalAveragePooling2D(name="pool")(features)
    return rectify(pooled, "classifier_input")


def _pool_then_convolve(layers: LayerBuilder, rectify: Rectify, inputs: Any, channels: int) -> Any:
    pooled = keras.layers.GlobalAveragePooling2D(keepdims=True, name="pool")(inputs)
    features = layers.convolution(rectify(pooled, "head_input"), "head", channels=channels)
    return keras.layers.Flatten(name="features")(features)


_HEADS: Mapping[str, Callable[[LayerBuilder, Rectify, Any, int], Any]] = {
    "gap": _convolve_then_pool,
    "pool_first": _pool_then_convolve,
}
