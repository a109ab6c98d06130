"""TFLite Micro: runs a file as on a microcontroller, and hands out every tensor."""

import functools
import math
import tempfile
from collections.abc import Callable, Iterable
from typing import Any

import numpy as np

from sat_tf.export.litert.runtime import explained, native_output_in
from sat_tf.export.tflite.contents import read_contents
from sat_tf.export.tflite.images import Pixels, arrays_of, joined, number_of, some_of
from sat_tf.export.tflite.tensors import real_outputs

MICRO = "micro"
PACKAGE = "tflite-micro"

# One that is far too small ends the process; one that is somewhat too small is doubled.
_SMALLEST_ARENA_BYTES, _LARGEST_ARENA_BYTES = 2**22, 2**31
_BYTES_PER_VALUE = 4
_ARENA_IS_FULL = "missing:"


class MicroRuntime:
    """A file loaded in TFLite Micro, which takes one image at a time."""

    def __init__(self, content: bytes, *, keep_tensors: bool) -> None:
        contents = read_contents(content, "file")
        values = sum(math.prod(tensor.shape) for tensor in contents.tensors)
        self._inputs, self._outputs = contents.inputs, contents.outputs
        places = {id(tensor): index for index, tensor in enumerate(contents.tensors)}
        made = [tensor for operator in contents.operators for tensor in operator.outputs]
        self._made = {places[id(one)]: one.name for one in made} if keep_tensors else {}
        self._kept: list[dict[int, np.ndarray]] = []
        with explained("load", "TFLite Micro"):
            arena_bytes = max(_SMALLEST_ARENA_BYTES, _BYTES_PER_VALUE * values)
            self._interpreter = _interpreter(content, arena_bytes, keep_tensors=keep_tensors)

    def run(self, images: Pixels) -> np.ndarray:
        self._kept, outputs = [], []
        for number in range(number_of(images)):
            with explained("run", "TFLite Micro"):
                for index, array in enumerate(arrays_of(some_of(images, number, number + 1))):
                    self._interpreter.set_input(np.ascontiguousarray(array), index)
                _with_reason(self._interpreter.invoke)
                tensors = {
                    index: np.asarray(self._interpreter.GetTensor(index, 0)["tensor_data"])
                    for index in self._made
                }
                self._kept.append(tensors)
                made = [
                    real_outputs(
                        np.array(self._interpreter.get_output(index)),
                        output.scales,
                        output.zero_points,
                    )
                    for index, output in enumerate(self._outputs)
                ]
                outputs.append(joined(made))
        return np.concatenate(outputs)

    def rehearse(self) -> np.ndarray:
        arrays = [np.zeros(given.shape, given.type.lower()) for given in self._inputs]
        return self.run(arrays[0] if len(arrays) == 1 else tuple(arrays))

    def tensors(self, names: Iterable[str]) -> dict[str, np.ndarray]:
        places = {name: index for index, name in self._made.items()}
        return {name: np.concatenate([kept[places[name]] for kept in self._kept]) for name in names}

    def kept(self, indices: Iterable[int]) -> dict[int, np.ndarray]:
        """See `Runtime`: of the last image."""
        return {index: self._kept[-1][index] for index in indices if index in self._made}

    def delegation(self) -> None:
        """XNNPACK takes no part."""


def _interpreter(content: bytes, arena_bytes: int, *, keep_tensors: bool) -> Any:
    """TFLite Micro with an arena that is large enough."""
    # An extra: not everyone has it.
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
    """Runs an action; a RuntimeError has the reason that TFLite Micro only logs."""
    with tempfile.TemporaryFile() as log:
        try:
            with native_output_in(log):
                return action()
        except RuntimeError as error:
            log.seek(0)
            lines = log.read().decode(errors="replace").splitlines()
            reasons = [line.strip() for line in lines if line.strip()]
            raise RuntimeError(reasons[0] if reasons else str(error)) from error
