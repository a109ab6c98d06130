"""Linear layers: where their kernels are, and how these are laid out."""

from collections.abc import Callable
from typing import Any

import tf_keras as keras

from sat_tf.graph.layers.activations import REACHES, RECTIFIERS, activation_name, refuse_activation
from sat_tf.graph.layers.kind import (
    Keras3,
    Kernel,
    KernelForm,
    Kinds,
    LayerKind,
    Role,
    refuse_channels_first,
)

L = keras.layers


def _refuse_activation_inside(layer: Any) -> str | None:
    """Says what is wrong with the activation of a linear layer; None if it is quantized."""
    name = activation_name(layer)
    if name in ("linear", "softmax", *RECTIFIERS):
        return None
    if name in REACHES:
        return (
            f"received activation={name!r} inside a linear layer, expected one of linear, relu, "
            "relu6, or softmax at the end; give the activation a layer of its own, as "
            "sat_tf.quantize_model does"
        )
    return refuse_activation(layer)


def _refuse_convolution(layer: Any) -> str | None:
    return refuse_channels_first(layer) or _refuse_activation_inside(layer)


def _refuse_convolution_1d(layer: Any) -> str | None:
    if layer.padding == "causal":
        return (
            "received padding='causal', expected 'same' or 'valid'; put a ZeroPadding1D in front, "
            "as sat_tf.quantize_model does"
        )
    return _refuse_convolution(layer)


def _refuse_transposed(layer: Any) -> str | None:
    if any(rate != 1 for rate in layer.dilation_rate):
        rates = tuple(layer.dilation_rate)
        return f"received dilation_rate={rates}, expected {(1,) * len(rates)}; leave it out"
    return _refuse_convolution(layer)


def _over_windows(
    *kernels: Kernel, refuse: Callable[[Any], str | None] = _refuse_convolution, **settings: Any
) -> LayerKind:
    """The row of a layer whose kernels are moved over windows."""
    keras3 = Keras3(channels_last=True)
    return LayerKind(Role.LINEAR, refuse, kernels=kernels, keras3=keras3, **settings)


_CONVOLUTION, _DEPTHWISE, _TRANSPOSED = (
    KernelForm.CONVOLUTION,
    KernelForm.DEPTHWISE,
    KernelForm.TRANSPOSED,
)
# Settings of kernels that are moved along sequences.
_ROW: dict[str, Any] = {"one_dimensional": True}
_NOT_FOLDED: dict[str, Any] = {"one_dimensional": True, "folds_inputs": False}

KINDS: Kinds = {
    L.Dense: LayerKind(
        Role.LINEAR,
        _refuse_activation_inside,
        kernels=(Kernel(KernelForm.DENSE, (1,), 0),),
        detail=lambda layer: str(layer.units),
        keras3=Keras3(),
    ),
    L.Conv1D: _over_windows(Kernel(_CONVOLUTION, (2,), 1, **_ROW), refuse=_refuse_convolution_1d),
    L.Conv2D: _over_windows(Kernel(_CONVOLUTION, (3,), 2)),
    L.Conv3D: _over_windows(Kernel(_CONVOLUTION, (4,), 3), quantized=False),
    L.Conv1DTranspose: _over_windows(
        Kernel(_TRANSPOSED, (1,), 2, **_NOT_FOLDED), refuse=_refuse_transposed
    ),
    L.Conv2DTranspose: _over_windows(Kernel(_TRANSPOSED, (2,), 3), refuse=_refuse_transposed),
    L.Conv3DTranspose: _over_windows(Kernel(_TRANSPOSED, (3,), 4), quantized=False),
    L.DepthwiseConv1D: _over_windows(
        Kernel(_DEPTHWISE, (1, 2), 1, "depthwise_kernel", **_NOT_FOLDED)
    ),
    L.DepthwiseConv2D: _over_windows(
        Kernel(_DEPTHWISE, (2, 3), 2, "depthwise_kernel"), short_name="Depthwise"
    ),
    L.SeparableConv1D: _over_windows(
        Kernel(_DEPTHWISE, (1, 2), 1, "depthwise_kernel", "depthwise", **_ROW),
        Kernel(_CONVOLUTION, (2,), 1, "pointwise_kernel", "pointwise", **_ROW),
        quantized=False,
        pieces=(L.DepthwiseConv1D, L.Conv1D),
    ),
    L.SeparableConv2D: _over_windows(
        Kernel(_DEPTHWISE, (2, 3), 2, "depthwise_kernel", "depthwise"),
        Kernel(_CONVOLUTION, (3,), 2, "pointwise_kernel", "pointwise"),
        quantized=False,
        pieces=(L.DepthwiseConv2D, L.Conv2D),
    ),
}
