"""The proof that a tf_keras model computes what the Keras 3 one computes: on random input.

Every layer is compared twice. On its own: given the inputs of the Keras 3 layer, does it give the
same outputs? A classifier of random weights ends in nearly equal probabilities, and would hide a
wrong layer. And in its place: given the outputs of the tf_keras layers before it. Differences
are absolute, as fractions of the largest absolute value in Keras 3. Tensors of a lower precision
(`mixed_bfloat16`) are compared to two units in their last place, on their own alone.

Of a quantized model, layers are compared on their own alone. Backends round sums and tanh in
different last bits, and a value that is nearly halfway between two codes then becomes the other
one: such codes are counted, and all else is compared as closely as that of any layer.
"""

import dataclasses
import inspect
from collections.abc import Callable, Iterator
from typing import Any

import keras as keras3
import numpy as np
import tensorflow as tf

from sat_tf.keras3.conversion.operation_table import LOWER_PRECISIONS
from sat_tf.keras3.conversion.translator import Translated, to_tf_keras
from sat_tf.messages import kind_of
from sat_tf.qat.wrapper import QuantizedLayer
from sat_tf.quantizers.protocol import ActivationQuantizer

TOLERANCE = 1e-5
# A code flips where the value before rounding is as near to a tie as sums are rounded, 1e-6 of the
# largest value: one code in about 10 000 at 8 bits. More are not ties.
FLIPS = 1e-3
# Two codes are neighbours up to this many steps: a scale is rounded, too, in a lower precision.
_NEIGHBOURS = 1.5
_BATCH = 2
UNKNOWN_SIZE = 64  # of an image whose size the model leaves open
_SEED = 20
# Values around zero, and pixels as preprocessing layers take them.
_RANGES = ((-1.0, 1.0), (0.0, 255.0))


@dataclasses.dataclass(frozen=True)
class Proof:
    """The result of a proof.

    Attributes:
        difference: the largest of the model's outputs, as a fraction of its largest value.
        layer_difference: the largest of a layer on its own.
        num_calls: how many layers and operations were compared.
        codes_differing: how many codes of layers on their own differ, all of them ties.
    """

    difference: float
    layer_difference: float
    num_calls: int
    codes_differing: int = 0


@dataclasses.dataclass
class _Found:
    """The differences found while a graph was run, by layer: on its own and in place."""

    alone: dict[str, float] = dataclasses.field(default_factory=dict)
    in_place: dict[str, float] = dataclasses.field(default_factory=dict)
    kinds: dict[str, str] = dataclasses.field(default_factory=dict)
    tolerances: dict[str, float] = dataclasses.field(default_factory=dict)
    codes: int = 0

    def add(
        self, name: str, kind: str, alone: float, in_place: float, tolerance: float = TOLERANCE
    ) -> None:
        self.kinds[name] = kind
        self.tolerances[name] = tolerance
        self.alone[name] = max(alone, self.alone.get(name, 0.0))
        self.in_place[name] = max(in_place, self.in_place.get(name, 0.0))


def prove(made: Translated) -> Proof:
    """Compares both models.

    Raises:
        ValueError: a layer computes something else in tf_keras; names the first, with the
            difference.
    """
    found, largest = _Found(), 0.0
    for low, high in _RANGES:
        inputs = list(_random_inputs(made, low, high))
        outputs = _run(made, inputs, inputs, found, "")
        if (low, high) == _RANGES[0]:  # once, because what is called is the graph that was run
            largest = _whole_difference(made, inputs)
        largest = max([largest, *map(difference, *outputs)])
        adds_up = not made.is_quantized and set(found.tolerances.values()) == {TOLERANCE}
        _refuse(made, found, largest if adds_up else 0.0)
    return Proof(largest, max(found.alone.values(), default=0.0), len(found.alone), found.codes)


def _refuse(made: Translated, found: _Found, largest: float) -> None:
    tolerances = found.tolerances
    wrong = [name for name, other in found.alone.items() if not other <= tolerances[name]]
    how = "alone, on what the Keras 3 layer reads"
    if not wrong and not largest <= TOLERANCE:
        wrong = [name for name, other in found.in_place.items() if not other <= TOLERANCE]
        how = "in its place, where the differences of all layers before it add up"
    if wrong:
        name = wrong[0]
        difference = found.alone[name] if how.startswith("alone") else found.in_place[name]
        raise ValueError(
            f"model {made.graph.name!r}: {name}: received {found.kinds[name]} whose output "
            f"differs in tf_keras by {difference:.2g} of its largest value ({how}), expected at "
            f"most {tolerances[name]:.2g}; it is the first of {len(wrong)} such. Build this layer "
            "from others, or build the model with tf_keras and load the weights by layer name."
        )
    if not largest <= TOLERANCE:
        raise ValueError(
            f"model {made.graph.name!r}: received a model whose outputs differ in tf_keras by "
            f"{largest:.2g} of their largest value though all its layers agree, expected at most "
            f"{TOLERANCE:g}; its call does something else than its graph: build it as "
            "keras.Model(inputs, outputs)."
        )


