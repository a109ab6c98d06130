"""Recurrent layers: an LSTM of the form that kernels compute on codes, and what becomes others."""

from typing import Any

import tf_keras as keras

from sat_tf.graph.layers.activations import REACHES, RECTIFIERS, is_of_keras
from sat_tf.graph.layers.kind import SAME, Keras3, Kinds, LayerKind, Role
from sat_tf.graph.operation_layers import LongShortTermMemory

L = keras.layers
UNROLLED = (L.SimpleRNN, L.GRU, L.LSTM)
# The most steps that become layers. Each costs a GRU 18 operators, 5 KB of the file and, where
# Keras traces its quantizers, 4 seconds of a processor in front of the first batch of training.
MOST_STEPS = 64
# Settings that no layers have.
_OFF = ("return_state", "time_major")
# Gates with f(-x) = 1 - f(x).
_GATES = ("sigmoid", "hard_sigmoid", "relu6_sigmoid")
_ACTIVATIONS = ("linear", *RECTIFIERS, *sorted(REACHES))
_USUAL = (
    "expected calls without a mask, constants and training=True, on tensors of one shape, with an "
    "initial_state of zeros or, outside of a Bidirectional, of the model's tensors; call it so"
)
_CONSTRAINTS = ("kernel_constraint", "recurrent_constraint", "bias_constraint")


def is_fused(layer: Any) -> bool:
    """Whether kernels compute all steps of a layer at once: an LSTM with its usual functions."""
    functions = (layer.activation, layer.recurrent_activation) if type(layer) is L.LSTM else ()
    return functions == (keras.activations.tanh, keras.activations.sigmoid)


def misfit_of_recurrence(layer: Any, steps: int | None, *, has_states: bool = False) -> str | None:
    """Names the setting of a recurrent layer that no layers have, with the fix; None without one.

    The number of its steps is None where it is not known. A Bidirectional has the settings of both.
    An LSTM that is called with initial states is computed step by step.
    """
    if isinstance(layer, L.Bidirectional):
        both = layer.forward_layer, layer.backward_layer
        if others := [type(one).__name__ for one in both if type(one) not in UNROLLED]:
            expected = "expected LSTM, GRU or SimpleRNN; use these"
            return f"received a Bidirectional of {others[0]}, {expected}"
        return next(filter(None, (misfit_of_recurrence(one, steps) for one in both)), None)
    received, fused = f"received {_named(layer)}", is_fused(layer) and not has_states
    for name in _OFF:
        if getattr(layer, name, False):
            return f"{received} with {name}=True, expected {name}=False; build it so"
    for name, functions in (("activation", _ACTIVATIONS), ("recurrent_activation", _GATES)):
        function = getattr(layer, name, None)
        called = str(getattr(function, "__name__", type(function).__name__))
        if function is not None and not (called in functions and is_of_keras(function)):
            names = ", ".join(functions)
            return f"{received} with {name}={called!r}, expected one of {names}; train it so"
    if layer.recurrent_dropout:
        return (
            f"{received} with recurrent_dropout={layer.recurrent_dropout:g}, expected 0; train it "
            "with dropout alone"
        )
    for name in _CONSTRAINTS:
        if not fused and getattr(layer, name) is not None:
            return (
                f"{received} with a {name}, expected none, as its gates become layers; leave it out"
            )
    if steps is None:
        return (
            f"{received} for sequences of open length, expected a known number of steps; give the "
            "input a shape such as (steps, features)"
        )
    if steps > MOST_STEPS and not fused:
        return (
            f"{received} of {steps} steps, expected at most {MOST_STEPS}, each of which has its "
            "own operators in the file; use an LSTM of tanh and sigmoid, which is one operator, or "
            "fewer steps, as after a Conv1D with strides"
        )
    return None


def _named(layer: Any) -> str:
    name = type(layer).__name__
    return f"{'an' if name == 'LSTM' else 'a'} {name}"


def _refuse(layer: Any) -> str:
    # The layers inside others have no calls of their own.
    shape: Any = layer.get_input_shape_at(0) if layer.inbound_nodes else (None, 0)
    has_states = isinstance(shape, list)
    steps = (shape[0] if has_states else shape)[1]
    problem = misfit_of_recurrence(layer, steps, has_states=has_states)
    problem = problem or f"received {_named(layer)}, {_USUAL}"
    return f"{problem}, or pass unsupported='float'"


KINDS: Kinds = {
    **dict.fromkeys(UNROLLED, LayerKind(quantized=False, refuse=_refuse, keras3=SAME)),
    L.Bidirectional: LayerKind(
        quantized=False,
        refuse=_refuse,
        keras3=Keras3(wrapped={"layer": "forward_layer", "backward_layer": "backward_layer"}),
    ),
    LongShortTermMemory: LayerKind(
        Role.RECURRENCE, detail=lambda layer: "", short_name="LSTM", keras3=SAME
    ),
}
