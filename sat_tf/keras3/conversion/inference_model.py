"""The Keras 3 form of a quantized tf_keras model, layer by layer, and the comparison of the two."""

import dataclasses
import inspect
from collections.abc import Callable, Iterator
from typing import Any

import keras as keras3
import numpy as np
import tensorflow as tf
import tf_keras as keras

from sat_tf.graph import layer_kinds
from sat_tf.graph.layers.kind import Role
from sat_tf.graph.templates import template_of
from sat_tf.keras3.conversion import inference_table
from sat_tf.keras3.conversion.assembly import Names, run
from sat_tf.keras3.conversion.calls import LayerCall
from sat_tf.keras3.conversion.plain_form import SpelledOut, in_form
from sat_tf.keras3.conversion.proof import TOLERANCE, UNKNOWN_SIZE, difference
from sat_tf.keras3.conversion.quantized_proof import FLIPS, code_distances, too_many_flips
from sat_tf.keras3.inference_layers import PixelGrid, QuantizedActivation
from sat_tf.keras3.inference_operations import InferenceOperation
from sat_tf.qat.wrapper import QuantizedLayer
from sat_tf.quantizers.input_range import PIXELS
from sat_tf.quantizers.protocol import (
    ActivationQuantizer,
    CodeRange,
    PixelQuantizer,
    SatQuantizer,
)


def problem_of(layer: Any, *, exact: bool) -> str | None:
    """Why a layer has no form in Keras 3; None where it has one.

    Args:
        layer: of the tf_keras model.
        exact: its form may be of sat-tf's own layers.
    """
    if not isinstance(layer, QuantizedLayer):
        return _plain_problem(layer, exact)
    config = layer.quantize_config
    if not _is_known(config.output):
        return (
            f"received {config.output!r}, which sat-tf does not know in Keras 3; use a policy "
            "without it"
        )
    if config.weights is not None and not layer_kinds.kernel_name(layer.layer):
        return f"received {type(layer.layer).__name__}, whose kernel sat-tf does not know"
    return None if _needs_only_quantizer(layer) else _plain_problem(layer.layer, exact)


def _is_known(quantizer: SatQuantizer | None) -> bool:
    """Whether it rounds, marks an image or leaves a tensor as it is."""
    if quantizer is None or isinstance(quantizer, ActivationQuantizer | PixelQuantizer):
        return True
    return quantizer.observes_range and quantizer.input_type is None


def pieces_of(layer: Any, names: Names, *, exact: bool) -> list[Callable[..., Any]]:
    """What is called for a layer, in order, the first with the layer's arguments.

    Args:
        layer: a layer without a `problem_of`.
        names: where the pieces get their names.
        exact: see `problem_of`.
    """
    if not isinstance(layer, QuantizedLayer):
        if layer_kinds.role_of(layer) is Role.IDENTITY:
            return []
        return _plain(layer, names, activation=True, kernel=None, exact=exact)
    inner, config = layer.layer, layer.quantize_config
    if _needs_only_quantizer(layer):
        return _quantizer(layer, names, exact)
    kernel = None
    if config.weights is not None:
        kernel = layer_kinds.kernel_name(inner), layer.effective_kernel()
    at_activation = bool(config.get_activations_and_quantizers(inner))
    first = _plain(inner, names, activation=not at_activation, kernel=kernel, exact=exact)
    if at_activation and layer_kinds.is_softmax(inner):
        name = names.give(f"{inner.name}_softmax")
        softmax = keras3.layers.Activation("softmax", name=name, dtype=_policy(inner))
        return [*first, *_quantizer(layer, names, exact), softmax]
    return [*first, *_quantizer(layer, names, exact)]


def _needs_only_quantizer(layer: QuantizedLayer) -> bool:
    """Whether inference needs only the quantizer, not the wrapped layer."""
    config = layer.quantize_config
    return config.replaces(layer.layer) or layer_kinds.role_of(layer.layer) is Role.IDENTITY