def _run(
    made: Translated, inputs3: list[Any], inputs: list[Any], found: _Found, prefix: str
) -> tuple[list[Any], list[Any]]:
    """Runs both graphs call by call; returns the outputs of both."""
    values3 = {id(t): v for t, v in zip(made.graph.inputs, inputs3, strict=True)}
    values = {id(t): v for t, v in zip(made.graph.inputs, inputs, strict=True)}
    for call, function, nested in made.calls:
        name = f"{prefix}{call.operation.name}"
        args3, kwargs3 = call.filled_in(values3, lambda value: value)
        args, kwargs = call.filled_in(values, to_tf_keras)
        if nested is not None:
            flat3, flat = (keras3.tree.flatten(given[0]) for given in (args3, args))
            outputs3, outputs = _run(nested, flat3, flat, found, f"{name}/")
        else:
            outputs3 = keras3.tree.flatten(_call_keras3(name, call.operation, args3, kwargs3))
            alone_args, alone_kwargs = call.filled_in(values3, to_tf_keras)
            if isinstance(function, QuantizedLayer):
                alone, flips = _call_quantized(
                    name, call.operation, function, (alone_args, alone_kwargs), outputs3
                )
                found.codes += flips
            else:
                alone = _call_tf_keras(function, alone_args, alone_kwargs)
            given = zip(
                *map(keras3.tree.flatten, ((args, kwargs), (alone_args, alone_kwargs))), strict=True
            )
            outputs = alone
            if not (made.is_quantized or all(one is other for one, other in given)):
                outputs = _call_tf_keras(function, args, kwargs)
            found.add(
                name,
                kind_of(call.operation),
                max(map(difference, outputs3, alone), default=0.0),
                max(map(difference, outputs3, outputs), default=0.0),
                max([TOLERANCE, *(_tolerance(output) for output in (*call.outputs, *outputs3))]),
            )
        for tensor, output3, output in zip(call.outputs, outputs3, outputs, strict=True):
            # Equal outputs are shared, so that what reads them is run once.
            is_equal = made.is_quantized or difference(output3, output) == 0.0
            values3[id(tensor)], values[id(tensor)] = output3, output3 if is_equal else output
    tensors = made.graph.outputs
    return [values3[id(t)] for t in tensors], [values[id(t)] for t in tensors]


def _whole_difference(made: Translated, inputs: list[np.ndarray]) -> float:
    packed = made.graph.pack_inputs(inputs)
    outputs3 = keras3.tree.flatten(made.graph.model(packed, training=False))
    outputs = tf.nest.flatten(made.model(_as_tf(packed), training=False))
    return max(map(difference, outputs3, outputs))


def difference(expected: Any, received: Any) -> float:
    """The largest absolute difference, as a fraction of the largest absolute value expected.

    Equal infinities and two NaNs do not differ; other shapes, or a NaN in only one, differ
    infinitely.

    >>> difference(np.array([1.0, -2.0]), np.array([1.0, -2.5]))
    0.25
    >>> difference(np.array([1.0, np.nan]), np.array([1.0, 0.0]))
    inf
    """
    one, other = _as_array(expected), _as_array(received)
    if one.shape != other.shape:
        return float("inf")
    if np.array_equal(one, other):  # most tensors are, and this takes a tenth of the time
        return 0.0
    one, other = one.astype(np.float64), other.astype(np.float64)
    same = (one == other) | (np.isnan(one) & np.isnan(other))
    apart = np.abs(np.subtract(one, other, where=~same, out=np.zeros_like(one)))
    if not np.all(np.isfinite(apart)):
        return float("inf")
    largest = np.max(np.abs(one), where=np.isfinite(one), initial=0.0)
    found = float(np.max(apart, initial=0.0))
    return found / float(largest) if largest > 0.0 else float("inf" if found else 0.0)


def _call_keras3(name: str, operation: Any, args: Any, kwargs: Any) -> Any:
    if "training" in inspect.signature(operation.call).parameters:
        kwargs = {**kwargs, "training": False}
    try:
        return operation(*args, **kwargs)
    except Exception as error:  # of any class, by backend
        reason = " ".join(str(error).split())[:200] or type(error).__name__
        raise ValueError(
            f"{name}: received {kind_of(operation)} that Keras 3 itself does not run on "
            f"random input ({reason}), expected one that it does; call the Keras 3 model on data "
            "to see why."
        ) from error


