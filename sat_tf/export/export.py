"""The export of a quantized Keras model as an integer TFLite file."""

import contextlib
import dataclasses
import hashlib
import os
import pathlib
import platform
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import tf_keras as keras

from sat_tf.either_keras import for_keras3
from sat_tf.exact.certificate import runtimes as known_runtimes
from sat_tf.exact.certificate.rules import portability_in_words
from sat_tf.exact.litert.processes import arena_bytes
from sat_tf.exact.litert.runtime import MICRO, Runtime, check_loading, expanded
from sat_tf.exact.operations.graph import Graph, wide_tensors
from sat_tf.exact.operations.graph_file import serialize
from sat_tf.exact.operations.linear import linear_operations
from sat_tf.exact.targets.operator_constraints import TARGETS, CpuFallback
from sat_tf.exact.tflite.contents import SETTINGS_NAME, Contents, gzip_size, read_contents
from sat_tf.exact.tflite.metadata import (
    METADATA_NAME,
    Metadata,
    append_archive,
    checked_metadata,
    encode,
    misfits,
)
from sat_tf.exact.tflite.preprocessing import Preprocessing
from sat_tf.exact.tflite.value_tables import DECODE
from sat_tf.export.converter_route import CONVERTED, converted, route_problems
from sat_tf.export.lowering import packing
from sat_tf.export.lowering.outputs import FLOAT
from sat_tf.export.lowering.packing import FileSettings
from sat_tf.export.lowering.pipeline import deployed_graph, sized, snapped
from sat_tf.export.lowering.trace import one_image_only
from sat_tf.files import check_writable, written_whole
from sat_tf.graph.flatten import copied_weights
from sat_tf.graph.network import Network
from sat_tf.messages import ModelError, ProblemsError, first_ones
from sat_tf.messages.tables import Column, Displayed, Marked, Table, digits
from sat_tf.qat.model_class import processor_of
from sat_tf.qat.states import state_problems, tied_states

_WARM_UP = 2
_RUNS = 20
# Slow networks get fewer runs.
_LONGEST_SECONDS = 10.0


@dataclasses.dataclass(frozen=True)
class StorageCost:
    """A file as one choice of `pack` stores it."""

    pack: str  # The choice.
    bytes: int  # The file's size.
    gzip_bytes: int  # Its size after gzip, as app stores compress it.
    # Time for one image on this machine, with XNNPACK and one thread: the median of runs that
    # alternate between the choices; None where it was not asked for.
    milliseconds: float | None = None

    def __str__(self) -> str:
        time_taken = "" if self.milliseconds is None else f", {self.milliseconds:.2f} ms an image"
        return f"pack={self.pack}: {self.bytes:,} bytes, {self.gzip_bytes:,} after gzip{time_taken}"


def median_milliseconds(contents: Mapping[str, bytes]) -> dict[str, float]:
    """Measures the time for one image, by the names of files: medians of alternating runs.

    Other work of the machine slows all files alike.
    """
    runtimes = {name: Runtime(content, keep_tensors=False) for name, content in contents.items()}
    image = next(iter(runtimes.values())).zeros()
    timings: dict[str, list[float]] = {name: [] for name in runtimes}
    start = time.perf_counter()
    for _ in range(_WARM_UP + _RUNS):
        for name, runtime in runtimes.items():
            before = time.perf_counter()
            runtime.run(image)
            timings[name].append(1000.0 * (time.perf_counter() - before))
        if time.perf_counter() - start > _LONGEST_SECONDS:
            break
    # The first runs fill caches, unless there are no others.
    return {name: float(np.median(times[_WARM_UP:] or times)) for name, times in timings.items()}


_NONE = Metadata()


