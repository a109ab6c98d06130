"""LiteRT and TFLite Micro, which run a file and give out every tensor."""

import abc
import contextlib
import dataclasses
import functools
import math
import os
import re
import sys
import tempfile
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import IO, Any, cast

import numpy as np
from ai_edge_litert.interpreter import Interpreter, OpResolverType

from sat_tf.exact.tflite.contents import Contents, read_contents, unpacked
from sat_tf.exact.tflite.tensors import Pixels, arrays_of, joined, number_of, real_outputs, some_of
from sat_tf.exact.tflite.value_tables import DECODE
from sat_tf.exact.tflite.writer import file_of
from sat_tf.messages import is_standard_error

# LiteRT uses XNNPACK by itself, which rounds once where the builtin kernels round twice. The
# reference kernels define, without optimizations, the results of the builtin ones.
RUNTIMES = {
    "xnnpack": OpResolverType.AUTO,
    "builtin": OpResolverType.BUILTIN_WITHOUT_DEFAULT_DELEGATES,
    "reference": OpResolverType.BUILTIN_REF,
}


@dataclasses.dataclass(frozen=True)
class Delegation:
    """The part of a file that XNNPACK takes over."""

    partitions: int  # The number of pieces that it is cut into; 1 is best.
    delegated: int  # The number of operators in these pieces.
    operators: int  # The number of all operators.


@dataclasses.dataclass(frozen=True)
class Interface:
    """The input and the output of a file, or of a simulated graph."""

    input_shape: tuple[int, ...]  # The shape of an image.
    input_type: np.dtype  # The type of an image's values.
    num_outputs: int  # The number of values that it gives for an image.


