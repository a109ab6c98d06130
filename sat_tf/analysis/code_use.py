"""The codes that a quantized model uses: of its kernels, of its activations, and their flips."""

import dataclasses
import functools
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import tensorflow as tf
import tf_keras as keras

from sat_tf.analysis.wiring import LinearCall, kernel_of
from sat_tf.graph import layer_kinds
from sat_tf.graph.network import Network, call_in_inference
from sat_tf.qat.layout import call_name, inner_layer
from sat_tf.qat.wrapper import QuantizedLayer, clipping_quantizer
from sat_tf.quantizers.protocol import CLIPPING_LEVEL, WeightQuantizer


def as_graph(measure: Callable[..., Any]) -> Callable[..., Any]:
    """`measure` as a graph, traced once for all calls with arguments of the same shapes.

    TensorFlow warns of retracing when functions with the same code are traced often, even if each
    belongs to another model, as in several trainings in one process. It identifies them by their
    code object, which a partial function does not have.
    """
    return tf.function(functools.partial(measure), autograph=False)


# Images are looked at in parts whose largest tensor has so many values, or one by one.
_VALUES_AT_ONCE = 2**21
_SCALAR = 1  # TensorBoard's DATA_CLASS_SCALAR, which TensorFlow does not define


def scalar_events(values: Mapping[str, float]) -> bytes:
    """All values in one event for `tf.summary.experimental.write_raw_pb`.

    `tf.summary.scalar` would write one event each and take half a millisecond for each of dozens of
    clipping levels.
    """
    summary = tf.compat.v1.Summary()
    for tag, value in values.items():
        entry = summary.value.add(tag=tag, tensor=tf.make_tensor_proto(value, tf.float32))
        entry.metadata.plugin_data.plugin_name = "scalars"
        entry.metadata.data_class = _SCALAR
    return bytes(summary.SerializeToString())


@dataclasses.dataclass(frozen=True)
class ActivationUse:
    """How one quantizer treats the images it was measured on.

    Attributes:
        clipped: share of the tensor's values at or beyond the clipping level, in [0, 1].
        code_counts: how often each code occurs, from the lowest on: 2^b codes, or 2^b - 1 if the
            range is symmetric.
    """

    clipped: float
    code_counts: tuple[int, ...]

    @property
    def codes_used(self) -> int:
        """How many different codes occur."""
        return sum(count > 0 for count in self.code_counts)


def clipping_levels(model: keras.Model) -> dict[str, tf.Variable]:
    """The trainable clipping levels of a model, by the name of the user's layer, in graph order.

    Empty for a model that is not quantized.

    Raises:
        ValueError: the model is not a graph.
    """
    return {
        name: layer.output_variables[CLIPPING_LEVEL]
        for name, layer in clipping_layers(model).items()
    }


def clipping_layers(model: keras.Model) -> dict[str, QuantizedLayer]:
    """The layers with clipping levels, likewise."""
    return {
        call_name(node): node.layer
        for node in Network(model)
        if clipping_quantizer(node.layer) is not None
    }


