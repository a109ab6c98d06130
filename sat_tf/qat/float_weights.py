"""Quantized models whose weights are not rounded for a while."""

import contextlib
from collections.abc import Iterable, Iterator

import tf_keras as keras

from sat_tf.qat.quantizers import DorefaQuantizer
from sat_tf.qat.wrapper import QuantizedLayer


def at_bits(quantizer: DorefaQuantizer, num_bits: int | None) -> DorefaQuantizer:
    """The same quantizer with other bits; None clamps and rescales only."""
    return DorefaQuantizer(**{**quantizer.get_config(), "num_bits": num_bits})


@contextlib.contextmanager
def float_weights(layers: Iterable[keras.layers.Layer]) -> Iterator[None]:
    """Inside, layers compute with clamped and rescaled weights that are not rounded."""
    configs = [layer.quantize_config for layer in layers if isinstance(layer, QuantizedLayer)]
    quantizers = [config.weights for config in configs]
    try:
        for config, quantizer in zip(configs, quantizers, strict=True):
            config.weights = None if quantizer is None else at_bits(quantizer, None)
        yield
    finally:
        for config, quantizer in zip(configs, quantizers, strict=True):
            config.weights = quantizer
