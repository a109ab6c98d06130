"""Kernels as tables of values with indices of a few bits, which TFLite Micro's DECODE expands.

DECODE comes before the operator that reads the kernel, and makes int8 of two constants of bytes.
The first holds the indices, the highest bit of each first. The second has 16 bytes of facts, and
then one table of values for each scale of the kernel, all of one length. DECODE takes the number of
tables from the scales alone: where there are fewer, it reads beyond the last.
"""

from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np
from ai_edge_litert import schema_py_generated as tfl

DECODE = "TFLM_DECODE"
# Places and values in the facts: the kind of encoding, the versions of the facts and of tables, the
# bits of an index and the values of a table.
_KIND, _VERSION, _TABLE_VERSION, _BITS, _LENGTH = 0, 1, 4, 5, 6
_LOOKS_UP, _KNOWN_VERSION = 0, 1
_FACTS_BYTES = 16
_MOST_VALUES, _MOST_BITS = 128, 7
# The bytes of two more tensors, their buffers, an operator and its name in a file.
_OTHER_BYTES = 320


class WrongTablesError(Exception):
    """The error of a DECODE that its kernel misreads, or does not run; the message says why."""


class Encoded(NamedTuple):
    """A kernel as DECODE reads it."""

    indices: np.ndarray  # The bytes with the indices.
    tables: np.ndarray  # The bytes with the facts and the tables.
    bits: int  # The bits of an index.

    @property
    def num_bytes(self) -> int:
        """The bytes that it takes in a file."""
        return self.indices.size + self.tables.size + _OTHER_BYTES


def encoded(kernel: np.ndarray, num_scales: int, axis: int) -> Encoded | None:
    """Encodes a kernel of int8 with a table for each scale along `axis`.

    Returns None where it has too many values, or takes fewer bytes as it is.
    """
    rows = np.moveaxis(kernel.astype(np.int8), axis if num_scales > 1 else 0, 0)
    rows = rows.reshape(num_scales, -1)
    tables = [np.unique(row) for row in rows]
    length = max(table.size for table in tables)
    if length > _MOST_VALUES:
        return None
    bits = max(1, (length - 1).bit_length())
    facts = np.zeros(_FACTS_BYTES, np.int8)
    facts[[_VERSION, _TABLE_VERSION, _BITS]] = _KNOWN_VERSION, _KNOWN_VERSION, bits
    facts[_LENGTH] = np.uint8(length).view(np.int8)
    padded = [np.pad(table, (0, length - table.size), "edge") for table in tables]
    of_rows = [np.searchsorted(table, row) for table, row in zip(tables, rows, strict=True)]
    indices = np.stack(of_rows).astype(np.uint8)
    if num_scales > 1:
        sizes = [size for place, size in enumerate(kernel.shape) if place != axis]
        indices = np.moveaxis(indices.reshape(num_scales, *sizes), 0, axis)
    # The lowest `bits` of each byte.
    separate = np.unpackbits(indices.reshape(-1, 1), axis=1)[:, 8 - bits :]
    whole = np.concatenate([facts, *padded]).view(np.uint8)
    result = Encoded(np.packbits(separate), whole, bits)
    return result if result.num_bytes < kernel.size else None


def decoded(
    indices: np.ndarray, tables: np.ndarray, shape: tuple[int, ...], num_scales: int, axis: int
) -> tuple[np.ndarray, int]:
    """Returns the kernel that DECODE makes, int8, and the bits of its indices.

    Raises WrongTablesError where DECODE reads beyond a table, or refuses the file.
    """
    count = int(np.prod(shape))
    if tables.size < _FACTS_BYTES:
        raise WrongTablesError(f"has {tables.size} bytes of facts and tables")
    encoding, *versions = (int(tables[place]) for place in (_KIND, _VERSION, _TABLE_VERSION))
    if encoding != _LOOKS_UP or {*versions} != {_KNOWN_VERSION}:
        raise WrongTablesError(f"is of kind {encoding}, in the versions {versions}")
    # Kernels take the lowest three bits.
    bits, length = int(tables[_BITS]) & _MOST_BITS, int(tables[_LENGTH])
    values = tables[_FACTS_BYTES:].view(np.int8)
    if values.size < max(length, 1) * num_scales:
        raise WrongTablesError(
            f"has {values.size} values, which are fewer than one table of {length} for each of "
            f"{num_scales} scales: kernels read beyond them"
        )
    last = len(shape) - 1
    if num_scales > 1 and (axis not in (0, last) or shape[axis] != num_scales):
        raise WrongTablesError(f"has {num_scales} scales on axis {axis} of the shape {shape}")
    if not bits or -(-count * bits // 8) > indices.size:
        raise WrongTablesError(f"has {indices.size} bytes for {count} indices of {bits} bits")
    separate = np.unpackbits(indices, count=count * bits).reshape(count, bits)
    places = (np.packbits(separate, axis=1) >> (8 - bits)).reshape(shape).astype(np.int32)
    if np.max(places, initial=0) >= length:
        raise WrongTablesError(f"has the index {np.max(places)} into tables of {length} values")
    starts = length * np.arange(num_scales, dtype=np.int32)
    if num_scales > 1:
        starts = starts.reshape([-1 if place == axis else 1 for place in range(len(shape))])
    return values[starts + places], bits


def unfold(model: Any) -> Iterator[int]:
    """Replaces the DECODE operators of an unpacked file by the kernels that they make, constants.

    Yields the bytes of each constant before it is made. Its tensor gets the attribute `index_bits`.
    """
    decoders = {
        place
        for place, code in enumerate(model.operatorCodes)
        if code.customCode == DECODE.encode()
    }
    for graph in model.subgraphs if decoders else ():
        stays = []
        for operator in graph.operators:
            if operator.opcodeIndex not in decoders:
                stays.append(operator)
                continue
            if len(operator.inputs) != 2 * len(operator.outputs) or np.min(operator.inputs) < 0:
                raise WrongTablesError(f"reads the tensors {[*map(int, operator.inputs)]}")
            ends = [graph.tensors[index] for index in operator.inputs]
            pairs = zip(ends[::2], ends[1::2], strict=True)
            for (indices, tables), index in zip(pairs, operator.outputs, strict=True):
                yield from _made_constant(model, indices, tables, graph.tensors[index])
        graph.operators = stays


def _made_constant(model: Any, indices: Any, tables: Any, output: Any) -> Iterator[int]:
    encoded_bytes, table_bytes = (model.buffers[tensor.buffer].data for tensor in (indices, tables))
    grid, shape = output.quantization, tuple(int(size) for size in output.shape)
    if min(shape, default=1) < 0:
        raise WrongTablesError(f"makes a tensor of the shape {shape}")
    if output.type != tfl.TensorType.INT8 or model.buffers[output.buffer].data is not None:
        raise WrongTablesError("makes something other than an int8 tensor without values")
    if encoded_bytes is None or table_bytes is None:
        raise WrongTablesError("reads tensors that are no constants")
    yield int(np.prod(shape))
    num_scales = 1 if grid is None or grid.scale is None else len(grid.scale)
    axis = 0 if grid is None else int(grid.quantizedDimension)
    if num_scales == 1 and axis:
        raise WrongTablesError(f"has one scale on axis {axis}, which kernels refuse")
    kernel, bits = decoded(encoded_bytes, table_bytes, shape, num_scales, axis)
    output.index_bits, output.buffer = bits, len(model.buffers)
    buffer = tfl.BufferT()
    buffer.data = np.frombuffer(kernel.tobytes(), np.uint8)
    model.buffers.append(buffer)
