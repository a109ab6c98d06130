"""The comparison of a quantized tf_keras model with its Keras 3 form, on random pixels."""

import dataclasses
import inspect
from collections.abc import Callable, Iterator
from typing import Any

import keras as keras3
import numpy as np
import tensorflow as tf
import tf_keras as keras

from sat_tf.keras3.calls import LayerCall
from sat_tf.keras3.inference_layers import QuantizedActivation
from sat_tf.keras3.pieces import run
from sat_tf.keras3.proof import TOLERANCE, UNKNOWN_SIZE, difference
from sat_tf.qat.input_ranges import PIXELS
from sat_tf.qat.quantizers import ImageQuantizer

_IMAGES = 4
_SEED = 21
# A code flips where the value before rounding is within the rounding of the sums of a tie: of 1e-6
# of the largest value, one in some 10 000 at 8 bits. More are no ties.
_FLIPS = 1e-3


@dataclasses.dataclass
class InferenceProof:
    """What was found.

    Attributes:
        codes: how many codes the quantizers of the network made.
        codes_differing: how many were the next one in Keras 3, given equal inputs.
        difference: of the outputs of the whole, in parts of their largest value.
    """

    codes: int = 0
    codes_differing: int = 0
    difference: float = 0.0


def prove(
    model: keras.Model,
    exported: Any,
    calls: list[LayerCall],
    made: dict[int, list[Callable[..., Any]]],
) -> InferenceProof:
    """Compares every layer on what the tf_keras layer reads, and the outputs of the whole.

    Args:
        model: the quantized model.
        exported: the Keras 3 model.
        calls: of `model`.
        made: what `exported` calls for every layer of `model`, by the layer's identity.

    Raises:
        ValueError: a layer computes something else; names the first, with the difference.
    """
    proof, values = InferenceProof(), {}
    images = list(_pixels(calls))
    inputs = iter(images)
    for call in calls:
        if isinstance(call.layer, keras.layers.InputLayer):
            values[id(call.outputs[0])] = tf.convert_to_tensor(next(inputs))
            continue
        args, kwargs = call.filled_in(values)
        # Random layers of tf_keras take part in training unless they are told not to.
        takes_training = "training" in inspect.signature(call.layer.call).parameters
        mode = {"training": False} if takes_training else {}
        expected = tf.nest.flatten(call.layer(*args, **kwargs, **mode))
        pieces = made[id(call.layer)]
        received = keras3.tree.flatten(run(pieces, *_for_keras3((args, kwargs))))
        for symbol, one, other in zip(call.outputs, expected, received, strict=True):
            values[id(symbol)] = one
            problem = _compare(pieces, one, other, proof)
            if problem:
                raise ValueError(f"model {model.name!r}: {call.layer.name}: {problem}")
    by_symbol = {id(symbol): values[id(symbol)] for call in calls for symbol in call.outputs}
    given = [by_symbol[id(symbol)].numpy() for symbol in model.inputs]
    packed = tf.nest.pack_sequence_as(model._nested_inputs, given)
    whole = keras3.tree.flatten(exported(packed, training=False))
    expected = [by_symbol[id(symbol)] for symbol in model.outputs]
    proof.difference = max(map(difference, expected, whole))
    if proof.codes_differing == 0 and not proof.difference <= TOLERANCE:
        raise ValueError(
            f"model {model.name!r}: received a model whose outputs differ in Keras 3 by "
            f"{proof.difference:.2g} of their largest value though all its layers agree, expected "
            f"at most {TOLERANCE:g}; call it with KERAS_BACKEND=tensorflow."
        )
    return proof


def _compare(
    pieces: list[Callable[..., Any]], expected: Any, received: Any, proof: InferenceProof
) -> str | None:
    """What is wrong with the output of one layer; counts its codes."""
    last = pieces[-1] if pieces else None
    if not isinstance(last, QuantizedActivation):
        found = difference(expected, received)
        if found <= TOLERANCE:
            return None
        return (
            f"received a layer whose output differs in Keras 3 by {found:.2g} of its largest "
            f"value, expected at most {TOLERANCE:g}; build the model without it."
        )
    step = np.float64(keras3.ops.convert_to_numpy(last.step))
    one, other = (
        np.asarray(values, np.float64)
        for values in (expected.numpy(), keras3.ops.convert_to_numpy(received))
    )
    apart = np.abs(one - other) / step
    flipped = int(np.count_nonzero(apart > 0.5))
    proof.codes += one.size
    proof.codes_differing += flipped
    # Two neighbours are a step apart, but for the rounding of the step in a lower precision.
    too_far = not np.max(apart, initial=0.0) < 1.5
    largest = np.max(np.abs(one), initial=0.0)
    too_far |= np.max(apart[apart <= 0.5], initial=0.0) * step > TOLERANCE * largest
    if too_far or flipped > max(1.0, _FLIPS * one.size) or np.any(np.isnan(apart)):
        return (
            f"received a quantizer of which {flipped} of {one.size} codes differ in Keras 3, by up "
            f"to {np.max(apart):.2g} steps, expected at most {_FLIPS:g} of them, by one step; run "
            "it with KERAS_BACKEND=tensorflow."
        )
    return None


def _for_keras3(values: Any) -> Any:
    if keras3.backend.backend() == "tensorflow":
        return values
    return tf.nest.map_structure(
        lambda value: value.numpy() if tf.is_tensor(value) else value, values
    )


def _pixels(calls: list[LayerCall]) -> Iterator[np.ndarray]:
    draws = np.random.default_rng(_SEED)
    ranges = {}
    for call in calls:
        config = getattr(call.layer, "quantize_config", None)
        if config is not None and isinstance(config.output, ImageQuantizer):
            ranges[id(call.node.keras_inputs[0])] = config.output.range
    for call in calls:
        if not isinstance(call.layer, keras.layers.InputLayer):
            continue
        batch, *rest = call.outputs[0].shape
        shape = (batch or _IMAGES, *(UNKNOWN_SIZE if size is None else size for size in rest))
        dtype = call.outputs[0].dtype.as_numpy_dtype
        found = ranges.get(id(call.outputs[0]), PIXELS)
        yield found.fed(draws.integers(0, 256, shape)).astype(dtype)
