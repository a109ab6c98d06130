"""The tables of quantizers: those a policy can name, and all of them as plain values in files.

Only this module knows their classes; those that a policy has to name are loaded when one does.
A user's own quantizer joins by a decorator:

    @sat_tf.configs.weight_quantizer("power_of_two")
    class PowerOfTwo(sat_tf.configs.WeightQuantizer): ...
"""

import collections
import dataclasses
import importlib
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

from sat_tf.messages import did_you_mean
from sat_tf.quantizers import pact
from sat_tf.quantizers.dorefa import DorefaQuantizer
from sat_tf.quantizers.observers import ImageQuantizer, InputQuantizer, RangeObserver
from sat_tf.quantizers.protocol import (
    ActivationQuantizer,
    ActivationRequest,
    Quantizer,
    WeightQuantizer,
    WeightRequest,
)


class Classes(collections.UserDict[str, Any]):
    """Classes by name; that of a dotted path is imported when it is first asked for."""

    def __getitem__(self, name: str) -> Any:
        row = self.data[name]
        if isinstance(row, str):
            module, _, class_name = row.rpartition(".")
            row = self.data[name] = getattr(importlib.import_module(module), class_name)
        return row


# Policies use these names. A quantizer of the package is one row here; whatever no policy names is
# never loaded.
_WEIGHTS: dict[str, type | str] = {
    "dorefa": DorefaQuantizer,
    "lsq": "sat_tf.quantizers.lsq.LsqQuantizer",
    "l1": "sat_tf.quantizers.l1.L1Quantizer",
    "kmeans": "sat_tf.quantizers.methods.kmeans.KMeansQuantizer",
    "lq_nets": "sat_tf.quantizers.methods.lq_nets.LqNetsQuantizer",
    "channel_bits": "sat_tf.quantizers.methods.channel_bits.ChannelBitsQuantizer",
    "qil": "sat_tf.quantizers.methods.qil.QilQuantizer",
}
_ACTIVATIONS: dict[str, type | str] = {
    "pact": pact.PactQuantizer,
    "lsq": "sat_tf.quantizers.lsq.LsqActivationQuantizer",
    "lsq_plus": "sat_tf.quantizers.lsq.LsqPlusQuantizer",
}
WEIGHT_QUANTIZERS, ACTIVATION_QUANTIZERS = Classes(_WEIGHTS), Classes(_ACTIVATIONS)

# The scheme places these itself; no policy names them.
_PLACED: tuple[type[Quantizer], ...] = (
    *(pact.StreamQuantizer, ImageQuantizer, RangeObserver, InputQuantizer),
    *(pact.UnitQuantizer, pact.FixedGridQuantizer, pact.OffsetQuantizer),
)

_TABLES = {"weight": WEIGHT_QUANTIZERS, "activation": ACTIVATION_QUANTIZERS}

# Saved models use these names.
QUANTIZERS = Classes(
    {
        row.rpartition(".")[2] if isinstance(row, str) else row.__name__: row
        for row in (*_WEIGHTS.values(), *_ACTIVATIONS.values(), *_PLACED)
    }
)

# A policy that names none has these.
_DEFAULTS = (DorefaQuantizer, pact.PactQuantizer, *_PLACED)

_Class = TypeVar("_Class", bound=type)


def weight_quantizer(name: str) -> Callable[[_Class], _Class]:
    """Registers a weight quantizer of your own, by the name that a policy gives it.

    Saved models have that name too. Whatever loads one has to run this: import the module that the
    class is in.

    Raises:
        ValueError: the class is not a `WeightQuantizer` or lacks one of its methods, or another
            quantizer has the name.
    """
    return _registering(name, WEIGHT_QUANTIZERS, WeightQuantizer)


def activation_quantizer(name: str) -> Callable[[_Class], _Class]:
    """Registers an activation quantizer of your own; see `weight_quantizer`."""
    return _registering(name, ACTIVATION_QUANTIZERS, ActivationQuantizer)


