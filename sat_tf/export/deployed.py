"""The deployed model in Keras: the codes of the file, the variables of the quantized model."""

import dataclasses
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np
import tensorflow as tf
import tf_keras as keras

from sat_tf.core.gradients import straight_through
from sat_tf.export.kernels.kernel_sets import Engine
from sat_tf.export.lowering.layers import KernelTensors, kernel_tensors
from sat_tf.export.lowering.pipeline import deployed_graph
from sat_tf.export.lowering.quantized_network import is_left_float, role_of
from sat_tf.export.operations.graph import Graph
from sat_tf.export.operations.operation import IN_THE_FILE_ONLY, Numbers, Operation
from sat_tf.export.tflite.images import Pixels, arrays_of, joined
from sat_tf.graph.layers.kind import Role
from sat_tf.graph.network import Network, Node, as_layer_name, call_in_inference
from sat_tf.qat.layout import call_name
from sat_tf.qat.model_class import processor_of


@dataclasses.dataclass(frozen=True)
class DeployedOperations:
    """The operations that replace one Keras layer in the deployed graph.

    Attributes:
        sources: the tensors it reads.
        operations: what it computes from them, in order; empty where the layer changes nothing.
        tensor: the one with the layer's output; None where the layer is folded into others.
    """

    sources: tuple[str, ...] = ()
    operations: tuple[Operation, ...] = ()
    tensor: str | None = None


def replacements_of(graph: Graph) -> dict[str, DeployedOperations]:
    """The replacement of each layer that has an output in the graph, by its name."""
    makers = {operation.output: operation for operation in graph.operations}
    known = {image.name for image in graph.images}
    replacements: dict[str, DeployedOperations] = {}
    for name, tensor in graph.layer_outputs.items():
        operations = list(_needed(tensor, makers, known))
        made = {operation.output for operation in operations}
        read = {tensor, *(source for op in operations for source in op.inputs)} - made
        replacements[name] = DeployedOperations(tuple(sorted(read)), tuple(operations), tensor)
    return replacements


def _needed(tensor: str, makers: dict[str, Operation], known: set[str]) -> Iterator[Operation]:
    """The operations that lead from what is known to a tensor, which is then known as well."""
    if tensor not in known:
        for source in makers[tensor].inputs:
            yield from _needed(source, makers, known)
        known.add(tensor)
        yield makers[tensor]


def _outline(graph: Graph) -> dict[str, Any]:
    """All settings of the operations but their numbers, by the tensors that they make."""

    def settings(operation: Operation) -> list[Any]:
        fields = dataclasses.fields(operation)
        values = [getattr(operation, f.name) for f in fields if f.metadata != IN_THE_FILE_ONLY]
        return [np.shape(value) if isinstance(value, np.ndarray) else value for value in values]

    return {
        operation.output: (
            type(operation),
            settings(operation),
            graph.tensors[operation.output].shape,
            operation.is_float(graph),
        )
        for operation in graph.operations
    }


