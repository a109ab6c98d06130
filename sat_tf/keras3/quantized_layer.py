"""The Keras 3 layer that quantizes another layer's kernel and output, on any backend.

It needs Keras 3, NumPy and a backend: files with it load and train where TensorFlow is not.
"""

import contextlib
import inspect
import threading
from collections.abc import Iterator, Mapping
from typing import Any

import keras as keras3
from keras import ops

from sat_tf.arguments import training_argument
from sat_tf.core.grid import on_int8_codes
from sat_tf.exact.targets.processors import PROCESSORS, saved_target
from sat_tf.messages import did_you_mean
from sat_tf.quantizers.protocol import Quantizer, VariableSpec
from sat_tf.quantizers.table import deserialize_quantizer, serialize_quantizer
from sat_tf.quantizers.values import AROUND, BEHIND, INSTEAD, PLACES, quantized_output
from sat_tf.version import marked, unmarked

# One for all layers: a call holds it while its layer computes with other weights than its own.
_ONE_CALL_AT_A_TIME = threading.RLock()
# Layers of Keras 3 hold their kernels behind a property of that name, or by the name.
_KERNELS = ("_kernel", "kernel")

# Replicas of `tf.distribute` have their own, as the statistics of BatchNormalization, and their
# mean is what is read and saved. Early releases of Keras 3 do not have the choice.
_HAS_CHOICE = "aggregation" in inspect.signature(keras3.layers.Layer.add_weight).parameters
_OF_REPLICAS: dict[str, Any] = {"aggregation": "mean"} if _HAS_CHOICE else {}

_register = keras3.saving.register_keras_serializable(package="sat_tf")


