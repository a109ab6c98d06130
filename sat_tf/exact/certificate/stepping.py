"""A file run step by step as an app runs a streaming model: the codes of its states are fed back.

The states begin at real 0. A step computes a function of its inputs, integers from end to end, so
that a sequence of steps has one result, whoever computes it: where no code of any output differs
from the simulation's at any step, the steps give what the file's integer model makes of the whole.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from sat_tf.exact.certificate.outputs import Output, separated
from sat_tf.exact.certificate.record import SteppedCount, SteppedRun
from sat_tf.exact.litert.runtime import RUNTIMES, Runtime, loaded
from sat_tf.exact.operations.graph import Graph, by_name, simulate
from sat_tf.exact.tflite.tensors import Pixels, arrays_of, number_of, quantized, some_of

# A function of the inputs of one step, which gives the outputs by name, and maybe other tensors.
Step = Callable[[Pixels], Mapping[str, np.ndarray]]
# Keras takes longer for a step than LiteRT and the simulation together.
_MOST_KERAS_STEPS = 64


def steps(graph: Graph, sequence: Pixels, step: Step) -> Iterator[tuple[Pixels, Mapping]]:
    """Yields the inputs and the outputs of each step, from states of real 0 on.

    The sequence is that of `graph.stream`, a step in each row, as the file takes it.
    """
    states = {
        entering.name: np.full((1, *entering.shape), entering.zero_point, np.int8)
        for _, entering in graph.state_ends.values()
    }
    for place in range(number_of(sequence)):
        arrays = arrays_of(some_of(sequence, place, place + 1))
        fed = {image.name: array for image, array in zip(graph.stream, arrays, strict=True)}
        inputs = tuple({**fed, **states}[image.name] for image in graph.images)
        outputs = step(inputs)
        yield inputs, outputs
        states = {name: outputs[output].astype(np.int8) for output, name in graph.states.items()}


def with_states(graph: Graph, content: bytes, sequence: Pixels) -> Pixels:
    """Returns the arrays of all inputs, with the states that the simulation of a file reaches."""
    inputs = [fed for fed, _ in steps(graph, sequence, _simulated(graph, content))]
    return tuple(map(np.concatenate, zip(*inputs, strict=True)))


def number_given(images: object) -> int:
    """Returns how many inputs a caller gives arrays for."""
    return len(images) if isinstance(images, list | tuple | Mapping) else 1


def stream_of(graph: Graph, images: Any) -> dict[str, Any] | None:
    """Returns the arrays for `graph.stream` by name, where these are all that a caller gives."""
    names = [image.name for image in graph.images]
    keys = dict(zip(names, graph.keys[0] or names, strict=True))
    stream = {image.name: keys[image.name] for image in graph.stream}
    if not graph.states or number_given(images) != len(stream):
        return None
    if not isinstance(images, Mapping):
        arrays = images if isinstance(images, list | tuple) else [images]
        return dict(zip(stream, arrays, strict=True))
    found = {name: key if key in images else name for name, key in stream.items()}
    is_stream = set(found.values()) == set(images)
    return {name: images[key] for name, key in found.items()} if is_stream else None


def with_real_states(graph: Graph, content: bytes, images: Any) -> Any:
    """Returns the arrays for all inputs, with real values of states that a caller leaves out."""
    stream = stream_of(graph, images)
    if stream is None:
        return images
    taken = tuple(image.taken(np.asarray(stream[image.name])) for image in graph.stream)
    arrays = by_name(with_states(graph, content, taken), graph)
    states = {image.name: image for image in graph.images if image.name not in stream}
    stream |= {name: image.fed(arrays[name]) for name, image in states.items()}
    return [stream[image.name] for image in graph.images]


def stepped(
    graph: Graph,
    content: bytes,
    images: Pixels,
    runtimes: Sequence[str],
    keras: Callable[[Pixels], np.ndarray] | None,
    outputs: Sequence[Output],
) -> SteppedRun:
    """Runs the rows of the images as steps of a sequence, and counts the codes that differ.

    `keras` is a model that gives all `outputs` for the inputs of the file.
    """
    arrays = by_name(images, graph)
    sequence = tuple(arrays[image.name] for image in graph.stream)
    makers = {operation.output: operation for operation in graph.operations}
    # The codes of each output, which may be dequantized; float outputs have none.
    codes = {name: makers[name].represented or name for name in graph.outputs}
    codes = {name: codes[name] for name in codes if graph.tensors[codes[name]].codes is not None}
    kept = {*codes, *codes.values()}
    made_by_steps = (made for _, made in steps(graph, sequence, _simulated(graph, content)))
    expected = [{name: made[name] for name in kept} for made in made_by_steps]

    def counted(step: Step, names: Mapping[str, str], most: int) -> SteppedCount:
        """Counts the outputs that differ from the simulation's tensors in `names`."""
        count = SteppedCount()
        run = steps(graph, some_of(sequence, 0, most), step)
        for simulated, (_, made) in zip(expected, run, strict=False):
            for name, other in names.items():
                count.add(simulated[other], made[name])
            count.steps += 1
        return count

    as_they_are, count, most = {name: name for name in codes}, len(expected), _MOST_KERAS_STEPS
    counts = {name: counted(_run_by(graph, content, name), as_they_are, count) for name in runtimes}
    return SteppedRun(
        states=dict(graph.states),
        steps=count,
        runtimes=counts,
        keras=counted(_in_codes(graph, keras, outputs, codes), codes, most) if keras else None,
    )


def _simulated(graph: Graph, content: bytes) -> Step:
    """Returns the simulation of a step; LiteRT with XNNPACK computes layers that are left float."""
    left_float = graph.layers_left_float
    runtime = Runtime(content, keep_tensors=True) if left_float else None

    def step(inputs: Pixels) -> dict[str, np.ndarray]:
        if runtime is None:
            return simulate(graph, inputs)
        runtime.run(inputs)
        return simulate(graph, inputs, runtime.tensors(left_float))

    return step


def _run_by(graph: Graph, content: bytes, name: str) -> Step:
    """Returns a step in a runtime; LiteRT keeps no other tensors than outputs, as on a phone."""
    runtime = loaded(content, name, keep_tensors=name not in RUNTIMES)

    def step(inputs: Pixels) -> dict[str, np.ndarray]:
        runtime.run(inputs)
        return runtime.tensors(graph.outputs)

    return step


def _in_codes(
    graph: Graph,
    keras: Callable[[Pixels], np.ndarray],
    outputs: Sequence[Output],
    codes: Mapping[str, str],
) -> Step:
    """Returns a step of Keras, whose outputs become the codes that the file has of them."""

    def step(inputs: Pixels) -> dict[str, np.ndarray]:
        made = dict(zip(graph.outputs, separated(keras(inputs), outputs), strict=True))
        return {name: quantized(made[name], graph.codes(codes[name])) for name in codes}

    return step
