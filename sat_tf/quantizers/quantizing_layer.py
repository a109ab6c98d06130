"""The decisions of a layer of either Keras that quantizes the kernel and the output of another.

`qat.wrapper.QuantizedLayer` and `keras3.quantized_layer.QuantizedLayer` derive from it, and add
what their library forces on them: how they are built, saved and loaded.
"""

import contextlib
import functools
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np

from sat_tf.arguments import training_argument
from sat_tf.core import wide_functions
from sat_tf.core.grid import WIDE_BITS, off_halves, on_int8_codes
from sat_tf.core.recurrence import Functions
from sat_tf.core.tensor_ops import in_float32, namespace
from sat_tf.exact.kernels import functions, gates, wide
from sat_tf.quantizers import quantizer_table, values
from sat_tf.quantizers.protocol import BIT_FLOOR, VariableSpec

# The observer of the cell states of a recurrent layer, whose variables have names that begin so.
_CELL, _OBSERVER = "cell_", quantizer_table.make_range_observer()

# Stands for the wrapper of either Keras, which is the other base of a class.
_Wrapper: Any = object


class QuantizingLayer(_Wrapper):
    """A layer of the user's model with quantizers for its kernel and its output; abstract.

    The wrapped layer does not change: its variables are the latent weights. Only during a call do
    effective weights replace the kernel, and a quantizer the rectifier; a lock keeps threads from
    seeing each other's. Quantizers compute in float32 in every precision.

    A class has, besides `layer`: `weight_quantizer` and `output_quantizer`, or None, with the
    `place` of the second; their `kernel_variables` and `output_variables` by name; `_kernel_name`
    and `_int8_weights`, the attributes of the layer with its kernel and with other int8 weights, or
    ""; `gate_bits`, those of a recurrent layer's weights, or None for 8; `_one_call_at_a_time`, the
    lock; and methods that make variables and tell shapes.
    """

    _bit_floor: Any = None

    def _quantized_call(self, inputs: Any, training: Any) -> Any:
        """The output of the layer inside, computed with effective weights, and quantized."""
        observes = self._observes(training)

        def quantize(tensor: Any) -> Any:
            if self.output_quantizer is None:
                return tensor
            variables = self._with_floor(self.output_variables)
            return self.output_quantizer(tensor, observes, variables)

        return self._output_by(quantize, self.place, inputs, training)

    def _observes(self, training: Any) -> Any:
        """Whether quantizers are in training; not in a frozen layer, as in BatchNormalization."""
        return training if self.trainable and training is not None else False

    def before_quantization(self, inputs: Any, training: Any = False) -> Any:
        """The input of the output quantizer in a call: the output on effective weights."""
        if self.place == values.WITHIN:
            return self._states(values.itself, inputs, training, in_floats=True)
        seen: list[Any] = []

        def catch(tensor: Any) -> Any:
            seen.append(tensor)
            return tensor

        # Its input is not quantized.
        place = values.BEHIND if self.place == values.AROUND else self.place
        self._output_by(catch, place, inputs, training)
        return seen[0]

    def _output_by(
        self, quantize: Callable[[Any], Any], place: str, inputs: Any, training: Any
    ) -> Any:
        """The output of the layer inside, on effective weights, with a function in a place.

        Logits are quantized outside the lock: replicas of an observer wait for each other.
        """
        if place == values.INSTEAD:
            return quantize(inputs)
        if place == values.WITHIN:
            return self._states(quantize, inputs, self._observes(training))
        if place == values.ACTIVATION:
            return self._run(inputs, training, quantize)
        if place == values.BEFORE_ACTIVATION:
            with self._one_call_at_a_time:  # otherwise another thread's stand-in might be there
                function = self.layer.activation
            return function(quantize(self._run(inputs, training, lambda logits: logits)))
        if place == values.AROUND and self.output_quantizer is not None:
            outputs = self._run(quantize(inputs), training)
            codes = self.output_quantizer.code_range(self.output_variables)
            window = getattr(self.layer, "pool_size", None)
            moved = off_halves(outputs, codes.scale, codes.lowest, codes.intervals, window)
            return namespace(moved).cast(quantize(moved), outputs.dtype)
        return quantize(self._run(inputs, training))

    def _states(
        self, quantize: Callable[[Any], Any], inputs: Any, observes: Any, in_floats: bool = False
    ) -> Any:
        """The hidden states of a recurrent layer, as a file computes them or on real values."""
        functions = None if in_floats else functions_of_kernels()
        states, cells = self.layer.all_states(
            inputs, quantize, functions, self.largest_cell, self.gate_bits or 8
        )
        _OBSERVER(cells, observes, self._of_cell)
        return namespace(states).cast(states, self.layer.compute_dtype)

    @property
    def _of_cell(self) -> dict[str, Any]:
        """The variables of the cell states' observer, by its names for them."""
        names = _OBSERVER.variables(())
        return {name: self.output_variables[f"{_CELL}{name}"] for name in names}

    @property
    def largest_cell(self) -> Any:
        """The largest magnitude of the cell states of a recurrent layer that was seen, or 0."""
        low, high = (self._of_cell[name] for name in values.ENDS)
        n = namespace(low)
        return n.maximum(-n.tensor(low), n.tensor(high))

    def forget_cells(self) -> None:
        """Takes the cell states of a recurrent layer as never seen."""
        _OBSERVER.remember(0.0, 0.0, self._of_cell, 0)

    def _run(self, inputs: Any, training: Any, activation: Any = None) -> Any:
        """Calls the layer inside with effective weights, and another activation if there is one."""
        if self.weight_quantizer is None and not self._int8_weights and activation is None:
            # Nothing to replace, and no lock: synchronized BatchNormalization waits in here for
            # the thread of another replica.
            return self._call_layer(inputs, training)
        with self._one_call_at_a_time:
            weights = {}
            effective = self.effective_kernel(training if self.trainable else False)
            if effective is not None:
                weights[self._kernel_name] = effective
            if name := self._int8_weights:
                latent = getattr(self.layer, name)
                weights[name] = on_int8_codes(namespace(latent).tensor(latent))
            dtype = self.layer.compute_dtype
            values = {name: namespace(value).cast(value, dtype) for name, value in weights.items()}
            if activation is not None:
                values["activation"] = activation
            with standing_in(self.layer, values):
                return self._call_layer(inputs, training)

    def _call_layer(self, inputs: Any, training: Any) -> Any:
        """Calls the layer inside; functions with codes of 16 bits are those of kernels."""
        outputs = self.layer(inputs, **training_argument(self.layer.call, training))
        is_wide = getattr(self.output_quantizer, "num_bits", None) == WIDE_BITS
        if not is_wide or self.output_quantizer.observes_range:
            return outputs
        activation = getattr(self.layer, "activation", None)
        name = getattr(activation, "__name__", type(self.layer).__name__.lower())
        tables = wide.sigmoid_table(), *wide.tables()
        return _WIDE[name](inputs, outputs, tables) if name in _WIDE else outputs

    def effective_kernel(self, training: Any = False) -> Any:
        """The effective kernel, in float32; None if the layer has no quantized kernel."""
        if self.weight_quantizer is None:
            return None
        with self._one_call_at_a_time:
            kernel = getattr(self.layer, self._kernel_name)
        latent = in_float32(namespace(kernel), kernel)
        return self.weight_quantizer(latent, training, self._with_floor(self.kernel_variables))

    def _with_floor(self, variables: Mapping[str, Any]) -> dict[str, Any]:
        return {**variables, BIT_FLOOR: self._bit_floor}

    def _variables_of_quantizers(self, input_shape: Any) -> tuple[dict[str, Any], dict[str, Any]]:
        """Makes the variables of the kernel's quantizer, and those of the output's, as weights."""
        kernel_variables: dict[str, Any] = {}
        if self.weight_quantizer is not None:
            shape = tuple(getattr(self.layer, self._kernel_name).shape)
            kernel_variables = self.make_variables(self.weight_quantizer.variables(shape))
        output_variables: dict[str, Any] = {}
        if self.output_quantizer is not None:
            shape = self._output_shape(input_shape)
            specs = dict(self.output_quantizer.variables(shape))
            if self.place == values.WITHIN:
                of_cell = _OBSERVER.variables(())
                specs |= {f"{_CELL}{name}": spec for name, spec in of_cell.items()}
            output_variables = self.make_variables(specs)
        return kernel_variables, output_variables


