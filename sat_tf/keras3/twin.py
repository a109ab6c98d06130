"""The tf_keras twin of a Keras 3 model, on which everything is planned, measured and exported.

    float Keras 3 model → float twin → plan
            ↓                           ↓ what is placed where
    quantized Keras 3 model ← values → quantized twin → TFLite file

The plan stays the twin of the Keras 3 model that it was applied to. It is in the layers of that
model too, so that a file that was trained on another machine gets a twin again. A twin is made and
proved once, and takes the values of the Keras 3 model whenever it is asked for.
"""

import math
import os
import pathlib
import sys
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, NamedTuple

import keras as keras3
import numpy as np
import tensorflow as tf
import tf_keras as keras

from sat_tf.exact.certificate.proof import read_subject
from sat_tf.exact.certificate.sequence import number_given, with_real_states
from sat_tf.graph import layer_kinds
from sat_tf.graph.flatten import flattened
from sat_tf.graph.network import Network
from sat_tf.keras3.call_graph import Keras3Graph, functional_of
from sat_tf.keras3.incoming import translated
from sat_tf.keras3.placed import Original, placed, settings_text
from sat_tf.keras3.proof import prove
from sat_tf.keras3.quantized_layer import QuantizedLayer
from sat_tf.keras3.translator import Translated
from sat_tf.keras3.variable_values import copy_to_keras3, copy_to_twin, copy_trainable, keep_codes
from sat_tf.messages import ModelError, warn
from sat_tf.qat.inputs import input_ranges
from sat_tf.qat.layout import inner_layer, quantized_model
from sat_tf.qat.model_class import in_class_of, policy_of, remember
from sat_tf.qat.policy import BitPolicy, expect_policy
from sat_tf.qat.wrapper import kernels_kept, warn_of_lost_zeros

# The batch size for a data set of PyTorch without batches.
_BATCH_SIZE = 64
# A public function, for models of tf_keras.
_Function = Callable[..., Any]
# Images on which a Keras 3 model is compared with its twin, whose file is verified.
_COMPARED = 64
# The most values that the tensors of a model have at once, unless one image has more.
_VALUES_AT_ONCE = 2**26
# A difference of more than this fraction of the largest value of a channel does not come from
# single codes that differ.
_ANOTHER_NUMBER = 0.05


class _Twin(NamedTuple):
    """The twin of a Keras 3 model, whose layers are held weakly, so that users can drop them."""

    model: keras.Model
    references: list[tuple[Any, Any]]  # Weak references to the layers, each with its twin.
    settings: str  # The layers' settings at the translation, which users may change.

    def layers(self) -> Iterator[tuple[Any, Any]]:
        """The layers of the Keras 3 model, each with its twin."""
        for reference, twin in self.references:
            yield reference(), twin


_twins: "weakref.WeakKeyDictionary[Any, _Twin]" = weakref.WeakKeyDictionary()


def twin_of(model: keras3.Model) -> keras.Model:
    """The tf_keras model that computes what a Keras 3 model does, with its current values."""
    entry = _twins.get(model)
    if entry is None or entry.settings != _settings(layer for layer, _ in entry.layers()):
        translation = translated(model, is_twin=True)
        policy = None if entry is None else policy_of(entry.model)
        if policy is not None:
            remember(translation.model, policy)
        return _enter(model, translation)
    for layer, twin in entry.layers():
        copy_trainable(layer, twin)
        copy_to_twin(layer, twin)
        if isinstance(layer, QuantizedLayer):
            keep_codes(twin, layer.effective_kernel())
    return entry.model


def _enter(model: keras3.Model, translation: Translated) -> keras.Model:
    """The twin of a model, which is proved, and found by `twin_of` from now on."""
    prove(translation)
    references = [(weakref.ref(layer), twin) for _, layer, twin in translation.layers()]
    settings = _settings(layer for _, layer, _ in translation.layers())
    _twins[model] = _Twin(translation.model, references, settings)
    return translation.model


def _settings(layers: Iterable[Any]) -> str:
    return settings_text([[layer.name, layer.get_config()] for layer in layers])


# -- forms of public functions: see `sat_tf.either_keras.for_keras3` -------------------------------


def on_twin(function: _Function, *args: Any, **kwargs: Any) -> Any:
    """Calls a function with the twins of all models of Keras 3 among its arguments."""
    args, kwargs = for_tf_keras((args, kwargs))
    return function(*args, **kwargs)