def _call_tf_keras(function: Any, args: Any, kwargs: Any) -> list[Any]:
    # Random layers of tf_keras take part in training unless they are told not to.
    if "training" in inspect.signature(getattr(function, "call", function)).parameters:
        kwargs = {**kwargs, "training": False}
    return list(tf.nest.flatten(function(*_as_tf(args), **_as_tf(kwargs))))


def _call_quantized(
    name: str, layer3: Any, layer: QuantizedLayer, given: tuple[Any, Any], expected: list[Any]
) -> tuple[list[Any], int]:
    """The outputs of a quantized layer in tf_keras, ties aside, and how many of these there are.

    It computes with the effective kernel of the layer in Keras 3, so that a code of a weight which
    flips is counted once, and not in every sum.
    """
    received = _with_kernel_of(name, layer3, layer, lambda: _call_tf_keras(layer, *given))
    quantizer = layer.quantize_config.output
    if not isinstance(quantizer, ActivationQuantizer) or len(expected) != 1:
        return received, 0
    one, other = (_as_array(*values).astype(np.float64) for values in (expected, received))
    scale = float(quantizer.code_range(layer.output_variables).scale)
    distances = np.abs(one - other) / scale
    flipped = distances > 0.5
    flips = int(np.count_nonzero(flipped))
    # Sums in a lower precision than the codes themselves have: any may be a neighbour.
    is_lower = any(_tolerance(output) > TOLERANCE for output in (*expected, *received))
    is_near = np.max(distances, initial=0.0) < _NEIGHBOURS
    if not is_near or flips > max(1.0, (1.0 if is_lower else FLIPS) * distances.size):
        return received, flips
    return [np.where(flipped, one, other)] if flips else received, flips


def _with_kernel_of(name: str, layer3: Any, layer: QuantizedLayer, call: Callable[[], Any]) -> Any:
    """The result of a call while the layer has the effective kernel of its counterpart in Keras 3.

    Raises:
        ValueError: its own kernel has other codes than ties explain.
    """
    kernel = layer.effective_kernel()
    if kernel is None:
        return call()
    theirs = np.asarray(keras3.ops.convert_to_numpy(layer3.effective_kernel()))
    off = np.abs(theirs.astype(np.float64) - kernel.numpy())
    differing = int(np.count_nonzero(off > TOLERANCE * np.max(np.abs(theirs), initial=0.0)))
    if differing > max(1.0, FLIPS * off.size):
        raise ValueError(
            f"{name}: received a layer of which {differing} of {off.size} effective weights differ "
            f"in tf_keras, expected at most {FLIPS:g} of them; train and export it with the "
            "versions that sat-tf was tried with."
        )
    own = layer.constant_kernel
    object.__setattr__(layer, "constant_kernel", tf.constant(theirs))
    try:
        return call()
    finally:
        object.__setattr__(layer, "constant_kernel", own)


def _as_tf(values: Any) -> Any:
    """Arrays of any backend as TensorFlow's; tensors of TensorFlow keep the masks they carry."""

    def convert(value: Any) -> Any:
        if isinstance(value, np.ndarray):
            return tf.convert_to_tensor(value)
        if not tf.is_tensor(value) and keras3.ops.is_tensor(value):
            return tf.convert_to_tensor(keras3.ops.convert_to_numpy(value))
        return value

    return keras3.tree.map_structure(convert, values)


def _as_array(values: Any) -> np.ndarray:
    if not isinstance(values, np.ndarray):
        values = values.numpy() if tf.is_tensor(values) else keras3.ops.convert_to_numpy(values)
    return np.asarray(values)


def _tolerance(tensor: Any) -> float:
    return LOWER_PRECISIONS.get(keras3.backend.standardize_dtype(tensor.dtype), TOLERANCE)


def _random_inputs(made: Translated, low: float, high: float) -> Iterator[np.ndarray]:
    draws = np.random.default_rng(_SEED)
    for tensor in made.graph.inputs:
        batch, *rest = tensor.shape
        shape = (
            batch or _BATCH,
            *(size if size is not None else UNKNOWN_SIZE for size in rest),
        )
        dtype = str(tensor.dtype)
        if dtype == "bool":
            yield draws.integers(0, 2, shape).astype(bool)
        elif "int" in dtype:
            yield draws.integers(0, _largest_index(made), shape).astype(dtype)
        else:
            # These may be ids too.
            numbers = draws.uniform(low, min(high, _largest_index(made)), shape).astype(np.float32)
            yield np.asarray(tf.cast(numbers, dtype))


def _largest_index(made: Translated) -> int:
    """The bound of random integers: pixels, or what all tables of embeddings hold."""
    layers = [getattr(call.operation, "layer", call.operation) for call, _, _ in made.calls]
    sizes = [layer.input_dim for layer in layers if hasattr(layer, "input_dim")]
    nested = [_largest_index(inner) for _, _, inner in made.calls if inner is not None]
    return min([*sizes, *nested, 256])
