"""TFMOT's part of `benchmarks/peers.py`: its two schemes, and its clusters of weights.

The schemes, of 8 bits and the experimental one of n, start from ranges of [-6, 6], which follow the
data as moving averages in training; TFMOT has no calibration. The n-bit scheme has one number of
bits for all layers: a layer annotated with another does not go together with the normalization
behind it. Clusters leave activations in float, and depthwise kernels too, for which TFMOT has none.
"""

import tensorflow_model_optimization as tfmot
import tf_keras as keras
from tensorflow_model_optimization.python.core.quantization.keras.experimental import default_n_bit

_CLUSTERED = (keras.layers.Conv2D, keras.layers.Dense)


def eight_bits(model: keras.Model) -> keras.Model:
    """The model by the default scheme: weights and activations of 8 bits."""
    return tfmot.quantization.keras.quantize_model(model)


def n_bits(model: keras.Model, bits: int, activation_bits: int | None = None) -> keras.Model:
    """The model by the experimental scheme: weights of so many bits, and every tensor.

    Args:
        model: of tf_keras.
        bits: of weights.
        activation_bits: of tensors; None for those of weights.
    """
    scheme = default_n_bit.default_n_bit_quantize_scheme.DefaultNBitQuantizeScheme(
        num_bits_weight=bits, num_bits_activation=activation_bits or bits
    )
    annotated = tfmot.quantization.keras.quantize_annotate_model(model)
    with tfmot.quantization.keras.quantize_scope():
        return tfmot.quantization.keras.quantize_apply(annotated, scheme)


def clusters(model: keras.Model, bits: int, first_last_bits: int = 8) -> keras.Model:
    """The model with 2^bits values in each kernel, 256 in the first and the last layer.

    They start by k-means++ and move with the weights, which are assigned again in every step.
    Gradients of a value are averaged, as sat-tf does: summed, which is the default, training at the
    learning rates of the others ends at chance.
    """
    linear = [layer for layer in model.layers if isinstance(layer, _CLUSTERED)]
    ends = (linear[0], linear[-1])

    def clustered(layer: keras.layers.Layer) -> keras.layers.Layer:
        if layer not in linear:
            return layer
        return tfmot.clustering.keras.cluster_weights(
            layer,
            number_of_clusters=2 ** (first_last_bits if layer in ends else bits),
            cluster_gradient_aggregation="GradientAggregation.AVG",
            cluster_centroids_init=(tfmot.clustering.keras.CentroidInitialization.KMEANS_PLUS_PLUS),
        )

    return keras.models.clone_model(model, clone_function=clustered)
