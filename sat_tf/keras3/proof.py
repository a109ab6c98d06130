"""The proof that a tf_keras model computes what the Keras 3 one computes: on random input.

Every layer is compared on its own, given the inputs of the Keras 3 layer: a classifier of random
weights ends in nearly equal probabilities, and would hide a wrong one. Differences are fractions of
the largest absolute value in Keras 3. Tensors of a lower precision (`mixed_bfloat16`) are compared
to two units in their last place.

Two ways to compute the same in float32 differ where a layer, or a graph, magnifies rounding. The
loss is how far Keras 3 itself moves where the tensors on the way move by a unit in the last place
of their largest value.

Backends round sums and tanh in different last bits, and a value that is nearly halfway between two
codes then becomes the other one: these ties do not count as differences of a quantized layer.
"""

import contextlib
import dataclasses
from collections.abc import Callable, Iterator
from typing import Any

import keras as keras3
import numpy as np
import tensorflow as tf

from sat_tf.arguments import training_argument
from sat_tf.keras3.call_graph import LOWER_PRECISIONS, GraphCall
from sat_tf.keras3.quantized_layer import QuantizedLayer as QuantizedLayer3
from sat_tf.keras3.translator import Translated, to_tf_keras
from sat_tf.keras3.variable_values import keep_codes
from sat_tf.messages import ModelError, kind_of, reason_of, warn
from sat_tf.qat.wrapper import QuantizedLayer
from sat_tf.quantizers.protocol import ActivationQuantizer
from sat_tf.quantizers.quantizing_layer import standing_in
from sat_tf.quantizers.values import WITHIN

TOLERANCE = 1e-5
# Up to this many times float32's loss, differences are rounding; no layer's is above the limit.
_TIMES_LOST = 8.0
_LARGEST_OF_ROUNDING = 1e-3
_LAST_PLACE = 2.0**-23
# A weight's code flips where the weight is as near to a tie as float32 is rounded: few are.
FLIPS = 1e-3
# Two codes are neighbours up to this many steps: a scale is rounded, too, in a lower precision.
_NEIGHBOURS = 1.5
UNKNOWN_SIZE = 64  # the size of an image, where the model leaves it open
_SEED = 20
# Values around zero, and pixels as preprocessing layers take them: half of the images of each.
_RANGES = ((-1.0, 1.0), (0.0, 255.0))


@dataclasses.dataclass
class Proof:
    """The comparison of two models: differences as fractions of the largest value."""

    difference: float | None  # The largest of the outputs, where the whole model was compared.
    layer_difference: float = 0.0  # The largest difference of all layers and operations.
    is_lower: bool = False  # Some tensors have a lower precision than float32.


def prove(made: Translated, *, whole: bool = False) -> Proof:
    """Compares all layers, and the `whole` model too, in which their differences add up."""
    proof = Proof(difference=0.0 if whole else None)
    calls = [type(translation.graph.model).call for translation in made.models()]
    has_own_call = any(not call.__module__.startswith("keras.") for call in calls)
    is_quantized = any(isinstance(twin, QuantizedLayer) for _, _, twin in made.layers())
    for inputs in _random_inputs(made):
        expected = _run(made, inputs, proof)
        packed = made.graph.pack_inputs(inputs)
        if has_own_call:
            outputs = keras3.tree.flatten(made.graph.model(packed, training=False))
            off = max(map(_difference, expected, outputs))
            if off > TOLERANCE and off > _TIMES_LOST * _lost(made, inputs, expected):
                _refuse_whole(made, proof, off)
        if whole:
            outputs = tf.nest.flatten(made.model(_as_tf(packed), training=False))
            off = max(map(_difference, expected, outputs))
            proof.difference = max(proof.difference or 0.0, off)
            if not is_quantized and off > TOLERANCE:
                along = _walked(made, [_as_tf(values) for values in inputs], _in_tf_keras)
                _refuse_whole(made, proof, max(map(_difference, along, outputs)))
                _judge_whole(made, proof, off, _lost(made, inputs, expected), expected, outputs)
    return proof


def _refuse_whole(translation: Translated, proof: Proof, off: float) -> None:
    if off <= TOLERANCE or proof.is_lower:
        return
    raise ModelError(
        translation.graph.name,
        f"received a model whose outputs differ in tf_keras by "
        f"{off:.2g} of their largest value though all its layers agree, expected at most "
        f"{TOLERANCE:g}; its call does something else than its graph: build it as "
        "keras.Model(inputs, outputs).",
    )


