"""The types that check values, and the words on values that do not fit them.

Types are those of pydantic: `Annotated[int, Field(ge=1, le=8)]`. A field's description says what is
expected of it, in words; without one, its type does. Functions, settings, configurations, options
of commands and files are all checked by these types, and `describe` words their problems.
"""

import argparse
import functools
import inspect
import numbers
import types
import typing
from collections.abc import Callable, Collection, Iterable, Mapping
from typing import Annotated, Any, ClassVar, Literal, ParamSpec, TypeVar

from pydantic import BaseModel, ConfigDict, Field, PlainValidator, TypeAdapter, ValidationError
from pydantic import create_model as new_model
from pydantic.fields import FieldInfo

from sat_tf.messages import (
    REMOVED,
    Problem,
    ProblemsError,
    behind,
    name_of,
    no_such,
    shortened,
    with_hint,
)

_Arguments = ParamSpec("_Arguments")
_Result = TypeVar("_Result")
_Class = TypeVar("_Class", bound=type)

SEED_LIMIT = 2**32  # NumPy's generators take seeds of 32 bits.

Bits = Annotated[int, Field(ge=1, le=8, description="an integer from 1 to 8")]
Count = Annotated[int, Field(ge=0, description="an integer of 0 or more")]
Positive = Annotated[int, Field(ge=1, description="a positive integer")]
Share = Annotated[float, Field(gt=0, lt=1, description="a number between 0 and 1")]
PositiveNumber = Annotated[float, Field(gt=0, allow_inf_nan=False, description="a positive number")]
Seed = Annotated[int, Field(ge=0, lt=SEED_LIMIT, description=f"an integer in [0, {SEED_LIMIT})")]

# Values are not converted: 1 is not True, and "4" is not an integer.
STRICT = ConfigDict(strict=True, extra="forbid", arbitrary_types_allowed=True)


def up_to(limit: int, fix: str) -> Any:
    """Returns the annotation of positive integers up to `limit`, with the fix for other values."""
    return Field(ge=1, le=limit, description=f"a positive integer up to {limit:,}; {fix}")


def one_of(names: Collection[Any], expected: str = "", *, none: str = "") -> Any:
    """Returns the annotation of values that are some names, and None where `none` explains it."""
    listed = ", ".join(map(str, names))
    words = (expected or f"one of {listed}") + (f", or None ({none})" if none else "")

    def known(value: Any) -> Any:
        if (none and value is None) or (isinstance(value, str) and value in names):
            return value
        raise ValueError(with_hint(f"expected {words}", value, names, is_listed=not expected))

    known.expected = words  # type: ignore[attr-defined]
    return PlainValidator(known)


def plain(value: Any) -> Any:
    """Returns a value with NumPy's numbers as Python's, which any file format can hold."""
    if type(value) in (list, tuple):
        values = [plain(element) for element in value]
        is_plain = all(a is b for a, b in zip(values, value, strict=True))
        return value if is_plain else type(value)(values)
    if isinstance(value, bool) or not isinstance(value, numbers.Real):
        return value
    return int(value) if isinstance(value, numbers.Integral) else float(value)


# -- words on problems -------------------------------------------------------------------------


def describe(error: ValidationError, model: Any = None) -> list[str]:
    """Returns what is wrong with values: what was received and expected, a line each."""
    lines = (line for problem in error.errors(include_url=False) for line in _lines(problem, model))
    return list(dict.fromkeys(lines))  # a value that fits none of several types has one line


def refuse(*found: str) -> None:
    """Raises the problems that a validator has found, if any, for `describe` to list."""
    if found:
        raise ProblemsError("", found)