# Functions with codes of 16 bits, by their names in Keras.
_WIDE: Mapping[str, Callable[..., Any]] = {
    "sigmoid": wide_functions.sigmoid,
    **dict.fromkeys(("silu", "swish"), wide_functions.swish),
    "softmax": wide_functions.softmax,
    "tanh": wide_functions.tanh,
}


@functools.cache
def functions_of_kernels() -> Functions:
    """The sigmoid and the tanh of LiteRT's LSTM."""
    rules, numbers = gates.OF_LITERT, np.arange(-(1 << functions.WIDTH_16), 1 << functions.WIDTH_16)
    tanhs = [rules.tanh(numbers, bits) for bits in range(gates.MOST_CELL_BITS + 1)]
    unit = 2.0**-functions.WIDTH_16
    sigmoids = (rules.sigmoid(numbers) * unit).astype(np.float32)
    return Functions(sigmoids, (np.stack(tanhs) * unit).astype(np.float32))


def make_weights(
    layer: Any,
    specs: Mapping[str, VariableSpec],
    keras: Any,
    at_least: Callable[[float], Any],
    of_replicas: Mapping[str, Any],
    **options: Any,
) -> dict[str, Any]:
    """The variables that a quantizer declares, as weights of a layer of a Keras, in their order."""
    return {
        name: layer.add_weight(
            name=name,
            shape=tuple(spec.shape),
            dtype=spec.dtype,
            initializer=keras.initializers.Constant(spec.start),
            trainable=spec.trainable,
            constraint=None if spec.lowest is None else at_least(spec.lowest),
            **(of_replicas if spec.follows_data else {}),
            **options,
        )
        for name, spec in specs.items()
    }


@contextlib.contextmanager
def standing_in(owner: Any, values: Mapping[str, Any]) -> Iterator[None]:
    """Other values for attributes, past Keras' `__setattr__`, which would untrack variables."""
    attributes = vars(owner)
    before = {name: attributes[name] for name in values if name in attributes}
    attributes.update(values)
    try:
        yield
    finally:
        for name in values.keys() - before.keys():
            del attributes[name]
        attributes.update(before)
