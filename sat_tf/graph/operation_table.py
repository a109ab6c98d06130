"""The table of TensorFlow operations: which layer computes each of them, bit for bit."""

from sat_tf.graph.calls import arithmetic, movements, pooling
from sat_tf.graph.calls.arguments import is_keras
from sat_tf.graph.operation_layers import TensorFlowOperation
from sat_tf.graph.replacement import Finder, OldCall, Replacement, new_layer
from sat_tf.graph.templates import template_of
from sat_tf.loading.tensor_functions import CalledFunction

_OPERATIONS: dict[str, Finder] = {**arithmetic.CALLS, **movements.CALLS, **pooling.CALLS}


def replacement_of_operation(call: OldCall) -> Replacement | None:
    """The layers that replace an operation; None where sat-tf has none."""
    find = _OPERATIONS.get(call.symbol)
    # The layers for arithmetic are those of real numbers; others move values of any type.
    if call.symbol in arithmetic.CALLS and not call.makes_reals:
        find = None
    replacement = find(call) if find else None
    if replacement is None and is_keras(call.node.outputs):  # one result, not a list
        return _as_it_is(call)
    return replacement


def _as_it_is(call: OldCall) -> Replacement | None:
    """A layer for the operation itself, to be left float or refused by its name."""
    tensors = list(call.node.keras_inputs)
    places = {id(tensor): place for place, tensor in enumerate(tensors)}
    try:
        arguments = template_of([list(call.node.call_args), call.node.call_kwargs], places)
    except TypeError:
        return None
    layers = [new_layer(TensorFlowOperation, CalledFunction(call.symbol), arguments)]
    return Replacement(tensors, layers, takes_list=len(tensors) > 1)
