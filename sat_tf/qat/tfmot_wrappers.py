"""Layers that TFMOT's own tools have wrapped: what to do about each kind."""

import warnings
from collections.abc import Collection, Iterator
from typing import Any

import numpy as np
import tf_keras as keras

from sat_tf.core import grid as grids
from sat_tf.messages import list_problems
from sat_tf.qat.quantizers import DorefaQuantizer
from sat_tf.qat.wrapper import QuantizedLayer

_TFMOT = "tensorflow_model_optimization"
_MOST_NAMED = 5

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
        "give the float model that was given to TFMOT's quantize_model or quantize_apply",
    ),
}
# From which share of zeros on a kernel is taken for a pruned one.
_PRUNED = 0.25


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
        more = f" and {len(named) - _MOST_NAMED} more" if len(named) > _MOST_NAMED else ""
        problems.append(
            f"received layers {what} ({name}: {', '.join(named[:_MOST_NAMED])}{more}), expected "
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


def warn_of_lost_zeros(quantized: keras.Model) -> None:
    """Warns of kernels that seem to be pruned, on grids that have no 0."""
    lost = []
    for layer in quantized.layers:
        config = layer.quantize_config if isinstance(layer, QuantizedLayer) else None
        if config is None or config.weights is None:
            continue
        ((kernel, quantizer),) = config.get_weights_and_quantizers(layer.layer)
        share = float(np.mean(kernel.numpy() == 0.0))
        if _PRUNED <= share < 1.0 and not _has_zero(quantizer):
            lost.append(f"{layer.layer.name} ({100 * share:.0f} % zeros)")
    if lost:
        more = f" and {len(lost) - _MOST_NAMED} more" if len(lost) > _MOST_NAMED else ""
        warnings.warn(
            f"model {quantized.name!r}: the DoReFa grid has no 0, so that zero weights of "
            f"{', '.join(lost[:_MOST_NAMED])}{more} become half a step; if they are pruned, set "
            "BitPolicy(weight_grid='narrow'), which keeps them.",
            stacklevel=3,
        )


def _has_zero(quantizer: DorefaQuantizer) -> bool:
    # Every other code of a grid is left out where there are two of them to a unit: 0 among them.
    return quantizer.num_bits is None or (
        grids.find_grid(quantizer.grid, quantizer.num_bits).codes_per_unit == 1
    )
