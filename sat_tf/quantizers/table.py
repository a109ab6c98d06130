"""The table of quantizers: by name, and as plain values."""

from typing import Any

from sat_tf.quantizers.base import SatQuantizer
from sat_tf.quantizers.dorefa import DorefaQuantizer
from sat_tf.quantizers.image import ImageQuantizer
from sat_tf.quantizers.observers import InputQuantizer, RangeObserver
from sat_tf.quantizers.pact import PactQuantizer, StreamQuantizer

QUANTIZERS: dict[str, type] = {
    cls.__name__: cls
    for cls in (
        DorefaQuantizer,
        PactQuantizer,
        StreamQuantizer,
        ImageQuantizer,
        RangeObserver,
        InputQuantizer,
    )
}


def serialize_quantizer(quantizer: SatQuantizer | None) -> dict[str, Any] | None:
    """A quantizer as plain values.

    Keras has one format for objects inside the configuration of a layer in `.keras` files, another
    in SavedModels and none that both read; plain values pass through all of them.
    """
    if quantizer is None:
        return None
    return {"quantizer": type(quantizer).__name__, **quantizer.get_config()}


def deserialize_quantizer(values: dict[str, Any] | None) -> Any:
    """The quantizer that `serialize_quantizer` wrote."""
    if values is None:
        return None
    settings = dict(values)
    return QUANTIZERS[settings.pop("quantizer")](**settings)
