"""A view of a Keras 3 model as a list of calls, in an order in which they can be made."""

import contextlib
import dataclasses
import operator
from collections.abc import Callable, Mapping
from typing import Any

import keras as keras3
import tensorflow as tf
from tf_keras.src.mixed_precision import policy as policies  # Keras has no public name

from sat_tf.graph import operations
from sat_tf.graph.operations.operation import NewLayer

# Arguments that Keras sets where a tensor carries a mask and the caller gives none; tf_keras sets
# them by its own rules.
_MASKS = ("mask", "query_mask", "value_mask", "key_mask")
# Types of tensors, with the distance that two ways to compute one may have: two units in the last
# place, as a fraction of the largest value.
LOWER_PRECISIONS = {"float16": 2**-9, "bfloat16": 2**-6}


@dataclasses.dataclass(frozen=True)
class GraphCall:
    """One call of a layer or operation."""

    operation: Any  # The Keras 3 layer, nested model or operation that is called.
    node: Any  # Keras' record of the call.

    @property
    def outputs(self) -> list[Any]:
        """The symbolic tensors it makes."""
        return list(self.node.outputs)

    @property
    def constants(self) -> list[Any]:
        """Its arguments other than symbolic tensors."""
        arguments = self.filled_in({}, lambda value: value)
        return [value for value in keras3.tree.flatten(arguments) if value is not None]

    @property
    def tensors(self) -> list[Any]:
        """The symbolic tensors it reads."""
        return list(self.node.arguments.keras_tensors)

    @property
    def row(self) -> Any:
        """The row of the operation in the registry; None where tf_keras has no counterpart."""
        cls = type(self.operation)
        is_of_keras = cls.__module__.startswith(("keras.src.ops.", "keras.src.activations."))
        return operations.CLASSES.get(cls.__name__) if is_of_keras else None

    @property
    def function(self) -> Callable[..., Any]:
        """TensorFlow's function for the operation."""
        return operator.attrgetter(self.row.calls[0])(tf)

    @property
    def promoted_type(self) -> str:
        """The type to which Keras 3 promotes all that the operation is called with."""
        args = [*self.node.arguments.args, *self.node.arguments.kwargs.values()]
        return keras3.backend.result_type(*(getattr(arg, "dtype", type(arg)) for arg in args))

    def twin(self) -> Callable[..., Any]:
        """The tf_keras layer for the operation, with its name, or a function of its arguments."""
        dtype, precision = self.outputs[0].dtype, contextlib.nullcontext()
        if dtype in LOWER_PRECISIONS:  # layers then compute in this type, as operations do
            precision = policies.policy_scope(f"mixed_{dtype}")
        with precision:
            twin, name = self.row.twin(self), self.operation.name
            return twin.layer(name=name) if isinstance(twin, NewLayer) else twin

    def symbolic_arguments(self) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """The arguments, with the symbolic tensors themselves."""
        return self.filled_in({id(tensor): tensor for tensor in self.tensors}, lambda value: value)

    def filled_in(
        self, values: Mapping[int, Any], constant: Callable[[Any], Any]
    ) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """The arguments, with a value for every symbolic tensor."""

        def fill_in(value: Any) -> Any:
            if isinstance(value, keras3.KerasTensor):
                return values.get(id(value))
            return constant(value)

        arguments = self.node.arguments
        is_layer = isinstance(self.operation, keras3.layers.Layer)
        carried = {id(getattr(tensor, "_keras_mask", None)) for tensor in arguments.keras_tensors}
        carried.add(id(None))
        kwargs = {
            name: value
            for name, value in arguments.kwargs.items()
            if value is not None
            and not (
                is_layer
                and name in _MASKS
                and carried.issuperset(map(id, keras3.tree.flatten(value)))
            )
            # In inference Keras 3 overrules training=True; tf_keras would not.
            and not (name == "training" and value)
        }
        return keras3.tree.map_structure(fill_in, (tuple(arguments.args), kwargs))


class Keras3Graph:
    """The graph of a built Sequential or Functional Keras 3 model."""

    def __init__(self, model: Any) -> None:
        """Reads a model for which `functional_of` finds a graph."""
        self.model = model
        self.name: str = model.name
        self._functional = functional_of(model)
        self.inputs: list[Any] = list(self._functional.inputs)
        self.outputs: list[Any] = list(self._functional.outputs)
        # Keras has no public view of which of a layer's calls belong to which model.
        by_depth = self._functional._nodes_by_depth
        nodes = [node for depth in sorted(by_depth, reverse=True) for node in by_depth[depth]]
        calls = [GraphCall(node.operation, node) for node in nodes if not node.is_input]
        needed = {id(tensor) for tensor in self.outputs}
        for call in reversed(calls):  # calls that only make masks are not needed
            if any(id(tensor) in needed for tensor in call.outputs):
                needed |= {id(value) for value in keras3.tree.flatten(call.symbolic_arguments())}
        self.calls = [call for call in calls if any(id(t) in needed for t in call.outputs)]

    def input_layer(self, tensor: Any) -> Any:
        """The input layer that makes one of `inputs`."""
        return tensor._keras_history.operation

    def pack_inputs(self, flat: list[Any]) -> Any:
        """Values for `inputs` in the structure that the model is called with."""
        return keras3.tree.pack_sequence_as(self._functional._inputs_struct, flat)

    def pack_outputs(self, flat: list[Any]) -> Any:
        """Values for `outputs` in the structure that the model returns."""
        return keras3.tree.pack_sequence_as(self._functional._outputs_struct, flat)


def functional_of(model: Any) -> Any:
    """The Functional model with the graph of a model; None where it has none."""
    if isinstance(model, keras3.Sequential):
        return model._functional
    return model if hasattr(model, "_nodes_by_depth") else None
