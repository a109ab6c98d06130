"""The number of bits of each kernel in a file, and the settings of a file.

XNNPACK multiplies with matrices of 8, 4 and 2 bits, and has convolutions of 8 bits only. A 1x1
convolution is a matrix product of each pixel, and is written as one where its kernel is packed:
the same codes, at nearly the speed of 8 bits. Other convolutions with packed kernels run on
LiteRT's builtin kernels, several times slower.

TFLite Micro takes only int8, and expands tables of values for any layer.
"""

import dataclasses
import functools
import json
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from sat_tf.exact.operations.graph import Graph
from sat_tf.exact.operations.linear import Linear, linear_operations, map_linear
from sat_tf.exact.operations.windows import LinearKind
from sat_tf.exact.targets import processors
from sat_tf.exact.tflite.tensors import WIDE, Storage
from sat_tf.export.lowering.outputs import FLOAT, check_states, with_output_type, with_own_names
from sat_tf.messages import ModelError, ProblemsError, did_you_mean
from sat_tf.version import __version__


class NothingPackedError(ModelError):
    """The error of a packing that packs no kernel of a model; the message says why, and the fix."""


@dataclasses.dataclass(frozen=True)
class Packing:
    """A choice of storage for kernels: the first type that holds their codes, otherwise int8."""

    products: tuple[Storage, ...] = ()  # Types of dense and 1x1 kernels, smallest first.
    windows: tuple[Storage, ...] = ()  # Types of other convolutions, which then leave XNNPACK.
    pixelwise: bool = True  # Whether 1x1 convolutions are written as matrix products.
    tables: bool = False  # Whether kernels are tables of values, where that takes fewer bytes.


TABLE = "table"
PACKINGS: Mapping[str, Packing] = {
    "auto": Packing(products=(Storage.INT4,)),
    "none": Packing(),
    "int4": Packing(products=(Storage.INT4,), windows=(Storage.INT4,)),
    "int2": Packing(products=(Storage.INT2, Storage.INT4)),
    TABLE: Packing(tables=True),
}
# Files may have been written with "int4" before 1x1 convolutions became products.
_EARLIER_INT4 = "int4 of earlier files"
ALL_PACKINGS: Mapping[str, Packing] = {
    **PACKINGS,
    _EARLIER_INT4: Packing(
        products=(Storage.INT2, Storage.INT4), windows=(Storage.INT4,), pixelwise=False
    ),
}
_BITS_PER_BYTE = 8
# The magnitude of an input code.
_LARGEST_INPUT = 255


def packing_problem(pack: object) -> str | None:
    """Says why `pack` is not the name of a packing, with a suggestion; None where it is."""
    if isinstance(pack, str) and pack in ALL_PACKINGS:
        return None
    *names, last = map(repr, PACKINGS)
    hint = did_you_mean(str(pack), PACKINGS, is_listed=True)
    return f"received {pack!r}, expected {', '.join(names)} or {last}. {hint}".rstrip()


def pack_graph(graph: Graph, pack: str) -> Graph:
    """Decides how the file stores each kernel, for the codes as they are trained."""
    if problem := packing_problem(pack):
        raise ValueError(f"pack: {problem}")
    packing = ALL_PACKINGS[pack]
    if not packing.products:
        return graph
    graph = _with_kernels(graph, functools.partial(_stored, graph, packing=packing))
    packed = [op for op in linear_operations(graph.operations) if op.storage is not Storage.INT8]
    if pack != "auto" and not packed:
        raise _nothing_packed(
            graph,
            f"pack={pack!r}: received no kernel that fits into 4 bits, expected at least one; use "
            "pack='auto' or pack='none', or requantize with activation_bits and weight_bits=3, and "
            "first_last_weight_bits=None; pack='int4' packs other convolutions than 1x1 too.",
        )
    warnings = list(graph.warnings)
    builtin = sum(linear.is_builtin for linear in packed)
    two_bits = sum(linear.storage is Storage.INT2 for linear in packed)
    if builtin:
        warnings.append(
            f"pack={pack!r} makes the model slower, two to four times as a rule: XNNPACK does not "
            f"run convolutions with packed kernels, so LiteRT's builtin kernels run {builtin} of "
            "them. They round twice, where XNNPACK rounds once, and not alike on every processor: "
            "the certificate holds for x86. For a fast model use pack='auto'."
        )
    elif two_bits:
        warnings.append(
            f"pack={pack!r} makes the model slower on x86, 1.1 to 1.6 times where that was "
            f"measured: XNNPACK unpacks its {two_bits} kernels of 2 bits at every use there. For a "
            "fast model use pack='auto'."
        )
    return dataclasses.replace(graph, warnings=tuple(warnings))


