"""From a quantized tf_keras model to a Keras 3 inference model with the effective weights."""

import re
import warnings
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import tensorflow as tf
import tf_keras as keras

from sat_tf.graph.network import check_model
from sat_tf.keras3.calls import LayerCall, calls_of
from sat_tf.messages import list_problems
from sat_tf.qat.wrapper import QuantizedLayer

if TYPE_CHECKING:
    import keras as keras3


def to_keras3(model: keras.Model) -> "keras3.Model":
    """Turns a quantized model into a Keras 3 model that infers, with nothing left to quantize.

    Linear layers become plain Keras 3 layers with the effective weights; every quantizer of
    activations becomes a `QuantizedActivation`, a small Keras 3 layer that rounds to scale · n and
    runs on any backend. It keeps the name that the layer has in the quantized model, such as
    `quant_conv`, and the layer in front of it that of the float model, `conv`. Observers of ranges
    are left out, and so is what only training needs. Nothing in it is trainable. Slashes in names,
    which Keras 3 refuses, become `_`.

    The model can be saved to `.keras`, and be loaded where Keras 3 and `import sat_tf` are.

    The result is compared first, on 4 images of random pixels, layer by layer and as a whole.
    With the TensorFlow backend on a CPU its outputs are those of `model` bit for bit. (In
    graphs, as in `predict`, TensorFlow may fuse a float function with the layer in front of it, in
    either model, and then change its last bit.) Other backends add up in another order: layers then
    agree to 1e-5 of each tensor's largest value, and where a value is nearly halfway between two
    codes, the code can be the next one. Such codes are counted, and a warning says how many there
    are and how far the outputs differ. More than one in a thousand of a layer, or one that is not
    the next, is an error.

    Args:
        model: a model quantized by sat-tf.

    Returns:
        A Keras 3 model with the inputs and outputs of `model`.

    Raises:
        ValueError: the model is not quantized, has layers that Keras 3 does not have (all are
            named), or a layer computes something else there.

    Example:
        >>> image = keras.Input((8, 8, 3))
        >>> x = keras.layers.Conv2D(4, 3, activation="relu", name="conv")(image)
        >>> x = keras.layers.Dense(2, name="head")(keras.layers.Flatten()(x))
        >>> from sat_tf import quantize_model
        >>> exported = to_keras3(quantize_model(keras.Model(image, x)))
        >>> [layer.name for layer in exported.layers if layer.name.endswith(("conv", "head"))]
        ['conv', 'quant_conv', 'head']
    """
    check_model(model)
    calls = list(calls_of(model))
    if not any(isinstance(call.layer, QuantizedLayer) for call in calls):
        raise ValueError(
            f"model {model.name!r}: received a model without quantized layers, expected one "
            "quantized by sat-tf; call sat_tf.quantize_model(model, policy) first."
        )
    from sat_tf.keras3 import inference_model as pieces
    from sat_tf.keras3.inference_model import prove

    found = {call.layer.name: pieces.problem_of(call.layer) for call in calls}
    problems = [f"{name}: {problem}." for name, problem in found.items() if problem]
    if problems:
        raise ValueError(list_problems(f"model {model.name!r}", problems))
    exported, made = build(model, calls)
    proof = prove(model, exported, calls, made)
    if proof.codes_differing:
        warnings.warn(
            f"model {model.name!r}: {proof.codes_differing} of {proof.codes} codes are the next "
            f"one in Keras 3, and its outputs differ by up to {proof.difference:.2g} of their "
            "largest value: this backend rounds sums differently; run it with "
            "KERAS_BACKEND=tensorflow on a CPU for equal ones.",
            stacklevel=2,
        )
    return exported


def build(
    model: keras.Model, calls: list[LayerCall]
) -> tuple["keras3.Model", dict[int, list[Callable[..., Any]]]]:
    """The Keras 3 model, and for every layer, by its identity, what is called for it.

    Args:
        model: a tf_keras model, all of whose layers have a form in Keras 3.
        calls: its calls.

    Raises:
        ValueError: Keras 3 cannot call a layer as tf_keras does; names it.
    """
    import keras as keras3

    from sat_tf.keras3.inference_model import Names, pieces_of, run

    made: dict[int, list[Callable[..., Any]]] = {}
    tensors: dict[int, Any] = {}
    names = Names({id(call.layer): call.layer for call in calls}.values())
    for call in calls:
        layer = call.layer
        if isinstance(layer, keras.layers.InputLayer):
            shape = tuple(call.outputs[0].shape)
            tensor = keras3.Input(batch_shape=shape, dtype=layer.dtype, name=names.give(layer.name))
            tensors[id(call.outputs[0])] = tensor
            continue
        if id(layer) not in made:
            made[id(layer)] = pieces_of(layer, names)
        try:
            outputs = run(made[id(layer)], *call.filled_in(tensors))
        except Exception as error:
            raise ValueError(
                f"model {model.name!r}: {layer.name}: received a layer that Keras 3 cannot call "
                f"this way ({_reason(error)}); build the model without it."
            ) from error
        for symbol, tensor in zip(call.outputs, keras3.tree.flatten(outputs), strict=True):
            tensors[id(symbol)] = tensor

    def found(symbols: Any) -> Any:
        return tf.nest.map_structure(lambda symbol: tensors[id(symbol)], symbols)

    inputs, outputs = found(model._nested_inputs), found(model._nested_outputs)
    exported = keras3.Model(inputs, outputs, name=model.name.replace("/", "_"))
    exported.trainable = False
    return exported, made


def _reason(error: Exception) -> str:
    """The line with the reason, without what Keras puts around it in bold."""
    text = re.sub("\x1b\\[[0-9;]*m", "", str(error)) or type(error).__name__
    inside = re.search(r"Error encountered:\s*([^\n]+)", text)
    inside = inside or re.search(r"Exception encountered[^\n]*\s*([^\n]+)", text)
    return (inside.group(1) if inside else text.splitlines()[0]).strip().rstrip(".")
