"""The tables of quantizers: those a policy can name, and all of them as plain values in files.

The only module that knows their classes. A quantizer of the user's own joins by a decorator:

    @sat_tf.configs.weight_quantizer("power_of_two")
    class PowerOfTwo(sat_tf.configs.WeightQuantizer): ...
"""

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

from sat_tf.messages import did_you_mean
from sat_tf.quantizers.channel_bits import ChannelBitsQuantizer
from sat_tf.quantizers.dorefa import DorefaQuantizer
from sat_tf.quantizers.image import ImageQuantizer
from sat_tf.quantizers.input_range import InputRange
from sat_tf.quantizers.kmeans import KMeansQuantizer
from sat_tf.quantizers.l1 import L1Quantizer
from sat_tf.quantizers.lq_nets import LqNetsQuantizer
from sat_tf.quantizers.lsq import LsqActivationQuantizer, LsqPlusQuantizer, LsqQuantizer
from sat_tf.quantizers.observers import InputQuantizer, RangeObserver
from sat_tf.quantizers.pact import (
    FixedGridQuantizer,
    OffsetQuantizer,
    PactQuantizer,
    StreamQuantizer,
    UnitQuantizer,
)
from sat_tf.quantizers.protocol import (
    ActivationQuantizer,
    ActivationRequest,
    PixelQuantizer,
    Quantizer,
    WeightQuantizer,
    WeightRequest,
)
from sat_tf.quantizers.qil import QilQuantizer

# Policies use these names. A quantizer of the package is one row here.
WEIGHT_QUANTIZERS: dict[str, type[WeightQuantizer]] = {
    "dorefa": DorefaQuantizer,
    "lsq": LsqQuantizer,
    "l1": L1Quantizer,
    "kmeans": KMeansQuantizer,
    "lq_nets": LqNetsQuantizer,
    "channel_bits": ChannelBitsQuantizer,
    "qil": QilQuantizer,
}
ACTIVATION_QUANTIZERS: dict[str, type[ActivationQuantizer]] = {
    "pact": PactQuantizer,
    "lsq": LsqActivationQuantizer,
    "lsq_plus": LsqPlusQuantizer,
}

# The scheme places these itself; no policy names them.
_PLACED: tuple[type[Quantizer], ...] = (
    StreamQuantizer,
    ImageQuantizer,
    RangeObserver,
    InputQuantizer,
    UnitQuantizer,
    FixedGridQuantizer,
    OffsetQuantizer,
)

_TABLES: dict[str, dict[str, Any]] = {
    "weight": WEIGHT_QUANTIZERS,
    "activation": ACTIVATION_QUANTIZERS,
}

for _name, _named in (*WEIGHT_QUANTIZERS.items(), *ACTIVATION_QUANTIZERS.items()):
    _named.policy_name = _name

# Saved models use these names.
QUANTIZERS: dict[str, type[Quantizer]] = {
    cls.__name__: cls
    for cls in (*WEIGHT_QUANTIZERS.values(), *ACTIVATION_QUANTIZERS.values(), *_PLACED)
}

# A policy that names none has these.
_DEFAULTS = (DorefaQuantizer, PactQuantizer, *_PLACED)

_Class = TypeVar("_Class", bound=type)


def weight_quantizer(name: str) -> Callable[[_Class], _Class]:
    """Registers a weight quantizer of your own, by the name that a policy gives it.

    Whatever loads a model with it has to run this too: import the module that the class is in.

    Args:
        name: for `BitPolicy(weight_quantizer=name)`, and in saved models.

    Raises:
        ValueError: the class is not a `WeightQuantizer` or lacks one of its methods, or another
            quantizer has the name.
    """
    return _registering(name, WEIGHT_QUANTIZERS, WeightQuantizer)


def activation_quantizer(name: str) -> Callable[[_Class], _Class]:
    """Registers an activation quantizer of your own; see `weight_quantizer`.

    Args:
        name: for `BitPolicy(activation_quantizer=name)`, and in saved models.
    """
    return _registering(name, ACTIVATION_QUANTIZERS, ActivationQuantizer)


def _registering(name: str, table: dict[str, Any], kind: type) -> Callable[[_Class], _Class]:
    def register(cls: _Class) -> _Class:
        problem = _registering_problem(name, cls, table, kind)
        if problem:
            raise ValueError(f"{name}: {problem}")
        setattr(cls, "policy_name", name)  # noqa: B010
        table[name] = QUANTIZERS[name] = cls
        return cls

    return register


