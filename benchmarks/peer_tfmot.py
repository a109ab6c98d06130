"""TFMOT's part of `benchmarks/peers.py`: its default 8-bit scheme, and its experimental n-bit one.

Both start from ranges of [-6, 6], which follow the data as moving averages in training; TFMOT has
no calibration. The n-bit scheme has one number of bits for all layers: a layer annotated with
another does not go together with the normalization behind it.
"""

import tensorflow_model_optimization as tfmot
import tf_keras as keras
from tensorflow_model_optimization.python.core.quantization.keras.experimental import default_n_bit


def eight_bits(model: keras.Model) -> keras.Model:
    """The model by the default scheme: weights and activations of 8 bits."""
    return tfmot.quantization.keras.quantize_model(model)


def n_bits(model: keras.Model, bits: int) -> keras.Model:
    """The model by the experimental scheme: weights and every tensor of so many bits."""
    scheme = default_n_bit.default_n_bit_quantize_scheme.DefaultNBitQuantizeScheme(
        num_bits_weight=bits, num_bits_activation=bits
    )
    annotated = tfmot.quantization.keras.quantize_annotate_model(model)
    with tfmot.quantization.keras.quantize_scope():
        return tfmot.quantization.keras.quantize_apply(annotated, scheme)