def _registering(name: str, table: Classes, base: type) -> Callable[[_Class], _Class]:
    def register(cls: _Class) -> _Class:
        problem = _registering_problem(name, cls, table, base)
        if problem:
            raise ValueError(f"{name}: {problem}")
        setattr(cls, "policy_name", name)  # noqa: B010
        table[name] = QUANTIZERS[name] = cls
        return cls

    return register


def _registering_problem(name: Any, cls: Any, table: Classes, base: type) -> str | None:
    if not isinstance(name, str) or not name.isidentifier():
        return "received an invalid name, expected an identifier such as power_of_two."
    if not (isinstance(cls, type) and issubclass(cls, base)):
        return f"received {cls!r}, expected a subclass of sat_tf.configs.{base.__name__}."
    missing = sorted(getattr(cls, "__abstractmethods__", ()))
    if missing:
        return f"received {cls.__name__} without {', '.join(missing)}; write them."
    owner = QUANTIZERS.get(name)
    # A cell of a notebook that runs again makes the same class again.
    is_same = owner and (owner.__module__, owner.__qualname__) == (cls.__module__, cls.__qualname__)
    is_again = is_same and table.get(name) is owner
    if not is_again and (owner is not None or name in table):
        return "received a name that another quantizer has; choose another one."
    return None


def make_weight_quantizer(name: str, request: WeightRequest) -> WeightQuantizer:
    """The quantizer of one kernel, by the name that a policy gives."""
    return WEIGHT_QUANTIZERS[name].create(request)


def make_activation_quantizer(name: str, request: ActivationRequest) -> ActivationQuantizer:
    """The quantizer of one tensor, by its name in a policy, or the default where it serves none.

    The default gets those of the options that it knows.
    """
    cls = ACTIVATION_QUANTIZERS[name]
    if cls.serves(request):
        return cls.create(request)
    names = pact.PactQuantizer.option_names()
    options = {option: value for option, value in request.options.items() if option in names}
    return pact.PactQuantizer.create(dataclasses.replace(request, options=options))


# The quantizers that the scheme places itself: the mark of an image input, the quantizer of another
# input, that of a tensor on the grid of pixels, and the observer of one that only files round.
make_image_quantizer = ImageQuantizer.of_range
make_input_quantizer = InputQuantizer
make_pixel_quantizer = pact.FixedGridQuantizer
make_range_observer = RangeObserver


def quantizer_problems(kind: str, name: str, fields: Mapping[str, Any]) -> list[str]:
    """Returns what is wrong with the quantizer that a policy names, one line a problem."""
    table = _TABLES[kind]
    if name not in table:
        return [
            f"{kind}_quantizer={name!r}: expected the name of a quantizer. "
            f"{did_you_mean(name, table)} One of your own is registered by the decorator "
            f"sat_tf.configs.{kind}_quantizer."
        ]
    options = fields.get(f"{kind}_options", {})
    problems = table[name].option_problems(options)
    lines = [f"{kind}_options of {name}: {problem}" for problem in problems]
    return lines + table[name].field_problems(fields)


def line_of(quantizer: Quantizer) -> str:
    """The line of a quantizer for people; "" for those of a policy that chooses nothing."""
    options = quantizer.get_config().keys() & set(quantizer.option_names())
    is_default = type(quantizer) in _DEFAULTS and not options
    if is_default or not isinstance(quantizer, WeightQuantizer | ActivationQuantizer):
        return ""
    return f"{quantizer.policy_name or pact.PactQuantizer.policy_name}: {quantizer.describe()}"


def serialize_quantizer(quantizer: Quantizer | None) -> dict[str, Any] | None:
    """A quantizer as plain values, which pass through all of Keras' formats of files."""
    if quantizer is None:
        return None
    cls = type(quantizer)
    registered = QUANTIZERS.get(cls.policy_name) is cls
    return {"quantizer": cls.policy_name if registered else cls.__name__, **quantizer.get_config()}


def deserialize_quantizer(values: dict[str, Any] | None) -> Any:
    """The quantizer that `serialize_quantizer` wrote; an error where nobody has registered it."""
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