def _judge_whole(
    translation: Translated, proof: Proof, off: float, lost: float, expected: Any, received: Any
) -> None:
    """Warns of a difference `off` that adds up from layers; refuses one that changes answers."""
    if off <= _TIMES_LOST * lost or proof.is_lower:
        return
    differs = (
        "received a model whose outputs differ in tf_keras by "
        f"{off:.2g} of their largest value, where float32 loses {lost:.2g} to rounding"
    )
    changed = max(map(_changed_answers, expected, received))
    if changed > FLIPS:
        raise ModelError(
            translation.graph.name,
            f"{differs}, and {changed:.1%} of its answers, expected at most {FLIPS:.1%} of these; "
            "the differences of its layers add up: build it of fewer layers, or build it with "
            "tf_keras and load the weights by layer name.",
        )
    warn(f"model {translation.graph.name!r}: {differs}; its answers are the same.")


def _changed_answers(expected: Any, received: Any) -> float:
    """The fraction of the largest values along the last axis that are in another place."""
    theirs, ours = (np.argmax(_as_array(values), axis=-1) for values in (expected, received))
    return float(np.mean(theirs != ours))


def _lost(translation: Translated, inputs: list[Any], expected: list[Any]) -> float:
    """The difference that rounding alone makes in the outputs of a model: see the module."""
    draws = np.random.default_rng(_SEED)

    def moved(call: GraphCall, function: Any, values: dict[int, Any], name: str) -> list[Any]:
        return [_moved(output, draws) for output in _in_keras3(name, call, values)]

    start = [_moved(values, draws) for values in inputs]
    return max(map(_difference, expected, _walked(translation, start, moved)))


def _moved(values: Any, draws: np.random.Generator) -> Any:
    """A tensor with random values moved by a unit in the last place of the largest of its half.

    The halves come from different ranges of inputs. Tensors of types other than float32 stay.
    """
    if not hasattr(values, "dtype") or keras3.backend.standardize_dtype(values.dtype) != "float32":
        return values
    array = _as_array(values)
    is_even = array.ndim > 0 and len(array) % 2 == 0
    halves = np.split(array, 2) if is_even and len(array) else [array]
    sizes = [np.max(np.abs(half), where=np.isfinite(half), initial=0.0) for half in halves]
    noise = [
        (draws.integers(-1, 2, half.shape) * (_LAST_PLACE * size)).astype(np.float32)
        for half, size in zip(halves, sizes, strict=True)
    ]
    moved = array + (np.concatenate(noise) if len(noise) > 1 else noise[0])
    return moved if isinstance(values, np.ndarray) else keras3.ops.convert_to_tensor(moved)


def _walked(
    translation: Translated,
    inputs: list[Any],
    outputs_of: Callable[[GraphCall, Any, dict[int, Any], str], list[Any]],
    prefix: str = "",
) -> list[Any]:
    """The outputs of a graph of Keras 3, call by call."""
    values = {id(t): v for t, v in zip(translation.graph.inputs, inputs, strict=True)}
    # Tensors are forgotten when they have been read: those of a large network are 100 MB and more.
    last_readers = {id(t): call for call, _, _ in translation.calls for t in call.tensors}
    output_ids = {id(tensor) for tensor in translation.graph.outputs}
    for call, function, nested in translation.calls:
        operation = call.operation
        if nested is not None:
            args, _ = call.filled_in(values, lambda value: value)
            nested_inputs = keras3.tree.flatten(args[0])
            outputs = _walked(nested, nested_inputs, outputs_of, f"{prefix}{operation.name}/")
        else:
            inner = operation.layer if isinstance(operation, QuantizedLayer3) else operation
            outputs = outputs_of(call, function, values, f"{prefix}{inner.name}")
        values.update({id(t): v for t, v in zip(call.outputs, outputs, strict=True)})
        for tensor_id in {id(tensor) for tensor in call.tensors} - output_ids:
            if last_readers[tensor_id] is call:
                values.pop(tensor_id, None)
    return [values[id(tensor)] for tensor in translation.graph.outputs]


def _in_tf_keras(call: GraphCall, function: Any, values: dict[int, Any], name: str) -> list[Any]:
    args, kwargs = (_as_tf(arguments) for arguments in call.filled_in(values, to_tf_keras))
    return _call_tf_keras(function, args, kwargs)


