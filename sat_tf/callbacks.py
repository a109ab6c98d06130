"""For Keras's own loops: callbacks for `fit`, and a context manager for `evaluate`."""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from sat_tf.qat.transition_rate import TransitionRate as TransitionRate
    from sat_tf.qat.wrapper import constant_weights as constant_weights
    from sat_tf.training.audit.training_rules import TrainingRules as TrainingRules

# TransitionRate works where TensorFlow is not.
_HOMES = {
    "TrainingRules": "sat_tf.training.audit.training_rules",
    "TransitionRate": "sat_tf.qat.transition_rate",
    "constant_weights": "sat_tf.qat.wrapper",
}

__all__ = [*_HOMES]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(_HOMES[name]), name)
