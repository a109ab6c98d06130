"""A file run frame by frame, as an app runs a streaming model: its states are fed back as codes.

States begin at real 0. What a frame gives is a function of the inputs, integers from end to end, so
that a sequence of frames has one result, whoever computes it: where no code of an output differs
from the simulation's in any frame, the file gives what its integer model makes of the whole.
"""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from sat_tf.exact.certificate.output_comparison import Output, separated
from sat_tf.exact.certificate.record import SequenceCount, SequenceRun, TensorCount, WindowCount
from sat_tf.exact.litert.runtime import RUNTIMES, Runtime, loaded
from sat_tf.exact.operations.graph import Graph, by_name, simulate
from sat_tf.exact.tflite.tensors import Pixels, arrays_of, number_of, quantized, some_of

# A function of all inputs of a frame, which gives the outputs by name, and maybe other tensors.
Runner = Callable[[Pixels], Mapping[str, np.ndarray]]


class WindowFile(NamedTuple):
    """A file of whole windows."""

    graph: Graph
    content: bytes
    name: str
    sha256: str


# Keras takes longer for a frame than LiteRT and the simulation together.
_MOST_KERAS_FRAMES = 64


def run_frames(
    graph: Graph, frames: Pixels, runner: Runner
) -> Iterator[tuple[Pixels, Mapping[str, np.ndarray]]]:
    """Yields the inputs and the outputs of each frame, from states of real 0 on.

    Frames are for `graph.frame_inputs`, one in each row, as the file takes them.
    """
    states = {
        entering.name: np.full((1, *entering.shape), entering.zero_point, entering.type)
        for _, entering in graph.state_ends.values()
    }
    for place in range(number_of(frames)):
        arrays = arrays_of(some_of(frames, place, place + 1))
        pairs = zip(graph.frame_inputs, arrays, strict=True)
        fed = {**{image.name: array for image, array in pairs}, **states}
        inputs = tuple(fed[image.name] for image in graph.images)
        outputs = runner(inputs)
        yield inputs, outputs
        states = {
            name: outputs[output].astype(states[name].dtype)
            for output, name in graph.states.items()
        }


def with_states(graph: Graph, content: bytes, frames: Pixels, *, simulated: bool = True) -> Pixels:
    """Returns the arrays of all inputs, with states that the simulation, or XNNPACK, reaches."""
    runner = _simulation(graph, content) if simulated else _runtime(graph, content, "xnnpack")
    inputs = [fed for fed, _ in run_frames(graph, frames, runner)]
    return tuple(map(np.concatenate, zip(*inputs, strict=True)))


def number_given(images: object) -> int:
    """Returns how many inputs a caller gives arrays for."""
    return len(images) if isinstance(images, list | tuple | Mapping) else 1


def frames_of(graph: Graph, images: Any) -> dict[str, Any] | None:
    """Returns the arrays for `graph.frame_inputs` by name, where a caller gives these alone."""
    names = [image.name for image in graph.images]
    keys = dict(zip(names, graph.keys[0] or names, strict=True))
    frames = {image.name: keys[image.name] for image in graph.frame_inputs}
    if not graph.states or number_given(images) != len(frames):
        return None
    if not isinstance(images, Mapping):
        arrays = images if isinstance(images, list | tuple) else [images]
        return dict(zip(frames, arrays, strict=True))
    key_by_frame = {name: key if key in images else name for name, key in frames.items()}
    are_all = set(key_by_frame.values()) == set(images)
    return {name: images[key] for name, key in key_by_frame.items()} if are_all else None


def with_real_states(graph: Graph, content: bytes, images: Any) -> Any:
    """Returns the arrays for all inputs, with real values of states that a caller leaves out."""
    frames = frames_of(graph, images)
    if frames is None:
        return images
    frame_codes = tuple(image.taken(np.asarray(frames[image.name])) for image in graph.frame_inputs)
    arrays = by_name(with_states(graph, content, frame_codes), graph)
    return [
        frames[image.name] if image.name in frames else image.fed(arrays[image.name])
        for image in graph.images
    ]


def compared_sequence(
    graph: Graph,
    content: bytes,
    images: Pixels,
    runtimes: Sequence[str],
    keras: Callable[[Pixels], np.ndarray] | None,
    outputs: Sequence[Output],
    window: WindowFile | None = None,
) -> SequenceRun:
    """Runs the rows of the images as the frames of a sequence, and counts the codes that differ.

    `keras` is a model that gives all `outputs` for the inputs of the file; `window` a file of the
    same network that takes several frames at once.
    """
    arrays = by_name(images, graph)
    frames = tuple(arrays[image.name] for image in graph.frame_inputs)
    codes = _codes_of_outputs(graph)
    tensor_names = {*codes, *codes.values()}
    simulated = (values for _, values in run_frames(graph, frames, _simulation(graph, content)))
    expected = [{name: values[name] for name in tensor_names} for values in simulated]

    def counted(runner: Runner, names: Mapping[str, str], frame_count: int) -> SequenceCount:
        """Counts the outputs that differ from the simulation's tensors in `names`."""
        counts = {name: TensorCount(name, graph.tensors[name].shape) for name in names}
        run = run_frames(graph, some_of(frames, 0, frame_count), runner)
        for tensors, (_, values) in zip(expected, run, strict=False):
            for name, simulated_name in names.items():
                counts[name].add(tensors[simulated_name], values[name])
        return SequenceCount(frame_count, list(counts.values()))

    number, same_names = len(expected), {name: name for name in codes}
    in_keras: SequenceCount | None = None
    if keras:
        runner = _in_codes(graph, keras, outputs, codes)
        in_keras = counted(runner, codes, min(_MOST_KERAS_FRAMES, number))
    return SequenceRun(
        states=dict(graph.states),
        frames=number,
        runtimes={
            name: counted(_runtime(graph, content, name), same_names, number) for name in runtimes
        },
        keras=in_keras,
        window=None if window is None else _in_windows(graph, frames, expected, window),
    )