@dataclasses.dataclass(frozen=True, repr=False)
class ExportReport(Displayed):
    """The report of `export_tflite` on the file that it wrote."""

    path: str  # The file.
    bytes: int  # Its size.
    gzip_bytes: int  # Its size after gzip, as app stores compress it.
    sha256: str  # Its hash.
    operators: dict[str, int]  # The number of operators of each kind.
    # The operators that read or make float tensors, with the tensor they make.
    float_operators: list[str]
    route: str  # "direct" or "converter".
    # The layers that are left float, which TensorFlow's converter has written.
    float_layers: list[str]
    # The tensors whose integers `verify_tflite` compares one by one. Tensors after a layer left
    # float are certified given the layer's output.
    certified: list[str]
    # The cost of this choice of `pack` and, with `compare_storage`, of the others. A file without
    # packed kernels is the one of pack="none".
    storage: list[StorageCost]
    # The bits of each layer's weights, and why not fewer; empty for route="converter".
    kernels: list[packing.StoredKernel]
    # The first release of LiteRT's Python package that runs the file, with XNNPACK computing
    # everything that it takes; "" where only TFLite Micro runs it.
    runs_from: str
    # The processors on which XNNPACK has the same codes, operator by operator, and the reason;
    # empty for route="converter".
    portability: list[known_runtimes.PortabilityClaim]
    # The units in the last place by which the scales of tensors were moved so that XNNPACK has the
    # same codes on all processors.
    moved_scales: dict[str, int]
    # The input that the app feeds each of these outputs back to, as codes.
    states: dict[str, str]
    moved_biases: int  # The number of layers whose biases the model has taken from its file.
    target: str  # The processor that the file is for.
    # The bytes of the arena in which TFLite Micro runs it on this machine, and the file without
    # tables; None for other targets, and where TFLite Micro is not installed.
    arena_bytes: int | None
    arena_bytes_unpacked: int | None
    # The operators that the target's compiler leaves to the CPU, with the reason and the fix; for a
    # CPU, the operators that it refuses.
    cpu_fallback: list[CpuFallback]
    warnings: list[str]  # Facts to know about the file.
    seconds: float  # The time it took.

    @property
    def is_portable(self) -> bool:
        """Whether XNNPACK has the same codes on x86 and on Arm, as far as is known."""
        return known_runtimes.are_portable(self.portability)

    @property
    def summary(self) -> str:
        """The file, its size and its operators, in a line."""
        sizes = f"{self.bytes:,} bytes, {self.gzip_bytes:,} after gzip"
        return f"{self.path}: {sizes}, {sum(self.operators.values())} operators"

    def kernel_table(self) -> Table[list[packing.StoredKernel]]:
        """Lists the bits of weights, one line for kernels stored alike; empty if all have 8."""
        alike: dict[tuple[int, str, str], list[packing.StoredKernel]] = {}
        for kernel in sorted(self.kernels, key=lambda kernel: kernel.bits):
            alike.setdefault((kernel.bits, kernel.operator, kernel.note), []).append(kernel)
        columns: list[Column[list[packing.StoredKernel]]] = [
            Column("bits", lambda row: row[0].bits, number=True),
            Column("operator", lambda row: row[0].operator),
            Column(
                "layers", lambda row: first_ones([kernel.layer for kernel in row], 2), wrap="fold"
            ),
            Column(
                "weights",
                lambda row: sum(kernel.weights for kernel in row),
                digits(","),
                number=True,
            ),
            Column("why not fewer", lambda row: row[0].note, wrap="fold"),
        ]
        packs = any(bits != 8 for bits, _, _ in alike)
        return Table(columns=columns, rows=[*alike.values()] if packs else [])

    def _headline(self) -> str:
        return self.summary

    def _tables(self) -> dict[str, Table[list[packing.StoredKernel]]]:
        return {"Weights": self.kernel_table()}

    @property
    def statements(self) -> list[Marked]:
        """The statements after the summary, in the order in which they are shown."""
        words = [f"It runs in ai-edge-litert {self.runs_from} and later."]
        if decoders := self.operators.get(DECODE):
            words = [
                f"It runs in TFLite Micro of 2026 and later, which expands {decoders} kernels in "
                "its arena; LiteRT does not run it."
            ]
        if self.states:
            pairs = first_ones(f"{output} to {name}" for output, name in self.states.items())
            words.append(f"Codes to feed back as they are: {pairs}; they start at the zero point.")
        if self.moved_biases:
            words.append(f"{self.moved_biases} layers of the model took its biases.")
        return [
            *(Marked(line, "plain") for line in words),
            *([portability_in_words(self.portability)] if self.portability else []),
            *self.on_target,
            *(Marked(f"Note: {warning}", "watch") for warning in self.warnings),
        ]

    @property
    def on_target(self) -> list[Marked]:
        """The statements on the target: memory, operators that it computes, and the others."""
        count = sum(self.operators.values())
        statements = TARGETS[self.target].statements(self.cpu_fallback, count)
        if self.arena_bytes is None:
            return statements
        unpacked = self.arena_bytes_unpacked
        beside = "" if unpacked in (None, self.arena_bytes) else f", {unpacked:,} with pack='none'"
        memory = (
            f"It takes {self.bytes:,} bytes of flash, and {self.arena_bytes:,} of arena{beside}, "
            f"with TFLite Micro's reference kernels on {platform.machine()}."
        )
        return [Marked(memory, "plain"), *statements]

    def _notes(self) -> list[Marked]:
        return self.statements

    def to_dict(self) -> dict[str, Any]:
        """Returns plain values, for JSON."""
        return {"is_portable": self.is_portable, **dataclasses.asdict(self)}