class Runtime:
    """A file loaded in LiteRT with one thread."""

    def __init__(self, content: bytes, runtime: str = "xnnpack", *, keep_tensors: bool) -> None:
        with contextlib.ExitStack() as stack:
            if keep_tensors:  # Threads, which keep no tensors, share the filters of warnings.
                # LiteRT warns that keeping tensors takes memory, which is the purpose here.
                stack.enter_context(warnings.catch_warnings())
                warnings.filterwarnings("ignore", message=".*experimental_preserve_all_tensors.*")
            stack.enter_context(explained("load"))
            content = expanded(content)
            self._interpreter = Interpreter(
                model_content=content,
                num_threads=1,
                experimental_op_resolver_type=RUNTIMES[runtime],
                experimental_preserve_all_tensors=keep_tensors,
            )
            self._interpreter.allocate_tensors()
        details = self._interpreter.get_tensor_details()
        self._indices = {detail["name"]: detail["index"] for detail in details}
        self._inputs = self._interpreter.get_input_details()
        self._outputs = self._interpreter.get_output_details()

    @functools.cached_property
    def takes_one_image(self) -> bool:
        """Whether a shape in the file has a batch of 1 in it, so that no batch is larger."""
        # TRANSPOSE_CONV has its output's shape in the file, which LiteRT notices when it runs.
        if any(node["op_name"] == "TRANSPOSE_CONV" for node in self._plan):
            return True
        try:
            self._make_room([(2, *shape) for shape in self.input_shapes])
        except (RuntimeError, ValueError):
            self._make_room([(1, *shape) for shape in self.input_shapes])
            return True
        return False

    @property
    def input_shapes(self) -> list[tuple[int, ...]]:
        """The shapes of the images of all inputs."""
        return [tuple(int(size) for size in entry["shape"][1:]) for entry in self._inputs]

    @property
    def interface(self) -> Interface:
        """The only input and output; raises ValueError where there are more of either."""
        if (len(self._inputs), len(self._outputs)) != (1, 1):
            raise ValueError(
                f"received a file with {len(self._inputs)} inputs and {len(self._outputs)} "
                "outputs, expected one of each, of images and of classes; keep one in "
                "keras.Model(inputs, outputs)."
            )
        num_outputs = int(np.prod(self._outputs[0]["shape"][1:]))
        return Interface(self.input_shapes[0], np.dtype(self._inputs[0]["dtype"]), num_outputs)

    def run(self, images: Pixels) -> np.ndarray:
        """Returns the file's outputs for a batch of images, as `tensors.joined` real values."""
        if number_of(images) > 1 and self.takes_one_image:
            starts = range(number_of(images))
            return np.concatenate([self.run(some_of(images, i, i + 1)) for i in starts])
        with explained("run"):
            arrays = arrays_of(images)
            self._make_room([array.shape for array in arrays])
            for details, array in zip(self._inputs, arrays, strict=True):
                self._interpreter.set_tensor(details["index"], array)
            self._interpreter.reset_all_variables()  # An LSTM starts each image from zero states.
            self._interpreter.invoke()
            outputs = []
            for details in self._outputs:
                grid = details["quantization_parameters"]
                stored = np.array(self._interpreter.get_tensor(details["index"]))
                outputs.append(real_outputs(stored, grid["scales"], grid["zero_points"]))
            return joined(outputs)

    def zeros(self) -> tuple[np.ndarray, ...]:
        """Returns one image of zeros for each input."""
        pairs = zip(self.input_shapes, self._inputs, strict=True)
        return tuple(np.zeros((1, *shape), details["dtype"]) for shape, details in pairs)

    def rehearse(self) -> np.ndarray:
        """Runs one image of zeros; makes room for two where the file can take them."""
        output = self.run(self.zeros())
        self.takes_one_image  # noqa: B018 - asking makes room
        return output

    def tensors(self, names: Iterable[str]) -> dict[str, np.ndarray]:
        """Returns tensors of the last run, by name; only where they are kept."""
        return {name: self._interpreter.get_tensor(self._indices[name]) for name in names}

    def kept(self, indices: Iterable[int]) -> dict[int, np.ndarray]:
        """Returns the tensors of the last run that have values, by their places in the file."""
        arrays = {}
        for index in indices:
            with contextlib.suppress(ValueError):
                arrays[index] = np.array(self._interpreter.get_tensor(index))
        return arrays

    @property
    def _plan(self) -> list[dict[str, Any]]:
        """The file's operators in order, and among them the pieces that delegates run."""
        # LiteRT has no public view of its execution plan.
        return cast(list[dict[str, Any]], self._interpreter._get_ops_details())

    def delegation(self) -> Delegation:
        """Returns the part that XNNPACK has taken over; nothing with the other kernels."""
        names = [node["op_name"] for node in self._plan]
        partitions = names.count("DELEGATE")
        return Delegation(partitions, len(self.delegated), len(names) - partitions)

    @property
    def delegated(self) -> set[int]:
        """The operators that XNNPACK has taken over, by their places in the file."""
        plan = self._plan
        delegates = [node for node in plan if node["op_name"] == "DELEGATE"]
        operators = [node for node in plan if node["op_name"] != "DELEGATE"]
        makers = {index: i for i, node in enumerate(operators) for index in node["outputs"]}
        delegated: set[int] = set()
        for delegate in delegates:
            inputs = set(delegate["inputs"])
            waiting = list(delegate["outputs"])
            while waiting:
                index = waiting.pop()
                if index in inputs or index not in makers or makers[index] in delegated:
                    continue
                delegated.add(makers[index])
                waiting.extend(operators[makers[index]]["inputs"])
        return delegated

    def _make_room(self, shapes: list[tuple[int, ...]]) -> None:
        inputs = self._interpreter.get_input_details()
        if any(entry["shape"][0] != shape[0] for entry, shape in zip(inputs, shapes, strict=True)):
            for entry, shape in zip(inputs, shapes, strict=True):
                self._interpreter.resize_tensor_input(entry["index"], shape)
            self._interpreter.allocate_tensors()


def expanded(content: bytes) -> bytes:
    """Returns a file with constants for kernels that DECODE makes, which LiteRT does not have."""
    if DECODE.encode() not in content:
        return content
    with unpacked(content, "file") as model:
        return standalone(model)


def standalone(model: Any) -> bytes:
    """Returns the file of an unpacked model, without signatures, metadata and offsets."""
    model.signatureDefs, model.metadata = [], []
    for buffer in model.buffers:
        buffer.offset = buffer.size = 0
    return file_of(model)


@contextlib.contextmanager
def explained(action: str, runtime: str = "LiteRT") -> Iterator[None]:
    """Raises errors of a runtime as errors of this package."""
    try:
        yield
    except (RuntimeError, ValueError, TypeError, IndexError, OverflowError) as error:
        inputs = ", or mend the inputs, such as ids of a vocabulary" if action == "run" else ""
        raise ValueError(
            f"received a TFLite file that {runtime} does not {action} ({error}), expected one that "
            f"sat_tf.export_tflite wrote; export the model again{inputs}."
        ) from error


