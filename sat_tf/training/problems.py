"""Validation errors in the wording of the project: where, what was received, what was expected."""

import typing
from collections.abc import Iterator
from typing import Any

from pydantic import BaseModel, ValidationError
from pydantic.fields import FieldInfo

from sat_tf.messages import did_you_mean


def describe(error: ValidationError, config: type[BaseModel]) -> list[str]:
    """Returns every problem of a configuration that did not validate, one line each.

    Args:
        error: what pydantic raised.
        config: the class that was validated; its fields' descriptions say what is expected.
    """
    return [line for problem in error.errors() for line in _lines(problem, config)]


def _lines(problem: Any, config: type[BaseModel]) -> Iterator[str]:
    location = [str(part) for part in problem["loc"]]
    where = ".".join(location)
    kind = problem["type"]
    if kind == "extra_forbidden":
        section = _section(config, location[:-1])
        yield f"{where} is not a key. {did_you_mean(location[-1], section.model_fields)}"
    elif kind == "missing":
        yield f"{where} is missing: expected {_expected(config, location)}; add it."
    elif kind == "value_error":
        # Raised by a validator of ours: one line a problem, each going on after the key, either
        # with "=value" or with the name of a key inside.
        for line in str(problem["ctx"]["error"]).splitlines():
            yield f"{where}{line}" if line.startswith("=") or not where else f"{where}.{line}"
    else:
        yield f"{where}={problem['input']!r}: expected {_expected(config, location)}."


def _expected(config: type[BaseModel], location: list[str]) -> str:
    field = _field(config, location)
    return (field.description if field else None) or "another value"


def _field(config: type[BaseModel], location: list[str]) -> FieldInfo | None:
    """The innermost field on the way; inside a plain mapping, the field of that mapping."""
    section: type[BaseModel] | None = config
    field = None
    for part in location:
        if section is None or part not in section.model_fields:
            break
        field = section.model_fields[part]
        section = _model_of(field)
    return field


def _section(config: type[BaseModel], location: list[str]) -> type[BaseModel]:
    field = _field(config, location)
    return (_model_of(field) if field else None) or config


def _model_of(field: FieldInfo) -> type[BaseModel] | None:
    """The section that a field is, or may be where it is optional."""
    annotation = field.annotation
    for kind in (annotation, *typing.get_args(annotation)):
        if isinstance(kind, type) and issubclass(kind, BaseModel):
            return kind
    return None
