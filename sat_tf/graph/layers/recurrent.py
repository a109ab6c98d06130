"""Recurrent layers: an LSTM of the form that kernels compute on codes."""

from typing import Any

import tf_keras as keras

from sat_tf.graph.layers.kind import SAME, Kinds, LayerKind, Role
from sat_tf.graph.operation_layers import LongShortTermMemory

# Settings of an LSTM that kernels do not have.
_OFF = ("return_state", "go_backwards", "time_major")


def misfit_of_lstm(layer: Any, steps: int | None) -> str | None:
    """Names the setting of an LSTM that kernels do not have, with the fix; None without one.

    The number of its steps is None where it is not known.
    """
    for name in _OFF:
        if getattr(layer, name, False):
            return f"received an LSTM with {name}=True, expected {name}=False; build it so"
    for name, expected in (("activation", "tanh"), ("recurrent_activation", "sigmoid")):
        function = getattr(layer, name)
        if function is not getattr(keras.activations, expected):
            received = getattr(function, "__name__", type(function).__name__)
            return (
                f"received an LSTM with {name}={received!r}, expected {expected!r}, the only one "
                "that kernels compute; train it so"
            )
    if layer.recurrent_dropout:
        return (
            f"received an LSTM with recurrent_dropout={layer.recurrent_dropout:g}, expected 0; "
            "train it with dropout alone"
        )
    if steps is None:
        return (
            "received an LSTM for sequences of open length, expected a known number of steps; give "
            "the input a shape such as (steps, features)"
        )
    return None


def _refuse_lstm(layer: Any) -> str:
    # The layers inside others have no calls of their own.
    steps = layer.get_input_shape_at(0)[1] if layer.inbound_nodes else 0
    misfit = misfit_of_lstm(layer, steps)
    usual = (
        "received an LSTM, which sat_tf.quantize_model takes where one tensor alone is given to "
        "it; call it without a mask, a state and training=True"
    )
    return f"{misfit or usual}, or pass unsupported='float'"


KINDS: Kinds = {
    keras.layers.LSTM: LayerKind(quantized=False, refuse=_refuse_lstm, keras3=SAME),
    LongShortTermMemory: LayerKind(
        Role.RECURRENCE, detail=lambda layer: "", short_name="LSTM", keras3=SAME
    ),
}
