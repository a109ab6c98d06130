"""The Keras 3 layer that quantizes another layer's kernel and output, on any backend.

It needs Keras 3, NumPy and a backend: files with it load and train where TensorFlow is not.
"""

import inspect
import threading
from collections.abc import Mapping
from typing import Any

import keras as keras3

from sat_tf.exact.targets.processors import PROCESSORS, saved_target
from sat_tf.graph import shared_layers
from sat_tf.graph.shared_layers import class_of
from sat_tf.messages import did_you_mean
from sat_tf.quantizers.protocol import Quantizer, VariableSpec
from sat_tf.quantizers.quantizer_table import deserialize_quantizer, serialize_quantizer
from sat_tf.quantizers.quantizing_layer import QuantizingLayer, make_weights
from sat_tf.quantizers.values import BEHIND, INSTEAD, PLACES
from sat_tf.version import marked, unmarked

# Replicas of `tf.distribute` have their own variables, like statistics of BatchNormalization, and
# their mean is read and saved. Early releases of Keras 3 do not have the choice.
_HAS_CHOICE = "aggregation" in inspect.signature(keras3.layers.Layer.add_weight).parameters
_OF_REPLICAS: dict[str, Any] = {"aggregation": "mean"} if _HAS_CHOICE else {}

_register = keras3.saving.register_keras_serializable(package="sat_tf")

AtLeast = _register(class_of(shared_layers.AtLeast, keras3.constraints.Constraint, __name__))

MARKS = "rows", "gate_bits", "target", "output_name"  # in configurations where they say something


@_register
class QuantizedLayer(QuantizingLayer, keras3.layers.Wrapper):
    """A layer of the user's model with the quantizers that `quantize_model` gave it.

    The wrapped layer does not change: its variables are the latent weights, and its settings those
    of the float model; see `QuantizingLayer`.

    It takes a layer, the quantizers of the layer's kernel and output, the place of the second, one
    of `PLACES`, the marks that `qat.configs.PlacedConfig` explains, and options of any layer.
    """

    def __init__(
        self,
        layer: Any,
        weights: Quantizer | None = None,
        output: Quantizer | None = None,
        *,
        place: str = BEHIND,
        annotation: Mapping[str, Any] | None = None,
        inserted: bool = False,
        rows: bool = False,
        gate_bits: int | None = None,
        target: str | None = None,
        output_name: str | None = None,
        **options: Any,
    ) -> None:
        if place not in PLACES:
            raise ValueError(f"place={place!r}: {did_you_mean(str(place), PLACES)}")
        options.setdefault("name", f"quant_{layer.name}")
        super().__init__(layer, **{**options, "dtype": "float32", "autocast": False})
        self.weight_quantizer = weights
        self.output_quantizer = output
        self.place = place
        if place == INSTEAD:  # the layer is then never called
            self.activity_regularizer = layer.activity_regularizer
        self.annotation = None if annotation is None else dict(annotation)
        self.inserted = bool(inserted)
        self.rows = bool(rows)
        self.gate_bits = gate_bits
        self.target = target
        self.output_name = output_name
        self.supports_masking = bool(layer.supports_masking)
        self._set_variables({}, {})

    # A call holds this lock while its layer computes with weights other than its own.
    _one_call_at_a_time = threading.RLock()

    def _set_variables(self, of_kernel: dict[str, Any], of_output: dict[str, Any]) -> None:
        # This avoids Keras' own __setattr__: the variables are tracked already, as the layer's.
        object.__setattr__(self, "kernel_variables", of_kernel)
        object.__setattr__(self, "output_variables", of_output)

    def build(self, input_shape: Any) -> None:
        """Creates the variables of the layer, if it has none yet, and of the quantizers."""
        if self.place != INSTEAD:
            super().build(input_shape)
        self._set_variables(*self._variables_of_quantizers(input_shape))
        self.built = True

    def make_variables(self, specs: Mapping[str, VariableSpec]) -> dict[str, Any]:
        """Makes the variables that a quantizer declares, in their order."""
        return make_weights(self, specs, keras3, AtLeast, _OF_REPLICAS, autocast=False)

    def call(self, inputs: Any, training: Any = None) -> Any:
        """The layer's output, quantized."""
        return self._quantized_call(inputs, training)

    @property
    def _kernel_name(self) -> str:
        return self._attribute("kernel")

    def _attribute(self, weights: str) -> str:
        """The attribute that holds weights, which may stand behind a property."""
        for name in (f"_{weights}", weights):
            if name in vars(self.layer):
                return name
        raise ValueError(
            f"{self.layer.name}: received {type(self.layer).__name__} with a quantizer for its "
            f"{weights}, expected a layer that has it and is built."
        )

    @property
    def _int8_weights(self) -> str:
        if not self.rows and (self.target is None or not PROCESSORS[self.target].native):
            return ""
        weights = shared_layers.TABLES if self.rows else shared_layers.INT8_WEIGHTS
        names = [name for name in weights if isinstance(self.layer, getattr(keras3.layers, name))]
        return self._attribute(weights[names[0]]) if names else ""

    def compute_output_spec(self, inputs: Any, **options: Any) -> Any:
        """Shape and type of the output: those of the layer inside, which quantizers keep.

        Without this method, Keras runs the quantizers, which takes most of the time of a build.
        """
        if self.place == INSTEAD:
            output = inputs
        elif type(self.layer).__module__.startswith("keras."):
            output = self.layer.compute_output_spec(inputs)
        else:
            output = None
        if not keras3.backend.is_float_dtype(getattr(output, "dtype", None) or "int32"):
            return super().compute_output_spec(inputs, **options)
        return keras3.KerasTensor(output.shape, output.dtype)

    # The name is not `compute_output_shape`: Keras would then give the output this layer's type.
    def _output_shape(self, input_shape: Any) -> Any:
        if self.place == INSTEAD:
            return input_shape
        try:
            return self.layer.compute_output_shape(input_shape)
        except NotImplementedError:  # the layer's author left it out
            input_tensor = keras3.KerasTensor(input_shape, self.layer.compute_dtype)
            return self.layer.compute_output_spec(input_tensor).shape

    def get_config(self) -> dict[str, Any]:
        config = super().get_config()
        settings = {
            "weights": serialize_quantizer(self.weight_quantizer),
            "output": serialize_quantizer(self.output_quantizer),
            "place": self.place,
            "annotation": self.annotation,
            "inserted": self.inserted,
        }
        # Older releases read the models that have no marks.
        marks = {name: getattr(self, name) for name in MARKS}
        settings |= {name: mark for name, mark in marks.items() if mark}
        return marked({**config, **settings})

    @classmethod
    def from_config(
        cls, config: dict[str, Any], custom_objects: dict[str, Any] | None = None
    ) -> "QuantizedLayer":
        """Reads back what `get_config` wrote.

        Raises:
            ValueError: a later version has saved it in a newer format, or with a quantizer that
                this one does not have.
        """
        config = unmarked(config)
        layer = keras3.saving.deserialize_keras_object(
            config.pop("layer"), custom_objects=custom_objects
        )
        weights, output = (deserialize_quantizer(config.pop(key)) for key in ("weights", "output"))
        config["target"] = saved_target(config.get("target"))
        return cls(layer, weights, output, **config)
