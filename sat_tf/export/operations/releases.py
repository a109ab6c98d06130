"""The releases of LiteRT that compute the codes of a file."""

from collections.abc import Iterable, Iterator

from ai_edge_litert import schema_py_generated as tfl

from sat_tf.export.operations.windows import ends_early
from sat_tf.export.tflite.contents import Contents, StoredOperator
from sat_tf.export.tflite.tensors import Storage, Window
from sat_tf.messages import first_ones

# The first release that computes the codes of a file whose matrices are stored like this, found by
# running a file of each kind in every release of `ai-edge-litert`; the guide to the export says
# how. Older releases refuse files with packed matrices, or leave them to their builtin kernels,
# which round otherwise. INT4 convolutions have run since the first release.
FIRST_RELEASES = {Storage.INT8: "1.0.0", Storage.INT4: "1.3.0", Storage.INT2: "2.1.2"}
# The first release whose XNNPACK pads by nothing where windows of SAME end early.
FIRST_WITH_EARLY_ENDS = "2.2.0"
_CONVOLUTIONS = ("CONV_2D", "DEPTHWISE_CONV_2D")


def first_release(matrices: Iterable[Storage], contents: Contents | None = None) -> str:
    """The first release of the Python package `ai-edge-litert` that computes a file's codes.

    >>> first_release([Storage.INT8, Storage.INT4])
    '1.3.0'
    """
    needed = [FIRST_RELEASES[storage] for storage in (Storage.INT8, *matrices)]
    if contents is not None and any(map(_ends_early, contents.operators)):
        needed.append(FIRST_WITH_EARLY_ENDS)
    return max(needed, key=lambda release: [int(part) for part in release.split(".")])


def wrong_before(contents: Contents) -> Iterator[str]:
    """The warning for convolutions that earlier releases of XNNPACK compute wrongly, in words."""
    tensors = [one.outputs[0].name for one in contents.operators if _ends_early(one)]
    if tensors:
        yield (
            f"{first_ones(tensors)}: the windows of padding='same' end in front of the last row or "
            f"column, which XNNPACK computes wrongly in LiteRT before {FIRST_WITH_EARLY_ENDS}, and "
            "in tf.lite.Interpreter of TensorFlow 2.21, without a word; run the file in a later "
            "LiteRT, or build the layer with padding='valid' behind a ZeroPadding2D"
        )


def _ends_early(operator: StoredOperator) -> bool:
    """See `windows.ends_early`, for an operator of any tool's file."""
    options = operator.options
    if operator.name not in _CONVOLUTIONS or options is None or len(operator.reads) < 2:
        return False
    image, kernel = (tensor.shape for tensor in operator.reads[:2])
    if len(image) != 4 or len(kernel) != 4 or options.padding != tfl.Padding.SAME:
        return False
    strides = options.strideH, options.strideW
    dilation = options.dilationHFactor, options.dilationWFactor
    return min(strides) > 0 and ends_early(
        image[1:3], kernel[1:3], Window(strides, "SAME", dilation)
    )