def _registering_problem(name: Any, cls: Any, table: dict[str, Any], kind: type) -> str | None:
    if not isinstance(name, str) or not name.isidentifier():
        return "received an invalid name, expected an identifier such as power_of_two."
    if not (isinstance(cls, type) and issubclass(cls, kind)):
        return f"received {cls!r}, expected a subclass of sat_tf.configs.{kind.__name__}."
    missing = sorted(getattr(cls, "__abstractmethods__", ()))
    if missing:
        return f"received {cls.__name__} without {', '.join(missing)}; write them."
    other = QUANTIZERS.get(name)
    # A cell of a notebook that runs again makes the same class again.
    again = other is not None and table.get(name) is other and _place(other) == _place(cls)
    if not again and (other is not None or name in table):
        return "received a name that another quantizer has; choose another one."
    return None


def _place(cls: Any) -> tuple[str, str]:
    return cls.__module__, cls.__qualname__


def make_weight_quantizer(name: str, request: WeightRequest) -> WeightQuantizer:
    """The quantizer of one kernel, by the name that a policy gives."""
    return WEIGHT_QUANTIZERS[name].create(request)


def make_activation_quantizer(name: str, request: ActivationRequest) -> ActivationQuantizer:
    """The quantizer of one tensor, by the name that a policy gives.

    Where that one does not serve a tensor of this kind, the default one does, with those of the
    options that it knows.
    """
    cls = ACTIVATION_QUANTIZERS[name]
    if cls.serves(request):
        return cls.create(request)
    known = PactQuantizer.option_names()
    options = {option: value for option, value in request.options.items() if option in known}
    return PactQuantizer.create(dataclasses.replace(request, options=options))


def make_image_quantizer(found: InputRange) -> PixelQuantizer:
    """The mark of an input that is images with this range."""
    return ImageQuantizer.of_range(found)


def make_input_quantizer(input_type: str) -> Quantizer:
    """The quantizer of an input that is not an image, by what the file takes."""
    return InputQuantizer(input_type=input_type)


def make_pixel_quantizer(lowest: float, highest: float) -> ActivationQuantizer:
    """The quantizer of a tensor on the grid of pixels, of which these are the ends."""
    return FixedGridQuantizer(lowest=lowest, highest=highest)


def make_range_observer(*, rounds: bool, trains_float: bool = False) -> Quantizer:
    """The observer of a tensor that only the file stores as codes; see `RangeObserver`."""
    return RangeObserver(rounds=rounds, trains_float=trains_float)


def quantizer_problems(kind: str, name: str, fields: Mapping[str, Any]) -> list[str]:
    """Returns what is wrong with the quantizer that a policy names, one line a problem.

    Args:
        kind: "weight" or "activation".
        name: that the policy gives.
        fields: of the policy, with the options and what else the quantizer has to go with.
    """
    table = _TABLES[kind]
    if name not in table:
        return [
            f"{kind}_quantizer={name!r}: expected the name of a quantizer. "
            f"{did_you_mean(name, table)} One of your own is registered by the decorator "
            f"sat_tf.configs.{kind}_quantizer."
        ]
    options = fields.get(f"{kind}_options", {})
    problems = table[name].option_problems(options)
    found = [f"{kind}_options of {name}: {problem}" for problem in problems]
    return found + table[name].field_problems(fields)


def line_of(quantizer: Quantizer) -> str:
    """The line of a quantizer for people; "" for those of a policy that chooses nothing."""
    chosen = quantizer.get_config().keys() & set(quantizer.option_names())
    is_default = type(quantizer) in _DEFAULTS and not chosen
    if is_default or not isinstance(quantizer, WeightQuantizer | ActivationQuantizer):
        return ""
    return f"{quantizer.policy_name or PactQuantizer.policy_name}: {quantizer.describe()}"


def serialize_quantizer(quantizer: Quantizer | None) -> dict[str, Any] | None:
    """A quantizer as plain values.

    Keras has one format for objects inside the configuration of a layer in `.keras` files, another
    in SavedModels and none that both read; plain values pass through all of them.
    """
    if quantizer is None:
        return None
    cls = type(quantizer)
    name = next((name for name, known in QUANTIZERS.items() if known is cls), cls.__name__)
    return {"quantizer": name, **quantizer.get_config()}


def deserialize_quantizer(values: dict[str, Any] | None) -> Any:
    """The quantizer that `serialize_quantizer` wrote.

    Raises:
        ValueError: nobody has registered it.
    """
    if values is None:
        return None
    settings = dict(values)
    name = settings.pop("quantizer")
    if name not in QUANTIZERS:
        raise ValueError(
            f"received a model with the quantizer {name!r}, which is not registered. "
            f"{did_you_mean(str(name), QUANTIZERS)} Import the module that registers it, by "
            f"sat_tf.configs.weight_quantizer({name!r}) or activation_quantizer, before loading."
        )
    return QUANTIZERS[name].from_config(settings)
