"""YAML as sat-tf reads it: bounded, no key given twice, numbers of version 1.2."""

import re
from collections.abc import Hashable
from typing import Any

import yaml

# Ten times the longest configuration; PyYAML takes a second to read it.
_MOST_CHARACTERS = 2**17
_DEEPEST = 40
_MOST_VALUES = 10_000
# 64 bits written in base two, with underscores and some leading zeros.
_LONGEST_INTEGER = 200
_LONGEST_SHOWN = 24
_INTEGER_LIMIT = 2**63


def _refusal(node: yaml.Node, why: str) -> yaml.YAMLError:
    return yaml.constructor.ConstructorError(None, None, why, node.start_mark)


class _Loader(yaml.SafeLoader):
    """YAML with the numbers of its version 1.2, and no key given twice."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Hashable, Any]:
        keys: set[Any] = set()
        for key_node, _ in node.value:
            key = key_node.value
            if not isinstance(key_node, yaml.ScalarNode):
                raise _refusal(key_node, "a key is not a plain word")
            if key in keys:
                raise _refusal(key_node, f"the key {key!r} is given twice")
            keys.add(key)
        return super().construct_mapping(node, deep)


def _integer(loader: _Loader, node: yaml.ScalarNode) -> int:
    """An integer as YAML 1.1 writes it, of at most 64 bits; PyYAML's own reader has no limit.

    A longer text is not converted at all: that takes time quadratic in its length.
    """
    text = str(node.value)
    value = loader.construct_yaml_int(node) if len(text) <= _LONGEST_INTEGER else None
    if value is None or not -_INTEGER_LIMIT <= value < _INTEGER_LIMIT:
        shown = text if len(text) <= _LONGEST_SHOWN else f"{text[:_LONGEST_SHOWN]}..."
        raise _refusal(
            node,
            f"received an integer of {len(text):,} characters ({shown}), expected one of 64 bits "
            "at most",
        )
    return int(value)


_Loader.add_constructor("tag:yaml.org,2002:int", _integer)


class Dumper(yaml.SafeDumper):
    """Quotes words that `_Loader` would take for numbers."""


# PyYAML follows YAML 1.1, where 4e-5 is a word because it has no decimal point.
for _kind in (_Loader, Dumper):
    _kind.add_implicit_resolver(
        "tag:yaml.org,2002:float",
        re.compile(r"^[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)[eE][-+]?[0-9]+$"),
        list("-+.0123456789"),
    )


def load_yaml(text: str) -> Any:
    """The values of a YAML text, in which no key may be given twice.

    The work is bounded before any value is made, see `_expect_usual_size`; integers have 64 bits at
    most.
    """
    try:
        _expect_usual_size(text)
        return yaml.load(text, _Loader)
    except yaml.YAMLError as error:
        line = " ".join(str(error).split())
        if isinstance(error, yaml.MarkedYAMLError) and error.problem_mark is not None:
            mark = error.problem_mark
            line = f"line {mark.line + 1}, column {mark.column + 1}: {error.problem}."
        raise ValueError(line) from error
    except (ValueError, TypeError) as error:  # an impossible date, a number that is a word
        raise ValueError(f"{error}.") from error
    except (LookupError, AttributeError, ArithmeticError) as error:
        # PyYAML's own constructors raise these for `!!int ""` or `!!timestamp word`.
        raise ValueError("a value is not of the type that its tag names.") from error


def _expect_usual_size(text: str) -> None:
    """Raises ValueError for a text that is longer, deeper or of more values than configurations.

    Each alias counts as the values that it stands for, which merge keys would make.
    """
    if len(text) > _MOST_CHARACTERS:
        raise ValueError(
            f"received more than {_MOST_CHARACTERS:,} characters, expected a configuration"
        )
    anchors: list[str | None] = []  # of the collections that are open
    counts = [0]  # of the values in each of them, behind those of the whole text
    sizes: dict[str | None, int] = {}  # of what has an anchor
    for event in yaml.parse(text, _Loader):
        size = 0
        if isinstance(event, yaml.CollectionStartEvent):
            anchors.append(event.anchor)
            counts.append(1)
            if len(anchors) > _DEEPEST:
                raise ValueError(
                    f"received values nested deeper than {_DEEPEST}, expected fewer levels"
                )
        elif isinstance(event, yaml.CollectionEndEvent):
            size = counts.pop()
            sizes[anchors.pop()] = size
        elif isinstance(event, yaml.ScalarEvent):
            size = sizes[event.anchor] = 1
        elif isinstance(event, yaml.AliasEvent):
            if event.anchor in anchors:
                raise ValueError("received a value that contains itself, expected a finite one")
            size = sizes.get(event.anchor, 0)  # where there is no such anchor, PyYAML says so
        counts[-1] += size
    if counts[0] > _MOST_VALUES:
        raise ValueError(
            f"received {counts[0]:,} values, with its aliases expanded, expected at most "
            f"{_MOST_VALUES:,}"
        )
