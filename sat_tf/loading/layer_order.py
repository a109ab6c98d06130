"""Whether the layers of a saved model can be called one after the other.

tf_keras calls the layers that it can call, again and again until it has called all of them: where
layers wait for each other, or for a call that never comes, it loops forever.
"""

import collections
from collections.abc import Hashable, Iterable, Iterator
from typing import Any

from sat_tf.loading.trust import keras_classes

# What tf_keras writes instead of a layer's name in front of a constant.
_CONSTANT = "_CONSTANT_VALUE"
_MODELS = ("Functional", "Model", "Sequential")
_FUNCTIONS = ("TFOpLambda", "SlicingOpLambda")
_OURS = "sat_tf>"

# The name of a layer, and which of its calls.
_Call = tuple[Hashable, int]


def check_order(config: Any) -> None:
    """Raises ValueError for a model, or one inside it, whose layers cannot all be called.

    Other problems of a configuration are left to Keras.

    Args:
        config: of a model, as tf_keras wrote it.

    >>> layer = {"class_name": "ReLU", "name": "relu", "inbound_nodes": [[["relu", 0, 0, {}]]]}
    >>> check_order({"class_name": "Functional", "config": {"layers": [layer]}})
    Traceback (most recent call last):
    ValueError: relu: received a layer that reads what comes after it, expected layers that can be \
called one after the other
    """
    known, waiting = keras_classes(), [config]
    while waiting:
        value = waiting.pop()
        if isinstance(value, dict):
            if isinstance(value.get("layers"), list):
                _check_layers([layer for layer in value["layers"] if _is_called(layer)], known)
            waiting.extend(value.values())
        elif isinstance(value, list):
            waiting.extend(value)


def _is_called(layer: Any) -> bool:
    """Whether it is a layer of a Functional model; Keras refuses anything else."""
    if not isinstance(layer, dict) or not isinstance(layer.get("inbound_nodes"), list):
        return False
    return "name" in layer and isinstance(layer["name"], Hashable)


def _check_layers(layers: list[dict[str, Any]], known: frozenset[str]) -> None:
    _expect_one_name_each(layers)
    nodes: dict[Hashable, list[Any]] = {}
    for layer in layers:  # a repeated name adds calls to the first layer of that name
        nodes.setdefault(layer["name"], []).extend(layer["inbound_nodes"])
    read = {
        (name, number): list(_tensors(node))
        for name, of_layer in nodes.items()
        for number, node in enumerate(of_layer)
    }
    functions = {layer["name"] for layer in layers if layer.get("class_name") in _FUNCTIONS}
    for (name, _), of_call in read.items():
        if name in functions and not of_call:  # tf_keras would call it at once, on its numbers
            raise ValueError(f"{name}: received a function of no tensor, expected one of some")
    # Layers whose calls are counted from 1, as far as the calls that are read show it.
    past = {
        name for of_call in read.values() for name, index in of_call if _is_past(nodes, name, index)
    }
    places = {}
    for layer in reversed(layers):
        place = _first_call(layer, known)
        places[layer["name"]] = int(layer["name"] in past) if place is None else place
    inputs = {layer["name"] for layer in layers if layer.get("class_name") == "InputLayer"}
    sources: dict[_Call, list[_Call]] = {}
    for (name, number), tensors in read.items():
        # tf_keras makes the calls of a layer in the order of the file.
        sources[name, number] = [(name, number - 1)] if number else []
        for source, index in tensors:
            if source in inputs or source not in places:  # never called, or refused by Keras
                continue
            place = places[source]
            if not isinstance(index, int) or not 0 <= index - place < len(nodes[source]):
                raise ValueError(
                    f"{name}: received a layer that reads what call {index!r} of {source} makes, "
                    f"expected one of the {len(nodes[source])} calls in the file"
                )
            sources[name, number].append((source, index - place))
    _expect_an_order(sources)


def _expect_one_name_each(layers: Iterable[dict[str, Any]]) -> None:
    """Layers that are one object share a list of calls, which is then in no defined order."""
    names: dict[Hashable, Hashable] = {}
    for layer in layers:
        shared = layer.get("shared_object_id")
        if shared is None or not isinstance(shared, Hashable):
            continue
        name = names.setdefault(shared, layer["name"])
        if name != layer["name"]:
            raise ValueError(
                f"{layer['name']}: received a layer that is the same object as {name}, expected "
                "one name for it"
            )


def _tensors(node: Any) -> Iterator[tuple[str, Any]]:
    """The inputs of a call: the layer that each comes from, and the number of that layer's call."""
    waiting = [node]
    while waiting:
        value = waiting.pop()
        if isinstance(value, dict):
            waiting.extend(value.values())
        elif isinstance(value, list):
            if len(value) in (3, 4) and isinstance(value[0], str):
                if value[0] != _CONSTANT:
                    yield value[0], value[1]
                waiting.extend(value[3:])
            else:
                waiting.extend(value)


def _is_past(nodes: dict[Hashable, list[Any]], name: str, index: Any) -> bool:
    """Whether a layer has that call only if its calls are counted from 1."""
    return name in nodes and index == len(nodes[name])


def _first_call(layer: dict[str, Any], known: frozenset[str]) -> int | None:
    """The number of a layer's first call: 1 for models, which are called while they are built.

    None where that depends on more than the file says.
    """
    config, kind = layer.get("config"), layer.get("class_name")
    if kind in ("Functional", "Model") or (isinstance(config, dict) and "input_layers" in config):
        return 1
    if kind != "Sequential":
        return None if _may_be_a_model(layer, known) else 0
    inside = config.get("layers") if isinstance(config, dict) else config
    first = inside[0] if isinstance(inside, list) and inside else None
    if not isinstance(first, dict) or not isinstance(first.get("config"), dict):
        return None
    if first.get("class_name") == "InputLayer" or first["config"].get("batch_input_shape"):
        return 1
    is_told = isinstance(config, dict) and config.get("build_input_shape")
    return None if is_told or _may_be_a_model(first, known) else 0


def _may_be_a_model(layer: dict[str, Any], known: frozenset[str]) -> bool:
    kind, registered_name = layer.get("class_name"), layer.get("registered_name")
    if str(kind).startswith(_OURS) or str(registered_name).startswith(_OURS):
        return False
    return kind in _MODELS or str(kind) not in known or registered_name not in (None, kind)


def _expect_an_order(sources: dict[_Call, list[_Call]]) -> None:
    readers = collections.defaultdict(list)
    missing = {call: len(of_call) for call, of_call in sources.items()}
    for call, of_call in sources.items():
        for source in of_call:
            readers[source].append(call)
    ready = [call for call, count in missing.items() if not count]
    while ready:
        for reader in readers[ready.pop()]:
            missing[reader] -= 1
            if not missing[reader]:
                ready.append(reader)
    stuck = [call for call, count in missing.items() if count]
    if not stuck:
        return
    # Going back from a call that cannot be made ends in a cycle.
    call, seen = stuck[0], set()
    while call not in seen:
        seen.add(call)
        call = next(source for source in sources[call] if missing[source])
    raise ValueError(
        f"{call[0]}: received a layer that reads what comes after it, expected layers that can be "
        "called one after the other"
    )
