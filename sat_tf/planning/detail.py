"""The settings of a layer that people know it by, in a few signs."""

from typing import Any

import tf_keras as keras


def detail_of(layer: keras.layers.Layer) -> str:
    """Size of the kernel, the window or the output, strides and dilation, where they say something.

    >>> detail_of(keras.layers.Conv2D(8, 3, strides=2)), detail_of(keras.layers.Dense(10))
    ('3x3 /2', '10')
    >>> detail_of(keras.layers.Conv2D(8, (1, 7), dilation_rate=2)), detail_of(keras.layers.Add())
    ('1x7 dilated 2', '')
    """
    words = []
    size = getattr(layer, "kernel_size", None) or getattr(layer, "pool_size", None)
    if size is not None:
        words.append("x".join(map(str, _pair(size))))
    elif isinstance(layer, keras.layers.Dense):
        words.append(str(layer.units))
    strides = _shared(getattr(layer, "strides", None))
    if strides not in ("", "1"):
        words.append(f"/{strides}")
    dilation = _shared(getattr(layer, "dilation_rate", None))
    if dilation not in ("", "1"):
        words.append(f"dilated {dilation}")
    if isinstance(layer, keras.layers.Activation):
        words.append(getattr(layer.activation, "__name__", ""))
    return " ".join(words)


def _pair(size: Any) -> tuple[Any, ...]:
    return tuple(size) if isinstance(size, tuple | list) else (size,)


def _shared(sizes: Any) -> str:
    if sizes is None:
        return ""
    values = _pair(sizes)
    return str(values[0]) if len(set(values)) == 1 else "x".join(map(str, values))
