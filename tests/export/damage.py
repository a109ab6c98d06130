"""Files with something else in them."""

from collections.abc import Callable
from typing import Any

import flatbuffers
from ai_edge_litert import schema_py_generated as tfl


def changed(content: bytes, change: Callable[[Any, Any], None]) -> bytes:
    """A whole flatbuffer again, after `change(model, graph)`."""
    model = tfl.ModelT.InitFromPackedBuf(content, 0)
    change(model, model.subgraphs[0])
    builder = flatbuffers.Builder(1024)
    builder.Finish(model.Pack(builder), file_identifier=b"TFL3")
    return bytes(builder.Output())
