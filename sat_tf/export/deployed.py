"""The deployed model in Keras: the codes of the file, the variables of the quantized model."""

import dataclasses
from collections.abc import Callable
from typing import Any

import numpy as np
import tensorflow as tf
import tf_keras as keras

from sat_tf.export.deployed_layer import DeployedLayer
from sat_tf.export.graph import Graph
from sat_tf.export.lattice import KernelTensors, kernel_tensors
from sat_tf.export.parts import Part, check_same_operations, parts_of
from sat_tf.export.pipeline import deployed_graph
from sat_tf.export.queries import is_island, role_of
from sat_tf.export.several import Pixels, arrays_of, joined
from sat_tf.qat.network import Network
from sat_tf.qat.registry import Role


def deployed_model(quantized: keras.Model, *, float_head: bool = False) -> "DeployedModel":
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

    Returns:
        A `DeployedModel`, with the input and the output of `quantized`.

    Raises:
        ValueError: the model has no integer form; lists every problem with its fix.
    """
    if isinstance(quantized, DeployedModel):
        raise ValueError(
            f"model {quantized.name!r}: received a deployed model, expected the quantized one that "
            "it is made of; pass its `quantized`."
        )
    graph = deployed_graph(quantized, float_head=float_head)
    with quantized.distribute_strategy.scope():
        return DeployedModel(quantized, graph, float_head=float_head)


class DeployedModel(keras.Model):
    """What `deployed_model` returns: a view of a quantized model as its file computes.

    The integers are taken from the quantized model by `refresh`. `fit` does it before every step
    and at its end, `evaluate` and `predict` do it at their start; call it yourself after other
    changes of the variables and in training loops of your own.

    Args:
        quantized: the quantized model.
        graph: its deployed graph.
        float_head: how that was made.
    """

    def __init__(self, quantized: keras.Model, graph: Graph, *, float_head: bool) -> None:
        network, parts = Network(quantized), parts_of(graph)
        images = {image.name: keras.Input(image.shape, name=image.name) for image in graph.images}
        real, tensors, layers = dict(images), dict(images), {}
        for node in network:
            if node.name in images:
                continue
            part = parts.get(node.name, Part())
            layers[node.name] = DeployedLayer(node, part, graph)
            made = layers[node.name](
                {
                    "real": [real[name] for name in node.inputs],
                    "tensors": {name: tensors[name] for name in part.sources},
                }
            )
            real[node.name] = made["real"]
            tensors |= made["tensors"]
        inputs, outputs = network.pack(real)
        super().__init__(inputs, outputs, name=f"{network.name}_deployed")
        integers = {name: tensors[name] for name in graph.integer_tensors}
        output = [real[name] for name in network.outputs]
        # In one object, because Keras would track models and dictionaries that are attributes.
        self._view = _View(
            quantized=quantized,
            float_head=float_head,
            graph=graph,
            layers=layers,
            kernels=_kernels_of(network),
            computed=keras.Model(list(images.values()), {"codes": integers, "output": output}),
        )

    @property
    def quantized(self) -> keras.Model:
        """The model whose variables this one shares, and which is saved and exported."""
        return self._view.quantized

    @property
    def float_head(self) -> bool:
        """Whether the last Dense layer is float, as `sat_tf.export_tflite` has it."""
        return self._view.float_head

    def refresh(self) -> None:
        """Takes the integers of the file that the quantized model would be exported to now.

        Raises:
            ValueError: the model no longer has an integer form, or its file no longer has the same
                operations; says which, and what to do.
        """
        self._take(deployed_graph(self.quantized, float_head=self.float_head), everything=True)

    def refresh_quickly(self) -> None:
        """The same, between steps of training: kernels are computed by one traced function.

        What cannot change there is neither checked nor written again. Compilers may round the
        effective weights otherwise in their last bit, so that `refresh` follows before anything is
        measured.

        Raises:
            ValueError: as `refresh`.
        """
        try:
            kernels = self._view.kernels()
        except tf.errors.InvalidArgumentError:  # weights that are not finite: let it say which
            self.refresh()
            return
        graph = deployed_graph(self.quantized, float_head=self.float_head, kernels=kernels)
        self._take(graph, everything=False)

    def _take(self, graph: Graph, *, everything: bool) -> None:
        check_same_operations(self.name, self._view.graph, graph)
        parts = parts_of(graph)
        with self.distribute_strategy.scope():
            for name, layer in self._view.layers.items():
                layer.assign(graph, parts.get(name, Part()), everything=everything)
        self._view.graph = graph

    def run(self, images: Pixels) -> tuple[dict[str, np.ndarray], np.ndarray]:
        """The stored integers of every integer tensor by name, and the model's output.

        Args:
            images: uint8 (n, rows, columns, channels); few enough for all tensors at once; a
                tuple of arrays for several inputs.
        """
        pixels = [
            tf.constant(image.fed(pixels))
            for pixels, image in zip(arrays_of(images), self._view.graph.images, strict=True)
        ]
        made = self._view.computed(pixels, training=False)
        stored = {
            name: codes.numpy().astype(np.int32) + self._view.graph.codes(name).zero_point
            for name, codes in made["codes"].items()
        }
        return stored, joined([output.numpy() for output in made["output"]])

    @property
    def names(self) -> list[str]:
        """The tensors that are integers in the file."""
        return list(self._view.graph.integer_tensors)

    # -- Keras ---------------------------------------------------------------------------------

    def compile(self, *arguments: Any, **options: Any) -> None:
        """As any Keras model, but for `steps_per_execution`, which has to be 1.

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
        """As any Keras model; every step computes with the integers of the model's file."""
        if self.train_function is None or force:
            step = super().make_train_function(force)

            def refreshed_step(batches: Any) -> Any:
                self.refresh_quickly()
                return step(batches)

            self.train_function = refreshed_step
        return self.train_function

    def fit(self, *arguments: Any, **options: Any) -> Any:
        """As any Keras model; every step computes with the integers of the model's file."""
        self.refresh()
        history = super().fit(*arguments, **options)
        self.refresh()
        return history

    def evaluate(self, *arguments: Any, **options: Any) -> Any:
        """As any Keras model, with the integers of the model's file."""
        self.refresh()
        return super().evaluate(*arguments, **options)

    def predict(self, *arguments: Any, **options: Any) -> Any:
        """As any Keras model, with the integers of the model's file."""
        self.refresh()
        return super().predict(*arguments, **options)

    def get_config(self) -> dict[str, Any]:
        """Raises: it is a view of another model, which is the one to save.

        Raises:
            NotImplementedError: always.
        """
        raise NotImplementedError(
            f"model {self.name!r}: received a deployed model to save or copy, which is a view of "
            "the quantized one; save or copy that, `deployed.quantized`, and call deployed_model "
            "on it again."
        )


@dataclasses.dataclass
class _View:
    """What a deployed model knows of the quantized one.

    Attributes:
        quantized: the model.
        float_head: whether its last layer is deployed in float.
        graph: the deployed graph whose numbers the layers have.
        layers: those of the deployed model, by the names of the quantized one's.
        kernels: computes what TensorFlow does of all kernels.
        computed: gives all integer tensors beside the output.
    """

    quantized: keras.Model
    float_head: bool
    graph: Graph
    layers: dict[str, DeployedLayer]
    kernels: Callable[[], dict[str, KernelTensors]]
    computed: keras.Model


def _kernels_of(network: Network) -> Callable[[], dict[str, KernelTensors]]:
    """A function that computes what TensorFlow does of all kernels, by the names of the layers."""
    layers = {
        node.name: node.layer
        for node in network
        if role_of(node) is Role.LINEAR and not is_island(node)
    }

    @tf.function(autograph=False)
    def kernels() -> dict[str, KernelTensors]:
        return {name: kernel_tensors(layer) for name, layer in layers.items()}

    return kernels
