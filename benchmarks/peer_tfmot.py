"""TFMOT's part of `benchmarks/peers.py`: its default 8-bit scheme, and its experimental n-bit one.

Both keep the model's function and start from ranges of [-6, 6], which follow the data as moving
averages in training; TFMOT has no calibration.
"""

import tensorflow_model_optimization as tfmot
import tf_keras as keras
from tensorflow_model_optimization.python.core.quantization.keras.experimental import default_n_bit

_CONFIGS = default_n_bit.default_n_bit_quantize_configs


def eight_bits(model: keras.Model) -> keras.Model:
    """The model by the default scheme: weights and activations of 8 bits."""
    return tfmot.quantization.keras.quantize_model(model)


def n_bits(model: keras.Model, bits: int, *, first_last_bits: int | None = None) -> keras.Model:
    """The model by the experimental n-bit scheme.

    Args:
        model: the float one.
        bits: of weights and of every tensor.
        first_last_bits: of the weights of first and last layer; None: the same.
    """
    scheme = default_n_bit.default_n_bit_quantize_scheme.DefaultNBitQuantizeScheme(
        num_bits_weight=bits, num_bits_activation=bits
    )
    linear = (keras.layers.Conv2D, keras.layers.Dense)
    ends = [layer.name for layer in model.layers if isinstance(layer, linear)]
    ends = [ends[0], ends[-1]] if first_last_bits else []

    def annotate(layer: keras.layers.Layer) -> keras.layers.Layer:
        config = None
        if layer.name in ends:
            kind = (
                _CONFIGS.DefaultNBitConvQuantizeConfig
                if isinstance(layer, keras.layers.Conv2D)
                else _CONFIGS.DefaultNBitQuantizeConfig
            )
            config = kind(
                ["kernel"], ["activation"], False,
                num_bits_weight=first_last_bits, num_bits_activation=bits,
            )
        return tfmot.quantization.keras.quantize_annotate_layer(layer, config)

    annotated = keras.models.clone_model(
        model,
        clone_function=lambda layer: layer
        if isinstance(layer, keras.layers.InputLayer)
        else annotate(type(layer).from_config(layer.get_config())),
    )
    annotated.set_weights(model.get_weights())
    with tfmot.quantization.keras.quantize_scope():
        return tfmot.quantization.keras.quantize_apply(annotated, scheme)
