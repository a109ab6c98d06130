"""Which policy a model was quantized by, as long as it is in memory; files do not have it."""

import weakref
from typing import Any

from sat_tf.qat.policy import BitPolicy

_policies: "weakref.WeakKeyDictionary[Any, BitPolicy]" = weakref.WeakKeyDictionary()


def remember(model: Any, policy: BitPolicy) -> Any:
    """The model, whose policy is known from now on."""
    _policies[model] = policy
    return model


def policy_of(model: Any) -> BitPolicy | None:
    """The policy of a quantized model; None where it is not known, as of one that was loaded."""
    return _policies.get(model)
