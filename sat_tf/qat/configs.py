"""The settings and the quantizers of a layer, and the error of a model that cannot be quantized."""

import dataclasses
from collections.abc import Iterable, Mapping
from typing import Any

import tensorflow as tf
import tensorflow_model_optimization as tfmot
import tf_keras as keras

from sat_tf.core.grid import WIDE_BITS
from sat_tf.exact.targets.processors import PROCESSORS, saved_target, target_problem
from sat_tf.graph import layer_kinds, shared_layers
from sat_tf.graph.layers.kind import NativeFunction, Role
from sat_tf.graph.network import Network
from sat_tf.graph.rewrite import supported_names
from sat_tf.graph.shared_layers import class_of
from sat_tf.messages import ModelError, ProblemsError
from sat_tf.qat.policy import PER_LAYER_FIELDS, BitPolicy, combination_problems, layer_fields
from sat_tf.qat.policy_fields import warn_of
from sat_tf.quantizers.protocol import ActivationQuantizer, Quantizer, VariableSpec, WeightQuantizer
from sat_tf.quantizers.quantizer_table import deserialize_quantizer, serialize_quantizer
from sat_tf.quantizers.quantizing_layer import make_weights
from sat_tf.quantizers.values import ACTIVATION, AROUND, BEFORE_ACTIVATION, BEHIND, INSTEAD, WITHIN

_register = keras.utils.register_keras_serializable(package="sat_tf")

AtLeast = _register(class_of(shared_layers.AtLeast, keras.constraints.Constraint, __name__))

# Every replica assigns its own copy, and nothing is sent between replicas: they would wait for each
# other forever, as layers make their effective weights one at a time. All of them assign the same
# value, so that any copy can be saved; their mean would not be the same bit for bit.
_OF_REPLICAS = {
    "synchronization": tf.VariableSynchronization.ON_READ,
    "aggregation": tf.VariableAggregation.ONLY_FIRST_REPLICA,
}


def make_variables(
    layer: keras.layers.Layer, specs: Mapping[str, VariableSpec]
) -> dict[str, tf.Variable]:
    """The variables that a quantizer declares, as weights of a layer, in their order."""
    return make_weights(layer, specs, keras, AtLeast, _OF_REPLICAS)


class _ConfigOfScheme(tfmot.quantization.keras.QuantizeConfig):
    """Settings that `SatQuantizeScheme` alone turns into quantizers."""

    def _refuse(self, layer: keras.layers.Layer, *values: Any) -> Any:
        """Refuses other schemes: such a layer would train with weights alone quantized."""
        raise ValueError(
            f"layer {layer.name!r}: received {type(self).__name__} with another scheme, expected "
            "that of sat-tf, which places the quantizers; call quantize_apply(annotated, "
            "scheme=sat_tf.SatQuantizeScheme(policy))."
        )

    get_weights_and_quantizers = set_quantize_weights = _refuse
    get_activations_and_quantizers = set_quantize_activations = _refuse
    get_output_quantizers = _refuse


@_register
class LayerConfig(_ConfigOfScheme):
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

    def get_config(self) -> dict[str, Any]:
        """The arguments of the constructor."""
        return dict(self.fields)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, LayerConfig) and self.fields == other.fields

    def __hash__(self) -> int:
        return hash(repr(sorted(self.fields.items())))


