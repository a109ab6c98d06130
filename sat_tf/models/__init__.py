"""Float Keras image models, one family per module, and a table to build them by name."""

import difflib
import inspect
import types
from collections.abc import Callable, Mapping
from typing import Any

from sat_tf.models.mobilenet_v1 import mobilenet_v1
from sat_tf.models.mobilenet_v2 import mobilenet_v2

__all__ = ["MODELS", "build", "mobilenet_v1", "mobilenet_v2"]

MODELS: Mapping[str, Callable[..., Any]] = types.MappingProxyType(
    {
        "mobilenet_v1": mobilenet_v1,
        "mobilenet_v2": mobilenet_v2,
    }
)


def build(name: str, **arguments: Any) -> Any:
    """Builds a model by the name of its family.

    Args:
        name: a key of `MODELS`.
        **arguments: what the family's function takes; its defaults hold for the rest.

    Returns:
        A float `tf_keras.Model` from images with values in [0, 255] to logits.

    Raises:
        ValueError: the family or some argument is unknown, or an argument is out of its range.

    Example:
        >>> build("mobilenet_v2", image_size=32, num_classes=10, seed=0).output_shape
        (None, 10)
        >>> build("mobilenet_v3")
        Traceback (most recent call last):
        ValueError: unknown model 'mobilenet_v3'; did you mean 'mobilenet_v2'? \
Expected one of: mobilenet_v1, mobilenet_v2.
    """
    if name not in MODELS:
        raise ValueError(f"unknown model {_with_nearest(name, list(MODELS))}")
    known = list(inspect.signature(MODELS[name]).parameters)
    unknown = [f"  {_with_nearest(word, known)}" for word in arguments if word not in known]
    if unknown:
        raise ValueError("\n".join([f"{name} does not take these arguments:", *unknown]))
    return MODELS[name](**arguments)


def _with_nearest(word: str, known: list[str]) -> str:
    nearest = difflib.get_close_matches(str(word), known, n=1)
    question = f"did you mean {nearest[0]!r}? " if nearest else ""
    return f"{word!r}; {question}Expected one of: {', '.join(known)}."