class DeployedLayer(keras.layers.Layer):
    """A layer of a quantized model with the output that the integer file computes for it.

    The layer itself, called in inference, gives the gradient. The numbers of the integer
    computation are variables that are not trained: `assign` writes those of another state of the
    model.

    Args:
        node: the layer in the quantized model; its variables are shared.
        replacement: its replacement in the deployed graph.
        graph: the deployed graph.
    """

    def __init__(self, node: Node, replacement: DeployedOperations, graph: Graph) -> None:
        name = as_layer_name(f"deployed_{call_name(node)}")
        super().__init__(name=name, dtype="float32", autocast=False)
        self.layer = node.layer
        self.replacement = replacement
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
            for key, value in self._values(graph, replacement).items()
        }
        self.assign(graph, replacement)

    # Nothing here branches on tensors but the operations, by tf.switch_case.
    @tf.autograph.experimental.do_not_convert
    def call(self, inputs: Mapping[str, Any], training: Any = None) -> dict[str, Any]:
        """The layer's output, and the tensors of the deployed graph that it is made of.

        Args:
            inputs: "real", the outputs of the layers it reads, as a list; and "tensors", those
                of the deployed graph that its replacement reads, by name: codes or real values.
            training: makes no difference.

        Returns:
            The same of its own: one tensor as "real", and a dictionary as "tensors".
        """
        surrogate = call_in_inference(self._node, self.layer, inputs["real"])
        if self.replacement.tensor is None:
            return {"real": surrogate, "tensors": {}}
        tensors, made = dict(inputs["tensors"]), {}
        for operation in self.replacement.operations:
            prefix = f"{operation.output}/"
            constants = {
                key.removeprefix(prefix): tf.convert_to_tensor(variable)
                for key, variable in self._constants.items()
                if key.startswith(prefix)
            }
            read = [tensors[name] for name in operation.inputs]
            result = tf.stop_gradient(operation.compute(self._graph, constants, *read))
            tensors[operation.output] = made[operation.output] = result
        value = tensors[self.replacement.tensor]
        if "real_scale" in self._constants:
            value *= self._constants["real_scale"]
        return {
            "real": straight_through(tf.cast(value, surrogate.dtype), surrogate),
            "tensors": made,
        }

    def assign(
        self, graph: Graph, replacement: DeployedOperations, *, everything: bool = True
    ) -> None:
        """Takes the numbers of the model's present state.

        Args:
            graph: the deployed graph, with the operations that it was made with.
            replacement: that of this layer in it.
            everything: write also what has not changed since it was written last.
        """
        for key, value in self._values(graph, replacement).items():
            if everything or not np.array_equal(self._written[key], value):
                self._constants[key].assign(value)
                self._written[key] = value

    @staticmethod
    def _values(graph: Graph, replacement: DeployedOperations) -> Numbers:
        values: Numbers = {
            f"{operation.output}/{name}": value
            for operation in replacement.operations
            for name, value in operation.numbers(graph).items()
        }
        if replacement.tensor is not None and graph.tensors[replacement.tensor].codes is not None:
            values["real_scale"] = np.float32(graph.codes(replacement.tensor).real_scale)
        return values

    def get_config(self) -> dict[str, Any]:
        """Raises NotImplementedError: it is a view of another model, which is the one to save."""
        raise NotImplementedError(
            f"{self.name}: a layer of a deployed model, which is a view of the quantized one; "
            "save or copy that, `deployed.quantized`, and call deployed_model on it again."
        )


def deployed_model(
    quantized: keras.Model, *, float_head: bool = False, pack: str = "auto"
) -> "DeployedModel":
    """The Keras model that computes what the integer file of a quantized model computes.

        deployed = sat_tf.export.deployed_model(quantized)
        deployed.compile(optimizer, loss)
        deployed.fit(dataset)               # trains the variables of `quantized`
        sat_tf.export_tflite(quantized, path)

    Its forward pass is that of the file `export_tflite(quantized, path)` would write now, code by
    code: BatchNormalization is frozen and folded, biases are integers, kernels round as on a phone.
    Its gradient is that of the quantized model at these codes, straight through what the file
    rounds. So nothing is left between what is trained and what runs.

    Args:
        quantized: a model quantized by sat-tf; its variables are shared. Under a `tf.distribute`
            strategy, one whose variables were made in its scope.
        float_head: as in `sat_tf.export_tflite`.
        pack: the same: biases are on the grid of the stored codes. Training may move weights in and
            out of what 4 bits hold.

    Returns:
        A `DeployedModel`, with the input and the output of `quantized`.

    Raises:
        ValueError: the model has no integer form, or with this `pack` LiteRT's builtin kernels
            compute a part of it; lists every problem with its fix.
    """
    if isinstance(quantized, DeployedModel):
        raise ValueError(
            f"model {quantized.name!r}: received a deployed model, expected the quantized one that "
            "it is made of; pass its `quantized`."
        )
    network = Network(quantized)
    pack = processor_of(quantized).packing(pack)
    graph = deployed_graph(network, float_head=float_head, pack=pack)
    builtin = [
        operation.output for operation in graph.operations if operation.engine is not Engine.XNNPACK
    ]
    if builtin:
        raise ValueError(
            f"model {graph.name!r}, pack={pack!r}: received {len(builtin)} convolutions that "
            f"LiteRT's builtin kernels compute ({', '.join(builtin[:3])}, ...), expected XNNPACK's "
            "kernels alone, whose rounding a deployed model has; use pack='auto'."
        )
    with quantized.distribute_strategy.scope():
        return DeployedModel(quantized, network, graph, float_head=float_head, pack=pack)


