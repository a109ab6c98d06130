"""Names of layer classes, for pictures and narrow tables."""

_SHORT = {
    "BatchNormalization": "BN",
    "DepthwiseConv2D": "Depthwise",
    "GlobalAveragePooling2D": "GlobalAverage",
    "AveragePooling2D": "AveragePool",
    "MaxPooling2D": "MaxPool",
    "GlobalMaxPooling2D": "GlobalMax",
    "ZeroPadding2D": "ZeroPad",
    "Concatenate": "Concat",
    "InputLayer": "Input",
}


def short_kind(kind: str) -> str:
    """The name of a class, shorter where it is long and well known."""
    return _SHORT.get(kind, kind)
