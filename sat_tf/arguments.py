"""Arguments of functions: which they take, and checks of which one error lists every problem."""

import contextlib
import difflib
import inspect
import math
import numbers
import weakref
from collections.abc import Callable, Iterable, Mapping
from typing import Any, NamedTuple, TypeVar

from sat_tf.messages import ProblemsError

_Made = TypeVar("_Made")

SEED_LIMIT = 2**32

# Whether functions take an argument `training`: to look takes longer than a small layer.
_takes_training: "weakref.WeakKeyDictionary[Any, bool]" = weakref.WeakKeyDictionary()


class Rule(NamedTuple):
    """The expectation of one argument, and whether it is met."""

    argument: str
    received: Any
    is_valid: bool
    expected: str
    fix: str


def training_argument(function: Callable[..., Any], training: Any) -> dict[str, Any]:
    """The argument `training` for a call of a function; empty for one that takes none.

    >>> training_argument(lambda inputs, training=None: inputs, False)
    {'training': False}
    >>> training_argument(lambda inputs: inputs, False)
    {}
    """
    function = getattr(function, "__func__", function)
    takes = None
    with contextlib.suppress(TypeError):  # what is written in C may take no weak reference
        takes = _takes_training.get(function)
    if takes is None:
        takes = "training" in inspect.signature(function).parameters
        with contextlib.suppress(TypeError):
            _takes_training[function] = takes
    return {"training": training} if takes else {}


def call_by_name(
    kind: str, table: Mapping[str, Callable[..., _Made]], name: str, arguments: Mapping[str, Any]
) -> _Made:
    """Calls an entry of a table, with a "did you mean" for names that it does not know.

    Args:
        kind: what the table holds, for the message.
        table: functions by name.
        name: of one of them.
        arguments: what to call it with, by keyword.

    Raises:
        ValueError: an unknown name or argument, or one that is missing; lists all of them.

    Example:
        >>> call_by_name("number", {"one": lambda: 1}, "on", {})
        Traceback (most recent call last):
        ValueError: unknown number 'on'; did you mean 'one'? Expected one of: one.
    """
    if name not in table:
        raise ValueError(f"unknown {kind} {_with_nearest(name, list(table))}")
    known = list(inspect.signature(table[name]).parameters)
    unknown = [word for word in arguments if word not in known]
    if unknown:
        problems = [f"received the argument {_with_nearest(word, known)}" for word in unknown]
        raise ProblemsError(name, problems)
    missing = [word for word in required_arguments(table[name]) if word not in arguments]
    if missing:
        raise ValueError(f"{name} needs {', '.join(missing)}; received no value; pass one.")
    return table[name](**arguments)


def required_arguments(function: Callable[..., Any]) -> list[str]:
    """Names of the arguments that have no default.

    Example:
        >>> required_arguments(lambda size, *, seed=0: None)
        ['size']
    """
    kinds = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
    return [
        name
        for name, parameter in inspect.signature(function).parameters.items()
        if parameter.kind in kinds and parameter.default is inspect.Parameter.empty
    ]


def _with_nearest(word: str, known: list[str]) -> str:
    nearest = difflib.get_close_matches(str(word), known, n=1)
    question = f"did you mean {nearest[0]!r}? " if nearest else ""
    return f"{word!r}; {question}Expected one of: {', '.join(known)}."


def check(owner: str, rules: Iterable[Rule]) -> None:
    """Raises one error that lists every broken rule, if any.

    Args:
        owner: name of the function or class that was called, for the message.
        rules: one per argument.

    Raises:
        ValueError: some rule is broken.

    Example:
        >>> check("load_cats", [Rule("seed", -1, False, "0 or more", "pass 0")])
        Traceback (most recent call last):
        sat_tf.messages.ProblemsError: load_cats: 1 problem
          - seed: received -1; expected 0 or more; pass 0.
    """
    problems = [
        f"{rule.argument}: received {rule.received!r}; expected {rule.expected}; {rule.fix}."
        for rule in rules
        if not rule.is_valid
    ]
    if problems:
        raise ProblemsError(owner, problems)


class Values(NamedTuple):
    """The values that arguments of one name may have: a row of a table of options.

    Attributes:
        accept: whether a value is one of them.
        expected: which they are, in words, for messages.
        fix: what to pass instead, likewise.
    """

    accept: Callable[[Any], bool]
    expected: str
    fix: str

    def rule(self, name: str, value: Any) -> Rule:
        """The rule that a value is one of them."""
        return Rule(name, value, self.accept(value), self.expected, self.fix)


def positive(most: int, fix: str) -> Values:
    """The integers from 1 to `most`."""
    expected = f"a positive integer up to {most:,}"
    return Values(lambda value: is_integer(value, lowest=1, limit=most + 1), expected, fix)


def switch(fix: str) -> Values:
    """True and False."""
    return Values(lambda value: isinstance(value, bool), "True or False", fix)


def check_options(
    owner: str,
    table: Mapping[str, Values],
    received: Mapping[str, Any],
    rules: Iterable[Rule] = (),
) -> None:
    """Raises one error that lists every option whose value is not among those of a table.

    Args:
        owner: see `check`.
        table: by the names of options.
        received: values by name, each one of the table. A function whose arguments are all there
            passes its `locals()` before it has any others.
        rules: of what else is expected.

    Raises:
        ValueError: some value is not; lists all of them.

    Example:
        >>> check_options("load_cats", {"seed": positive(9, "pass 1")}, {"seed": 0})
        Traceback (most recent call last):
        sat_tf.messages.ProblemsError: load_cats: 1 problem
          - seed: received 0; expected a positive integer up to 9; pass 1.
    """
    check(owner, [*(table[name].rule(name, value) for name, value in received.items()), *rules])


def is_integer(value: Any, *, lowest: float = -math.inf, limit: float = math.inf) -> bool:
    """Whether a value is an integer in [lowest, limit).

    bool is an integer to Python; as a size or a seed it is a mistake, and False here.

    Example:
        >>> [is_integer(value, lowest=1, limit=9) for value in (1, 8, 9, 1.0, True)]
        [True, True, False, False, False]
    """
    return (
        not isinstance(value, bool)
        and isinstance(value, numbers.Integral)
        and lowest <= int(value) < limit
    )


def is_number(value: Any) -> bool:
    """Whether a value is a real number, of Python or of NumPy; bool is none, as for `is_integer`.

    Example:
        >>> [is_number(value) for value in (1, 0.5, True, "0.5")]
        [True, True, False, False]
    """
    if isinstance(value, bool) or not isinstance(value, numbers.Real):
        return False
    try:
        float(value)
    except OverflowError:  # an integer of hundreds of digits
        return False
    return True


def is_between(value: Any, low: float, high: float) -> bool:
    """Whether a value is a number in (low, high), both ends excluded.

    Example:
        >>> [is_between(value, 0, 1) for value in (0, 0.5, 1, True, "0.5")]
        [False, True, False, False, False]
    """
    return is_number(value) and bool(low < value < high)


# NumPy's generators take seeds of 32 bits.
SEED = Values(
    lambda value: is_integer(value, lowest=0, limit=SEED_LIMIT),
    f"an integer in [0, {SEED_LIMIT})",
    "pass 0 for the default set",
)
