"""A file as C++ source of a program for TFLite Micro: an array, and the operators to register."""

from collections.abc import Iterable, Mapping, Sequence

import numpy as np

from sat_tf.exact.tflite.value_tables import DECODE

_BYTES_A_LINE = 16
# The names of operators in `MicroMutableOpResolver` that are not spelled as those of the schema.
_SPELLED: Mapping[str, str] = {
    "BATCH_MATMUL": "BatchMatMul",
    "CUMSUM": "CumSum",
    DECODE: "Decode",
    "PADV2": "PadV2",
    "UNIDIRECTIONAL_SEQUENCE_LSTM": "UnidirectionalSequenceLSTM",
}
_HEADER = """\
// {name}, written by sat-tf: {num_bytes:,} bytes of flash.
#ifndef MODEL_H_
#define MODEL_H_

#include "tensorflow/lite/micro/micro_mutable_op_resolver.h"

extern const unsigned char kModel[];
constexpr int kModelBytes = {num_bytes};

{arena}
using ModelOperators = tflite::MicroMutableOpResolver<{count}>;

inline TfLiteStatus RegisterModelOperators(ModelOperators& resolver) {{
{calls}
  return kTfLiteOk;
}}

#endif  // MODEL_H_
"""
_MEASURED = """\
// Bytes of the tensor arena, as TFLite Micro's reference kernels take it on {machine}. Pointers
// of 4 bytes take less; kernels made for a processor, such as CMSIS-NN's, may take more.
constexpr int kArenaBytes = {arena_bytes};
"""
_NOT_MEASURED = """\
// The bytes of the tensor arena were not measured, for lack of TFLite Micro (sat-tf[micro]).
"""


def array_source(content: bytes) -> str:
    """Returns model.cc: the bytes of a file, aligned to 16."""
    opening = '#include "model.h"\n\nalignas(16) const unsigned char kModel[] = {\n'
    return f"{opening}{_rows(content)}\n}};\n"


def header_source(
    name: str, num_bytes: int, operators: Iterable[str], arena_bytes: int | None, machine: str
) -> str:
    """Returns model.h: sizes, and the function that registers the file's operators."""
    names = sorted(map(resolver_name, operators))
    calls = [f"  if (resolver.Add{name}() != kTfLiteOk) return kTfLiteError;" for name in names]
    measured = _MEASURED.format(arena_bytes=arena_bytes, machine=machine)
    return _HEADER.format(
        name=name,
        num_bytes=num_bytes,
        arena=_NOT_MEASURED if arena_bytes is None else measured,
        count=len(names),
        calls="\n".join(calls),
    )


def examples_source(inputs: Sequence[np.ndarray], outputs: Sequence[np.ndarray]) -> str:
    """Returns board.h: the bytes of the inputs and of the outputs of examples."""
    lines = [
        "// Bytes of each input of the model, and of the outputs that TFLite Micro's kernels give.",
        "#ifndef BOARD_H_\n#define BOARD_H_\n",
        f"constexpr int kExamples = {len(inputs[0])};",
    ]
    for name, arrays in (("kInput", inputs), ("kOutput", outputs)):
        for place, array in enumerate(arrays):
            size = array.nbytes // len(array)
            rows = "".join(f"  {{\n{_rows(example.tobytes())}\n  }},\n" for example in array)
            opening = f"alignas(16) const unsigned char {name}{place}[kExamples][{size}]"
            lines.append(f"{opening} = {{\n{rows}}};")
    return "\n".join([*lines, "\n#endif  // BOARD_H_\n"])


def _rows(content: bytes) -> str:
    starts = range(0, len(content), _BYTES_A_LINE)
    rows = (content[start : start + _BYTES_A_LINE].hex(",").split(",") for start in starts)
    return "\n".join("  " + " ".join(f"0x{byte}," for byte in row) for row in rows)


def resolver_name(operator: str) -> str:
    """Returns the name of an operator in `MicroMutableOpResolver`, without "Add".

    >>> resolver_name("DEPTHWISE_CONV_2D")
    'DepthwiseConv2D'
    """
    words = operator.split("_")
    return _SPELLED.get(operator, "".join(w if w[0].isdigit() else w.capitalize() for w in words))
