"""Error messages: what was received, what was expected, and the fix; every problem at once."""

import difflib
import sys
import warnings
from collections.abc import Iterable
from typing import Any


class RunError(ValueError):
    """A run cannot start or resume; the message says what was received, expected, and the fix."""


_BETWEEN = ("sat_tf", "dataclasses", "tensorflow_model_optimization", "tf_keras", "keras")


def did_you_mean(received: str, known: Iterable[str]) -> str:
    """Returns a sentence that proposes the known name nearest to `received`.

    >>> did_you_mean("learnig_rate", ["learning_rate", "epochs"])
    'Did you mean learning_rate?'
    >>> did_you_mean("xyz", ["epochs", "batch_size"])
    'Known: batch_size, epochs.'
    """
    names = sorted(known)
    nearest = difflib.get_close_matches(str(received), names, n=1, cutoff=0.6)
    if nearest:
        return f"Did you mean {nearest[0]}?"
    return f"Known: {', '.join(names)}."


def first_ones(names: Iterable[object], most: int = 5, *, between: str = ", ") -> str:
    """Returns the first names of many, and how many more there are.

    >>> first_ones(["a", "b", "c"], 2), first_ones([1, 2])
    ('a, b and 1 more', '1, 2')
    """
    listed = list(map(str, names))
    more = len(listed) - most
    end = between.rstrip(", ")  # a comma alone needs none before the last
    return between.join(listed[:most]) + (f"{end} and {more} more" if more > 0 else "")


def kind_of(thing: object) -> str:
    """Returns the name of a thing's class, with its article.

    >>> kind_of("text"), kind_of(1)
    ('a str', 'an int')
    """
    name = type(thing).__name__
    return f"{'an' if name[0].lower() in 'aeiou' else 'a'} {name}"


def is_standard_error(stream: Any) -> bool:
    """Returns whether a stream is the standard error of the process, and not a notebook's."""
    try:
        return bool(stream.fileno() == 2)
    except (AttributeError, OSError, ValueError):  # none, closed, or no file
        return False


def reason_of(error: BaseException) -> str:
    """Returns the first line of an error, or the name of its class where it says nothing.

    >>> reason_of(OSError("disk full")), reason_of(OSError())
    ('disk full', 'OSError')
    """
    return str(error).splitlines()[0] if str(error) else type(error).__name__


def warn(text: str, category: type[Warning] = UserWarning) -> None:
    """Warns, naming the user's line that called into sat-tf, TFMOT or Keras."""
    level = 2
    while _package(level) in _BETWEEN:
        level += 1
    warnings.warn(text, category, stacklevel=level)


def _package(level: int) -> str:
    """The package of the code `level` frames up; "" beyond the last frame."""
    try:
        return str(sys._getframe(level).f_globals.get("__name__", "")).split(".")[0]
    except ValueError:
        return ""


def list_problems(subject: str, problems: Iterable[str]) -> str:
    """Returns one message that names `subject` and lists every problem on a line of its own.

    >>> print(list_problems("BitPolicy", ["weight_bits=9: give 1 to 8."]))
    BitPolicy: 1 problem
      - weight_bits=9: give 1 to 8.
    """
    lines = list(problems)
    count = f"{len(lines)} problem{'s' if len(lines) != 1 else ''}"
    return "\n".join([f"{subject}: {count}", *(f"  - {line}" for line in lines)])


def listed_problems(error: Exception) -> list[str]:
    """Returns the problems that an error made with `list_problems` lists, or its only line.

    >>> listed_problems(ValueError(list_problems("BitPolicy", ["weight_bits=9: give 1 to 8."])))
    ['weight_bits=9: give 1 to 8.']
    >>> listed_problems(ValueError("too long"))  # of Python, which lists nothing
    ['too long']
    """
    lines = str(error).splitlines()[1:]
    return [line.removeprefix("  - ") for line in lines] or [str(error)]
