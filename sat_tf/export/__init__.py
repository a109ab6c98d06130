"""The export of a quantized Keras model to an integer TFLite file, with proof.

The stages, in order: trace (with the folding of BatchNormalization), pack, upscale, make_portable,
settle_constants, floor_scales, round_biases; then simulate, write and verify. `to_keras` gives the
same graph to TensorFlow's own converter; `snap_biases` moves a trained model's biases to those of
its file; `with_image_size` fixes the size of a model of images of any size.

Files need no model: `read_graph`, `simulate`, `verify_file`, `evaluate_tflite`, `write_kit`,
`compare_operators` and `read_device_check` are those of `sat_tf.exact`, which load no TensorFlow.
"""

import importlib
from typing import TYPE_CHECKING, Any

from sat_tf.messages import REMOVED

if TYPE_CHECKING:
    from sat_tf.exact.certificate.proof import verify_file as verify_file
    from sat_tf.exact.device.kit import read_device_check as read_device_check
    from sat_tf.exact.device.kit import write_kit as write_kit
    from sat_tf.exact.evaluate import evaluate_simulator as evaluate_simulator
    from sat_tf.exact.evaluate import evaluate_tflite as evaluate_tflite
    from sat_tf.exact.operations.graph import simulate as simulate
    from sat_tf.exact.operations.graph_file import read_graph as read_graph
    from sat_tf.exact.operator_comparison import compare_operators as compare_operators
    from sat_tf.export.converter_route import to_keras as to_keras
    from sat_tf.export.lowering.pipeline import snap_biases as snap_biases
    from sat_tf.export.lowering.pipeline import with_image_size as with_image_size
    from sat_tf.export.verify import FloatReference as FloatReference

_HOMES = {
    "FloatReference": "sat_tf.export.verify",
    "compare_operators": "sat_tf.exact.operator_comparison",
    "evaluate_simulator": "sat_tf.exact.evaluate",
    "evaluate_tflite": "sat_tf.exact.evaluate",
    "read_device_check": "sat_tf.exact.device.kit",
    "read_graph": "sat_tf.exact.operations.graph_file",
    "simulate": "sat_tf.exact.operations.graph",
    "snap_biases": "sat_tf.export.lowering.pipeline",
    "to_keras": "sat_tf.export.converter_route",
    "verify_file": "sat_tf.exact.certificate.proof",
    "with_image_size": "sat_tf.export.lowering.pipeline",
    "write_kit": "sat_tf.exact.device.kit",
}

__all__ = [*_HOMES]


def __getattr__(name: str) -> Any:
    if (removed := f"{__name__}.{name}") in REMOVED:
        # `from sat_tf.export import name` would not show the words of an AttributeError.
        raise ImportError(f"{removed} is gone; {REMOVED[removed]}.", name=name)
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(_HOMES[name]), name)


def __dir__() -> list[str]:
    return sorted(__all__)