def _codes_of_outputs(graph: Graph) -> dict[str, str]:
    """Returns the names of outputs' codes, dequantized or not; other float outputs have none."""
    makers = {operation.output: operation for operation in graph.operations}
    codes = {name: makers[name].represented or name for name in graph.outputs}
    return {name: codes[name] for name in codes if graph.tensors[codes[name]].codes is not None}


def _in_windows(
    graph: Graph, frames: Pixels, expected: Sequence[Mapping[str, np.ndarray]], window: WindowFile
) -> WindowCount:
    """Counts the codes by which a file of whole windows differs from its frames, one by one.

    Frames, and their outputs, follow one another along the first axis of a window; an output that
    has the shape of one frame's, such as a state, is that of the last frame.
    """
    frame_ends, window_ends = _ends(graph), _ends(window.graph)
    first_input = graph.frame_inputs[0].name
    sizes = [math.prod(ends.get(first_input, ((),))[0]) for ends in (frame_ends, window_ends)]
    length = max(sizes[1] // sizes[0], 1)

    def fits(name: str, shape: tuple[int, ...], *grid: Any) -> bool:
        of_one, *grid_of_one = frame_ends.get(name, ((),))
        shapes = [(length, *of_one), (length * sum(of_one[:1]), *of_one[1:])]
        shapes += [of_one] * (name in graph.outputs)
        return [*grid] == grid_of_one and shape in shapes

    misfits = [name for name, end in window_ends.items() if not fits(name, *end)]
    if misfits or len(frames[0]) < length:
        raise ValueError(
            f"window: received {window.name}, which does not fit {len(frames[0])} frames "
            f"({', '.join(misfits) or f'it takes {length}'}), expected their inputs and outputs, "
            "by name and on the same grids; quantize the model of windows by the same policy, give "
            "it the same weights, window.set_weights(q.get_weights()), and export it."
        )
    # A window without states of its own begins where the sequence begins.
    count = len(frames[0]) // length if window.graph.states else 1
    arrays = dict(zip((image.name for image in graph.frame_inputs), frames, strict=True))
    windows = tuple(
        arrays[image.name][: count * length].reshape(-1, *image.shape)
        for image in window.graph.frame_inputs
    )
    counts = [TensorCount(name, window_ends[name][0]) for name in _codes_of_outputs(window.graph)]
    runner = _runtime(window.graph, window.content, "xnnpack")
    for place, (_, values) in enumerate(run_frames(window.graph, windows, runner)):
        rows = expected[place * length :][:length]
        for tensor in counts:
            is_last = tensor.shape == frame_ends[tensor.name][0]
            of_frames = [row[tensor.name] for row in (rows[-1:] if is_last else rows)]
            computed = values[tensor.name]
            tensor.add(np.concatenate(of_frames).reshape(computed.shape), computed)
    return WindowCount(count * length, counts, window.name, window.sha256, length)


def _ends(graph: Graph) -> dict[str, tuple[Any, ...]]:
    """Returns shapes and grids of the inputs, without states, and of the outputs, by name."""
    ends = {i.name: (i.shape, i.type, i.scale, i.zero_point) for i in graph.frame_inputs}
    for name, of_codes in _codes_of_outputs(graph).items():
        codes = graph.codes(of_codes)
        ends[name] = graph.tensors[name].shape, str(name == of_codes), codes.scale, codes.zero_point
    return ends


def _simulation(graph: Graph, content: bytes) -> Runner:
    """Returns the simulation; LiteRT with XNNPACK computes layers that are left float."""
    left_float = graph.layers_left_float
    runtime = Runtime(content, keep_tensors=True) if left_float else None

    def run(inputs: Pixels) -> dict[str, np.ndarray]:
        if runtime is None:
            return simulate(graph, inputs)
        runtime.run(inputs)
        return simulate(graph, inputs, runtime.tensors(left_float))

    return run


def _runtime(graph: Graph, content: bytes, name: str) -> Runner:
    """Returns a file in a runtime; LiteRT keeps no other tensors than outputs, as on a phone."""
    runtime = loaded(content, name, keep_tensors=name not in RUNTIMES)

    def run(inputs: Pixels) -> dict[str, np.ndarray]:
        runtime.run(inputs)
        return runtime.tensors(graph.outputs)

    return run


def _in_codes(
    graph: Graph,
    keras: Callable[[Pixels], np.ndarray],
    outputs: Sequence[Output],
    codes: Mapping[str, str],
) -> Runner:
    """Returns a Keras model whose outputs become the codes that the file has of them."""

    def run(inputs: Pixels) -> dict[str, np.ndarray]:
        values = dict(zip(graph.outputs, separated(keras(inputs), outputs), strict=True))
        return {name: quantized(values[name], graph.codes(codes[name])) for name in codes}

    return run