@_register
@dataclasses.dataclass(kw_only=True)
class PlacedConfig(_ConfigOfScheme):
    """The quantizers that the placement gave to one layer."""

    weights: WeightQuantizer | None = None  # The quantizer of the kernel.
    # Quantizer or observer of the tensor that the layer makes, where `place_at` says.
    output: Quantizer | None = None
    # The fields of the `LayerConfig` the user gave, to be kept by `requantize`.
    annotation: dict[str, Any] | None = None
    inserted: bool = False  # The layer is not the user's; it exists to hold `output`.
    # Whether the layer's kernel rounds to the codes that it reads. `output` then also quantizes the
    # input, so that both are on one grid; without `output`, that is the grid of the input.
    around: bool = False
    # Whether the rows of the layer's table, and so its output, have int8 codes on one scale.
    rows: bool = False
    # The bits of the weights of a recurrent layer, which have int8 codes; None for 8.
    gate_bits: int | None = None
    # The processor that the model's file is for, a name of `PROCESSORS`; None for LiteRT's CPU
    # kernels. An NPU computes a function by the operator of `native_of`.
    target: str | None = None
    # The user's name of the model output that the layer makes, where it is not the layer's name: an
    # activation, or a model inside, has become layers of its own.
    output_name: str | None = None

    def __post_init__(self) -> None:
        if self.target is not None and (problem := target_problem(self.target)):
            raise ValueError(f"target: {problem}")

    def native_of(self, layer: keras.layers.Layer) -> NativeFunction | None:
        """The operator by which the processor of the file computes the layer's function, if any."""
        if getattr(self.output, "num_bits", None) == WIDE_BITS:
            return layer_kinds.wide_native_of(layer)
        is_npu = self.target is not None and PROCESSORS[self.target].native
        return layer_kinds.native_of(layer, is_npu=is_npu)

    def int8_weights_of(self, layer: keras.layers.Layer) -> str:
        """The attribute of weights that the layer computes with on `grid.int8_codes`; "" if none.

        These are the rows of a table, or the slopes of an NPU's operator.
        """
        native = self.native_of(layer)
        return layer_kinds.table_of(layer) if self.rows else native.weights if native else ""

    def replaces(self, layer: keras.layers.Layer) -> bool:
        """Whether `output` takes the place of the whole layer: a quantizer for a rectifier."""
        plain = layer_kinds.rectifies(layer) and not hasattr(layer, "activation")
        return plain and self._rectifies()

    def place_at(self, layer: keras.layers.Layer) -> str:
        """The place of `output` at a layer, one of `PLACES`."""
        if self.replaces(layer):
            return INSTEAD
        if self.around:
            return AROUND
        if self.output is not None and layer_kinds.role_of(layer) is Role.RECURRENCE:
            return WITHIN
        if not self.stands_at_activation(layer):
            return BEHIND
        return BEFORE_ACTIVATION if layer_kinds.is_softmax(layer) else ACTIVATION

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
        config = {
            "weights": serialize_quantizer(self.weights),
            "output": serialize_quantizer(self.output),
            "annotation": self.annotation,
            "inserted": self.inserted,
        }
        # Older releases read models without these marks.
        names = "around", "rows", "gate_bits", "target", "output_name"
        marks = {name: getattr(self, name) for name in names}
        return {**config, **{name: mark for name, mark in marks.items() if mark}}

    @classmethod
    def from_config(cls, config: dict[str, Any]) -> "PlacedConfig":
        quantizers = {name: deserialize_quantizer(config[name]) for name in ("weights", "output")}
        return cls(**{**config, **quantizers, "target": saved_target(config.get("target"))})

    def __hash__(self) -> int:
        settings = self.inserted, self.rows, self.gate_bits, self.target, repr(self.annotation)
        return hash((self.weights, self.output, *settings))


class PlacementError(ModelError):
    """A model cannot be quantized as asked; it may name the layers that can be."""

    def __init__(self, network: Network, problems: Iterable[str]) -> None:
        fix = (
            "Replace them, or leave them float by unsupported='float' or no annotation. "
            f"sat-tf quantizes {', '.join(supported_names())}."
        )
        distinct = list(dict.fromkeys(problems))
        unsupported = {
            f"{node.layer.name}: {layer_kinds.unsupported_problem(node.layer)}."
            for node in network
            if not layer_kinds.find_support(node.layer).quantized
        }
        super().__init__(network.name, distinct, "" if unsupported.isdisjoint(distinct) else fix)
