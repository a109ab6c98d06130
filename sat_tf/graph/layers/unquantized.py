"""Layers without a quantizer: some act in training alone, some are left float.

Layers that act in training alone pass their input through in inference.
"""

from typing import Any

import tensorflow as tf
import tf_keras as keras

from sat_tf.graph.layers.kind import SAME, Keras3, Kinds, LayerKind, Role
from sat_tf.graph.operation_layers import StopGradient

L = keras.layers


def _contrasted(layer: Any, images: tf.Tensor) -> tf.Tensor:
    """RandomContrast in training, (x - mean) · factor + mean: Keras' own kernel has no gradient."""
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


class LeftFloat(keras.layers.Layer):
    """A layer that stands for one that tf_keras does not have; abstract, and never quantized."""

    fix = ""  # the advice on what to use in its place


_OPEN_SIZE = "the size of images is unknown after it; use RandomZoom, or resize in the data"
_IN_INFERENCE = "it acts in inference too; augment the data"
_OF_SOUND = "compute it in front of the model"
_IN_BOTH = LayerKind(quantized=False, keras3=SAME)
_OF_IDS = LayerKind(quantized=False, keras3=SAME, reads_ids=True)

# Layers of Keras 3 that tf_keras does not have, by their names there, and the advice on each.
OF_KERAS3_ALONE = {
    **{
        f"Adaptive{mode}Pooling{rank}": f"where the sizes divide, {mode}Pooling{rank} does the same"
        for mode in ("Average", "Max")
        for rank in ("1D", "2D")
    },
    "AutoContrast": _IN_INFERENCE,
    "ContrastLimitedAdaptiveHistogramEqualization": _IN_INFERENCE,
    "Equalization": _IN_INFERENCE,
    "GroupedQueryAttention": "sat_tf.quantize_model takes it in a Keras 3 model, over sequences, "
    "without use_gate, sliding_window and masks of data",
    "MelSpectrogram": _OF_SOUND,
    "STFTSpectrogram": _OF_SOUND,
    "Solarization": _IN_INFERENCE,
}
_IDENTITY = LayerKind(Role.IDENTITY, keras3=SAME)
_ACT_IN_TRAINING = """
    ActivityRegularization AlphaDropout Dropout GaussianDropout GaussianNoise Identity
    RandomBrightness RandomFlip RandomRotation RandomTranslation RandomZoom SpatialDropout1D
    SpatialDropout2D SpatialDropout3D
"""
_LEFT_FLOAT = """
    AdditiveAttention ConvLSTM1D ConvLSTM2D ConvLSTM3D GRUCell LSTMCell SimpleRNNCell
    Masking CenterCrop Discretization
"""


def _left_float(fix: str) -> LayerKind:
    """A layer that stays float, here and in Keras 3, with the advice on how sat-tf takes it."""
    return LayerKind(quantized=False, fix=fix, keras3=SAME)


_AROUND_A_LAYER = Keras3(wrapped={"layer": "layer"})

KINDS: Kinds = {
    **{getattr(L, name): _IDENTITY for name in _ACT_IN_TRAINING.split()},
    **{getattr(L, name): _IN_BOTH for name in _LEFT_FLOAT.split()},
    L.RandomContrast: LayerKind(Role.IDENTITY, in_training=_contrasted, keras3=SAME),
    StopGradient: _IDENTITY,
    L.MultiHeadAttention: _left_float(
        "sat-tf takes it over sequences without a mask, or of fixed lengths with a causal mask "
        "or a constant one of 0 and 1, with an output_shape of one size, and without "
        "return_attention_scores and activity_regularizer",
    ),
    L.Attention: _left_float(
        "sat-tf takes it with score_mode='dot', with use_causal_mask or without a mask, and "
        "without use_scale and return_attention_scores"
    ),
    L.Dot: _left_float(
        "sat-tf takes it for two tensors of matrices, [rows, columns], and without normalize"
    ),
    L.EinsumDense: _left_float(
        "sat-tf takes products of the last axes, such as 'abc,cd->abd', with one number of the "
        "bias for each output, a function as activation, and without activity_regularizer"
    ),
    L.Lambda: LayerKind(
        quantized=False, fix="call its function without a Lambda, as in tf.nn.depth_to_space(x, 2)"
    ),
    # The RandomCrop of Keras 3 passes its input through in inference.
    L.RandomCrop: LayerKind(quantized=False, fix="it resizes in inference; crop in the data"),
    L.RandomHeight: LayerKind(quantized=False, fix=_OPEN_SIZE),
    L.RandomWidth: LayerKind(quantized=False, fix=_OPEN_SIZE),
    L.RNN: LayerKind(quantized=False, keras3=Keras3(wrapped={"cell": "cell"})),
    L.RepeatVector: _left_float(
        "sat_tf.quantize_model does; else use Reshape((1, size)) and UpSampling1D(n)"
    ),
    L.CategoryEncoding: _OF_IDS,
    L.SpectralNormalization: LayerKind(quantized=False, keras3=_AROUND_A_LAYER),
    L.TimeDistributed: LayerKind(
        quantized=False,
        fix="sat-tf takes it around a Dense, an activation, a normalization of the last axis, "
        "Flatten and Reshape, which work on all steps at once; let another layer do so too, as a "
        "Conv2D of kernel_size (1, n) does in place of a Conv1D, or pass unsupported='float'",
        keras3=_AROUND_A_LAYER,
    ),
}