def with_tables(graph: Graph) -> Graph:
    """Stores the kernels of a rounded graph as tables of values where that takes fewer bytes."""

    def stored(linear: Linear) -> tuple[Linear, str]:
        tables = None if linear.real else linear.encoded()
        if tables is not None:
            return dataclasses.replace(linear, index_bits=tables.bits), ""
        return linear, "it computes in float32" if linear.real else "tables take no fewer bytes"

    graph = _with_kernels(graph, stored)
    if not any(linear.index_bits for linear in linear_operations(graph.operations)):
        raise _nothing_packed(
            graph,
            f"pack={TABLE!r}: received no kernel that takes fewer bytes as tables of values, "
            "expected at least one; use pack='auto', or quantize with weight_bits=4 or fewer, and "
            "first_last_weight_bits=None.",
        )
    return graph


def _with_kernels(graph: Graph, stored: Callable[[Linear], tuple[Linear, str]]) -> Graph:
    """Stores the trained kernels of a graph; `stored` also says why a kernel stays as it is."""
    notes: dict[str, str] = {}

    def noted(linear: Linear) -> Linear:
        if is_trained(linear):
            linear, notes[linear.output] = stored(linear)
        return linear

    operations = map_linear(graph.operations, noted)
    notes = {kernel: note for kernel, note in notes.items() if note}
    return dataclasses.replace(graph, operations=operations, storage_notes=notes)


def _nothing_packed(graph: Graph, problem: str) -> NothingPackedError:
    kernels = [f"{kernel} ({note}): stays int8" for kernel, note in graph.storage_notes.items()]
    return NothingPackedError(graph.name, [*kernels, problem])


def is_trained(linear: Linear) -> bool:
    """Returns whether its kernel holds weights; kernels of the export have one code a channel."""
    return bool(np.any(np.ptp(linear.kernel, axis=linear.inner_axes) > 0))


def _stored(graph: Graph, linear: Linear, packing: Packing) -> tuple[Linear, str]:
    """Returns the operation with its storage, and why not fewer bits; "" for the fewest."""
    if linear.real:
        return linear, "it computes in float32"
    if graph.codes(linear.output).bits == WIDE:
        return linear, "kernels for codes of 16 bits are those for kernels of int8"
    if linear.kind is LinearKind.TRANSPOSED or linear.work(graph).is_grouped:
        return linear, "transposed and grouped convolutions read int8 only"
    pixelwise = (
        packing.pixelwise
        and linear.kind is LinearKind.CONVOLUTION
        and (linear.kernel.shape[1:3], linear.window.strides) == ((1, 1), (1, 1))
    )
    note = ""
    if pixelwise or linear.kind is LinearKind.FULLY_CONNECTED:
        storage, note = _first_fitting(linear, packing.products, matrix=True)
        packed = dataclasses.replace(linear, storage=storage, pixelwise=pixelwise)
        limit = packed.largest_sum(graph.codes(linear.inputs[0]))
        if linear.kernel[0].size * -storage.lowest * _LARGEST_INPUT > limit // 2:
            storage, note = Storage.INT8, f"{storage.name} kernels overflow at its sums"
        if storage is not Storage.INT8:
            return packed, note
        if linear.kind is LinearKind.FULLY_CONNECTED:
            return linear, note
    if not packing.windows:
        return linear, note or "XNNPACK packs 1x1 convolutions without strides only"
    storage, note = _first_fitting(linear, packing.windows, matrix=False)
    return dataclasses.replace(linear, storage=storage), note