def _quantizer(layer: QuantizedLayer, names: Names, exact: bool) -> list[Callable[..., Any]]:
    quantizer = layer.quantize_config.output
    if isinstance(quantizer, PixelQuantizer):
        return _pixel_grid(layer, quantizer, names, exact)
    if quantizer is None or not quantizer.rounds:
        return []
    codes: CodeRange | None = quantizer.code_range(layer.output_variables)
    if codes is None:
        return []
    made = QuantizedActivation(
        *codes.ends,
        from_zero=quantizer.rounds_before_clipping,
        name=names.give(layer.name),
        dtype=_policy(layer.layer),
        trainable=False,
    )
    made.scale.assign(codes.scale)
    return [in_form(made, names.give, exact=exact)]


def _pixel_grid(
    layer: QuantizedLayer, quantizer: PixelQuantizer, names: Names, exact: bool
) -> list[Callable[..., Any]]:
    change = quantizer.range.change
    if change.is_none:
        return []
    made = PixelGrid(
        change.shift.size,
        change.reverses,
        name=names.give(layer.name),
        dtype=_policy(layer.layer),
        trainable=False,
    )
    made.shift.assign(change.shift)
    made.ratio.assign(change.ratio)
    return [in_form(made, names.give, exact=exact)]


def _policy(layer: Any) -> str:
    return layer.dtype_policy.name if hasattr(layer, "dtype_policy") else str(layer.dtype)


def _plain_problem(layer: Any, exact: bool) -> str | None:
    symbol = _symbol(layer)
    if symbol is not None:
        return inference_table.operation_problem(symbol)
    if layer_kinds.role_of(layer) is Role.IDENTITY:
        return None
    if isinstance(layer, keras.layers.InputLayer):
        return None
    return inference_table.problem_of(layer, exact=exact)


def _plain(
    layer: Any, names: Names, *, activation: bool, kernel: tuple[str, Any] | None, exact: bool
) -> list[Callable[..., Any]]:
    symbol = _symbol(layer)
    if symbol is not None:
        return [_CalledOperation(symbol, layer.name, names.give, exact)]
    return inference_table.make_layers(
        layer, names.give, activation=activation, kernel=kernel, exact=exact
    )


def _symbol(layer: Any) -> str | None:
    """The name of the operation of TensorFlow that a layer of tf_keras stands for."""
    if type(layer).__module__.split(".")[0] != "tf_keras":
        return None
    if type(layer).__name__ == "SlicingOpLambda":
        return "__operators__.getitem"
    return getattr(layer, "symbol", None)


class _CalledOperation:
    """An `InferenceOperation` whose arguments are those of its first call."""

    def __init__(self, function: str, name: str, give: Callable[[str], str], exact: bool) -> None:
        self._function = function
        self._name = give(name)
        self._give = give
        self._exact = exact
        self._layer: Callable[..., Any] | None = None

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        args, kwargs = tf.nest.map_structure(_type_name, (list(args), kwargs))
        tensors = [value for value in tf.nest.flatten([args, kwargs]) if hasattr(value, "shape")]
        if self._layer is None:
            places = {id(tensor): place for place, tensor in enumerate(tensors)}
            arguments = template_of([args, kwargs], places)
            layer = InferenceOperation(self._function, arguments, name=self._name)
            self._layer = in_form(layer, self._give, exact=self._exact)
        return self._layer(tensors[0] if len(tensors) == 1 else tensors)


def _type_name(value: Any) -> Any:
    return value.name if isinstance(value, tf.DType) else value


_IMAGES = 4
_SEED = 21