def file_graph(network: Network, settings: FileSettings) -> Graph:
    """Returns the graph that a file with these settings holds."""
    graph = deployed_graph(
        network,
        float_head=settings.float_head,
        pack=settings.packing,
        softmax=settings.softmax,
        states=settings.states,
    )
    return settings.ended(graph)


def file_content(graph: Graph, settings: FileSettings, metadata: Metadata = _NONE) -> bytes:
    """Returns the bytes of a file."""
    entries = {SETTINGS_NAME: settings.to_json(graph.layers_left_float)}
    if metadata:
        output = graph.tensors[graph.output]
        entries[METADATA_NAME] = encode(metadata, graph.name, graph.images[0], output)
    content = serialize(graph, entries, resizable=settings.resizable)
    return append_archive(content, metadata.files)


@for_keras3(by="exported")
def export_tflite(
    model: keras.Model,
    path: str | os.PathLike[str],
    *,
    float_head: bool = False,
    pack: str = "auto",
    softmax: bool = False,
    output_type: str | None = None,
    states: Mapping[str, str] | None = None,
    resizable: bool = False,
    target: str | None = None,
    labels: Iterable[str] | None = None,
    description: str | None = None,
    preprocessing: Preprocessing | None = None,
    route: str = "direct",
    compare_storage: bool = False,
    image_size: Sequence[int] | None = None,
    snap_biases: bool = False,
) -> ExportReport:
    """Writes a quantized Keras model as an integer TFLite file.

    Input: one uint8 image (1, rows, columns, channels). Output: the Keras model's, as float32, or
    as its codes. Several inputs and outputs are in the order of `model.inputs` and `model.outputs`,
    for dictionaries in the order of the sorted keys; they have these keys as names, otherwise those
    of the Keras model. Between them all tensors are int8, with the trained codes as their integers.
    Only the final DEQUANTIZE, absent for integer outputs, and the parts that the policy keeps float
    are float.

    The file differs from the trained model where integers cannot hold it: biases are rounded,
    nearly constant channels get another scale, sums and means round as the kernels do, and signed
    streams that these read saturate one code lower. With `snap_biases=True` the model takes its
    file's biases, as with `sat-tf quantize`, and computes its codes from then on. `verify_tflite`
    proves that LiteRT computes exactly these integers, and counts those of Keras that differ.

    Args:
        model: a model quantized by sat-tf, with weight and activation bits.
        path: the path of the file, which appears whole, or not at all.
        float_head: keep the last Dense layer float, from dequantized activations and int8-stored
            weights. Logits are then not rounded, so that there are no ties.
        pack: how to store kernels that fit 4 bits: DoReFa kernels of up to 3 bits, narrow ones of
            up to 4, and rounded ones of up to 4 unless a γ is negative. "auto": dense layers and
            1x1 convolutions take 4 bits, at about the speed of 8; for targets that know int8 only,
            8. "int4": other convolutions too, several times slower, and processors differ in their
            codes. "int2": as "auto", and 2 bits where codes fit, which is slower on x86. "none":
            8 bits, for releases of LiteRT that know no others; see `ExportReport.runs_from`.
            "table", for target="micro": kernels of any layer as tables of values, one a channel,
            with indices of 1 to 7 bits, where that takes fewer bytes; the codes are those of
            "none".
        softmax: the output is probabilities. A model that ends in a softmax has them anyway.
        output_type: "float32", "int8" or "uint8"; None is the target's: for NPUs "int8", except for
            outputs without codes, otherwise "float32". Integers are the last codes of the file:
            real value = scale · (integer - zero point), with the numbers of the output tensor;
            those of 16 bits are int16 with "int8", and uint8 ones are 128 more. A softmax then has
            probabilities in steps of 1/256, or of 1/32768 with 16 bits.
        states: {"output name": "input name"}: outputs of a streaming model that the app feeds back
            to inputs with the next frame: int8 codes of one scale and zero point, whatever
            `output_type` says, which start at the zero point. `BitPolicy(states=...)` ties them,
            before calibration and training; its states are the default, and {} is none.
        resizable: write the batch size as free (-1), for tools that read the signature. LiteRT
            resizes the input of other files too.
        target: the processor that the file is for, a name of
            `sat_tf.exact.targets.processors.PROCESSORS`; by default the one for which the model was
            quantized. The report lists the operators that an NPU leaves to the CPU.
        labels: names of the classes, in order, for TFLite Metadata and the file's `labels.txt`.
        description: what the model does, for its TFLite Metadata.
        preprocessing: how a picture becomes the input, a
            `sat_tf.exact.tflite.preprocessing.Preprocessing`, for TFLite Metadata and as JSON.
        route: "direct" writes the graph as it is. "converter" leaves the file to TensorFlow's
            converter (`sat_tf.export.to_keras`): a second opinion, which is not certified.
        compare_storage: also build the files of the other choices of `pack`, and time them all on
            this machine. For a large model this takes longer than the export.
        image_size: rows and columns of a model of images of any size; (length,) for sequences.
        snap_biases: move the biases of the model, in place, to those of its file, as
            `sat_tf.export.snap_biases` does, and nothing where there is no file. False leaves the
            model as it is: for a file in the middle of a training, or several of one model, as
            another `pack` or `float_head` has other biases.

    Raises:
        ValueError: the model has no integer form, nothing of it can be packed, a weight is not
            finite, an output that is to be an integer has no codes, LiteRT does not run the file,
            an argument is invalid, or the path cannot be written; lists every problem with its
            fix. There is no file then.
    """
    start = time.perf_counter()
    path = check_writable(path)
    if target is None:
        target = processor_of(model).name
    if route == "converter" and output_type is None:
        output_type = FLOAT
    network = Network(model) if image_size is None else sized(Network(model), image_size)
    settings = FileSettings(
        float_head=float_head,
        pack=pack,
        softmax=softmax,
        resizable=resizable,
        output_type=output_type,
        target=target,
        states=_checked_states(network, states, is_direct=route == "direct"),
    )
    metadata, problems = checked_metadata(description, labels, preprocessing)
    problems += route_problems(route, settings, has_metadata=bool(metadata))
    if problems:
        raise ProblemsError("export_tflite", problems)
    if route == "converter":  # the converter stores all kernels in 8 bits
        settings = dataclasses.replace(settings, pack="none")
    moving = snapped(network, settings, stays=True) if snap_biases else contextlib.nullcontext(0)
    with moving as moved_biases:
        graph = file_graph(network, settings)
        settings = settings.of_graph(graph)
        content = _written(path, graph, settings, metadata, is_direct=route == "direct")
    if moved_biases and network.model is not model:
        for layer in network.model.layers:
            copied_weights(layer, model.get_layer(layer.name))
    compares = compare_storage and route == "direct"
    files = _otherwise_packed(network, settings, metadata) if compares else {}
    storage = _costs({settings.pack: content, **files}, timed=compare_storage)
    measured: dict[str, Any] = {"storage": storage, "gzip_bytes": storage[0].gzip_bytes}
    measured |= {"moved_biases": moved_biases, "seconds": time.perf_counter() - start}
    contents = read_contents(content, str(path))
    return _report(path, route, graph, settings, content, contents, **measured)