def _lines(problem: Any, model: Any) -> list[str]:
    where, field, fields = _place(model, problem["loc"])
    category, value, cause = problem["type"], problem["input"], problem.get("ctx", {}).get("error")
    if category == "json_invalid":
        return [f"{problem['msg']}."]
    received = (
        f"{where}={shortened(repr(value))}" if where else f"received {shortened(repr(value))}"
    )
    if category in ("extra_forbidden", "unexpected_keyword_argument", "invalid_key"):
        noun = getattr(model, "noun", "a field")
        return [no_such(f"{where} is not {noun}", where, fields)]
    if category in ("missing", "missing_argument", "missing_keyword_only_argument"):
        expected = _expected(field)
        return [f"{where} is missing{f': expected {expected}; add it' if expected else ''}."]
    if isinstance(cause, ProblemsError):
        return [behind(f"{where}.", line) if where else line for line in cause.problems]
    removed = f"{where.rpartition('.')[-1]}={value}" if isinstance(value, str) else ""
    if removed in REMOVED:
        return [f"{received} is gone; {REMOVED[removed]}."]
    if cause is not None:
        words = cause.args[0]
        is_sentence = isinstance(words, Problem)
        return [behind(f"{received}: ", words if is_sentence else f"{words}.")]
    expected = _expected(field) or problem["msg"].removeprefix("Input should be ")
    arms = _arms(field.annotation) if category == "literal_error" and field is not None else []
    literals = (arm for arm in arms if typing.get_origin(arm) is Literal)
    words = [word for literal in literals for word in typing.get_args(literal)]
    return [with_hint(f"{received}: expected {expected}", value, words, is_listed=True)]


def _place(
    model: Any, location: Iterable[Any]
) -> tuple[str, FieldInfo | None, Mapping[str, FieldInfo]]:
    """The name of a value, the innermost field around it, and the fields next to it."""
    fields = _fields(model)
    beside, field = fields, None
    names: list[str] = []
    for key in location:
        if field is not None and len(_arms(field.annotation)) > 1:
            break  # pydantic names the types that it has tried
        names.append(str(key))
        if fields:
            beside = fields
        if key in fields:
            field = fields[key]
            fields = _fields(field.annotation)
    return name_of(".".join(names)), field, beside


def _fields(annotation: Any) -> Mapping[str, FieldInfo]:
    """The fields of the model that a type is, or holds."""
    fields = getattr(annotation, "__pydantic_fields__", None)
    if fields is not None:
        return dict(fields)
    return next(filter(None, map(_fields, typing.get_args(annotation))), {})


def _arms(annotation: Any) -> list[Any]:
    """The types that a value may have, without their marks and without None."""
    if typing.get_origin(annotation) is Annotated:
        return _arms(typing.get_args(annotation)[0])
    if typing.get_origin(annotation) in (typing.Union, types.UnionType):
        return [arm for argument in typing.get_args(annotation) for arm in _arms(argument)]
    return [] if annotation is types.NoneType else [annotation]


def _expected(field: FieldInfo | None) -> str | None:
    """Returns words for the values of a field; None where pydantic's own are to be used."""
    if field is None:
        return None
    marks = (getattr(getattr(mark, "func", None), "expected", None) for mark in field.metadata)
    return field.description or next(filter(None, marks), None) or _expected_of(field.annotation)


def _expected_of(annotation: Any) -> str | None:
    """Returns words for a type: those of its marks, its literals, or True and False."""
    origin, arguments = typing.get_origin(annotation), typing.get_args(annotation)
    if origin is Annotated:
        marks = (mark.description for mark in arguments[1:] if isinstance(mark, FieldInfo))
        return next(filter(None, marks), None) or _expected_of(arguments[0])
    if origin is Literal:
        return f"one of {', '.join(map(str, arguments))}"
    if origin in (typing.Union, types.UnionType):
        descriptions = [_expected_of(argument) for argument in arguments]
        return ", or ".join(map(str, descriptions)) if all(descriptions) else None
    return {types.NoneType: "None", bool: "True or False"}.get(annotation)


# -- checks ------------------------------------------------------------------------------------


class _Checked(BaseModel):
    """The base of the models of arguments."""

    model_config = STRICT | ConfigDict(protected_namespaces=())
    noun: ClassVar[str] = "an argument"