class _Lent:
    """A stream that writes to another, which can be replaced: handlers of logging keep it."""

    def __init__(self, lender: Any) -> None:
        self.lender = lender

    def __getattr__(self, name: str) -> Any:
        return getattr(self.lender, name)


@contextlib.contextmanager
def native_output_in(file: Any) -> Iterator[None]:
    """Sends what C++ code prints to the process' standard error into a file.

    Python's output to sys.stderr goes where it went: warnings, progress, other threads.
    """
    try:
        descriptor = os.dup(2)
    except OSError:  # The process has no standard error.
        yield
        return
    try:
        with contextlib.ExitStack() as stack:
            stream = sys.stderr
            if is_standard_error(stream):
                stream.flush()
                original_stream = open(  # noqa: SIM115 - the stack closes it
                    descriptor, "w", buffering=1, encoding=stream.encoding, errors="replace",
                    closefd=False,
                )  # fmt: skip
                stack.enter_context(original_stream)
                lent = _Lent(original_stream)
                stack.callback(setattr, lent, "lender", stream)
                stack.enter_context(contextlib.redirect_stderr(cast(IO[str], lent)))
            os.dup2(file.fileno(), 2)
            try:
                yield
            finally:
                if is_standard_error(stream):
                    stream.flush()  # flushed for handlers that hold it, before it is reconnected
                os.dup2(descriptor, 2)
    finally:
        os.close(descriptor)


def check_loading(content: bytes) -> None:
    """Runs a black image through a file, with and without XNNPACK."""
    for name in ("xnnpack", "builtin"):  # the reference kernels are slow
        try:
            runtime = Runtime(content, name, keep_tensors=False)
            output = runtime.run(runtime.zeros())
        except (RuntimeError, ValueError) as error:
            raise ValueError(
                f"{name}: received a model whose file LiteRT does not run ({error}), expected one "
                "that it does; export with pack='none', or install the ai-edge-litert that sat-tf "
                "was tested with."
            ) from error
        if not np.all(np.isfinite(output)):
            raise ValueError(
                f"{name}: received a model whose output for a black image is not finite, expected "
                "finite values; go back to an earlier checkpoint."
            )


# -- runtimes of one image -------------------------------------------------------------------------


# The kept tensors of an image, by their places in the file, and the outputs.
Computed = tuple[dict[int, np.ndarray], list[np.ndarray]]


class OneImageRuntime(abc.ABC):
    """A file in a runtime that takes one image at a time."""

    title: str  # The runtime's title, for users.

    def __init__(self, contents: Contents, *, keep_tensors: bool) -> None:
        self._inputs, self._outputs = contents.inputs, contents.outputs
        places = {id(tensor): index for index, tensor in enumerate(contents.tensors)}
        tensors = [tensor for operator in contents.operators for tensor in operator.outputs]
        self._made = {places[id(tensor)]: tensor.name for tensor in tensors} if keep_tensors else {}
        self._kept: list[dict[int, np.ndarray]] = []

    @abc.abstractmethod
    def compute(self, arrays: Sequence[np.ndarray]) -> Computed:
        """Runs one image."""

    def run(self, images: Pixels) -> np.ndarray:
        """See `Runtime.run`."""
        self._kept, outputs = [], []
        for number in range(number_of(images)):
            with explained("run", self.title):
                tensors, values = self.compute(arrays_of(some_of(images, number, number + 1)))
                self._kept.append(tensors)
                ends = zip(values, self._outputs, strict=True)
                outputs.append(joined([real_outputs(v, e.scales, e.zero_points) for v, e in ends]))
        return np.concatenate(outputs)

    def rehearse(self) -> np.ndarray:
        """Returns the output for one image of zeros."""
        return self.run(tuple(np.zeros(end.shape, end.type.lower()) for end in self._inputs))

    def tensors(self, names: Iterable[str]) -> dict[str, np.ndarray]:
        """See `Runtime.tensors`."""
        places = {name: index for index, name in self._made.items()}
        return {name: np.concatenate([run[places[name]] for run in self._kept]) for name in names}

    def kept(self, indices: Iterable[int]) -> dict[int, np.ndarray]:
        """Returns the kept tensors of the last image; see `Runtime.kept`."""
        return {index: self._kept[-1][index] for index in indices if index in self._made}

    def delegation(self) -> None:  # noqa: B027 - it has nothing to say
        """Returns None, as XNNPACK takes no part."""


