"""A Keras callback that has effective weights made once for all images that are measured."""

from typing import Any

import tf_keras as keras

from sat_tf.export.deployed import DeployedModel
from sat_tf.qat.constant_weights import ConstantWeights, has_quantized_layers


class ConstantWhileMeasured(keras.callbacks.Callback):
    """Copies the effective weights when measuring begins, for all of its steps.

    For a model that is measured with this callback or not at all: what Keras traces reads the
    copies. Behind callbacks that change weights when measuring begins.

    Args:
        weights: of the model that is measured.
    """

    def __init__(self, weights: ConstantWeights) -> None:
        super().__init__()
        self._weights = weights

    def on_test_begin(self, logs: Any = None) -> None:
        """Makes the copies."""
        del logs
        self._weights.fill()

    def on_test_end(self, logs: Any = None) -> None:
        """Training makes effective weights again."""
        del logs
        self._weights.clear()


def constant_while_measured(model: keras.Model) -> list[ConstantWhileMeasured]:
    """The callback for a quantized model; none for others, which have no weights to make."""
    # A deployed model holds the weights of its file, and these only.
    if isinstance(model, DeployedModel) or not has_quantized_layers(model):
        return []
    return [ConstantWhileMeasured(ConstantWeights(model))]