def _run(translation: Translated, inputs: list[Any], proof: Proof) -> list[Any]:
    """Runs the graph of Keras 3 call by call, and compares each; returns the outputs."""

    def compared(call: GraphCall, function: Any, values: dict[int, Any], name: str) -> list[Any]:
        with _watched(call.operation) as seen:
            outputs = _in_keras3(name, call, values)
        if isinstance(function, QuantizedLayer):
            args = _as_tf(call.filled_in(values, to_tf_keras)[0])
            off = _compare_quantized(name, function, args[0], seen, outputs)
        else:
            received = _in_tf_keras(call, function, values, name)
            off = max(map(_difference, outputs, received), default=0.0)
        limit = max([TOLERANCE, *(_tolerance(output) for output in (*call.outputs, *outputs))])
        proof.is_lower |= limit > TOLERANCE
        if limit < off <= _LARGEST_OF_ROUNDING:
            draws = np.random.default_rng(_SEED)
            moved = {id(tensor): _moved(values[id(tensor)], draws) for tensor in call.tensors}
            moved_outputs = _in_keras3(name, call, moved)
            limit = max(limit, _TIMES_LOST * max(map(_difference, outputs, moved_outputs)))
        proof.layer_difference = max(off, proof.layer_difference)
        if not off <= limit:
            operation = call.operation
            inner = operation.layer if isinstance(operation, QuantizedLayer3) else operation
            raise ModelError(
                translation.graph.name,
                f"{name}: received {kind_of(inner)} whose output differs in tf_keras by {off:.2g} "
                "of its largest value, on what the Keras 3 layer reads, expected at most "
                f"{limit:.2g}. Build this layer from others, or build the model with tf_keras and "
                "load the weights by layer name.",
            )
        return outputs

    return _walked(translation, inputs, compared)


@dataclasses.dataclass
class _Seen:
    """The values that a quantized layer of Keras 3 computes on its way to its outputs."""

    kernel: Any = None  # Its effective kernel; None where it has none.
    # The tensors that it gives to its output quantizer.
    quantized: list[Any] = dataclasses.field(default_factory=list)


@contextlib.contextmanager
def _watched(layer: Any) -> Iterator[_Seen]:
    """A scope that records a layer's effective kernel, and the inputs of its output quantizer."""
    seen = _Seen()
    weights: Any = getattr(layer, "weight_quantizer", None)
    output: Any = getattr(layer, "output_quantizer", None)

    def effective(*args: Any) -> Any:
        seen.kernel = weights(*args)
        return seen.kernel

    def quantize(tensor: Any, *args: Any) -> Any:
        seen.quantized.append(tensor)
        return output(tensor, *args)

    vars(quantize)["code_range"] = getattr(output, "code_range", None)  # layers may ask for it
    functions: dict[str, Any] = {} if weights is None else {"weight_quantizer": effective}
    functions |= {} if output is None else {"output_quantizer": quantize}
    with standing_in(layer, functions):
        yield seen


def _difference(expected: Any, received: Any) -> float:
    """The `difference` of the halves of two tensors, which come from different input ranges."""
    theirs, ours = _as_array(expected), _as_array(received)
    if np.array_equal(theirs, ours):  # most are, and this takes a tenth of the time
        return 0.0
    if theirs.shape != ours.shape or theirs.ndim == 0 or len(theirs) % 2:
        return difference(theirs, ours)
    return max(map(difference, np.split(theirs, 2), np.split(ours, 2)))


def difference(expected: Any, received: Any) -> float:
    """The largest absolute difference, as a fraction of the largest absolute value expected.

    Equal infinities and two NaNs do not differ; other shapes, or a NaN in only one, do infinitely.
    """
    theirs, ours = _as_array(expected), _as_array(received)
    if theirs.shape != ours.shape:
        return float("inf")
    theirs, ours = theirs.astype(np.float64), ours.astype(np.float64)
    same = (theirs == ours) | (np.isnan(theirs) & np.isnan(ours))
    apart = np.abs(np.subtract(theirs, ours, where=~same, out=np.zeros_like(theirs)))
    if not np.all(np.isfinite(apart)):
        return float("inf")
    largest = np.max(np.abs(theirs), where=np.isfinite(theirs), initial=0.0)
    gap = float(np.max(apart, initial=0.0))
    return gap / float(largest) if largest > 0.0 else float("inf" if gap else 0.0)


def _in_keras3(name: str, call: GraphCall, values: dict[int, Any]) -> list[Any]:
    operation, (args, kwargs) = call.operation, call.filled_in(values, lambda value: value)
    try:
        outputs = operation(*args, **{**kwargs, **training_argument(operation.call, False)})
    except Exception as error:  # the class depends on the backend
        raise ValueError(
            f"{name}: received {kind_of(operation)} that Keras 3 itself does not run on "
            f"random input ({reason_of(error)}), expected one that it does; call the Keras 3 model "
            "on data to see why."
        ) from error
    return list(keras3.tree.flatten(outputs))


def _call_tf_keras(function: Any, args: Any, kwargs: Any) -> list[Any]:
    # Random layers of tf_keras take part in training unless they are told not to.
    kwargs = {**kwargs, **training_argument(getattr(function, "call", function), False)}
    return list(tf.nest.flatten(function(*args, **kwargs)))


