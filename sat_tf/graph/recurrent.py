"""Recurrent layers as layers that sat-tf quantizes: those of single steps, or an LSTM of all.

An LSTM that kernels compute stays one. Other layers are computed step by step, with the inputs x
and the state h of a step, weights W, R and b, and products of single values:

    SimpleRNN   h' = tanh(x W + h R + b)
    GRU         u, r = sigmoid(x W + h R + b),  c = tanh(x W + r (h R) + b),  h' = h + u (c - h)
    LSTM        i, f, o = sigmoid(x W + h R + b),  g = tanh(x W + h R + b)
                s' = f s + i g,  h' = o tanh(s')

One Dense multiplies the inputs of all steps, and one that all steps share the state. Keras' GRU has
z = 1 - u = sigmoid(-a) for u = sigmoid(a), so that its weights change their sign: then rounding
c - h costs a state little that its gate keeps.
"""

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import tf_keras as keras

from sat_tf.graph.flatten import regularization_of
from sat_tf.graph.layers.recurrent import is_fused, misfit_of_recurrence
from sat_tf.graph.operation_layers import LongShortTermMemory
from sat_tf.graph.operations import operation

L = keras.layers


def _sources(call: operation.OldCall) -> list[Any]:
    """The sequence and the initial states of a call that can become layers; [] of any other call.

    Initial states of constant zeros count as none.
    """
    layer, sources = call.layer, call.argument(0, "inputs")
    sources = [*sources] if isinstance(sources, list | tuple) else [sources]
    # Keras 3 calls it with training=False, which is its default there.
    arguments = {**dict(enumerate(call.node.call_args[1:])), **call.node.call_kwargs}
    states = arguments.pop("initial_state", None)
    numbers = operation.constant_of(states)
    if states is not None and (numbers is None or np.any(numbers)):
        sources += states if isinstance(states, list | tuple) else [states]
    options = [value for value in arguments.values() if value is not None and value is not False]
    if options or layer.stateful or not all(map(operation.is_keras, sources)):
        return []
    has_states = len(sources) > 1
    misfit = misfit_of_recurrence(layer, sources[0].shape[1], has_states=has_states)
    return [] if misfit or len(sources) not in (1, 1 + _STATES.get(type(layer), 0)) else sources


def _recurrence(call: operation.OldCall) -> operation.Replacement | None:
    """An LSTM of all steps, or the layers of single steps.

    Dropout becomes a layer in front, which drops a feature in all steps, as Keras does, but for all
    gates at once.
    """
    layer, sources = call.layer, _sources(call)
    if not sources:
        return None
    layers, source = operation.NewLayers(len(sources)), 0
    if layer.dropout:
        source = layers.add("SpatialDropout1D", layer.dropout, suffix="dropout", reads=(0,))
    if is_fused(layer) and len(sources) == 1:
        _fused(layers, layer, int(sources[0].shape[1]))
    else:
        _unrolled(_Unrolled(layers, layer, int(sources[0].shape[1]), source, len(sources) - 1))
    if layer.activity_regularizer is not None:
        layers.add(regularization_of(layer), suffix="regularization")
    return operation.Replacement(sources, layers)


def _fused(layers: operation.NewLayers, layer: Any, steps: int) -> None:
    """Adds an LSTM of all steps, with a slice after it where the last one is the output."""
    settings = {**layer.get_config(), "go_backwards": False, "return_sequences": True}
    settings |= {"dropout": 0.0, "activity_regularizer": None}
    if layer.go_backwards:
        layers.put(_reversed(steps))
    layers.put(operation.of_config(LongShortTermMemory, settings, layer.get_weights()))
    if not layer.return_sequences:
        last = [steps - 1, steps, None]
        layers.add("Slice", [last, [None, None, None]], [0], suffix="last")


def _reversed(steps: int) -> operation.NewLayer:
    return operation.new_layer("Gather", [*reversed(range(steps))], 0, suffix="reversed")


