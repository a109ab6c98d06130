"""What a choice of bits loses before any training, measured on the quantized model itself."""

import warnings
from collections.abc import Mapping

import numpy as np
import tf_keras as keras

import sat_tf
from sat_tf.analysis.allocation.choices import Choice, ModelChoices
from sat_tf.qat.layout import GuessedClippingLevelsWarning
from sat_tf.qat.wrapper import QuantizedLayer
from sat_tf.quantizers.observers import RangeObserver
from sat_tf.quantizers.protocol import CLIPPING_LEVEL


class CalibratedLoss:
    """The cross entropy of a quantized model whose bits change from call to call.

    The model is quantized once. A call gives its layers the bits of a choice and the clipping
    levels that were calibrated for these, and normalizes with the statistics of the images, as
    calibrating the choice on them would. Logits are float.

    Args:
        model: a float model; it is not changed.
        choices: the bits that its layers can have.
        images: what is calibrated and measured on.
        labels: their classes.
    """

    def __init__(
        self, model: keras.Model, choices: ModelChoices, images: np.ndarray, labels: np.ndarray
    ) -> None:
        self._images, self._labels = images, labels
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", GuessedClippingLevelsWarning)  # it is calibrated next
            self._model = sat_tf.quantize_model(model, choices.policy)
        layers = {
            layer.layer.name: layer
            for layer in self._model.layers
            if isinstance(layer, QuantizedLayer)
        }
        plan = sat_tf.explain(model, choices.policy)
        self._kernels = {one.name: layers[one.name] for one in choices.layers}
        reading = [one for one in choices.layers if one.chooses_activations]
        self._reads = {one.name: layers[plan[one.name].reads[0]] for one in reading}
        self._levels: dict[int | None, dict[str, float]] = {}
        for bits in reading[0].activation_bits if reading else ():
            for source in self._reads.values():
                _set_output_bits(source, bits)
            sat_tf.calibrate(self._model, images, batch_normalization=False)
            self._levels[bits] = {
                source.name: float(source.output_variables[CLIPPING_LEVEL])
                for source in self._reads.values()
            }
        for layer in layers.values():
            if isinstance(layer.quantize_config.output, RangeObserver):
                layer.quantize_config.output = None

    def __call__(self, chosen: Mapping[str, Choice]) -> float:
        """The loss at these weight bits and activation bits of each layer."""
        for name, (weight_bits, activation_bits) in chosen.items():
            config = self._kernels[name].quantize_config
            config.weights = config.weights.with_settings(num_bits=weight_bits)
            if name in self._reads:
                source = self._reads[name]
                _set_output_bits(source, activation_bits)
                level = self._levels[activation_bits][source.name]
                source.output_variables[CLIPPING_LEVEL].assign(level)
        logits = self._model(self._images, training=True)
        losses = keras.losses.sparse_categorical_crossentropy(
            self._labels, logits, from_logits=True
        )
        return float(np.mean(losses))


def _set_output_bits(layer: QuantizedLayer, bits: int | None) -> None:
    config = layer.quantize_config
    config.output = config.output.with_settings(num_bits=bits)
