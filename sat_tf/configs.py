"""Parts of a quantizer of your own, and settings of single layers for TFMOT.

The parts need no TensorFlow: a quantizer of yours trains in tf_keras and on every backend of
Keras 3. See `docs/extend/own_quantizer.md`. The package's own `quantizers/methods` need no others.
"""

import importlib
from typing import TYPE_CHECKING, Any

from sat_tf.core.gradients import passed_back, straight_through
from sat_tf.core.grid import axes_within, find_grid, levels, range_shape, round_half_up
from sat_tf.core.tensor_ops import Tensor, computed_in_float32, namespace, sum_as
from sat_tf.quantizers.pact import ClippingQuantizer
from sat_tf.quantizers.protocol import ActivationQuantizer, VariableSpec, WeightQuantizer
from sat_tf.quantizers.quantizer_table import activation_quantizer, weight_quantizer
from sat_tf.quantizers.scaled import LevelsOfWeights, ScaledWithSurrogate
from sat_tf.quantizers.values import CodeRange, IntegerWeights, Variables

if TYPE_CHECKING:
    from sat_tf.qat.configs import LayerConfig as LayerConfig
    from sat_tf.qat.configs import PlacedConfig as PlacedConfig

_OF_TFMOT = ("LayerConfig", "PlacedConfig")

__all__ = ["LayerConfig", "PlacedConfig"]
__all__ += ["activation_quantizer", "weight_quantizer"]
__all__ += ["ActivationQuantizer", "ClippingQuantizer"]
__all__ += ["LevelsOfWeights", "ScaledWithSurrogate", "WeightQuantizer"]
__all__ += ["CodeRange", "IntegerWeights", "Tensor", "VariableSpec", "Variables"]
__all__ += ["axes_within", "find_grid", "levels", "range_shape", "round_half_up"]
__all__ += ["computed_in_float32", "namespace", "passed_back", "straight_through", "sum_as"]


def __getattr__(name: str) -> Any:
    if name not in _OF_TFMOT:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    # Importing TFMOT registers the layers with Keras, and that imports their module itself.
    importlib.import_module("tensorflow_model_optimization")
    return getattr(importlib.import_module("sat_tf.qat.configs"), name)
