"""Files with something else in them."""

from collections.abc import Callable
from typing import Any

import flatbuffers
import numpy as np
from ai_edge_litert import schema_py_generated as tfl


def changed(content: bytes, change: Callable[[Any, Any], None]) -> bytes:
    """A whole flatbuffer again, after `change(model, graph)`."""
    model = tfl.ModelT.InitFromPackedBuf(content, 0)
    change(model, model.subgraphs[0])
    builder = flatbuffers.Builder(1024)
    builder.Finish(model.Pack(builder), file_identifier=b"TFL3")
    return bytes(builder.Output())


def shared_tables(tensors, graphs, name=b"x", sizes=(1, 2)):
    """A file whose graphs are all the same one, and whose tensors are all the same one."""
    builder = flatbuffers.Builder(1024)
    text = builder.CreateString(name.decode())
    shape = builder.CreateNumpyVector(np.asarray(sizes, np.int32))
    tfl.TensorStart(builder)
    tfl.TensorAddName(builder, text)
    tfl.TensorAddShape(builder, shape)
    tensor = tfl.TensorEnd(builder)
    vector = _offsets(builder, [tensor] * tensors)
    tfl.SubGraphStart(builder)
    tfl.SubGraphAddTensors(builder, vector)
    graph = tfl.SubGraphEnd(builder)
    vector = _offsets(builder, [graph] * graphs)
    tfl.ModelStart(builder)
    tfl.ModelAddSubgraphs(builder, vector)
    builder.Finish(tfl.ModelEnd(builder), file_identifier=b"TFL3")
    return bytes(builder.Output())


def _offsets(builder, offsets):
    builder.StartVector(4, len(offsets), 4)
    for offset in offsets:
        builder.PrependUOffsetTRelative(offset)
    return builder.EndVector()


def shared_entries(entries, signatures, name):
    """A file whose signatures are all the same one, and their inputs too."""
    builder = flatbuffers.Builder(1024)
    text = builder.CreateString(name)
    tfl.TensorMapStart(builder)
    tfl.TensorMapAddName(builder, text)
    entry = tfl.TensorMapEnd(builder)
    inputs = _offsets(builder, [entry] * entries)
    tfl.SignatureDefStart(builder)
    tfl.SignatureDefAddInputs(builder, inputs)
    signature = tfl.SignatureDefEnd(builder)
    vector = _offsets(builder, [signature] * signatures)
    tfl.ModelStart(builder)
    tfl.ModelAddSignatureDefs(builder, vector)
    builder.Finish(tfl.ModelEnd(builder), file_identifier=b"TFL3")
    return bytes(builder.Output())
