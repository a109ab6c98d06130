"""The Keras layer that computes a quantized layer's output as the file's kernels do."""

from collections.abc import Mapping
from typing import Any

import numpy as np
import tensorflow as tf
import tf_keras as keras

from sat_tf.core.own_gradient import straight_through
from sat_tf.export import exact
from sat_tf.export.graph import Graph
from sat_tf.export.parts import Part
from sat_tf.qat.layout import call_name
from sat_tf.qat.network import Node, call_in_inference


class DeployedLayer(keras.layers.Layer):
    """A layer of a quantized model whose output is what the integer file computes in its place.

    The layer itself, called in inference, gives the gradient. The numbers of the integer
    computation are variables that are not trained: `assign` writes those of another state of the
    model.

    Args:
        node: the layer in the quantized model; its variables are shared.
        part: what the deployed graph has in its place.
        graph: the deployed graph.
    """

    def __init__(self, node: Node, part: Part, graph: Graph) -> None:
        name = f"deployed_{call_name(node)}".replace("@", "_call_")
        super().__init__(name=name, dtype="float32", autocast=False)
        self.layer = node.layer
        self.part = part
        self._node = node
        self._graph = graph
        # Past Keras' own __setattr__, which would make it part of checkpoints.
        object.__setattr__(self, "_written", {})
        self._constants: dict[str, tf.Variable] = {
            key: self.add_weight(
                name=key,
                shape=np.shape(value),
                dtype=np.asarray(value).dtype,
                initializer=keras.initializers.Zeros(),
                trainable=False,
            )
            for key, value in self._values(graph, part).items()
        }
        self.assign(graph, part)

    # Nothing here branches on tensors but `exact`, by tf.switch_case.
    @tf.autograph.experimental.do_not_convert
    def call(self, inputs: Mapping[str, Any], training: Any = None) -> dict[str, Any]:
        """The layer's output, and the tensors of the deployed graph that it is made of.

        Args:
            inputs: "real", the outputs of the layers it reads, as a list; and "tensors", those
                of the deployed graph that its part reads, by name: codes or real values.
            training: makes no difference.

        Returns:
            The same of its own: one tensor as "real", and a dictionary as "tensors".
        """
        del training
        surrogate = call_in_inference(self._node, self.layer, inputs["real"])
        if self.part.tensor is None:
            return {"real": surrogate, "tensors": {}}
        tensors, made = dict(inputs["tensors"]), {}
        for operation in self.part.operations:
            prefix = f"{operation.output}/"
            constants = {
                key.removeprefix(prefix): tf.convert_to_tensor(variable)
                for key, variable in self._constants.items()
                if key.startswith(prefix)
            }
            read = [tensors[name] for name in operation.inputs]
            result = tf.stop_gradient(exact.compute(operation, self._graph, constants, *read))
            tensors[operation.output] = made[operation.output] = result
        value = tensors[self.part.tensor]
        if "real_step" in self._constants:
            value *= self._constants["real_step"]
        return {
            "real": straight_through(tf.cast(value, surrogate.dtype), surrogate),
            "tensors": made,
        }

    def assign(self, graph: Graph, part: Part, *, everything: bool = True) -> None:
        """Takes the numbers of the model's present state.

        Args:
            graph: the deployed graph, with the operations that it was made with.
            part: what it has in the place of this layer.
            everything: write also what has not changed since it was written last.
        """
        for key, value in self._values(graph, part).items():
            if everything or not np.array_equal(self._written[key], value):
                self._constants[key].assign(value)
                self._written[key] = value

    @staticmethod
    def _values(graph: Graph, part: Part) -> exact.Numbers:
        values: exact.Numbers = {
            f"{operation.output}/{name}": value
            for operation in part.operations
            for name, value in exact.constants_of(operation, graph).items()
        }
        if part.tensor is not None and graph.tensors[part.tensor].codes is not None:
            values["real_step"] = np.float32(graph.codes(part.tensor).real_step)
        return values

    def get_config(self) -> dict[str, Any]:
        """Raises: it is a view of another model, which is the one to save.

        Raises:
            NotImplementedError: always.
        """
        raise NotImplementedError(
            f"{self.name}: a layer of a deployed model, which is a view of the quantized one; "
            "save or copy that, `deployed.quantized`, and call deployed_model on it again."
        )