def written_back(function: _Function, model: keras3.Model, *args: Any, **kwargs: Any) -> Any:
    """Gives a model the values that a function has changed in its twin, once all has gone well."""
    result = on_twin(function, model, *args, **kwargs)
    entry = _twins[model]
    for layer, twin in entry.layers():
        copy_to_keras3(twin, layer)
    return model if result is entry.model else result


def exported(export_tflite: _Function, *args: Any, snap_biases: bool = False, **kwargs: Any) -> Any:
    """Exports the twin, and gives the model the biases of its file where that is asked for."""
    export = written_back if snap_biases else on_twin
    return export(export_tflite, *args, snap_biases=snap_biases, **kwargs)


def verified(
    verify_tflite: _Function, model: keras3.Model, path: Any, images: Any, *args: Any, **kwargs: Any
) -> Any:
    """Verifies the file of the twin, and compares its answers with those of the model."""
    certificate = on_twin(verify_tflite, model, path, images, *args, **kwargs)
    images = for_tf_keras(images)
    if number_given(images) < len(model.inputs):
        subject = read_subject(pathlib.Path(path))
        images = with_real_states(subject.graph, subject.content, images)
    warn_of_other_answers(model, images)
    return certificate


def warn_of_other_answers(model: keras3.Model, images: Any) -> None:
    """Says where the model of the user's backend and its twin, which is exported, disagree."""
    twin = twin_of(model)
    network, graph = Network(twin), Keras3Graph(model)
    images = network.given(images)
    inputs = images if len(twin.inputs) > 1 else [images]
    arrays = [np.asarray(array)[:_COMPARED] for array in inputs]
    if any(array.dtype == np.int8 for array in arrays):  # codes, which no model of Keras takes
        return
    ranges = input_ranges(network)
    fed = [
        ranges[name].fed(array) if array.dtype == np.uint8 and name in ranges else array
        for name, array in zip(twin.input_names, arrays, strict=True)
    ]
    # Keras 3 holds all tensors of a model while it is called.
    values = sum(math.prod(size or 1 for size in node.shape) for node in network)
    at_once = max(_VALUES_AT_ONCE // values, 1)
    ours, of_twin = [], []
    for start in range(0, len(fed[0]), at_once):
        batch = [array[start : start + at_once] for array in fed]
        tensors = keras3.tree.flatten(model(graph.pack_inputs(batch), training=False))
        ours.append([np.asarray(keras3.ops.convert_to_numpy(tensor)) for tensor in tensors])
        with kernels_kept(node.layer for node in network):
            tensors = tf.nest.flatten(twin(batch if len(batch) > 1 else batch[0], training=False))
        of_twin.append([tensor.numpy() for tensor in tensors])
    outputs = zip(zip(*ours, strict=True), zip(*of_twin, strict=True), network.outputs, strict=True)
    for our_batches, twin_batches, name in outputs:
        answers, expected = np.concatenate(our_batches), np.concatenate(twin_batches)
        if layer_kinds.is_softmax(inner_layer(network[name].layer)):
            differs = np.argmax(answers, axis=-1) != np.argmax(expected, axis=-1)
        else:
            largest = np.max(np.abs(expected), axis=tuple(range(expected.ndim - 1)))
            differs = np.abs(answers - expected) > _ANOTHER_NUMBER * largest
        differs = np.reshape(differs, (len(fed[0]), -1))
        differing = int(np.count_nonzero(np.any(differs, axis=1)))
        if differing:
            warn(
                f"model {model.name!r}: on {differing} of {len(fed[0])} images its file gives "
                f"another answer than the model on the {keras3.backend.backend()} backend, which "
                "rounds sums in another order; the certificate is of the integers of the file."
            )


def refused(function: _Function, model: keras3.Model, *args: Any, **kwargs: Any) -> Any:
    """Raises ModelError: the function works on models of tf_keras alone."""
    raise ModelError(
        model.name,
        "received a Keras 3 model, expected one of tf_keras, on which alone "
        f"{function.__name__} works; pass sat_tf.from_keras3(model).",
    )


def quantized(
    _: _Function, model: keras3.Model, policy: BitPolicy | int | None = None
) -> keras3.Model:
    """Quantizes a model by the plan that `quantize_model` would make for its twin."""
    if any(isinstance(layer, QuantizedLayer) for layer in model._flatten_layers()):
        raise ModelError(
            model.name,
            "received a model that is quantized already, expected a float one; call "
            "sat_tf.requantize(model, policy) to give it another policy.",
        )
    setting, backend = os.environ.get("KERAS_BACKEND"), keras3.backend.backend()
    if setting and setting != backend:
        warn(
            f"model {model.name!r}: KERAS_BACKEND is {setting!r}, but Keras was imported with the "
            f"backend {backend!r}, which the model is of and will be trained on; set KERAS_BACKEND "
            "before the first import of keras."
        )
    policy = BitPolicy.mobile() if policy is None else expect_policy(policy)
    translation = translated(model, is_twin=True)
    by_path = {path: Original(layer, twin) for path, layer, twin in translation.layers()}
    # The Keras 3 layers by the names that their twins have in the flat model.
    originals = flattened(translation.model).carried(by_path)
    plan = quantized_model(translation.model, None, policy, is_private=True)
    warn_of_lost_zeros(plan)
    return _of_plan(remember(plan, policy), originals, model)


def requantized(requantize: _Function, model: keras3.Model, policy: BitPolicy) -> keras3.Model:
    """Quantizes a model by the plan that `requantize` makes of its twin."""
    plan = requantize(twin_of(model), policy)
    inner = (
        (layer.layer, twin.layer) if isinstance(layer, QuantizedLayer) else (layer, twin)
        for layer, twin in _twins[model].layers()
    )
    return _of_plan(plan, {layer.name: Original(layer, twin) for layer, twin in inner}, model)


def _of_plan(
    plan: keras.Model, originals: Mapping[str, Original], original: keras3.Model
) -> keras3.Model:
    """The quantized model, of the class of the user's model; the plan is its twin."""
    built, pairs = placed(plan, originals)
    model = in_class_of(original, built, _built)
    for layer, twin in pairs:
        _take_names(layer, twin)
    plan._set_output_names()  # Keras keeps these apart from the layers' names
    twins = {id(layer): twin for layer, twin in pairs}
    graph = Keras3Graph(model)
    calls = ((call, twins[id(call.operation)], None) for call in graph.calls)
    _enter(model, Translated(graph, plan, list(calls)))
    return model


def _take_names(layer: Any, twin: Any) -> None:
    """Gives a layer of the plan its name in Keras 3, which refuses slashes, and the one inside."""
    twin._name = layer.name
    if isinstance(layer, QuantizedLayer):
        _take_names(layer.layer, twin.layer)


def _built(model_class: type, model: keras3.Model, further: dict[str, Any]) -> keras3.Model:
    functional = functional_of(model)
    inputs, outputs = functional._inputs_struct, functional._outputs_struct
    rebuilt = model_class(inputs, outputs, name=model.name, **further)
    if functional_of(rebuilt) is None or len(rebuilt.layers) != len(model.layers):
        raise TypeError("its constructor builds another graph from inputs and outputs")
    return rebuilt


def for_tf_keras(value: Any) -> Any:
    """Returns models as twins, and tensors of any backend as NumPy's, in structures or batches."""
    if isinstance(value, dict):
        return {key: for_tf_keras(inner) for key, inner in value.items()}
    if type(value) in (tuple, list):
        return type(value)(for_tf_keras(inner) for inner in value)
    if isinstance(value, keras3.Model):
        return twin_of(value)
    top = type(value).__module__.split(".")[0]
    if isinstance(value, keras3.Variable):
        return keras3.ops.convert_to_numpy(value)
    if top in ("torch", "jax", "jaxlib") and hasattr(value, "shape"):
        return np.asarray(value.detach().cpu() if top == "torch" else value)
    if isinstance(value, keras3.utils.PyDataset):
        return _Batches(lambda: (value[index] for index in range(len(value))))
    torch = sys.modules.get("torch")
    if torch is not None and isinstance(value, torch.utils.data.Dataset):
        value = torch.utils.data.DataLoader(value, batch_size=_BATCH_SIZE)
    if torch is not None and isinstance(value, torch.utils.data.DataLoader):
        return _Batches(lambda: iter(value))
    return value


class _Batches:
    """The batches of a data set of another library, with NumPy's arrays."""

    def __init__(self, batches: Callable[[], Iterator[Any]]) -> None:
        self._batches = batches

    def __iter__(self) -> Iterator[Any]:
        for batch in self._batches():
            arrays = for_tf_keras(batch)
            yield tuple(arrays) if isinstance(arrays, list) else arrays