class ActivationProbe:
    """Measures all clipping quantizers of a model on the same images each time it is called.

    A call costs about one forward pass over the images in inference; the first one compiles it.

    Args:
        model: a model quantized by sat-tf; others have nothing to measure. Its variables are read
            when the probe is called.
        images: one batch, (n, rows, columns, channels).

    Raises:
        ValueError: the model is not a graph of calls.
    """

    def __init__(self, model: keras.Model, images: np.ndarray) -> None:
        self._network = Network(model)
        self._network.refuse_problems()
        largest = max(math.prod(size or 1 for size in node.shape) for node in self._network)
        at_once = max(_VALUES_AT_ONCE // largest, 1)
        starts = range(0, len(images), at_once)
        self._parts = [tf.cast(images[start : start + at_once], tf.float32) for start in starts]
        self._needed = {
            name
            for node in self._network
            if clipping_quantizer(node.layer) is not None
            for name in (node.name, *self._network.before(node.name))
        }
        self._measure = as_graph(self._run)

    def __call__(self) -> dict[str, ActivationUse]:
        """The current use of each quantizer, by the name of the user's layer, in graph order."""
        if not self._needed:
            return {}
        totals: dict[str, list[np.ndarray]] = {}
        for images in self._parts:
            for name, counts in self._measure(images).items():
                totals.setdefault(name, []).append(counts.numpy())
        uses = {}
        for name, found in totals.items():
            clipped, *counts = np.sum(found, axis=0).tolist()
            uses[name] = ActivationUse(clipped / sum(counts), tuple(counts))
        return uses

    def _run(self, images: tf.Tensor) -> dict[str, tf.Tensor]:
        tensors: dict[str, Any] = {self._network.input: images}
        found = {}
        for node in self._network:
            if node.name in tensors or node.name not in self._needed:
                continue
            inputs = [tensors[name] for name in node.inputs]
            tensors[node.name] = call_in_inference(node, node.layer, inputs)
            if clipping_quantizer(node.layer) is not None:
                # Not computed twice: TensorFlow merges equal operations.
                before = node.layer.before_quantization(inputs if node.takes_list else inputs[0])
                found[call_name(node)] = _measured_activation(
                    node.layer, before, tensors[node.name]
                )
        return found


def _measured_activation(layer: QuantizedLayer, before: tf.Tensor, after: tf.Tensor) -> tf.Tensor:
    """How many values of `before` are clipped, and then how many of `after` have each code."""
    quantizer: Any = clipping_quantizer(layer)
    codes = quantizer.code_range(layer.output_variables)
    scale, lowest, intervals = codes.scale, codes.lowest, tf.cast(codes.intervals, tf.int32)
    before, after = tf.cast(before, tf.float32), tf.cast(after, tf.float32)
    beyond = before >= (lowest + tf.cast(intervals, tf.float32)) * scale
    if quantizer.signed:
        beyond |= before <= lowest * scale
    indices = tf.clip_by_value(tf.cast(tf.round(after / scale) - lowest, tf.int32), 0, intervals)
    length = intervals + 1
    counts = tf.math.bincount(tf.reshape(indices, [-1]), minlength=length, maxlength=length)
    clipped = tf.math.count_nonzero(beyond, dtype=tf.int64)
    return tf.concat([[clipped], tf.cast(counts, tf.int64)], axis=0)


def variance(tensor: tf.Tensor) -> tf.Tensor:
    """The centred variance over all elements, a float64 scalar.

    Gradients of 1e-25 are common, and their squares underflow in float32. They are divided by the
    largest first, which for a kernel of 10^8 weights takes less memory than float64.
    """
    values = tf.cast(tensor, tf.float32)
    centred = values - tf.reduce_mean(values)
    largest = tf.reduce_max(tf.abs(centred))
    squares = tf.reduce_mean(tf.square(tf.math.divide_no_nan(centred, largest)))
    # Non-finite values must not look like zero.
    return tf.cast(squares, tf.float64) * tf.square(tf.cast(largest, tf.float64))


@dataclasses.dataclass(frozen=True, kw_only=True)
class WeightUse:
    """One kernel; what it does not have is None. Variances are centred, over the whole kernel.

    Attributes:
        weights: how many there are.
        weight_bits: of the codes.
        rescale: name of SAT's rescaling.
        latent_variance: VAR[W], of the variable that the optimizer updates.
        clamped_variance: VAR[Ŵ].
        quantized_variance: VAR[Q].
        effective_variance: VAR[Ξ].
        weight_codes: how many codes the grid has.
        weight_codes_used: how many of them occur.
    """

    weights: int = 0
    weight_bits: int | None = None
    rescale: str | None = None
    latent_variance: float | None = None
    clamped_variance: float | None = None
    quantized_variance: float | None = None
    effective_variance: float | None = None
    weight_codes: int | None = None
    weight_codes_used: int | None = None


class WeightProbe:
    """Measures kernels, each time it is called.

    Args:
        linear_calls: where they are used.
        compiled: trace the measurement, which pays off after a few calls.
    """

    def __init__(self, linear_calls: Sequence[LinearCall], *, compiled: bool = False) -> None:
        self._linear_calls = linear_calls
        self._measure = as_graph(self._run) if compiled else self._run

    def __call__(self) -> dict[str, WeightUse]:
        """The current use of each kernel, by the names of the calls."""
        measured = self._measure()
        return {call.name: _use(call, measured[call.name]) for call in self._linear_calls}

    def codes(self) -> dict[str, tf.Tensor]:
        """The integers n = 0..top of every kernel that has codes, as uint8."""
        return {
            call.name: tf.cast(
                quantizer.units(_latent(call), call.outer.kernel_variables), tf.uint8
            )
            for call in self._linear_calls
            if (quantizer := quantizer_of(call)) is not None and quantizer.num_bits is not None
        }

    def _run(self) -> dict[str, dict[str, tf.Tensor]]:
        return {call.name: _measured_kernel(call) for call in self._linear_calls}


def quantizer_of(call: LinearCall) -> WeightQuantizer | None:
    """The quantizer of a call's kernel, if sat-tf quantizes it."""
    outer = call.outer
    if not isinstance(outer, QuantizedLayer) or outer.layer is not call.layer:
        return None
    return outer.quantize_config.weights


def _measured_kernel(call: LinearCall) -> dict[str, tf.Tensor]:
    latent, quantizer = _latent(call), quantizer_of(call)
    if latent is None:
        return {}
    if quantizer is None:
        own = {"latent": variance(latent)}
        # The effective kernel of other wrappers exists only while they run.
        return (
            own
            if isinstance(call.outer, keras.layers.Wrapper)
            else {**own, "effective": own["latent"]}
        )
    found = {
        "latent": variance(latent),
        **{name: variance(made) for name, made in quantizer.stages(latent).items()},
        "effective": variance(call.outer.effective_kernel()),
    }
    if quantizer.num_bits is not None:
        units = tf.cast(quantizer.units(latent, call.outer.kernel_variables), tf.int32)
        counts = tf.math.bincount(tf.reshape(units, [-1]), minlength=256, maxlength=256)
        found["codes_used"] = tf.math.count_nonzero(counts)
    return found


def _latent(call: LinearCall) -> tf.Tensor | None:
    """The variable that is trained; None if a wrapper hides it."""
    kernel: Any = kernel_of(call.layer, call.kernel)
    if not hasattr(kernel, "assign"):
        same = [
            weight
            for weight in call.outer.trainable_weights
            if weight.shape == kernel.shape and call.kernel.attribute in weight.name
        ]
        if len(same) != 1:
            return None
        kernel = same[0]
    return tf.cast(tf.convert_to_tensor(kernel), tf.float32)


def _use(call: LinearCall, measured: dict[str, tf.Tensor]) -> WeightUse:
    quantizer, codes = quantizer_of(call), measured.get("codes_used")
    variances: dict[str, Any] = {
        f"{name}_variance": float(measured[name])
        for name in ("latent", "clamped", "quantized", "effective")
        if name in measured
    }
    use = WeightUse(
        weights=kernel_of(call.layer, call.kernel).shape.num_elements(),
        rescale=None if quantizer is None else quantizer.rescale,
        **variances,
    )
    if quantizer is None or codes is None:
        return use
    return dataclasses.replace(
        use,
        weight_bits=quantizer.num_bits,
        weight_codes=quantizer.code_count(call.outer.kernel_variables),
        weight_codes_used=int(codes),
    )


class CodeFlips:
    """Compares the codes of a model's weights with those of an earlier step.

    Args:
        weights: measures the kernels of the model.
    """

    def __init__(self, weights: WeightProbe) -> None:
        self._codes = as_graph(weights.codes)
        self._share = as_graph(
            lambda earlier, now: {
                name: tf.reduce_mean(tf.cast(tf.not_equal(codes, now[name]), tf.float32))
                for name, codes in earlier.items()
            }
        )
        self._before: dict[str, tf.Tensor] = {}
        self._at_last_measurement: dict[str, tf.Tensor] = {}

    def remember(self) -> None:
        """Keeps the current codes, to compare them with those of the next step."""
        self._before = self._codes()

    def measure(self) -> tuple[dict[str, float], dict[str, float]]:
        """Shares of weights whose code has changed, by layer.

        Returns:
            Since `remember` was called, and since `measure` was last called; empty if that has not
            happened, or nothing has codes.
        """
        now = self._codes()
        flipped, moved = (
            {name: float(share) for name, share in self._share(earlier, now).items()}
            if earlier
            else {}
            for earlier in (self._before, self._at_last_measurement)
        )
        self._before, self._at_last_measurement = {}, now
        return flipped, moved


@dataclasses.dataclass(frozen=True, kw_only=True)
class LayerRow:
    """One layer; what it does not have is None.

    Attributes:
        name: of the user's layer, or of an inserted quantizer.
        kind: class of the layer; "quantizer" for an inserted one.
        parameters: how many the layer has, without those of quantizers.
        weight_bits: bits of its kernel.
        weight_grid: name of the grid of the kernel's codes.
        weight_codes: how many codes that grid has.
        weight_codes_used: how many of them occur in the kernel.
        rescale: SAT's rescaling of the kernel, by name.
        rescale_constant: the factor on the kernel, gain included; the mean over channels if these
            have their own gains.
        activation_bits: bits of the tensor the layer makes.
        clipping_level: of that tensor; on both sides if it can be negative.
        activation_codes: how many codes its grid has.
        activation_codes_used: how many of them occurred on the images.
        clipped: share of its values that were clipped at the top, or at both ends.
    """

    name: str
    kind: str
    parameters: int
    weight_bits: int | None = None
    weight_grid: str | None = None
    weight_codes: int | None = None
    weight_codes_used: int | None = None
    rescale: str | None = None
    rescale_constant: float | None = None
    activation_bits: int | None = None
    clipping_level: float | None = None
    activation_codes: int | None = None
    activation_codes_used: int | None = None
    clipped: float | None = None


def layer_rows(model: keras.Model, images: np.ndarray) -> list[LayerRow]:
    """A row for every layer with parameters or quantizers, in graph order.

    Args:
        model: a model quantized by sat-tf.
        images: to measure activations on: (n, rows, columns, channels), one forward pass.

    Raises:
        ValueError: the model is not a graph of calls.
    """
    uses = ActivationProbe(model, images)()
    rows = []
    for node in Network(model):
        if node.name != node.layer.name:  # another call of a layer that already has a row
            continue
        layer, inner = node.layer, inner_layer(node.layer)
        kind, facts = type(inner).__name__, {}
        if isinstance(layer, QuantizedLayer):
            kind = "quantizer" if layer.quantize_config.inserted else kind
            facts = _facts_of_kernel(layer) | _facts_of_output(layer, uses.get(inner.name))
        row = LayerRow(name=inner.name, kind=kind, parameters=inner.count_params(), **facts)
        if row.parameters or row.weight_bits or row.activation_bits:
            rows.append(row)
    return rows


def _facts_of_kernel(layer: QuantizedLayer) -> dict[str, Any]:
    quantizer = layer.quantize_config.weights
    if quantizer is None:
        return {}
    latent = tf.cast(tf.convert_to_tensor(layer_kinds.kernel_of(layer.layer)), tf.float32)
    variables = layer.kernel_variables
    facts: dict[str, Any] = {
        "rescale": quantizer.rescale,
        "rescale_constant": quantizer.rescale_constant(latent, variables),
    }
    if quantizer.num_bits is not None:
        facts |= {
            "weight_bits": quantizer.num_bits,
            "weight_grid": quantizer.grid_name,
            "weight_codes": quantizer.code_count(variables),
            "weight_codes_used": len(np.unique(quantizer.units(latent, variables))),
        }
    return facts


def _facts_of_output(layer: QuantizedLayer, use: ActivationUse | None) -> dict[str, Any]:
    quantizer = clipping_quantizer(layer)
    if quantizer is None or use is None:
        return {}
    return {
        "activation_bits": quantizer.num_bits,
        "clipping_level": float(layer.output_variables[CLIPPING_LEVEL].numpy()),
        "activation_codes": len(use.code_counts),
        "activation_codes_used": use.codes_used,
        "clipped": use.clipped,
    }