def _first_fitting(
    linear: Linear, choices: tuple[Storage, ...], *, matrix: bool
) -> tuple[Storage, str]:
    """Returns the first choice that a kernel fits, or INT8; and why it fits no earlier choice.

    XNNPACK multiplies with packed matrices that have rows of whole bytes and, for 2 bits, several
    rows. Others would go to the builtin kernels, which round differently, for a few bytes.
    """
    low, high = int(np.min(linear.kernel)), int(np.max(linear.kernel))
    rows, columns = len(linear.kernel), linear.kernel.shape[-1]
    note = ""
    for storage in choices:
        fills_bytes = columns % (_BITS_PER_BYTE // storage.value) == 0
        if not (storage.lowest <= low and high <= storage.highest):
            limits = f"{storage.name} holds {storage.lowest} to {storage.highest}"
            note = f"codes {low} to {high}, {limits}"
        elif not matrix or (fills_bytes and (rows > 1 or storage is not Storage.INT2)):
            return storage, note
        elif rows == 1:
            note = f"XNNPACK multiplies with {storage.name} for several outputs only"
        else:
            note = f"its {columns} inputs do not fill whole bytes"
    return Storage.INT8, note


@dataclasses.dataclass(frozen=True)
class StoredKernel:
    """The storage of one layer's kernel in a file."""

    layer: str  # The tensor that the layer makes.
    operator: str  # The operator in the file.
    weights: int  # The number of weights.
    bits: int  # The bits of each weight.
    note: str = ""  # Why it does not have fewer bits; "" where the packing has no fewer.


def stored_kernels(graph: Graph) -> list[StoredKernel]:
    """Lists the kernels of weights in the file of a graph from `pack_graph`, producers first."""
    return [
        StoredKernel(
            layer=graph.former_name(operation.output),
            operator=operation.operator_kind.value,
            weights=operation.num_weights,
            bits=operation.index_bits or operation.storage.value,
            note=graph.storage_notes.get(operation.output, ""),
        )
        for operation in filter(is_trained, linear_operations(graph.operations))
    ]


@dataclasses.dataclass(frozen=True, kw_only=True)
class FileSettings:
    """The settings with which a model is written as a file; see `sat_tf.export_tflite`."""

    float_head: bool = False  # Whether the last layer is float.
    pack: str = "auto"  # How kernels are stored, a name of `PACKINGS`.
    softmax: bool = False  # Whether the output is probabilities.
    resizable: bool = False  # Whether the batch size is free.
    # The type of the outputs, one of `processors.OUTPUT_TYPES`; None: the target's for outputs that
    # have codes, float32 for others.
    output_type: str | None = FLOAT
    target: str = processors.DEFAULT_TARGET  # The processor that it is for.
    # The input that each of these outputs is fed back to as codes, by their names in the file;
    # None: those with which the model was quantized.
    states: Mapping[str, str] | None = dataclasses.field(default_factory=dict)

    def __post_init__(self) -> None:
        problems = [
            f"{name}: received {value!r}, expected True or False."
            for name in ("float_head", "softmax", "resizable")
            if not isinstance(value := getattr(self, name), bool)
        ]
        output_type, of_target = self.output_type, processors.target_problem(self.target)
        of_type = None if output_type is None else processors.output_type_problem(output_type)
        by_name = {"pack": packing_problem(self.pack), "output_type": of_type, "target": of_target}
        is_mapping = self.states is None or isinstance(self.states, Mapping)
        if not is_mapping or any(type(name) is not str for name in (self.states or {}).values()):
            by_name["states"] = f"received {self.states!r}, expected inputs by outputs."
        problems += [f"{name}: {problem}" for name, problem in by_name.items() if problem]
        if self.float_head is True and self.output_type not in (None, FLOAT):
            problems.append(
                f"output_type={self.output_type!r} with float_head=True: received a float head for "
                "outputs of integers; leave one of them out."
            )
        if of_target is None and self.processor.native and self.resizable is True:
            problems.append(
                f"resizable: received True for {self.processor.title}, which takes constant "
                "shapes, expected False; leave it out."
            )
        if of_target is None and self.pack == TABLE and not self.processor.on_microcontrollers:
            problems.append(
                f"pack: received {TABLE!r} for {self.processor.title}, which has no operator that "
                "expands tables of values, expected target='micro'; use pack='auto'."
            )
        if problems:
            raise ProblemsError("export_tflite", problems)

    @property
    def processor(self) -> processors.Processor:
        """The processor that the file is for."""
        return processors.PROCESSORS[self.target]

    @property
    def packing(self) -> str:
        """The name of the packing of its kernels."""
        return self.processor.packing(self.pack)

    def to_json(self, float_layers: Mapping[str, str]) -> bytes:
        """Returns the settings as an entry of the file."""
        values = {"version": __version__, **dataclasses.asdict(self), "islands": dict(float_layers)}
        if self.output_type == FLOAT:  # as in files from before other types
            del values["output_type"]
        if self.target == processors.DEFAULT_TARGET:  # likewise
            del values["target"]
        if not self.states:  # likewise
            del values["states"]
        packing = ALL_PACKINGS[self.pack]
        if packing.products and packing.pixelwise:
            values["pixelwise"] = True
        if self.pack == _EARLIER_INT4:
            values["pack"] = "int4"
        return json.dumps(values, sort_keys=True).encode()

    def ended(self, graph: Graph) -> Graph:
        """Returns a graph of float outputs with the file's: of its type, with their own names."""
        graph = with_own_names(self.typed(graph))
        check_states(graph)
        return graph

    def typed(self, graph: Graph) -> Graph:
        """Returns a graph of float outputs in the file's type; see `outputs.with_output_type`."""
        output_type = self.output_type or self.processor.output_type
        return with_output_type(graph, output_type, where_codes=self.output_type is None)

    def of_graph(self, graph: Graph) -> "FileSettings":
        """Returns the settings of a file of this graph: pack="none" without packed kernels."""
        kernels = linear_operations(graph.operations)
        is_packed = any(op.index_bits or op.storage is not Storage.INT8 for op in kernels)
        settings = self if is_packed else dataclasses.replace(self, pack="none")
        others = set(graph.outputs).difference(graph.states)
        have_codes = {graph.tensors[name].codes is not None for name in others}
        if self.output_type is None and len(have_codes) == 1:
            output_type = self.processor.output_type if True in have_codes else FLOAT
            settings = dataclasses.replace(settings, output_type=output_type)
        return settings

    @classmethod
    def of_file(cls, found: Mapping[str, Any] | None, path: str) -> "FileSettings":
        """Returns the settings with which a file says it was written."""
        names = [field.name for field in dataclasses.fields(cls)]
        # Earlier versions wrote only this setting; the others had their defaults of then.
        if found is not None and "float_head" in found:
            values = {"pack": "none", **{name: found[name] for name in names if name in found}}
            target = values.get("target", processors.DEFAULT_TARGET)
            values["target"] = processors.saved_target(target)
            if values["pack"] == "int4" and not found.get("pixelwise", False):
                values["pack"] = _EARLIER_INT4
            try:
                return cls(**values)
            except ValueError:
                pass  # No version writes other values: the file is not ours either.
        raise ValueError(
            f"{path}: received a TFLite file that sat_tf.export_tflite did not write, or wrote "
            "with route='converter', which is not proven; expected one that it wrote from this "
            "model; export the model again, without a route."
        )
