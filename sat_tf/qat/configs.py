"""TFMOT quantize configs: a user's settings for one layer, and the quantizers it was given."""

from collections.abc import Sequence
from typing import Any

import tensorflow as tf
import tensorflow_model_optimization as tfmot
import tf_keras as keras

from sat_tf.graph import layer_kinds
from sat_tf.graph.layers.kind import NativeFunction
from sat_tf.messages import ProblemsError
from sat_tf.qat.policy import PER_LAYER_FIELDS, BitPolicy, combination_problems, layer_fields
from sat_tf.qat.policy_fields import warn_of
from sat_tf.qat.tfmot_adapter import TfmotQuantizer
from sat_tf.quantizers.protocol import ActivationQuantizer, Quantizer, WeightQuantizer
from sat_tf.quantizers.table import deserialize_quantizer, serialize_quantizer
from sat_tf.targets import PROCESSORS, target_problem

_register = keras.utils.register_keras_serializable(package="sat_tf")


@_register
class LayerConfig(tfmot.quantization.keras.QuantizeConfig):
    """A user's settings for one layer; fields left out follow the scheme's policy.

    For `tfmot.quantization.keras.quantize_annotate_layer(layer, LayerConfig(weight_bits=8))`. The
    fields are those of `BitPolicy` that make sense for one layer, with the meaning they have in
    its `overrides`. The placement of `SatQuantizeScheme` turns it into quantizers; with another
    scheme, `quantize_apply` raises ValueError.

    Args:
        **fields: any of weight_bits, activation_bits, stream_bits, weight_grid, weight_range,
            detach_max, rescale, clipping_gradient, initial_clipping_level, weight_quantizer,
            weight_options, activation_quantizer, activation_options.

    Raises:
        ValueError: a field is unknown or a value invalid; lists every problem.

    >>> LayerConfig(weight_bits=8).get_config()
    {'weight_bits': 8}
    """

    def __init__(self, **fields: Any) -> None:
        self.fields, problems = layer_fields(fields)
        problems += combination_problems(self.fields)
        if problems:
            raise ProblemsError("LayerConfig", problems)
        warn_of(self.fields)

    @classmethod
    def from_policy(cls, policy: BitPolicy) -> "LayerConfig":
        """Every field a layer can have, as the policy gives it."""
        fields = policy.to_dict()
        return cls(**{name: fields[name] for name in PER_LAYER_FIELDS})

    def _refuse(self, layer: keras.layers.Layer, *values: Any) -> Any:
        """Raises ValueError: TFMOT asks for quantizers where another scheme is applied.

        Such a layer would train with weights alone quantized, and by rules of two packages.
        """
        raise ValueError(
            f"layer {layer.name!r}: received {type(self).__name__} with another scheme, expected "
            "that of sat-tf, which places the quantizers; call quantize_apply(annotated, "
            "scheme=sat_tf.SatQuantizeScheme(policy))."
        )

    get_weights_and_quantizers = set_quantize_weights = _refuse
    get_activations_and_quantizers = set_quantize_activations = _refuse
    get_output_quantizers = _refuse

    def get_config(self) -> dict[str, Any]:
        """The arguments of the constructor."""
        return dict(self.fields)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, LayerConfig) and self.fields == other.fields

    def __hash__(self) -> int:
        return hash(repr(sorted(self.fields.items())))


