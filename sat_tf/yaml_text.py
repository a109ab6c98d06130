"""YAML as sat-tf reads it: bounded, no key given twice, numbers of version 1.2."""

import io
import itertools
import pathlib
import re
from collections.abc import Hashable
from typing import Any

import yaml

from sat_tf.files import open_regular

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


def read_yaml_text(path: pathlib.Path) -> str:
    """The text of a YAML file, or as much of it as `load_yaml` needs to refuse it."""
    with io.TextIOWrapper(open_regular(path), encoding="utf-8") as file:
        return file.read(_MOST_CHARACTERS + 1)


def load_yaml(text: str) -> Any:
    """The values of a YAML text, in which no key may be given twice.

    The work is bounded before any value is made: by the length of the text, by how deep its values
    are nested, and by how many there are with every alias and merge key expanded. Integers have 64
    bits at most.
    """
    try:
        if len(text) > _MOST_CHARACTERS:
            raise ValueError(
                f"received more than {_MOST_CHARACTERS:,} characters, expected a configuration"
            )
        # Values nested too deep could not be read without running out of stack.
        opens, closes = yaml.events.CollectionStartEvent, yaml.events.CollectionEndEvent
        changes = (isinstance(e, opens) - isinstance(e, closes) for e in yaml.parse(text, _Loader))
        if any(depth > _DEEPEST for depth in itertools.accumulate(changes)):
            raise ValueError(
                f"received values nested deeper than {_DEEPEST}, expected fewer levels"
            )
        loader = _Loader(text)
        try:
            node = loader.get_single_node()
            if node is None:
                return None
            _count_values(node)
            return loader.construct_document(node)
        finally:
            loader.dispose()
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


def _count_values(root: yaml.Node) -> None:
    """Raises ValueError for more values than a configuration can have, with aliases expanded.

    An alias is the node that it names, so each node is counted once and its count reused.
    """
    counts: dict[yaml.Node, int] = {}
    above: set[yaml.Node] = set()

    def count(node: yaml.Node) -> int:
        if node in above:
            raise ValueError("received a value that contains itself, expected a finite one")
        if node not in counts:
            above.add(node)
            inner = node.value if isinstance(node, yaml.CollectionNode) else ()
            inner = itertools.chain(*inner) if isinstance(node, yaml.MappingNode) else inner
            counts[node] = 1 + sum(count(child) for child in inner)
            above.remove(node)
        return counts[node]

    if count(root) > _MOST_VALUES:
        raise ValueError(
            f"received {counts[root]:,} values, with its aliases expanded, expected at most "
            f"{_MOST_VALUES:,}"
        )
