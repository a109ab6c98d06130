"""Configuration files: YAML in, a checked `Config` out, and back."""

import os
import pathlib
import re
from collections.abc import Hashable, Iterable
from typing import Any

import yaml
from pydantic import ValidationError

from sat_tf.messages import list_problems
from sat_tf.training.config import Config
from sat_tf.training.errors import RunError
from sat_tf.training.problems import describe


def read_config(
    path: str | os.PathLike[str], overrides: Iterable[str] = (), *, seed: int | None = None
) -> Config:
    """Reads and checks the configuration of a run.

    Args:
        path: a YAML file.
        overrides: "key=value" with a dotted key and a YAML value, such as
            "stages.float.epochs=3"; they win over the file, later ones over earlier ones.
        seed: wins over the file's seed, where given.

    Raises:
        RunError: the file cannot be read, or does not describe a run; lists every problem.
    """
    path = pathlib.Path(path)
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise RunError(
            f"{path}: {reason}; expected a readable YAML file; "
            "configs/digits/mobilenet_v2_w4a4.yaml is one to start from."
        ) from error
    return parse_config(text, overrides, seed=seed, subject=str(path))


def parse_config(
    text: str, overrides: Iterable[str] = (), *, seed: int | None = None, subject: str = "config"
) -> Config:
    """Checks a configuration given as text; see `read_config`.

    Args:
        text: a YAML mapping.
        overrides: see `read_config`.
        seed: see `read_config`.
        subject: what to call the text in errors.

    >>> parse_config("name: tiny", ["data.name=digits", "model.name=mobilenet_v3"])
    Traceback (most recent call last):
      ...
    sat_tf.training.errors.RunError: config: 1 problem
      - model.name='mobilenet_v3': expected the name of a model. Did you mean mobilenet_v2?
    """
    try:
        values = load_yaml(text)
    except ValueError as error:
        raise RunError(f"{subject}: not valid YAML; {error}") from error
    if not isinstance(values, dict):
        raise RunError(
            f"{subject}: received {type(values).__name__}, expected a mapping with keys such as "
            "data, model and stages."
        )
    problems = []
    for override in overrides:
        problems += _apply(values, override)
    if seed is not None:
        values["seed"] = seed
    config = None
    try:
        config = Config.model_validate(values)
    except ValidationError as error:
        problems += describe(error, Config)
    if config is None or problems:
        raise RunError(list_problems(subject, problems))
    return config


def config_text(config: Config) -> str:
    """The whole configuration as YAML, defaults included; `parse_config` reads it back."""
    return yaml.dump(config.model_dump(), Dumper=_Dumper, sort_keys=False, allow_unicode=True)


class _Loader(yaml.SafeLoader):
    """YAML with the numbers of its version 1.2, and no key given twice."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Hashable, Any]:
        keys: set[Any] = set()
        for key_node, _ in node.value:
            key = key_node.value
            if not isinstance(key_node, yaml.ScalarNode):
                raise yaml.constructor.ConstructorError(
                    None, None, "a key is no plain word", key_node.start_mark
                )
            if key in keys:
                raise yaml.constructor.ConstructorError(
                    None, None, f"the key {key!r} stands here twice", key_node.start_mark
                )
            keys.add(key)
        return super().construct_mapping(node, deep)


class _Dumper(yaml.SafeDumper):
    """Puts words that `_Loader` would take for numbers between quotes."""


# PyYAML follows YAML 1.1, to which 4e-5 is a word because it has no point.
for _kind in (_Loader, _Dumper):
    _kind.add_implicit_resolver(
        "tag:yaml.org,2002:float",
        re.compile(r"^[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)[eE][-+]?[0-9]+$"),
        list("-+.0123456789"),
    )


def load_yaml(text: str) -> Any:
    """The values of a YAML text, in which no key may stand twice.

    Raises:
        ValueError: one line on what is wrong with it.
    """
    try:
        return yaml.load(text, _Loader)
    except yaml.YAMLError as error:
        raise ValueError(_on_one_line(error)) from error
    except (ValueError, TypeError) as error:  # a date that is none, a number that is a word
        raise ValueError(f"{error}.") from error


def _on_one_line(error: yaml.YAMLError) -> str:
    if isinstance(error, yaml.MarkedYAMLError) and error.problem_mark is not None:
        mark = error.problem_mark
        return f"line {mark.line + 1}, column {mark.column + 1}: {error.problem}."
    return " ".join(str(error).split())


def _apply(values: dict[str, Any], override: str) -> list[str]:
    """Puts one override into the mapping; returns what is wrong with it."""
    key, equals, text = override.partition("=")
    parts = key.strip().split(".")
    if not equals or not all(parts):
        return [f"{override!r}: expected key=value, such as stages.float.epochs=3."]
    try:
        value = load_yaml(text)
    except ValueError as error:
        return [f"{override!r}: the value is not valid YAML; {error}"]
    section = values
    for depth, part in enumerate(parts[:-1], start=1):
        inner = section.setdefault(part, {})
        if not isinstance(inner, dict):
            return [
                f"{override!r}: {'.'.join(parts[:depth])} is {inner!r}, expected a mapping to "
                "set a key in."
            ]
        section = inner
    section[parts[-1]] = value
    return []