@_register
class PlacedConfig(tfmot.quantization.keras.QuantizeConfig):
    """The quantizers that the placement gave to one layer.

    Args:
        weights: quantizer of the kernel, or None.
        output: quantizer or observer of the tensor the layer makes, or None. Where the layer ends
            in a rectifier, a quantizer that `rectifies` takes its place; where it ends in a
            softmax, the quantizer stands before it, unless it is one for probabilities.
        annotation: the fields of the `LayerConfig` the user gave, to be kept by `requantize`.
        inserted: the layer is not the user's; it exists to hold `output`.
        around: the layer's kernel rounds to the codes that it reads. `output` quantizes what the
            layer reads too, so that both are on one grid; without it, that is of what it reads.
        target: the processor that the model's file is for, a name of `PROCESSORS`; None for
            LiteRT's CPU kernels. An NPU computes a function by the operator of
            `native_of`.
        output_name: what the user calls the output of the model that the layer makes, where that
            is not the layer's name: an activation, or a model inside, has become layers of its own.

    Raises:
        ValueError: no such target.
    """

    def __init__(
        self,
        *,
        weights: WeightQuantizer | None = None,
        output: Quantizer | None = None,
        annotation: dict[str, Any] | None = None,
        inserted: bool = False,
        around: bool = False,
        target: str | None = None,
        output_name: str | None = None,
    ) -> None:
        if target is not None and (problem := target_problem(target)):
            raise ValueError(f"target: {problem}")
        self.weights = weights
        self.output = output
        self.annotation = annotation
        self.inserted = inserted
        self.around = around
        self.target = target
        self.output_name = output_name

    def native_of(self, layer: keras.layers.Layer) -> NativeFunction | None:
        """The operator by which the processor of the file computes the layer's function, if any."""
        is_npu = self.target is not None and PROCESSORS[self.target].native
        return layer_kinds.native_of(layer) if is_npu else None

    def get_weights_and_quantizers(self, layer: keras.layers.Layer) -> list[tuple[Any, Any]]:
        if self.weights is None:
            return []
        return [(layer_kinds.kernel_of(layer), TfmotQuantizer(self.weights))]

    def set_quantize_weights(
        self, layer: keras.layers.Layer, quantize_weights: Sequence[tf.Tensor]
    ) -> None:
        """Puts the effective kernel in the place of the latent one."""
        for kernel in quantize_weights:
            # Past Keras' own __setattr__, which would stop tracking the variable.
            vars(layer)[layer_kinds.kernel_name(layer)] = kernel

    def get_activations_and_quantizers(self, layer: keras.layers.Layer) -> list[tuple[Any, Any]]:
        """The activation function that `output` replaces or precedes, with `output`."""
        if self.output is None or not self.stands_at_activation(layer):
            return []
        return [(layer.activation, TfmotQuantizer(self.output))]

    def set_quantize_activations(
        self, layer: keras.layers.Layer, quantize_activations: Sequence[Any]
    ) -> None:
        for activation in quantize_activations:
            vars(layer)["activation"] = activation

    def get_output_quantizers(self, layer: keras.layers.Layer) -> list[Any]:
        """`output`, where it follows the layer."""
        if self.output is None or self.stands_at_activation(layer):
            return []
        return [TfmotQuantizer(self.output)]

    def replaces(self, layer: keras.layers.Layer) -> bool:
        """Whether `output` takes the place of the whole layer: a quantizer for a rectifier."""
        plain = layer_kinds.rectifies(layer) and not hasattr(layer, "activation")
        return plain and self._rectifies()

    def stands_at_activation(self, layer: keras.layers.Layer) -> bool:
        """Whether `output` replaces the layer's activation function, or precedes its softmax."""
        if self.output is None or not hasattr(layer, "activation"):
            return False
        if layer_kinds.is_softmax(layer):
            unit = isinstance(self.output, ActivationQuantizer) and self.output.is_unit
            return not unit  # a unit range is for probabilities
        return layer_kinds.rectifies(layer) and self._rectifies()

    def _rectifies(self) -> bool:
        return isinstance(self.output, ActivationQuantizer) and self.output.rectifies

    def get_config(self) -> dict[str, Any]:
        found = {
            "weights": serialize_quantizer(self.weights),
            "output": serialize_quantizer(self.output),
            "annotation": self.annotation,
            "inserted": self.inserted,
        }
        # Older releases read the models that have none.
        marks = {"around": self.around, "target": self.target, "output_name": self.output_name}
        return {**found, **{name: mark for name, mark in marks.items() if mark}}

    @classmethod
    def from_config(cls, config: dict[str, Any]) -> "PlacedConfig":
        quantizers = {name: deserialize_quantizer(config[name]) for name in ("weights", "output")}
        return cls(**{**config, **quantizers})

    def __eq__(self, other: object) -> bool:
        return isinstance(other, PlacedConfig) and vars(self) == vars(other)

    def __hash__(self) -> int:
        return hash((self.weights, self.output, self.inserted, self.target, repr(self.annotation)))

    def __repr__(self) -> str:
        return f"PlacedConfig(weights={self.weights!r}, output={self.output!r})"
