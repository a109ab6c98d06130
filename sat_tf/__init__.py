"""sat-tf: low-bit quantization-aware training for Keras, with a certified TFLite export.

The names below load TensorFlow when they are first used, so that the command line can answer
without it. sat-tf's layers are registered with Keras when it is imported, before or after this
package, so that `import sat_tf` is all that loading a saved model needs.
"""

import importlib
import importlib.util
import sys
from types import ModuleType
from typing import TYPE_CHECKING, Any

from sat_tf.messages import REMOVED
from sat_tf.version import __version__ as __version__

if TYPE_CHECKING:
    from sat_tf import callbacks as callbacks
    from sat_tf import configs as configs
    from sat_tf import export as export
    from sat_tf.analysis.allocation.allocation import allocate as allocate
    from sat_tf.analysis.sensitivity import sensitivity as sensitivity
    from sat_tf.export.export import export_tflite as export_tflite
    from sat_tf.export.verify import verify_tflite as verify_tflite
    from sat_tf.keras3.incoming import from_keras3 as from_keras3
    from sat_tf.planning.explain import explain as explain
    from sat_tf.qat.adaptive_bits import quantize_for_bits as quantize_for_bits
    from sat_tf.qat.calibrate import calibrate as calibrate
    from sat_tf.qat.policy import BitPolicy as BitPolicy
    from sat_tf.qat.reconstruction.reconstruct import reconstruct as reconstruct
    from sat_tf.qat.requantize import requantize as requantize
    from sat_tf.qat.scheme import SatQuantizeScheme as SatQuantizeScheme
    from sat_tf.qat.scheme import quantize_model as quantize_model
    from sat_tf.qat.scheme import quantize_scope as quantize_scope
    from sat_tf.training.audit.audit import audit as audit

_HOMES = {
    "BitPolicy": "sat_tf.qat.policy",
    "SatQuantizeScheme": "sat_tf.qat.scheme",
    "allocate": "sat_tf.analysis.allocation.allocation",
    "audit": "sat_tf.training.audit.audit",
    "calibrate": "sat_tf.qat.calibrate",
    "callbacks": "sat_tf",
    "configs": "sat_tf",
    "explain": "sat_tf.planning.explain",
    "export": "sat_tf",
    "export_tflite": "sat_tf.export.export",
    "from_keras3": "sat_tf.keras3.incoming",
    "quantize_for_bits": "sat_tf.qat.adaptive_bits",
    "quantize_model": "sat_tf.qat.scheme",
    "quantize_scope": "sat_tf.qat.scheme",
    "reconstruct": "sat_tf.qat.reconstruction.reconstruct",
    "requantize": "sat_tf.qat.requantize",
    "sensitivity": "sat_tf.analysis.sensitivity",
    "verify_tflite": "sat_tf.export.verify",
}

__all__ = [*_HOMES]


def __getattr__(name: str) -> Any:
    if (removed := f"{__name__}.{name}") in REMOVED:
        # `from sat_tf import name` would not show the words of an AttributeError.
        raise ImportError(f"{removed} is gone; {REMOVED[removed]}.", name=name)
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    if name in ("callbacks", "configs", "export"):
        return importlib.import_module(f"{_HOMES[name]}.{name}")
    return getattr(importlib.import_module(_HOMES[name]), name)


def __dir__() -> list[str]:
    return sorted(__all__)


def _register_with_keras(module: ModuleType) -> None:
    """Registers the layers of quantized models with Keras.

    TFMOT imports Keras halfway through its own import, through TensorFlow's lazy loader, which
    recurses forever if used again before it is done: TFMOT's own hook runs once it is imported.
    """
    if module.__name__ == "tf_keras" and "tensorflow_model_optimization" in sys.modules:
        return
    # Python has no public name for a module that is being imported.
    ours = [submodule for name, submodule in sys.modules.items() if name.startswith("sat_tf.")]
    halfway = any(getattr(submodule.__spec__, "_initializing", False) for submodule in ours)
    try:
        importlib.import_module("sat_tf.qat.wrapper")
    except (AttributeError, ImportError):
        # One of our own modules, imported first, has imported Keras, and is needed here in turn:
        # the layers are then registered by whatever uses them.
        if not halfway:
            raise


def _register_with_keras3(_: ModuleType | None = None) -> None:
    """Registers the layers of quantized Keras 3 models with Keras 3."""
    importlib.import_module("sat_tf.keras3.operations")
    importlib.import_module("sat_tf.keras3.quantized_layer")


def _register_when_imported() -> None:
    try:
        import wrapt
    except ModuleNotFoundError:
        # wrapt comes with TensorFlow: without it, there is Keras 3 alone, and nothing to wait for.
        if importlib.util.find_spec("keras"):
            try:
                _register_with_keras3()
            except ModuleNotFoundError as error:
                # Keras lacks the library that it computes with, as `import keras` says.
                if (error.name or "").startswith("sat_tf"):
                    raise
        return
    wrapt.register_post_import_hook(_register_with_keras3, "keras")
    if "tensorflow" in sys.modules:
        importlib.import_module("sat_tf.qat.wrapper")
        return
    for library in ("tf_keras", "tensorflow_model_optimization"):
        wrapt.register_post_import_hook(_register_with_keras, library)


_register_when_imported()
