"""What a layer of a quantized tf_keras model is made of in Keras 3: the layer, then its grid."""

from collections.abc import Callable, Iterable
from typing import Any

import keras as keras3
import tensorflow as tf
import tf_keras as keras

from sat_tf.keras3 import inference_table
from sat_tf.keras3.inference_layers import PixelGrid, QuantizedActivation
from sat_tf.keras3.inference_operations import Operation
from sat_tf.qat import code_range, registry
from sat_tf.qat.call_template import template_of
from sat_tf.qat.function_quantizers import OffsetQuantizer
from sat_tf.qat.naming import unique_name
from sat_tf.qat.quantizers import ImageQuantizer, RangeObserver
from sat_tf.qat.wrapper import QuantizedLayer

_IDENTITIES = (ImageQuantizer, RangeObserver, type(None))


def problem_of(layer: Any) -> str | None:
    """Why a layer has no form in Keras 3; None where it has one."""
    if not isinstance(layer, QuantizedLayer):
        return _plain_problem(layer)
    config = layer.quantize_config
    if not (code_range.has_codes(config.output) or type(config.output) in _IDENTITIES):
        return (
            f"received {config.output!r}, which sat-tf does not know in Keras 3; use a policy "
            "without it"
        )
    if config.weights is not None and not registry.kernel_name(layer.layer):
        return f"received {type(layer.layer).__name__}, whose kernel sat-tf does not know"
    return None if _is_gone(layer) else _plain_problem(layer.layer)


class Names:
    """Gives out the names of the layers of one Keras 3 model.

    They are those of tf_keras, with `_` for slashes, which Keras 3 refuses, and with `_2`, `_3` and
    so on where that name is taken.

    Args:
        layers: all layers of the tf_keras model.
    """

    def __init__(self, layers: Iterable[Any]) -> None:
        every = [layer for one in layers for layer in (one, getattr(one, "layer", one))]
        self._waiting = {layer.name for layer in every if "/" not in layer.name}
        self._taken = set(self._waiting)

    def give(self, wanted: str) -> str:
        """A name for one more layer."""
        if wanted in self._waiting:
            self._waiting.remove(wanted)
            return wanted
        return unique_name(wanted.replace("/", "_"), self._taken)


def pieces_of(layer: Any, names: Names) -> list[Callable[..., Any]]:
    """What is called one after the other, the first with the layer's arguments.

    Args:
        layer: a layer without a `problem_of`.
        names: where the pieces get their names.
    """
    if not isinstance(layer, QuantizedLayer):
        if registry.role_of(layer) is registry.Role.IDENTITY:
            return []
        return [_plain(layer, names, activation=True, kernel=None)]
    inner, config = layer.layer, layer.quantize_config
    if _is_gone(layer):
        return _quantizer(layer, names)
    kernel = None
    if config.weights is not None:
        kernel = registry.kernel_name(inner), layer.effective_kernel()
    at_activation = bool(config.get_activations_and_quantizers(inner))
    first = _plain(inner, names, activation=not at_activation, kernel=kernel)
    if at_activation and registry.is_softmax(inner):
        name = names.give(f"{inner.name}_softmax")
        softmax = keras3.layers.Activation("softmax", name=name, dtype=_policy(inner))
        return [first, *_quantizer(layer, names), softmax]
    return [first, *_quantizer(layer, names)]


def run(pieces: list[Callable[..., Any]], args: Any, kwargs: Any) -> Any:
    """Calls one piece after the other; without any, the first argument passes."""
    outputs = args[0]
    for index, piece in enumerate(pieces):
        outputs = piece(outputs) if index else piece(*args, **kwargs)
    return outputs


def _is_gone(layer: QuantizedLayer) -> bool:
    """Whether inference has no use for the wrapped layer, beside that of its quantizer."""
    config = layer.quantize_config
    return config.replaces(layer.layer) or registry.role_of(layer.layer) is registry.Role.IDENTITY


def _quantizer(layer: QuantizedLayer, names: Names) -> list[Callable[..., Any]]:
    quantizer = layer.quantize_config.output
    if isinstance(quantizer, ImageQuantizer):
        return _pixel_grid(layer, quantizer, names)
    if quantizer is None or not code_range.has_codes(quantizer):
        return []
    codes = code_range.code_range(quantizer, layer.output_variables.get("clipping_level"))
    lowest = int(codes.lowest.numpy())
    made = QuantizedActivation(
        lowest,
        lowest + codes.steps,
        from_zero=isinstance(quantizer, OffsetQuantizer),
        name=names.give(layer.name),
        dtype=_policy(layer.layer),
        trainable=False,
    )
    made.step.assign(codes.step)
    return [made]


def _pixel_grid(
    layer: QuantizedLayer, quantizer: ImageQuantizer, names: Names
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
    return [made]


def _policy(layer: Any) -> str:
    return layer.dtype_policy.name if hasattr(layer, "dtype_policy") else str(layer.dtype)


def _plain_problem(layer: Any) -> str | None:
    symbol = _symbol(layer)
    if symbol is not None:
        return inference_table.operation_problem(symbol)
    if registry.role_of(layer) is registry.Role.IDENTITY:
        return None
    if isinstance(layer, keras.layers.InputLayer):
        return None
    return inference_table.problem_of(layer)


def _plain(
    layer: Any, names: Names, *, activation: bool, kernel: tuple[str, Any] | None
) -> Callable[..., Any]:
    name, symbol = names.give(layer.name), _symbol(layer)
    if symbol is not None:
        return _CalledOperation(symbol, name)
    return inference_table.make_layer(layer, name, activation=activation, kernel=kernel)


def _symbol(layer: Any) -> str | None:
    """The name of the operation of TensorFlow that a layer of tf_keras stands for."""
    if type(layer).__module__.split(".")[0] != "tf_keras":
        return None
    if type(layer).__name__ == "SlicingOpLambda":
        return "__operators__.getitem"
    return getattr(layer, "symbol", None)


class _CalledOperation:
    """An `Operation` whose arguments are those of its first call."""

    def __init__(self, function: str, name: str) -> None:
        self._function = function
        self._name = name
        self._layer: Operation | None = None

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        args, kwargs = tf.nest.map_structure(_type_name, (list(args), kwargs))
        tensors = [value for value in tf.nest.flatten([args, kwargs]) if hasattr(value, "shape")]
        if self._layer is None:
            places = {id(tensor): place for place, tensor in enumerate(tensors)}
            self._layer = Operation(
                self._function,
                template_of([args, kwargs], places),
                name=self._name,
            )
        return self._layer(tensors[0] if len(tensors) == 1 else tensors)


def _type_name(value: Any) -> Any:
    return value.name if isinstance(value, tf.DType) else value
