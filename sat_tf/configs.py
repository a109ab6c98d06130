"""Parts of a quantizer of your own, and settings of single layers for TFMOT.

The parts need no TensorFlow: a quantizer of yours trains in tf_keras and on every backend of
Keras 3. See `docs/extend/own_quantizer.md`.
"""

import importlib
from typing import TYPE_CHECKING, Any

from sat_tf.core.gradients import straight_through
from sat_tf.core.tensors import namespace
from sat_tf.quantizers.pact import ClippingQuantizer
from sat_tf.quantizers.protocol import ActivationQuantizer, VariableSpec, WeightQuantizer
from sat_tf.quantizers.table import activation_quantizer, weight_quantizer
from sat_tf.quantizers.values import CodeRange, IntegerWeights

if TYPE_CHECKING:
    from sat_tf.qat.configs import LayerConfig as LayerConfig
    from sat_tf.qat.configs import PlacedConfig as PlacedConfig

_OF_TFMOT = ("LayerConfig", "PlacedConfig")

__all__ = [
    "ActivationQuantizer",
    "ClippingQuantizer",
    "CodeRange",
    "IntegerWeights",
    "LayerConfig",
    "PlacedConfig",
    "VariableSpec",
    "WeightQuantizer",
    "activation_quantizer",
    "namespace",
    "straight_through",
    "weight_quantizer",
]


def __getattr__(name: str) -> Any:
    if name not in _OF_TFMOT:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    # Importing TFMOT registers the layers with Keras, and that imports their module itself.
    importlib.import_module("tensorflow_model_optimization")
    return getattr(importlib.import_module("sat_tf.qat.configs"), name)
