"""Carries the values of variables between a layer of tf_keras and its counterpart in Keras 3."""

import contextlib
import re
from collections.abc import Iterator, Sequence
from typing import Any

import keras as keras3
import numpy as np
import tensorflow as tf
import tf_keras as keras

from sat_tf.graph import layer_kinds
from sat_tf.qat.wrapper import QuantizedLayer
from sat_tf.quantizers.quantizing_layer import standing_in


def matched(sources: Sequence[str], targets: Sequence[str]) -> list[int]:
    """Returns, for every target, the index of the source whose path ends alike; else by order."""
    for depth in range(1, 5):  # names inside names, such as those of attention layers in wrappers
        ours, theirs = (
            [name.split(":")[0].split("/")[-depth:] for name in names]
            for names in (sources, targets)
        )
        if len(set(map(tuple, ours))) == len(ours) and sorted(ours) == sorted(theirs):
            return [ours.index(name) for name in theirs]
    return list(range(len(targets)))


def weights_of_keras3(layer: Any) -> tuple[list[str], list[np.ndarray]]:
    """The paths and values of the weights that a layer of Keras 3 computes with."""
    # A Normalization computes with copies that it makes when it adapts, or is loaded.
    copied = ("mean", "variance") if isinstance(layer, keras3.layers.Normalization) else ()
    arrays = []
    for variable in layer.weights:
        used = getattr(layer, variable.name) if variable.name in copied else variable
        arrays.append(np.reshape(keras3.ops.convert_to_numpy(used), variable.shape))
    return [variable.path for variable in layer.weights], arrays


def fill(
    layer: Any, names: Sequence[str], arrays: Sequence[np.ndarray], own_names: Sequence[str]
) -> None:
    """Gives a built layer of either Keras the weights of another that holds the same."""
    if len(arrays) != len(own_names):
        raise ValueError(
            f"received {len(arrays)} weights ({', '.join(names)}), expected {len(own_names)} "
            f"({', '.join(own_names)})"
        )
    ordered = [arrays[index] for index in matched(names, own_names)]
    for name, array, variable in zip(own_names, ordered, layer.weights, strict=True):
        if array.shape != tuple(variable.shape):
            shape = tuple(variable.shape)
            raise ValueError(f"received {name} of shape {array.shape}, expected {shape}")
    layer.set_weights(ordered)
    if hasattr(layer, "finalize_state"):
        layer.finalize_state()  # statistics are in use from then on


@contextlib.contextmanager
def without_initial_values(layer: Any) -> Iterator[None]:
    """A scope in which a layer makes weights of zeros, which draw no random numbers."""
    of = {"keras": keras3, "tf_keras": keras}.get(type(layer).__module__.split(".")[0])
    if of is None:  # code of users may look at its initializers
        yield
        return
    names = [name for name in vars(layer) if re.fullmatch("[a-z].*_initializer", name)]
    with standing_in(layer, dict.fromkeys(names, of.initializers.Zeros())):
        yield


def copy_to_keras3(twin: Any, layer: Any) -> None:
    """Gives a built layer of Keras 3 the values of its twin."""
    inner_twin, inner = _inner(twin, layer)
    if inner.weights:
        names = [variable.name for variable in inner_twin.weights]
        arrays = [variable.numpy() for variable in inner_twin.weights]
        fill(inner, names, arrays, [variable.path for variable in inner.weights])
    for variable, variable3 in _variables_of_quantizers(twin, layer):
        variable3.assign(variable.numpy())


def copy_to_twin(layer: Any, twin: Any) -> None:
    """Gives a built layer of tf_keras the values of its counterpart in Keras 3."""
    inner_twin, inner = _inner(twin, layer)
    if inner_twin.weights:
        names = [variable.name for variable in inner_twin.weights]
        fill(inner_twin, *weights_of_keras3(inner), names)
    for variable, variable3 in _variables_of_quantizers(twin, layer):
        variable.assign(np.asarray(keras3.ops.convert_to_numpy(variable3)))


def keep_codes(twin: Any, effective: Any) -> Any:
    """Moves latent weights of a twin whose codes are not those of the layer in Keras 3.

    Backends round tanh in different last bits, which decide where a weight is nearly halfway
    between two codes. Such a weight is moved towards the code that it has in Keras 3 by 2⁻²⁴ of the
    largest weight, doubled until the codes are equal; one that needs more than 2⁻¹⁷ stays.
    """
    twin_kernel, quantizer = twin.effective_kernel(), twin.quantize_config.weights
    if twin_kernel is None or quantizer is None or quantizer.num_bits is None:
        return twin_kernel
    expected = np.asarray(keras3.ops.convert_to_numpy(effective), np.float64)
    if np.array_equal(expected, twin_kernel):
        return twin_kernel
    kernel = layer_kinds.kernel_of(twin.layer)
    start = kernel.numpy()
    step = 2.0**-24 * np.max(np.abs(start), initial=0.0)
    for doubling in range(8):
        weights = quantizer.integer_weights(tf.convert_to_tensor(kernel), twin.kernel_variables)
        codes = np.rint(expected / weights.scales.numpy().astype(np.float64))
        towards = np.sign(codes - weights.codes.numpy())
        if not np.any(towards):
            break
        if doubling < 7:
            moved = start + towards.astype(np.float32) * np.float32(step * 2.0**doubling)
            kernel.assign(np.where(towards != 0.0, moved, kernel.numpy()))
    return twin.effective_kernel()


def copy_trainable(layer: Any, twin: Any) -> None:
    """Freezes a layer as its counterpart is, and the layer inside a quantized one."""
    twin.trainable = layer.trainable
    if isinstance(twin, QuantizedLayer):
        twin.layer.trainable = layer.layer.trainable  # after the other, which sets it too


def _inner(twin: Any, layer: Any) -> tuple[Any, Any]:
    """The layers that hold the weights of the user's layer."""
    return (twin.layer, layer.layer) if isinstance(twin, QuantizedLayer) else (twin, layer)


def _variables_of_quantizers(twin: Any, layer: Any) -> Iterator[tuple[Any, Any]]:
    """The variables of the quantizers, which have one name in both."""
    for key in ("kernel_variables", "output_variables") if isinstance(twin, QuantizedLayer) else ():
        for name, variable in getattr(twin, key).items():
            yield variable, getattr(layer, key)[name]
