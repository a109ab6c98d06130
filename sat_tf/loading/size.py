"""Whether a configuration builds a model of usual size: a few words can stand for a giant."""

from collections.abc import Iterator
from typing import Any

# Ten times those of the largest published networks.
_MOST_LAYERS = 10_000
_MOST_TENSORS = 10_000
# Functions of TensorFlow and operations of Keras 3 that make as many tensors as they are told.
_SPLITTING = {"split", "array_split", "hsplit", "vsplit", "unstack", "dynamic_partition"}
# What decides how many tensors a layer makes of one, where it is not told.
_SIZES = {"batch_input_shape", "batch_shape", "shape", "target_shape", "build_input_shape"}
_SIZES |= {"n", "units", "filters", "size", "padding", "output_dim", "input_length"}


def expect_usual_size(config: Any) -> None:
    """Raises ValueError for a model of very many layers, or with one that makes very many tensors.

    Args:
        config: of a model, as any Keras wrote it.
    """
    layers, largest, unrolled = 0, 0, ""
    for value in _mappings(config):
        if isinstance(value.get("layers"), list):
            layers += len(value["layers"])
        largest = max([largest, *(_largest(value[name]) for name in _SIZES & value.keys())])
        name, settings = _named(value), value.get("config")
        if not isinstance(settings, dict):
            continue
        kind = str(settings.get("function", value.get("class_name"))).split(".")[-1].lower()
        parts = max(_largest(settings), _largest(value.get("inbound_nodes")))
        if kind in _SPLITTING and parts > _MOST_TENSORS:
            raise ValueError(f"{name}: {_too_many(parts)}")
        if kind == "unstack" or settings.get("unroll") is True:
            unrolled = name
    if layers > _MOST_LAYERS:
        raise ValueError(f"received {layers:,} layers, expected at most {_MOST_LAYERS:,}")
    if unrolled and largest > _MOST_TENSORS:
        raise ValueError(f"{unrolled}: {_too_many(largest)}")


def _too_many(count: int) -> str:
    return (
        f"received a layer that may make {count:,} tensors of one, expected at most "
        f"{_MOST_TENSORS:,}"
    )


def _named(value: dict[str, Any]) -> str:
    settings = value.get("config")
    inner = settings.get("name") if isinstance(settings, dict) else None
    return str(value.get("name") or inner or value.get("class_name"))


def _mappings(config: Any) -> Iterator[dict[str, Any]]:
    waiting = [config]
    while waiting:
        value = waiting.pop()
        if isinstance(value, dict):
            yield value
            waiting.extend(value.values())
        elif isinstance(value, list):
            waiting.extend(value)


def _largest(value: Any) -> int:
    """The largest integer in a value, however deep; 0 without one."""
    found, waiting = 0, [value]
    while waiting:
        value = waiting.pop()
        if isinstance(value, dict):
            waiting.extend(value.values())
        elif isinstance(value, list):
            waiting.extend(value)
        elif isinstance(value, int):
            found = max(found, value)
    return found