@dataclasses.dataclass
class InferenceProof:
    """The result of the comparison.

    Attributes:
        codes: how many codes the quantizers of the network made.
        codes_differing: how many are others in Keras 3, behind all layers before them.
        difference: of the model's outputs, as a fraction of their largest value.
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
    """Compares every layer on the input of the tf_keras layer, and in its place in the model.

    Args:
        model: the quantized model.
        exported: the Keras 3 model.
        calls: of `model`.
        made: what `exported` calls for every layer of `model`, by the layer's identity.

    Raises:
        ValueError: a layer computes something else; names the first, with the difference.
    """
    proof, values, in_place = InferenceProof(), {}, {}
    images = list(_pixels(calls))
    inputs = iter(images)
    for call in calls:
        if isinstance(call.layer, keras.layers.InputLayer):
            key = id(call.outputs[0])
            values[key] = in_place[key] = tf.convert_to_tensor(next(inputs))
            continue
        args, kwargs = call.filled_in(values)
        # Random layers of tf_keras take part in training unless they are told not to.
        takes_training = "training" in inspect.signature(call.layer.call).parameters
        mode = {"training": False} if takes_training else {}
        expected = tf.nest.flatten(call.layer(*args, **kwargs, **mode))
        pieces = made[id(call.layer)]
        quantizer = _quantizer_of(pieces)
        received = keras3.tree.flatten(run(pieces, *_for_keras3((args, kwargs))))
        for one, other in zip(expected, received, strict=True):
            problem = _problem(pieces, one, other)
            if problem:
                raise ValueError(f"model {model.name!r}: {call.layer.name}: {problem}")
        placed = call.filled_in(in_place)
        pairs = zip(tf.nest.flatten((args, kwargs)), tf.nest.flatten(placed), strict=True)
        if not all(one is other for one, other in pairs):
            received = keras3.tree.flatten(run(pieces, *_for_keras3(placed)))
        for symbol, one, other in zip(call.outputs, expected, received, strict=True):
            values[id(symbol)] = one
            # Equal tensors are shared, so that what reads them is run once.
            in_place[id(symbol)] = one if difference(one, other) == 0.0 else other
            if quantizer is not None:
                proof.codes += int(tf.size(one))
                proof.codes_differing += int(np.sum(_distances(quantizer, one, other) > 0.5))
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


def _problem(pieces: list[Callable[..., Any]], expected: Any, received: Any) -> str | None:
    """The problem of the output of one layer, if any."""
    quantizer = _quantizer_of(pieces)
    if quantizer is None:
        found = difference(expected, received)
        if found <= TOLERANCE:
            return None
        return (
            f"received a layer whose output differs in Keras 3 by {found:.2g} of its largest "
            f"value, expected at most {TOLERANCE:g}; build the model without it."
        )
    distances = _distances(quantizer, expected, received)
    flipped = int(np.count_nonzero(distances > 0.5))
    largest = np.max(np.abs(expected.numpy().astype(np.float64)), initial=0.0)
    near = np.max(distances[distances <= 0.5], initial=0.0)
    too_far = near * _scale_of(quantizer) > TOLERANCE * largest
    if too_far or too_many_flips(distances):
        return (
            f"received a quantizer of which {flipped} of {distances.size} codes differ in Keras 3, "
            f"by up to {np.max(distances):.2g} codes, expected at most {FLIPS:g} of them, by one "
            "code; run it with KERAS_BACKEND=tensorflow."
        )
    return None


def _quantizer_of(pieces: list[Callable[..., Any]]) -> QuantizedActivation | None:
    """What rounds the output of these pieces, if anything does."""
    last = pieces[-1] if pieces else None
    last = last.layer if isinstance(last, SpelledOut) else last
    return last if isinstance(last, QuantizedActivation) else None


def _scale_of(quantizer: QuantizedActivation) -> np.float64:
    return np.float64(keras3.ops.convert_to_numpy(quantizer.scale))


def _distances(quantizer: QuantizedActivation, expected: Any, received: Any) -> np.ndarray:
    """How many codes two of its outputs are apart, value by value."""
    return code_distances(float(_scale_of(quantizer)), expected, received)


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
        if config is not None and isinstance(config.output, PixelQuantizer):
            ranges[id(call.node.keras_inputs[0])] = config.output.range
    for call in calls:
        if not isinstance(call.layer, keras.layers.InputLayer):
            continue
        batch, *rest = call.outputs[0].shape
        shape = (batch or _IMAGES, *(UNKNOWN_SIZE if size is None else size for size in rest))
        dtype = call.outputs[0].dtype.as_numpy_dtype
        found = ranges.get(id(call.outputs[0]), PIXELS)
        yield found.fed(draws.integers(0, 256, shape)).astype(dtype)
