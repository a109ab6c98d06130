"""What a worker runs images through: LiteRT, or the integer simulation."""

import abc
import dataclasses

import numpy as np

from sat_tf.export.graph import Graph
from sat_tf.export.inputs import batches
from sat_tf.export.runtime import Runtime
from sat_tf.export.simulator import simulate


@dataclasses.dataclass(frozen=True)
class Interface:
    """What a task takes and gives.

    Attributes:
        input_shape: of an image.
        input_type: of its values.
        num_outputs: values it gives for an image.
    """

    input_shape: tuple[int, ...]
    input_type: np.dtype
    num_outputs: int


class Task(abc.ABC):
    """A way from images to outputs; it is sent to workers as it is, and started there."""

    @abc.abstractmethod
    def start(self) -> Interface:
        """Gets ready.

        Raises:
            ValueError: it cannot.
        """

    @abc.abstractmethod
    def run(self, images: np.ndarray) -> np.ndarray:
        """The outputs for a batch, (n, ...).

        Raises:
            ValueError: it cannot.
        """


class TfliteTask(Task):
    """A file in LiteRT.

    Args:
        content: the file.
        runtime: a name of `RUNTIMES`.
    """

    def __init__(self, content: bytes, runtime: str) -> None:
        self._content = content
        self._name = runtime
        self._runtime: Runtime | None = None

    def start(self) -> Interface:
        """Loads the file."""
        runtime = self._runtime = Runtime(self._content, self._name, keep_tensors=False)
        if runtime.num_inputs_and_outputs != (1, 1):
            raise ValueError(
                f"received a file with {runtime.num_inputs_and_outputs[0]} inputs and "
                f"{runtime.num_inputs_and_outputs[1]} outputs, expected one of each, of images and "
                "of classes; keep one in keras.Model(inputs, outputs)."
            )
        return Interface(runtime.input_shape, runtime.input_type, runtime.num_outputs)

    def run(self, images: np.ndarray) -> np.ndarray:
        """Runs it."""
        if self._runtime is None:
            raise TypeError("the task has not been started")
        return self._runtime.run(images)


class SimulatorTask(Task):
    """A graph in the integer simulation.

    Args:
        graph: of a file.
    """

    def __init__(self, graph: Graph) -> None:
        self._graph = graph

    def start(self) -> Interface:
        """Nothing to load."""
        self._graph.expect_one_of_each("evaluate")
        outputs = int(np.prod(self._graph.tensors[self._graph.output].shape))
        image = self._graph.images[0]
        return Interface(image.shape, np.dtype(image.type), outputs)

    def run(self, images: np.ndarray) -> np.ndarray:
        """Simulates it."""
        output = self._graph.output
        pieces = [simulate(self._graph, batch)[output] for batch in batches(images, self._graph)]
        return np.concatenate(pieces)
