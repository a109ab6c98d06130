"""The table of quantizers of Keras 3, and all of them as plain values, as in saved tf_keras models.

The only module that knows their classes.
"""

from collections.abc import Mapping
from typing import Any

from sat_tf.keras3.quantizers.channel_bits import ChannelBitsQuantizer
from sat_tf.keras3.quantizers.dorefa import DorefaQuantizer
from sat_tf.keras3.quantizers.image import ImageQuantizer
from sat_tf.keras3.quantizers.kmeans import KMeansQuantizer
from sat_tf.keras3.quantizers.l1 import L1Quantizer
from sat_tf.keras3.quantizers.lq_nets import LqNetsQuantizer
from sat_tf.keras3.quantizers.lsq import (
    LsqActivationQuantizer,
    LsqPlusQuantizer,
    LsqQuantizer,
)
from sat_tf.keras3.quantizers.observers import InputQuantizer, RangeObserver
from sat_tf.keras3.quantizers.pact import (
    OffsetQuantizer,
    PactQuantizer,
    StreamQuantizer,
    UnitQuantizer,
)
from sat_tf.keras3.quantizers.protocol import Quantizer
from sat_tf.keras3.quantizers.qil import QilQuantizer

# By the names of the classes, which are those of tf_keras. A quantizer of the package is one row
# here and one there.
QUANTIZERS: dict[str, type[Quantizer]] = {
    cls.__name__: cls
    for cls in (
        DorefaQuantizer,
        LsqQuantizer,
        L1Quantizer,
        KMeansQuantizer,
        LqNetsQuantizer,
        ChannelBitsQuantizer,
        QilQuantizer,
        PactQuantizer,
        LsqActivationQuantizer,
        LsqPlusQuantizer,
        StreamQuantizer,
        OffsetQuantizer,
        UnitQuantizer,
        ImageQuantizer,
        RangeObserver,
        InputQuantizer,
    )
}


def serialize_quantizer(quantizer: Quantizer | None) -> dict[str, Any] | None:
    """A quantizer as plain values, those of `sat_tf.quantizers.table.serialize_quantizer`."""
    if quantizer is None:
        return None
    return {"quantizer": type(quantizer).__name__, **quantizer.get_config()}


def deserialize_quantizer(values: Mapping[str, Any] | None) -> Quantizer | None:
    """The quantizer of plain values, whether they were written here or of a tf_keras model.

    Raises:
        ValueError: there is no such quantizer on Keras 3.
    """
    if values is None:
        return None
    settings = dict(values)
    name = settings.pop("quantizer")
    if name not in QUANTIZERS:
        raise ValueError(
            f"received the quantizer {name!r}, expected one that Keras 3 has: "
            f"{', '.join(sorted(QUANTIZERS))}. A quantizer of your own is one of tf_keras alone: "
            "train the model there, or quantize it with a policy that names none."
        )
    return QUANTIZERS[name](**settings)
