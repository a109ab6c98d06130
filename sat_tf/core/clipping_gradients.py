"""The table of gradients of a clipping level. Needs no TensorFlow.

    α · dα = Σ g q - Σ dx r

A gradient is r, from the value x and its quantized value q: of CG-PACT (Eq. 13) x itself, so that
the quantization error q - x remains between the ends of the range; of the original PACT q, so that
nothing does. A new one is a row here; policies and quantizers read the table.
"""

from collections.abc import Callable
from typing import Any

from sat_tf.messages import did_you_mean

CLIPPING_GRADIENTS: dict[str, Callable[[Any, Any], Any]] = {
    "calibrated": lambda x, q: x,
    "pact": lambda x, q: q,
}


def find_clipping_gradient(name: str) -> Callable[[Any, Any], Any]:
    """The row of that name.

    Raises:
        ValueError: there is none.

    >>> find_clipping_gradient("calibrated")(0.4, 0.5)
    0.4
    """
    if name not in CLIPPING_GRADIENTS:
        hint = did_you_mean(str(name), CLIPPING_GRADIENTS)
        raise ValueError(f"gradient={name!r} is not a clipping-level gradient. {hint}")
    return CLIPPING_GRADIENTS[name]