def _compare_quantized(
    name: str, layer: QuantizedLayer, inputs: Any, seen: _Seen, expected: list[Any]
) -> float:
    """The difference of a quantized layer, ties aside, with the effective kernel of Keras 3."""
    output = layer.quantize_config.output
    quantizer = output if isinstance(output, ActivationQuantizer) and len(expected) == 1 else None
    with _kernel_of(name, seen.kernel, layer):
        received = _call_tf_keras(layer, [inputs], {})
        around = layer.quantize_config.around  # the layer's input is then quantized first
        before = inputs if around or quantizer is None else layer.before_quantization(inputs)
        tensors = [] if quantizer is None else [before]
    if quantizer is None:
        return max(map(_difference, expected, received), default=0.0)
    # The steps of a recurrent layer read the codes of those before, which may be neighbours.
    is_recurrent = layer.place == WITHIN
    off = 0.0 if is_recurrent else max(map(_difference, seen.quantized, tensors))
    theirs, ours = (_as_array(*values) for values in (expected, received))
    if theirs.shape != ours.shape or np.array_equal(theirs, ours):
        return max(off, _difference(theirs, ours))
    theirs, ours = theirs.astype(np.float64), ours.astype(np.float64)
    scale = float(quantizer.code_range(layer.output_variables).scale)
    distances = np.abs(theirs - ours) / scale
    flipped = distances > 0.5
    # Any code may be a neighbour where sums have a lower precision than the codes.
    is_lower = any(_tolerance(output) > TOLERANCE for output in (*expected, *received))
    is_near = np.max(distances, initial=0.0) < _NEIGHBOURS
    unrounded = _as_array(before)
    # A layer with its quantizer around it may read a tensor of another shape.
    are_ties = unrounded.shape == theirs.shape and np.all(_are_ties(unrounded, scale) | ~flipped)
    if is_near and (is_lower or is_recurrent or are_ties):
        ours = np.where(flipped, theirs, ours)
    return max(off, _difference(theirs, ours))


def _are_ties(values: np.ndarray, scale: float) -> np.ndarray:
    """Marks values that are as near to halfway between two codes as `TOLERANCE` of the largest."""
    steps = values.astype(np.float64) / scale
    largest = np.max(np.abs(steps), where=np.isfinite(steps), initial=1.0)
    return np.abs(steps - np.floor(steps) - 0.5) <= TOLERANCE * largest


@contextlib.contextmanager
def _kernel_of(name: str, effective: Any, layer: QuantizedLayer) -> Iterator[None]:
    """A scope in which a layer, moved to the codes of its counterpart, has its effective kernel."""
    kernel = keep_codes(layer, effective)
    if kernel is None:
        yield
        return
    theirs = _as_array(effective)
    if not np.array_equal(theirs, kernel):
        off = np.abs(theirs.astype(np.float64) - kernel.numpy())
        differing = int(np.count_nonzero(off > TOLERANCE * np.max(np.abs(theirs), initial=0.0)))
        if differing > max(1.0, FLIPS * off.size):
            raise ValueError(
                f"{name}: received a layer of which {differing} of {off.size} effective weights "
                f"differ in tf_keras, expected at most {FLIPS:g} of them; train and export it with "
                "the versions that sat-tf was tried with."
            )
    constant_kernel = layer.constant_kernel
    layer.use_kernel(tf.constant(theirs))
    try:
        yield
    finally:
        layer.use_kernel(constant_kernel)


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


def _random_inputs(translation: Translated) -> Iterator[list[np.ndarray]]:
    """The inputs to compare on, of all ranges at once where the model takes as many images."""
    draws = np.random.default_rng(_SEED)
    # The bound of random integers: pixels, or ids that all embeddings hold.
    layers = [getattr(layer, "layer", layer) for _, layer, _ in translation.layers()]
    largest = min([256, *(layer.input_dim for layer in layers if hasattr(layer, "input_dim"))])

    def drawn(tensor: Any, low: float, high: float) -> np.ndarray:
        batch, *sizes = tensor.shape
        shape = (batch or 1, *(size if size is not None else UNKNOWN_SIZE for size in sizes))
        dtype = str(tensor.dtype)
        if dtype == "bool":
            return draws.integers(0, 2, shape).astype(bool)
        if "int" in dtype:
            return draws.integers(0, largest, shape).astype(dtype)
        # Floats may be ids too.
        numbers = draws.uniform(low, min(high, largest), shape).astype(np.float32)
        return np.asarray(tf.cast(numbers, dtype))

    of_ranges = [[drawn(tensor, *ends) for tensor in translation.graph.inputs] for ends in _RANGES]
    if any(tensor.shape[0] is not None for tensor in translation.graph.inputs):
        yield from of_ranges
    else:
        yield [np.concatenate(arrays) for arrays in zip(*of_ranges, strict=True)]