def find_problems(**values: tuple[Any, Any]) -> list[str]:
    """Returns what is wrong with values, each with the type that it should have."""
    types_of: dict[str, Any] = {name: (annotation, ...) for name, (_, annotation) in values.items()}
    model = new_model("Values", __base__=_Checked, **types_of)
    return _problems_in({name: plain(value) for name, (value, _) in values.items()}, model)


def _problems_in(values: Mapping[str, Any], model: type[BaseModel]) -> list[str]:
    try:
        model.model_validate(values)
    except ValidationError as error:
        return describe(error, model)
    return []


def check(owner: str, **values: tuple[Any, Any]) -> None:
    """Raises one error that lists what is wrong with values, if anything."""
    if listed := find_problems(**values):
        raise ProblemsError(owner, listed)


def worded(settings: _Class) -> _Class:
    """Makes a dataclass of pydantic raise `ProblemsError`, with NumPy's numbers as Python's."""
    changed: Any = settings
    make = changed.__init__

    @functools.wraps(make)
    def worded_init(self: Any, *unnamed: Any, **fields: Any) -> None:
        try:
            make(self, *unnamed, **{name: plain(value) for name, value in fields.items()})
        except ValidationError as error:
            raise ProblemsError(changed.__name__, describe(error, changed)) from None

    changed.__init__ = worded_init
    return settings


def checked(function: Callable[_Arguments, _Result]) -> Callable[_Arguments, _Result]:
    """Makes a function refuse arguments that are not of the types in its signature."""
    names = list(inspect.signature(function).parameters)

    @functools.wraps(function)
    def call(*unnamed: _Arguments.args, **named: _Arguments.kwargs) -> _Result:
        received: dict[str, Any] = {**dict(zip(names, unnamed, strict=False)), **named}
        model = arguments_of(call)
        try:
            values = model.model_validate({name: plain(value) for name, value in received.items()})
        except ValidationError as error:
            raise ProblemsError(function.__name__, describe(error, model)) from None
        return function(**{name: getattr(values, name) for name in names})  # type: ignore[call-arg]

    return call


@functools.cache
def arguments_of(
    function: Callable[..., Any], without: frozenset[str] = frozenset()
) -> type[BaseModel]:
    """Returns the model of a function's arguments, except those that are set elsewhere."""
    fields: dict[str, Any] = {
        name: (
            parameter.annotation,
            ... if parameter.default is parameter.empty else parameter.default,
        )
        for name, parameter in inspect.signature(function).parameters.items()
        if name not in without
    }
    return new_model(function.__name__, __base__=_Checked, **fields)


def argument_problems(
    function: Callable[..., Any],
    values: Mapping[str, Any],
    elsewhere: Mapping[str, str] = types.MappingProxyType({}),
) -> list[str]:
    """Returns what is wrong with arguments in a configuration, where others are set elsewhere."""
    model = arguments_of(function, frozenset(elsewhere))
    listed = [f"{name} is not set here: {elsewhere[name]}." for name in values if name in elsewhere]
    return listed + _problems_in({n: v for n, v in values.items() if n not in elsewhere}, model)


def call_by_name(
    kind: str, table: Mapping[str, Callable[..., _Result]], name: str, values: Mapping[str, Any]
) -> _Result:
    """Calls an entry of a table, with a "did you mean" for names that it does not know."""
    if name not in table:
        raise ValueError(with_hint(f"{name!r}: expected the name of a {kind}", name, table))
    return table[name](**values)


def option(kind: Any) -> Callable[[str], Any]:
    """Returns the argparse type of a command's option, given the type of its values."""

    def read(text: str) -> Any:
        try:
            return TypeAdapter(kind).validate_strings(text)
        except ValidationError:
            raise argparse.ArgumentTypeError(f"{text!r}: expected {_expected_of(kind)}") from None

    return read