def _checked_states(
    network: Network, states: Mapping[str, str] | None, *, is_direct: bool
) -> dict[str, str]:
    """Returns the states of a file: by default those with which the model was quantized."""
    if states is None:
        return tied_states(network) if is_direct else {}
    if problems := state_problems(network, states):
        raise ModelError(network.name, problems)
    return dict(states)


def _written(
    path: pathlib.Path, graph: Graph, settings: FileSettings, metadata: Metadata, *, is_direct: bool
) -> bytes:
    """Writes the file of a graph, once LiteRT has run it; returns its bytes."""
    if metadata:
        graph.expect_one_of_each("export_tflite with labels, a description or preprocessing")
    if problems := misfits(metadata, graph.images[0], graph.tensors[graph.output].shape):
        raise ProblemsError("export_tflite", problems)
    content = file_content(graph, settings, metadata) if is_direct else converted(graph)
    with written_whole(path) as temporary:
        temporary.write_bytes(content)
        check_loading(temporary.read_bytes())
    return content


def _costs(files: Mapping[str, bytes], *, timed: bool) -> list[StorageCost]:
    """Returns the sizes of files, and their latencies where they are `timed`, by `pack`."""
    latencies = median_milliseconds(files) if timed else {}
    return [
        StorageCost(pack, len(content), gzip_size(content), latencies.get(pack))
        for pack, content in files.items()
    ]