def _unrolled(unrolled: "_Unrolled") -> None:
    """Adds the layers of all steps, and the sequence of their states where that is the output.

    Sums and products that are states of a sequence are computed twice: they have one grid there,
    and before the next step a grid each, so that no operators have to change it.
    """
    layers, layer, steps = unrolled.layers, unrolled.layer, unrolled.steps
    step, state, sequence = _STEPS[type(layer)](unrolled), 1, list[int]()
    if not unrolled.num_states:
        # Before the first step the state is 0: a difference of equal values, also of their codes.
        values = unrolled.part("values", unrolled.row, 0, layer.units)
        state = unrolled.zeros = unrolled.add("Subtract", "zeros", values, values)
    order = range(steps)[::-1] if layer.go_backwards else range(steps)
    for unrolled.index in order:
        state, is_last = step(state), unrolled.index == order[-1]
        if layer.return_sequences and not is_last and type(layer) is not L.SimpleRNN:
            sequence.append(layers.put(layers[-1], suffix=f"shown_{unrolled.index}"))
        else:
            sequence.append(state)
    if not layer.return_sequences:
        layers[-1] = dataclasses.replace(layers[-1], suffix="")
        return
    if steps > 1:
        layers.add("Concatenate", suffix="sequence", reads=tuple(sequence))
    layers.add("Reshape", (steps, layer.units))


@dataclasses.dataclass
class _Unrolled:
    """The steps of a recurrent layer, to whose layers those of the step `index` are added."""

    layers: operation.NewLayers
    layer: Any
    steps: int
    source: int  # The place of the sequence.
    num_states: int  # The number of initial states of the call, at the places 1 and 2.
    index: int = 0
    row: int = 0  # The place of the products of all inputs for the last gates.
    zeros: int = -1  # The place of a state of zeros, which no sum reads: its grid is arbitrary.

    def add(self, layer: str, suffix: str, *reads: int, of: Sequence[Any] = ()) -> int:
        """Adds a layer of the step, with some arguments; returns its place."""
        return self.layers.add(layer, *of, suffix=f"{suffix}_{self.index}", reads=reads)

    def activated(self, function: Any, suffix: str, place: int) -> int:
        """Adds an activation, unless it is linear; returns the place of the values after it."""
        if function is keras.activations.linear:
            return place
        return self.add("Activation", suffix, place, of=(function,))

    def part(self, suffix: str, place: int, number: int, size: int) -> int:
        """Adds the slice with one of a tensor's parts of a size; returns its place."""
        return self.add("Slice", suffix, place, of=([[number * size, (number + 1) * size, None]],))

    def sums(self, name: str, signs: Mapping[int, float]) -> "_Sums":
        """Adds the products of all inputs for some gates, each with a sign, by Keras' numbers."""
        layer, size = self.layer, len(signs) * self.layer.units
        columns = np.concatenate([np.arange(layer.units) + i * layer.units for i in signs])
        factors = np.repeat([*signs.values()], layer.units).astype(np.float32)
        kernel, recurrent, *bias = (factors * w[..., columns] for w in layer.get_weights())
        # A GRU with reset_after has a bias of the state, too.
        biases = [row for array in bias for row in np.atleast_2d(array)]

        def dense(suffix: str, regularizer: Any, *weights: Any) -> operation.NewLayer:
            has_bias = len(weights) > 1
            settings = {"use_bias": has_bias, "kernel_regularizer": regularizer}
            settings |= {"bias_regularizer": layer.bias_regularizer} if has_bias else {}
            return operation.new_layer(
                "Dense", size, suffix=f"{name}_{suffix}", weights=weights, **settings
            )

        of_inputs = dense("inputs", layer.kernel_regularizer, kernel, *biases[:1])
        self.layers.put(of_inputs, self.source)
        self.row = self.layers.add("Reshape", (self.steps * size,), suffix=f"{name}_row")
        of_state = dense("state", layer.recurrent_regularizer, recurrent, *biases[1:])
        return _Sums(self, name, size, self.row, of_state)


@dataclasses.dataclass
class _Sums:
    """The sums of some gates in a step, in front of their function."""

    steps: _Unrolled
    name: str
    size: int
    row: int  # The place of the products of all inputs, one after the other.
    dense: operation.NewLayer  # The layer that multiplies a state, in its next call.

    def of_inputs(self) -> int:
        """Adds the slice with the products of the step's inputs; returns its place."""
        return self.steps.part(f"{self.name}_input", self.row, self.steps.index, self.size)

    def of_state(self, state: int) -> int:
        """Adds the products of a state; returns their place."""
        layers = self.steps.layers
        place = layers.put(self.dense, state)
        if self.dense.again is None:
            again = place - layers.num_sources
            self.dense = dataclasses.replace(self.dense, weights=(), again=again)
        return place

    def total(self, state: int) -> int:
        """Adds the sum of both; returns its place."""
        inputs, products = self.of_inputs(), self.of_state(state)
        return self.steps.add("Add", f"{self.name}_sums", inputs, products)


