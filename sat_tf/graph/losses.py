"""Losses and metrics that are parts of a model itself, which a model made of its graph has not."""

from typing import Any

import tf_keras as keras

from sat_tf.graph.network import keras_calls
from sat_tf.messages import ModelError

_ADDED = {"AddLoss": "loss", "AddMetric": "metric"}


def loss_problems(model: keras.Model, path: str = "") -> list[str]:
    """The losses and metrics that are parts of a model itself, each with the fix.

    A model that is made of its graph has none of them.
    """
    # Keras has no public names for the layers that `add_loss` and `add_metric` put into a model,
    # and none for functions that they are given.
    found = [
        (kind, str(tensor.node.layer.name))
        for call in keras_calls(model)
        if (kind := _ADDED.get(type(getattr(call.layer, "layer", call.layer)).__name__))
        for tensor in call.keras_inputs
    ]
    layers = {id(call.layer): call.layer for call in keras_calls(model)}.values()
    holders = [model, *(layer for layer in layers if _is_of_keras(layer))]
    found += [
        ("loss", f"a function of {holder.name}")
        for holder in holders
        for loss in holder._callable_losses
        if not _is_of_a_weight(loss)
    ]
    problems = [
        f"{path}{model.name}: received a model with a {kind} of its own ({of}), from "
        f"add_{kind}, expected a model without: leave it out, and call add_{kind} on the quantized "
        "model, with outputs of its layers, as quantized.get_layer('quant_...').output; requantize "
        "a quantized model before you do so."
        for kind, of in found
    ]
    for layer in layers:
        if isinstance(layer, keras.Model) and getattr(layer, "_is_graph_network", False):
            problems += loss_problems(layer, f"{path}{model.name}/")
    return problems


def _is_of_keras(layer: keras.layers.Layer) -> bool:
    """Whether Keras makes all that a layer has: one of a user may add its losses again."""
    return type(layer).__module__.split(".")[0] == "tf_keras"


def _is_of_a_weight(loss: Any) -> bool:
    """Whether a loss is that of a regularizer, which each layer with the setting makes itself."""
    inside = getattr(loss, "args", (None,))[0]
    return getattr(getattr(inside, "func", None), "__name__", "") == "_loss_for_variable"


def refuse_losses(model: keras.Model) -> None:
    """Raises ValueError where a model has losses or metrics of its own; see `loss_problems`."""
    if problems := loss_problems(model):
        raise ModelError(model.name, problems)