def _report(
    path: pathlib.Path,
    route: str,
    graph: Graph,
    settings: FileSettings,
    content: bytes,
    contents: Contents,
    **measured: Any,
) -> ExportReport:
    """Returns the report of the file of a graph."""
    is_direct = route == "direct"
    products = [op.storage for op in linear_operations(graph.operations) if op.is_product]
    operators, plain, arenas = contents.operator_counts(), expanded(content), {}
    if settings.processor.on_microcontrollers and known_runtimes.is_installed(MICRO):
        arenas = {file: arena_bytes(file) for file in {content, plain}}
    return ExportReport(
        path=str(path),
        bytes=len(content),
        sha256=hashlib.sha256(content).hexdigest(),
        operators=operators,
        float_operators=contents.float_operators(),
        float_layers=list(graph.float_layers),
        certified=list(graph.integer_tensors) if is_direct else [],
        kernels=packing.stored_kernels(graph) if is_direct else [],
        runs_from="" if DECODE in operators else known_runtimes.first_release(products, contents),
        portability=known_runtimes.portability_of(graph) if is_direct else [],
        moved_scales=dict(graph.moved_scales) if is_direct else {},
        states=dict(graph.states) if is_direct else {},
        target=settings.target,
        arena_bytes=arenas.get(content),
        arena_bytes_unpacked=arenas.get(plain),
        cpu_fallback=TARGETS[settings.target].cpu_fallback(contents),
        warnings=[
            *_warnings(graph, settings, content),
            *known_runtimes.wrong_before(contents),
            *([] if is_direct else [CONVERTED]),
        ],
        route=route,
        **measured,
    )


def _warnings(graph: Graph, settings: FileSettings, content: bytes) -> Iterator[str]:
    """Yields the facts to know about the graph of a file, and about its kernels and layers."""
    yield from graph.warnings
    kernels, processor = linear_operations(graph.operations), settings.processor
    if beyond := sorted({kernel.storage.value for kernel in kernels} - processor.stores):
        yield (
            f"pack={settings.pack!r} stores kernels in {' and '.join(map(str, beyond))} bits, and "
            f"{processor.title} takes {' and '.join(map(str, sorted(processor.stores)))} alone; "
            "use pack='auto'"
        )
    if wide := wide_tensors(graph):
        yield (
            f"{len(wide)} tensors have codes of 16 bits, which XNNPACK does not take: LiteRT "
            "computes them on CPUs with kernels that are many times as slow as those for 8 bits; "
            "they are for NPUs that take int16, and for the few layers that need them"
        )
    has_untold = graph.float_layers and not any(one_image_only(graph.operations))
    if has_untold and Runtime(content, keep_tensors=False).takes_one_image:
        yield (
            f"{', '.join(graph.float_layers)}: as TensorFlow's converter writes layers left float, "
            "their shapes have a batch of 1, so that LiteRT runs one image at a time"
        )


def _otherwise_packed(
    network: Network, settings: FileSettings, metadata: Metadata
) -> dict[str, bytes]:
    """Returns the files of the other choices of `pack`, by choice."""
    files = {}
    for pack in (name for name in packing.PACKINGS if name != packing.TABLE):  # LiteRT has none
        with contextlib.suppress(ValueError):  # nothing to pack
            other_settings = dataclasses.replace(settings, pack=pack)
            graph = file_graph(network, other_settings)
            other_settings = other_settings.of_graph(graph)
            if other_settings.pack == pack != settings.pack:
                files[pack] = file_content(graph, other_settings, metadata)
    return files