# The function that adds a step to a state, and returns the place of the next one.
_Step = Callable[[int], int]


def _simple(steps: _Unrolled) -> _Step:
    sums = steps.sums("products", {0: 1.0})
    return lambda state: steps.activated(steps.layer.activation, "state", sums.total(state))


def _gru(steps: _Unrolled) -> _Step:
    layer, units = steps.layer, steps.layer.units
    gates = steps.sums("gates", {0: -1.0, 1: 1.0})
    candidate = steps.sums("candidate", {2: 1.0})

    def step(state: int) -> int:
        both = steps.activated(layer.recurrent_activation, "gates", gates.total(state))
        update, reset = (steps.part(n, both, i, units) for i, n in enumerate(("update", "reset")))
        if layer.reset_after:
            seen = steps.add("Multiply", "seen", reset, candidate.of_state(state))
        else:
            seen = candidate.of_state(steps.add("Multiply", "seen", reset, state))
        total = steps.add("Add", "candidate_sums", candidate.of_inputs(), seen)
        new = steps.activated(layer.activation, "candidate", total)
        if state == steps.zeros:
            return steps.add("Multiply", "state", update, new)
        difference = steps.add("Subtract", "difference", new, state)
        return steps.add("Add", "state", state, steps.add("Multiply", "change", update, difference))

    return step


def _lstm(steps: _Unrolled) -> _Step:
    layer, units = steps.layer, steps.layer.units
    gates, candidate = steps.sums("gates", {0: 1.0, 1: 1.0, 3: 1.0}), steps.sums("new", {2: 1.0})
    cells = [2] * (steps.num_states > 1)

    def step(state: int) -> int:
        total = steps.activated(layer.recurrent_activation, "gates", gates.total(state))
        opens, shows = (steps.part(n, total, i, units) for i, n in ((0, "opens"), (2, "shows")))
        new = steps.activated(layer.activation, "new", candidate.total(state))
        added = steps.add("Multiply", "added", opens, new)
        if cells:
            keeps = steps.part("keeps", total, 1, units)
            remembered = steps.add("Multiply", "kept", keeps, cells[-1])
            added = steps.add("Add", "cell", remembered, added)
        cells.append(added)
        return steps.add(
            "Multiply", "state", shows, steps.activated(layer.activation, "cell_out", cells[-1])
        )

    return step


_STATES = {L.SimpleRNN: 1, L.GRU: 1, L.LSTM: 2}
_STEPS: dict[type, Callable[[_Unrolled], _Step]] = {
    L.SimpleRNN: _simple,
    L.GRU: _gru,
    L.LSTM: _lstm,
}

# -- both directions ------------------------------------------------------------------------------

_MERGES = {"concat": "Concatenate", "sum": "Add", "mul": "Multiply", "ave": "Average"}


def _both_ways(call: operation.OldCall) -> operation.Replacement | None:
    """A layer for each direction, one of which gives its sequence in reverse, and their merge."""
    layer, sources = call.layer, _sources(call)
    if not sources or layer.merge_mode not in _MERGES:
        return None
    layers, ends = operation.NewLayers(), list[int]()
    for suffix in ("forward", "backward"):
        inner = getattr(layer, f"{suffix}_layer")
        settings, weights = inner.get_config(), inner.get_weights()
        end = layers.put(operation.of_config(type(inner), settings, weights, suffix), 0)
        if suffix == "backward" and inner.return_sequences:
            end = layers.put(_reversed(sources[0].shape[1]))
        ends.append(end)
    layers.add(_MERGES[layer.merge_mode], reads=tuple(ends))
    return operation.Replacement(sources, layers)


LAYERS: dict[type, operation.Finder] = {
    **dict.fromkeys(_STEPS, operation.alone_or_alike(_recurrence)),
    L.Bidirectional: operation.alone_or_alike(_both_ways),
}
