"""The parts of a model that its graph does not hold: the user's own class, and the policy."""

import functools
import inspect
import textwrap
import weakref
from collections.abc import Callable
from typing import Any

import tensorflow as tf
import tf_keras as keras

from sat_tf.exact.targets.processors import DEFAULT_TARGET, PROCESSORS, Processor
from sat_tf.graph.network import keras_calls
from sat_tf.messages import warn
from sat_tf.qat.policy import BitPolicy

_OF_ALL_MODELS = ("self", "inputs", "outputs", "name", "trainable", "training")
_STATEFUL = (keras.metrics.Metric, keras.optimizers.Optimizer, keras.losses.Loss)


def of_class_of(original: Any, model: keras.Model) -> keras.Model:
    """A plain model, as rewriting makes it, as an instance of the user's own class of `original`.

    It is built as `type(original)(inputs, outputs, name=...)`; further arguments of the constructor
    are attributes of `original` of the same names, and its other attributes are carried over. If
    the class cannot be built so, the model stays plain, and a warning names the class and the fix.
    """
    built = in_class_of(original, model, _built)
    if built is model:
        return model
    built.trainable = original.trainable
    lost = _carry(original, built)
    if lost:
        warn(
            f"model {original.name!r}: the {type(original).__name__} built from the new graph "
            f"lacks {', '.join(lost)}, which are layers of the old one; set them before you "
            "train it."
        )
    return built


def _is_keras_s(cls: type) -> bool:
    return cls.__module__.split(".")[0] in ("tf_keras", "keras", "tensorflow")


def in_class_of(
    original: Any, model: Any, build: Callable[[type, Any, dict[str, Any]], Any]
) -> Any:
    """A plain model, of either Keras, in the class of `original` if `build` can; else it warns."""
    cls = type(original)
    if _is_keras_s(cls):
        return model
    try:
        further = {
            parameter.name: getattr(original, parameter.name)
            for parameter in _parameters(cls)
            if parameter.name not in _OF_ALL_MODELS
            and parameter.kind in (parameter.POSITIONAL_OR_KEYWORD, parameter.KEYWORD_ONLY)
            and hasattr(original, parameter.name)
        }
        return build(cls, model, further)
    except Exception as error:  # the user's constructor raises anything
        reason = textwrap.shorten(str(error) or type(error).__name__, 160)
        warn_of_lost_class(
            cls,
            f"{cls.__name__}(inputs, outputs, name=...) does not build one: {reason}",
            f"train {cls.__name__}(model.inputs, model.outputs, ...) built from the result",
        )
        return model


def _parameters(cls: Any) -> list[inspect.Parameter]:
    """The arguments of a class's constructor."""
    return list(inspect.signature(cls.__init__).parameters.values())


def _built(cls: type, model: keras.Model, further: dict[str, Any]) -> keras.Model:
    if issubclass(cls, keras.Sequential):
        raise TypeError("a Sequential class is built from layers, not from inputs and outputs")
    if not any(p.name == "inputs" or p.kind is p.VAR_POSITIONAL for p in _parameters(cls)):
        raise TypeError(
            f"its constructor does not take inputs and outputs: {cls.__name__}.__init__"
        )
    # Keras has no public view of the structure that a model is called with.
    inputs, outputs = model._nested_inputs, model._nested_outputs
    built = cls(inputs, outputs, name=model.name, **further)
    expected = [*model.inputs, *model.outputs]
    received = [*(getattr(built, "inputs", None) or ()), *(getattr(built, "outputs", None) or ())]
    if list(map(id, received)) != list(map(id, expected)):
        raise TypeError("its constructor builds another graph from inputs and outputs")
    return built


def warn_of_lost_class(kind: type, reason: str, fix: str) -> None:
    """Warns that a model of the user's own class becomes a plain one; not of a class of Keras."""
    if _is_keras_s(kind):
        return
    warn(
        f"received a model of the class {kind.__name__}, and made a plain keras.Model, without the "
        f"methods of that class ({reason}); {fix}."
    )


def _carry(original: keras.Model, built: keras.Model) -> list[str]:
    """Copies the attributes of a model to another of its class; returns those it cannot copy."""
    in_graph = {id(call.layer) for call in keras_calls(original)}
    lost = []
    for name, value in vars(original).items():
        if name in _names_of_keras():
            continue
        has, leaves = name in vars(built), tf.nest.flatten(value)
        if any(id(leaf) in in_graph for leaf in leaves):
            lost += [] if has else [name]
        elif any(isinstance(leaf, (tf.Variable, *_STATEFUL)) for leaf in leaves):
            if not has:
                setattr(built, name, tf.nest.map_structure(_created_again, value))
            for old, new in zip(leaves, tf.nest.flatten(getattr(built, name)), strict=True):
                if isinstance(old, tf.Variable):
                    new.assign(old)
        else:
            plain = {list: list, dict: dict}  # without Keras's wrappers
            of_kind = next((make for cls, make in plain.items() if isinstance(value, cls)), None)
            setattr(built, name, of_kind(value) if of_kind else value)
    return lost


def _created_again(leaf: Any) -> Any:
    if isinstance(leaf, tf.Variable):
        return tf.Variable(leaf, trainable=leaf.trainable, name=leaf.name.split(":")[0])
    return type(leaf).from_config(leaf.get_config()) if isinstance(leaf, _STATEFUL) else leaf


@functools.cache
def _names_of_keras() -> frozenset[str]:
    """Names of the attributes that Keras itself sets on a model."""
    image = keras.Input((1,), name="image")
    model = keras.Model(image, image, name="model")
    model.compile("sgd", "mse")
    return frozenset({*vars(model), "history", "optimizer", "loss", "_compile_config"})


# Files do not say by which policy a model was quantized: it is known as long as the model is in
# memory.
_policies: "weakref.WeakKeyDictionary[Any, BitPolicy]" = weakref.WeakKeyDictionary()


def remember(model: Any, policy: BitPolicy) -> Any:
    """Remembers the policy of a model, which it returns."""
    _policies[model] = policy
    return model


def policy_of(model: Any) -> BitPolicy | None:
    """The policy of a quantized model; None where it is unknown, as for a loaded model."""
    return _policies.get(model) if isinstance(model, keras.Model) else None


def processor_of(model: Any) -> Processor:
    """The processor that the file of a quantized model is for, which its layers keep."""
    configs = (getattr(layer, "quantize_config", None) for layer in getattr(model, "layers", ()))
    targets = (getattr(config, "target", None) for config in configs)
    return PROCESSORS[next(filter(None, targets), DEFAULT_TARGET)]
