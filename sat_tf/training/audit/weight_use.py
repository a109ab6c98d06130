"""The codes that kernels use, their variances, and how many weights change their codes."""

import math
from collections.abc import Sequence
from typing import Any

import tensorflow as tf
import tf_keras as keras

from sat_tf.qat.walk import as_graph
from sat_tf.qat.wrapper import QuantizedLayer
from sat_tf.quantizers.protocol import WeightQuantizer
from sat_tf.training.kappa import variance
from sat_tf.training.linear_layers import LinearCall


class WeightProbe:
    """Measures kernels, each time it is called."""

    def __init__(self, linear_calls: Sequence[LinearCall], *, compiled: bool = False) -> None:
        self._linear_calls = linear_calls
        self._measure = as_graph(self._run) if compiled else self._run

    def __call__(self) -> dict[str, dict[str, Any]]:
        """The fields of `LayerAudit` that tell of each kernel, by the names of the calls."""
        measured, fields = self._measure(), {}
        for call in self._linear_calls:
            values, quantizer = measured[call.name], quantizer_of(call)
            codes = values.get("codes_used")
            fields[call.name] = {
                "weights": math.prod(call.shape),
                "rescale": None if quantizer is None else quantizer.rescale,
                **{
                    f"{name}_variance": float(values[name])
                    for name in ("latent", "clamped", "quantized", "effective")
                    if name in values
                },
            }
            if quantizer is not None and codes is not None:
                fields[call.name] |= {
                    "weight_bits": quantizer.num_bits,
                    "weight_codes": quantizer.code_count(call.outer.kernel_variables),
                    "weight_codes_used": int(codes),
                }
        return fields

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
    """The variances of a kernel and what becomes of it, and how many codes occur."""
    latent, quantizer = _latent(call), quantizer_of(call)
    if latent is None:  # a wrapper hides it
        return {}
    if quantizer is None:
        values = {"latent": variance(latent)}
        # The effective kernel of other wrappers exists only while they run.
        if not isinstance(call.outer, keras.layers.Wrapper):
            values["effective"] = values["latent"]
        return values
    values = {
        "latent": variance(latent),
        **{name: variance(stage) for name, stage in quantizer.stages(latent).items()},
        "effective": variance(call.outer.effective_kernel()),
    }
    if quantizer.num_bits is not None:
        units = tf.cast(quantizer.units(latent, call.outer.kernel_variables), tf.int32)
        counts = tf.math.bincount(tf.reshape(units, [-1]), minlength=256, maxlength=256)
        values["codes_used"] = tf.math.count_nonzero(counts)
    return values


def _latent(call: LinearCall) -> tf.Tensor | None:
    """The variable that is trained; None if a wrapper hides it."""
    kernel: Any = getattr(call.layer, call.kernel.attribute)
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


class CodeFlips:
    """Compares the codes of a model's weights with those of an earlier step."""

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
        """Shares of weights whose code has changed, by layer."""
        now = self._codes()
        flipped, moved = (
            {name: float(share) for name, share in self._share(earlier, now).items()}
            if earlier
            else {}
            for earlier in (self._before, self._at_last_measurement)
        )
        self._before, self._at_last_measurement = {}, now
        return flipped, moved
