"""Layers that TFMOT's own tools have wrapped: what to do about each kind."""

from collections.abc import Collection, Iterator
from typing import Any

import tf_keras as keras

from sat_tf.messages import first_ones, list_problems

_TFMOT = "tensorflow_model_optimization"

# By name of the wrapper's class: what its layers are, and how to get rid of it. Annotations are not
# here: `quantize_apply` takes them off itself.
_WRAPPERS = {
    "PruneLowMagnitude": (
        "that TFMOT prunes",
        "call model = tfmot.sparsity.keras.strip_pruning(model) first; weights that are 0 keep "
        "code 0 under BitPolicy(weight_grid='narrow')",
    ),
    "ClusterWeights": (
        "whose weights TFMOT clusters",
        "call model = tfmot.clustering.keras.strip_clustering(model) first",
    ),
    "QuantizeWrapper": (
        "that TFMOT's own scheme has quantized",
        "pass the float model that TFMOT's quantize_model or quantize_apply was given",
    ),
}


def refuse_wrapped(model: keras.Model, *, but: Collection[str] = ()) -> None:
    """Raises ValueError, with the fix, where TFMOT has pruned, clustered or quantized layers.

    Args:
        model: any Keras model.
        but: names of wrappers to let pass.
    """
    found: dict[str, list[str]] = {}
    for layer in _layers(model):
        for name in _tfmot_classes(layer) & set(_WRAPPERS) - set(but):
            found.setdefault(name, []).append(layer.name)
    problems = []
    for name, named in found.items():
        what, fix = _WRAPPERS[name]
        problems.append(
            f"received layers {what} ({name}: {first_ones(named)}), expected "
            f"the layers themselves; {fix}."
        )
    if problems:
        raise ValueError(list_problems(f"model {model.name!r}", problems))


def is_annotated(model: keras.Model) -> bool:
    """Whether any layer carries an annotation by TFMOT's quantize_annotate_layer."""
    return any("QuantizeAnnotate" in _tfmot_classes(layer) for layer in _layers(model))


def _tfmot_classes(layer: keras.layers.Layer) -> set[str]:
    """Names of the classes of TFMOT that a layer is of; most of these have no public name."""
    bases = type(layer).__mro__
    return {base.__name__ for base in bases if base.__module__.split(".")[0] == _TFMOT}


def _layers(model: Any) -> Iterator[keras.layers.Layer]:
    for layer in model.layers:
        yield layer
        if isinstance(layer, keras.Model):
            yield from _layers(layer)
