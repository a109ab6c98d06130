"""YAML as sat-tf reads it: bounded, no key given twice, numbers of version 1.2."""

import re
from collections.abc import Hashable
from typing import Any

import yaml

# Ten times the longest configuration; PyYAML takes a second to read this many.
_MOST_CHARACTERS = 2**17
_DEEPEST = 40
_MOST_VALUES = 10_000
_LONGEST_INTEGER = 200


def _refusal(node: yaml.Node, why: str) -> yaml.YAMLError:
    return yaml.constructor.ConstructorError(None, None, why, node.start_mark)


class _Loader(yaml.SafeLoader):
    """YAML with the numbers of its version 1.2, and no key given twice."""

    _depth = 0

    def compose_node(self, parent: yaml.Node | None, index: int) -> yaml.Node | None:
        self._depth += 1
        if self._depth > _DEEPEST:  # PyYAML takes a minute to reach Python's limit
            raise ValueError(
                f"received values nested deeper than {_DEEPEST}, expected fewer levels"
            )
        node = super().compose_node(parent, index)
        self._depth -= 1
        return node

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
    """An integer as YAML 1.1 writes it; a long text takes time quadratic in its length."""
    value = loader.construct_yaml_int(node) if len(node.value) <= _LONGEST_INTEGER else 2**64
    if not -(2**63) <= value < 2**63:
        raise _refusal(node, "received an integer, expected one of 64 bits at most")
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
    """The values of a YAML text, in which no key may be given twice; its size is bounded.

    Each alias counts as all values that it stands for: merge keys would copy them.
    """
    try:
        if len(text) > _MOST_CHARACTERS:
            raise ValueError(
                f"received more than {_MOST_CHARACTERS:,} characters, expected a configuration"
            )
        loader = _Loader(text)
        node = loader.get_single_node()
        if node is None:
            return None
        if (count := _count(node, {})) > _MOST_VALUES:
            raise ValueError(
                f"received {count:,} values, with its aliases expanded, expected at most "
                f"{_MOST_VALUES:,}"
            )
        return loader.construct_document(node)
    except yaml.YAMLError as error:
        line = " ".join(str(error).split())
        if isinstance(error, yaml.MarkedYAMLError) and error.problem_mark is not None:
            mark = error.problem_mark
            line = f"line {mark.line + 1}, column {mark.column + 1}: {error.problem}."
        raise ValueError(line) from error
    except (ValueError, TypeError) as error:  # an impossible date, or a word tagged as a number
        raise ValueError(f"{error}.") from error
    except (LookupError, AttributeError, ArithmeticError) as error:
        # PyYAML's own constructors raise these for `!!int ""` or `!!timestamp word`.
        raise ValueError("a value is not of the type that its tag names.") from error


def _count(node: yaml.Node, counts: dict[int, int]) -> int:
    """The number of values in a node, itself included; 0 marks a node that is being counted."""
    if counts.get(id(node)) == 0:
        raise ValueError("received a value that contains itself, expected a finite one")
    if id(node) not in counts:
        counts[id(node)] = 0
        children = () if isinstance(node, yaml.ScalarNode) else node.value
        pairs = children if isinstance(node, yaml.MappingNode) else [children]
        counts[id(node)] = 1 + sum(_count(child, counts) for pair in pairs for child in pair)
    return counts[id(node)]