@_register
class QuantizedLayer(keras3.layers.Wrapper):
    """A layer of the user's model with the quantizers that `quantize_model` gave it.

    The wrapped layer does not change: its variables are the latent weights, and its settings those
    of the float model. Only during a call do effective weights replace the kernel, and a quantizer
    the rectifier. Quantizers compute in float32 in every precision.

    Args:
        layer: the layer to quantize.
        weights: the quantizer of its kernel, or None.
        output: the quantizer or observer of the tensor it makes, or None.
        place: where `output` stands, one of `PLACES`.
        annotation: the fields of the `LayerConfig` that the user gave, to be kept.
        inserted: the layer is not the user's; it exists to hold `output`.
        target: the processor that the model's file is for; None for LiteRT's CPU kernels.
        output_name: what the user calls the output of the model that it makes, where that is not
            the name of `layer`.
        **options: options of any Keras layer.

    Attributes:
        kernel_variables: those of `weights`, by name.
        output_variables: those of `output`, by name.
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
        self.target = target
        self.output_name = output_name
        self.supports_masking = bool(layer.supports_masking)
        self._set("_takes_training", bool(training_argument(layer.call, None)))
        self._set("kernel_variables", {})
        self._set("output_variables", {})

    def _set(self, name: str, value: Any) -> None:
        # Past Keras' own __setattr__: the variables are tracked already, as those of the layer.
        object.__setattr__(self, name, value)

    def build(self, input_shape: Any) -> None:
        """Creates the variables of the layer, if it has none yet, and of the quantizers."""
        if self.place != INSTEAD:
            super().build(input_shape)
        if self.weight_quantizer is not None:
            shape = tuple(vars(self.layer)[_kernel_name(self.layer)].shape)
            self._set(
                "kernel_variables", self.make_variables(self.weight_quantizer.variables(shape))
            )
        if self.output_quantizer is not None:
            shape = self._output_shape(input_shape)
            self._set(
                "output_variables", self.make_variables(self.output_quantizer.variables(shape))
            )
        self.built = True

    def make_variables(self, specs: Mapping[str, VariableSpec]) -> dict[str, Any]:
        """Makes the variables that a quantizer declares, in their order."""
        return {
            name: self.add_weight(
                name=name,
                shape=tuple(spec.shape),
                dtype=spec.dtype,
                initializer=keras3.initializers.Constant(spec.start),
                trainable=spec.trainable,
                constraint=None if spec.lowest is None else AtLeast(spec.lowest),
                autocast=False,
                **(_OF_REPLICAS if spec.follows_data else {}),
            )
            for name, spec in specs.items()
        }

    def call(self, inputs: Any, training: Any = None) -> Any:
        """The layer's output, quantized."""
        observes = bool(training) and self.trainable  # as BatchNormalization does

        def quantize(tensor: Any) -> Any:
            if self.output_quantizer is None:
                return tensor
            return self.output_quantizer(tensor, observes, self.output_variables)

        # A PReLU's slopes, which an NPU's operator has as int8.
        is_npu = self.target is not None and PROCESSORS[self.target].native
        slopes = "alpha" if is_npu and isinstance(self.layer, keras3.layers.PReLU) else ""

        def run(tensor: Any, activation: Any = None) -> Any:
            arguments = {"training": training} if self._takes_training else {}
            if self.weight_quantizer is None and not slopes and activation is None:
                return self.layer(tensor, **arguments)
            with _ONE_CALL_AT_A_TIME:
                stand_ins = {} if activation is None else {"activation": activation}
                if self.weight_quantizer is not None:
                    effective = ops.cast(self.effective_kernel(observes), self.layer.compute_dtype)
                    stand_ins[_kernel_name(self.layer)] = effective
                if slopes:
                    rounded = on_int8_codes(ops.convert_to_tensor(vars(self.layer)[slopes]))
                    stand_ins[slopes] = ops.cast(rounded, self.layer.compute_dtype)
                with standing_in(self.layer, stand_ins):
                    return self.layer(tensor, **arguments)

        quantizer: Any = self.output_quantizer
        return quantized_output(
            BEHIND if quantizer is None and self.place == AROUND else self.place,
            self.layer,
            inputs,
            run=run,
            quantize=quantize,
            code_range=lambda: quantizer.code_range(self.output_variables),
            lock=_ONE_CALL_AT_A_TIME,
        )

    def effective_kernel(self, training: bool = False) -> Any:
        """The effective kernel, in float32; None if the layer has no quantized kernel."""
        if self.weight_quantizer is None:
            return None
        kernel = vars(self.layer)[_kernel_name(self.layer)]
        latent = ops.cast(ops.convert_to_tensor(kernel), "float32")
        return self.weight_quantizer(latent, training, self.kernel_variables)

    def compute_output_spec(self, inputs: Any, **options: Any) -> Any:
        """Shape and type of the output: those of the layer inside, which quantizers keep.

        Without it, Keras runs the quantizers to find out, which takes most of the time of building
        a model. It still does where the layer inside may make parts of itself when it is called.
        """
        if self.place == INSTEAD:
            made = inputs
        elif type(self.layer).__module__.startswith("keras."):
            made = self.layer.compute_output_spec(inputs)
        else:
            made = None
        if not keras3.backend.is_float_dtype(getattr(made, "dtype", None) or "int32"):
            return super().compute_output_spec(inputs, **options)
        return keras3.KerasTensor(made.shape, made.dtype)

    # Not `compute_output_shape`: Keras would then take the output to be of this layer's type.
    def _output_shape(self, input_shape: Any) -> Any:
        if self.place == INSTEAD:
            return input_shape
        try:
            return self.layer.compute_output_shape(input_shape)
        except NotImplementedError:  # of a layer whose author left it out
            given = keras3.KerasTensor(input_shape, self.layer.compute_dtype)
            return self.layer.compute_output_spec(given).shape

    def get_config(self) -> dict[str, Any]:
        config = super().get_config()
        own = {
            "weights": serialize_quantizer(self.weight_quantizer),
            "output": serialize_quantizer(self.output_quantizer),
            "place": self.place,
            "annotation": self.annotation,
            "inserted": self.inserted,
        }
        # Older releases read the models that have none.
        marks = {"target": self.target, "output_name": self.output_name}
        own |= {name: mark for name, mark in marks.items() if mark}
        return marked({**config, **own})

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


def _kernel_name(layer: Any) -> str:
    """The attribute with a layer's kernel."""
    for name in _KERNELS:
        if name in vars(layer):
            return name
    raise ValueError(
        f"{layer.name}: received {type(layer).__name__} with a quantizer for its kernel, expected "
        "a layer that has a kernel and is built."
    )


@contextlib.contextmanager
def standing_in(layer: Any, values: Mapping[str, Any]) -> Iterator[None]:
    """Other values for attributes of a layer; Keras does not see them."""
    attributes = vars(layer)
    before = {name: attributes[name] for name in values}
    attributes.update(values)
    try:
        yield
    finally:
        attributes.update(before)


@_register
class AtLeast(keras3.constraints.Constraint):
    """Keeps a variable at or above a value; clipping levels must stay positive."""

    def __init__(self, minimum: float) -> None:
        self.minimum = minimum

    def __call__(self, w: Any) -> Any:
        """The values of `w`, none below the minimum."""
        return ops.maximum(w, ops.cast(self.minimum, w.dtype))

    def get_config(self) -> dict[str, Any]:
        return {"minimum": self.minimum}