class DeployedModel(keras.Model):
    """A view of a quantized model as its file computes it; see `deployed_model`.

    The integers are taken from the quantized model by `refresh`. `fit` does it before every step
    and at its end, `evaluate` and `predict` do it at their start; call it yourself after other
    changes of the variables and in training loops of your own.

    Args:
        quantized: the quantized model.
        network: its graph.
        graph: its deployed graph.
        float_head: how that was made.
        pack: likewise.

    Attributes:
        quantized: the model whose variables this one shares, and which is saved and exported.
        graph: the deployed graph as it was taken last.
        float_head: whether the last Dense layer is float, as `sat_tf.export_tflite` has it.
        pack: how its kernels are stored, as `sat_tf.export_tflite` has it.
    """

    quantized: keras.Model
    graph: Graph
    float_head: bool
    pack: str
    _network: Network
    # The layers of this model, by the names of those of the quantized one.
    _deployed_layers: dict[str, DeployedLayer]
    # Computes what TensorFlow does of all kernels.
    _kernels: Callable[[], dict[str, KernelTensors]]
    # Gives all integer tensors beside the output.
    _computed: keras.Model

    def __init__(
        self,
        quantized: keras.Model,
        network: Network,
        graph: Graph,
        *,
        float_head: bool,
        pack: str,
    ) -> None:
        replacements = replacements_of(graph)
        # Pixels and codes are fed as the real values that they stand for.
        images = {
            image.name: keras.Input(
                image.shape, name=image.name, dtype=image.type if image.is_kept else "float32"
            )
            for image in graph.images
        }
        real, tensors, layers = dict(images), dict(images), {}
        for node in network:
            if node.name in images:
                continue
            replacement = replacements.get(node.name, DeployedOperations())
            layers[node.name] = DeployedLayer(node, replacement, graph)
            made = layers[node.name](
                {
                    "real": [real[name] for name in node.inputs],
                    "tensors": {name: tensors[name] for name in replacement.sources},
                }
            )
            real[node.name] = made["real"]
            tensors |= made["tensors"]
        inputs, outputs = network.pack(real)
        super().__init__(inputs, outputs, name=f"{network.name}_deployed")
        integers = {name: tensors[name] for name in graph.integer_tensors}
        output = [real[name] for name in network.outputs]
        self._keep(
            quantized=quantized,
            graph=graph,
            float_head=float_head,
            pack=pack,
            _network=network,
            _deployed_layers=layers,
            _kernels=_kernels_of(network),
            _computed=keras.Model(list(images.values()), {"codes": integers, "output": output}),
        )

    def _keep(self, **attributes: Any) -> None:
        """Sets attributes past Keras, which would track models and dictionaries among them."""
        for name, value in attributes.items():
            object.__setattr__(self, name, value)

    def refresh(self) -> None:
        """Takes the integers of the file that the quantized model would be exported to now.

        Raises:
            ValueError: the model no longer has an integer form, or its file no longer has the same
                operations; says which, and what to do.
        """
        self._take(self._deployed(), everything=True)

    def refresh_quickly(self) -> None:
        """The same, between steps of training: kernels are computed by one traced function.

        What cannot change there is neither checked nor written again. Compilers may round the
        effective weights differently in their last bit, so that `refresh` follows before anything
        is measured.

        Raises:
            ValueError: as `refresh`.
        """
        try:
            kernels = self._kernels()
        except tf.errors.InvalidArgumentError:  # non-finite weights: let it say which
            self.refresh()
            return
        self._take(self._deployed(kernels), everything=False)

    def _deployed(self, kernels: Mapping[str, KernelTensors] | None = None) -> Graph:
        return deployed_graph(
            self._network, float_head=self.float_head, pack=self.pack, kernels=kernels
        )

    def _take(self, graph: Graph, *, everything: bool) -> None:
        before, after = _outline(self.graph), _outline(graph)
        changed = [key for key in {**before, **after} if before.get(key) != after.get(key)]
        if changed:
            raise ValueError(
                f"model {self.name!r}: received variables with which the file has other operations "
                f"than before ({', '.join(changed)}), expected the same ones; call deployed_model "
                "again on its `quantized`."
            )
        replacements = replacements_of(graph)
        with self.distribute_strategy.scope():
            for name, layer in self._deployed_layers.items():
                layer.assign(
                    graph, replacements.get(name, DeployedOperations()), everything=everything
                )
        self._keep(graph=graph)

    def run(self, images: Pixels) -> tuple[dict[str, np.ndarray], np.ndarray]:
        """The stored integers of every integer tensor by name, and the model's output.

        Args:
            images: uint8 (n, rows, columns, channels); few enough for all tensors at once; a
                tuple of arrays for several inputs.
        """
        pixels = [
            tf.constant(image.fed(pixels))
            for pixels, image in zip(arrays_of(images), self.graph.images, strict=True)
        ]
        made = self._computed(pixels, training=False)
        stored = {
            name: codes.numpy().astype(np.int32) + self.graph.codes(name).zero_point
            for name, codes in made["codes"].items()
        }
        return stored, joined([output.numpy() for output in made["output"]])

    @property
    def names(self) -> list[str]:
        """The tensors that are integers in the file."""
        return list(self.graph.integer_tensors)

    @property
    def raw_inputs(self) -> frozenset[str]:
        """None of them: its inputs are codes of the file, which nothing clips once more."""
        return frozenset()

    # -- Keras ---------------------------------------------------------------------------------

    def compile(self, *arguments: Any, **options: Any) -> None:
        """Compiles as any Keras model does, except that `steps_per_execution` must be 1.

        Raises:
            ValueError: several steps an execution, between which nothing could be refreshed.
        """
        steps = options.get("steps_per_execution")
        if steps not in (None, 1):
            raise ValueError(
                f"model {self.name!r}: received steps_per_execution={steps!r}, expected 1: the "
                "integers are taken from the model before every step; leave it out."
            )
        super().compile(*arguments, **options)

    train_function: Any  # Keras sets it, to None where a new one is due

    def make_train_function(self, force: bool = False) -> Callable[[Any], Any]:
        """Returns a function as any Keras model does; each step has the integers of the file."""
        if self.train_function is None or force:
            step = super().make_train_function(force)

            def refreshed_step(batches: Any) -> Any:
                self.refresh_quickly()
                return step(batches)

            self.train_function = refreshed_step
        return self.train_function

    def fit(self, *arguments: Any, **options: Any) -> Any:
        """Trains as any Keras model does; every step has the integers of the model's file."""
        self.refresh()
        history = super().fit(*arguments, **options)
        self.refresh()
        return history

    def evaluate(self, *arguments: Any, **options: Any) -> Any:
        """Measures as any Keras model does, with the integers of the model's file."""
        self.refresh()
        return super().evaluate(*arguments, **options)

    def predict(self, *arguments: Any, **options: Any) -> Any:
        """Predicts as any Keras model does, with the integers of the model's file."""
        self.refresh()
        return super().predict(*arguments, **options)

    def get_config(self) -> dict[str, Any]:
        """Raises NotImplementedError: it is a view of another model, which is the one to save."""
        raise NotImplementedError(
            f"model {self.name!r}: received a deployed model to save or copy, which is a view of "
            "the quantized one; save or copy that, `deployed.quantized`, and call deployed_model "
            "on it again."
        )


def _kernels_of(network: Network) -> Callable[[], dict[str, KernelTensors]]:
    """A function that computes what TensorFlow does of all kernels, by the names of the layers."""
    layers = {
        node.name: node.layer
        for node in network
        if role_of(node) is Role.LINEAR and not is_left_float(node)
    }

    @tf.function(autograph=False)
    def kernels() -> dict[str, KernelTensors]:
        return {name: kernel_tensors(layer) for name, layer in layers.items()}

    return kernels