# -- TFLite Micro ----------------------------------------------------------------------------------

MICRO = "micro"
PACKAGE = "tflite-micro"

# An arena that is far too small ends the process; one that is somewhat too small is doubled.
_SMALLEST_ARENA_BYTES, _LARGEST_ARENA_BYTES = 2**22, 2**31
_BYTES_PER_VALUE = 4
_ARENA_IS_FULL = "missing:"
_ARENA_TOTAL = re.compile(r"Arena allocation total (\d+) bytes")
_ARENA_ALIGNMENT = 16


class MicroRuntime(OneImageRuntime):
    """A file loaded in TFLite Micro."""

    title = "TFLite Micro"

    def __init__(self, content: bytes, *, keep_tensors: bool) -> None:
        contents = read_contents(content, "file")
        super().__init__(contents, keep_tensors=keep_tensors)
        values = sum(math.prod(tensor.shape) for tensor in contents.tensors)
        with explained("load", self.title):
            arena_bytes = max(_SMALLEST_ARENA_BYTES, _BYTES_PER_VALUE * values)
            self._interpreter = _interpreter(content, arena_bytes, keep_tensors=keep_tensors)

    def compute(self, arrays: Sequence[np.ndarray]) -> Computed:
        for index, array in enumerate(arrays):
            self._interpreter.set_input(np.ascontiguousarray(array), index)
        self._interpreter.reset()  # as in `Runtime.run`
        _with_reason(self._interpreter.invoke)
        kept = {place: self._interpreter.GetTensor(place, 0) for place in self._made}
        tensors = {place: np.asarray(tensor["tensor_data"]) for place, tensor in kept.items()}
        places = range(len(self._outputs))
        return tensors, [np.array(self._interpreter.get_output(index)) for index in places]

    @property
    def arena_bytes(self) -> int | None:
        """The bytes of the arena that it takes; only without kept tensors."""
        with tempfile.TemporaryFile() as log:
            with native_output_in(log):
                self._interpreter.print_allocations()
            log.seek(0)
            total = _ARENA_TOTAL.search(log.read().decode(errors="replace"))
        # The end of an arena is rounded to this.
        return -(-int(total[1]) // _ARENA_ALIGNMENT) * _ARENA_ALIGNMENT if total else None


def _interpreter(content: bytes, arena_bytes: int, *, keep_tensors: bool) -> Any:
    """Returns TFLite Micro with an arena that is large enough."""
    # The package is an extra: not everyone has it.
    from tflite_micro.python.tflite_micro import runtime

    config = runtime.InterpreterConfig
    recorded = config.kPreserveAllTensors if keep_tensors else config.kAllocationRecording
    # The argument's name is misspelt there.
    load = functools.partial(runtime.Interpreter.from_bytes, content, intrepreter_config=recorded)
    while True:
        try:
            return _with_reason(functools.partial(load, arena_size=arena_bytes))
        except RuntimeError as error:
            if _ARENA_IS_FULL not in str(error) or arena_bytes >= _LARGEST_ARENA_BYTES:
                raise
            arena_bytes *= 2


def _with_reason(action: Callable[[], Any]) -> Any:
    """Runs an action; gives a RuntimeError the reason that TFLite Micro only logs."""
    with tempfile.TemporaryFile() as log:
        try:
            with native_output_in(log):
                return action()
        except RuntimeError as error:
            log.seek(0)
            lines = log.read().decode(errors="replace").split("\n")
            reasons = filter(None, map(str.strip, lines))
            raise RuntimeError(next(reasons, str(error))) from error


def loaded(content: bytes, runtime: str, *, keep_tensors: bool) -> Runtime | OneImageRuntime:
    """Loads a file in the runtime of this name."""
    if runtime == MICRO:
        return MicroRuntime(content, keep_tensors=keep_tensors)
    return Runtime(content, runtime, keep_tensors=keep_tensors)
