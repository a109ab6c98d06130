"""Messages: what was received, what was expected, and the fix; every problem at once."""

import contextlib
import difflib
import itertools
import os
import re
import sys
import warnings
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rich.console import Console

# People read messages: long text from a file or a caller is shown in part.
_MOST_OF_A_NAME, _MOST_OF_A_LINE, _MOST_IN_ALL, _MOST_KNOWN = 200, 800, 20_000, 100
_LONG, _MOST_OF_MANY = 1600, 400
# Characters that move a terminal's cursor, ring its bell, or turn the direction of its text.
_CONTROL = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff]"
)

# The line that Keras writes above the reason of an error, and an error with its class in front.
_AROUND_A_REASON = re.compile("(Exception|Error) encountered")
_OF_A_CLASS = re.compile(r"^\w+(?:Error|Exception): (.+)")
_BOLD = re.compile("\x1b\\[[0-9;]*m")


def printable(text: str) -> str:
    """Returns text with its control characters as Python writes them; lines and tabs stay."""
    return _CONTROL.sub(lambda match: ascii(match[0])[1:-1], text)


def in_one_line(text: str) -> str:
    """Escapes control characters and line breaks, so that the text stays on one line."""
    return printable(text).replace("\n", "\\n")


def name_problem(name: str) -> str | None:
    """Why tables and pages cannot show the name of a model or a layer; None where they can."""
    if in_one_line(name) == name:
        return None
    return (
        f"received the name {name!r}, expected one without line breaks and control characters; "
        "rename it"
    )


def shortened(text: str, most: int = _MOST_OF_A_LINE) -> str:
    """Returns the ends of a text that is longer than `most`, and how long it is."""
    if len(text) <= most:
        return text
    half = most // 2
    return f"{text[:half]} ... {text[-half:]} ({len(text):,} characters)"


def shown(message: object) -> str:
    """Returns a message as it is shown: printable, and of bounded length."""
    lines = [shortened(line) for line in printable(str(message)).split("\n")]
    if sum(map(len, lines)) > _LONG:  # many lines of usual length stay as they are
        lines = [shortened(line, _MOST_OF_MANY) for line in lines]
    ends = itertools.accumulate(len(line) + 1 for line in lines)
    count = sum(end <= _MOST_IN_ALL for end in ends)
    if count < len(lines) - 1:  # the last line is often the fix
        omitted = len(lines) - 1 - count
        lines = [*lines[:count], f"  ... and {omitted:,} more lines", lines[-1]]
    return "\n".join(lines)


def say(console: "Console", text: Any, *, style: str | None = None) -> None:
    """Prints a line as it is: it is not wrapped, and brackets and numbers in it have no style."""
    console.print(text, style=style, highlight=False, markup=False, soft_wrap=True)


class ReadingError(ValueError):
    """A data set cannot be read; the message says what was received, expected, and the fix."""


class RunError(ValueError):
    """A run cannot start or resume; the message says what was received, expected, and the fix."""

    def __init__(self, message: object = "") -> None:
        super().__init__(shown(message))
        self.problems = list(getattr(message, "problems", [str(self)]))  # `ProblemsError` has them
        self.model = getattr(message, "model", None)  # `ModelError` has it


@contextlib.contextmanager
def value_errors_as_run_errors(read_from: str | os.PathLike[str] | None = None) -> Iterator[None]:
    """Raises ValueError as RunError, with the path in front of a message about a model."""
    try:
        yield
    except ValueError as error:
        if read_from is not None and getattr(error, "model", None) is not None:
            raise RunError(f"{read_from}: {error}") from error
        if isinstance(error, RunError):
            raise
        raise RunError(error) from error


def did_you_mean(received: str, valid_names: Iterable[str], *, is_listed: bool = False) -> str:
    """Returns a sentence that proposes the nearest known name, or lists all unless they are."""
    names = sorted(valid_names)
    if meant := nearest(str(received), names):
        return f"Did you mean {meant}?"
    return "" if is_listed else f"Known: {first_ones(names, _MOST_KNOWN)}."


def nearest(received: str, valid_names: Iterable[str]) -> str | None:
    """Returns the known name that is spelled most like `received`; None where none is near."""
    by_letters = {name.lower(): name for name in valid_names}
    matches = difflib.get_close_matches(received.lower(), by_letters, n=1, cutoff=0.6)
    return by_letters[matches[0]] if matches else None


# Names of earlier versions, with what to do in their place.
REMOVED = {
    "allocate.ideal_bytes": "use average_weight_bits, which are 8 · ideal bytes / weights",
    "allocate.bit_operations": "use average_bits, or milliseconds of an npu",
    "allocate.compiled_bytes": "use milliseconds of the npu, or bytes of the .tflite file",
    "allocate.cost": "use sat_tf.allocate(model, cost=table) in Python for costs of your own",
    **dict.fromkeys(
        ("Allocation.curve", "Allocation.write_picture"),
        "use sat_tf.allocate once for each value of the budget",
    ),
    "Plan.write_diagram": "open the .tflite file in Netron or Model Explorer",
    "Plan.elsewhere": "use cpu_fallback",
    "Plan.unknown": "use the rows whose multiply_adds are None",
    **{
        f"{owner}.{former}": f"use {name}"
        for owner in ("Certificate", "ExportReport")
        for former, name in (
            ("islands", "float_layers"),
            ("holds", "portability"),
            ("elsewhere", "cpu_fallback"),
        )
    },
    "Certificate.parting": "use output_mismatches, or trained_notes, which has the sentences",
    **{
        f"Certificate.{name}": "use statements, which has the sentence"
        for name in ("of_float", "measured_on", "beyond_proof", "left_to_the_cpu")
    },
    "Certificate.target_title": "use target, the name of the processor",
    "Certificate.float_verdict": "use largest_float_difference of runtimes['xnnpack']",
    "Sensitivity.mean_weight_bits": "use weight_bits and num_weights of its layers",
    "Sensitivity.mean_activation_bits": "use activation_bits and values_read of its layers",
    "Sensitivity.value": "use top1_drop, distance or divergence of the damage",
    **{
        f"Results.deployed_{measure}": f"use quantized_{measure}, as the quantized model has the "
        "biases of its file"
        for measure in ("top1", "top5", "agreement")
    },
    **{f"sat_tf.{room}": f"import sat_tf.training.{room}" for room in ("data", "models")},
    "sat_tf.reproduction": "import benchmarks.paper.reproduction in a clone of the repository",
    "sat_tf.export.deployed_model": "use sat_tf.export.snap_biases or sat_tf.export.simulate",
    "max_corrupt": "leave it out: a picture that cannot be read is an error that names it",
    "labelled": "leave it out: without labels, --epochs trains on answers of the float model",
    "name=glyphs": "clone the repository, which draws it, and run python -m "
    "benchmarks.drawn_glyphs there in place of sat-tf train",
    "stages.deploy_tail": "leave it out, and give its epochs to stages.quantized",
    "base_learning_rate=auto": "give a number; sat-tf quantize --epochs finds one by a trial",
    **{
        f"training.{name}": "leave it out: every epoch is saved as it ends, and replaces the one "
        "before"
        for name in ("checkpoint_minutes", "checkpoint_steps", "keep_checkpoints")
    },
    **{
        f"target={name}": "use 'int8', or the Ethos-U that the file is for: no compiler confirms "
        "what this one takes"
        for name in ("edgetpu", "android-npu")
    },
}


class Problem(str):
    """A sentence, and all names that are known, which a list of problems shows once."""

    sentence: str
    hint: str

    def __new__(cls, sentence: str, hint: str = "") -> "Problem":
        problem = super().__new__(cls, f"{sentence} {hint}" if hint else sentence)
        problem.sentence, problem.hint = sentence, hint
        return problem


def behind(words: str, problem: str) -> str:
    """Returns a problem with words in front of it."""
    if isinstance(problem, Problem):
        return Problem(f"{words}{problem.sentence}", problem.hint)
    return f"{words}{problem}"


def with_hint(
    words: str, received: object, valid_names: Iterable[object], *, is_listed: bool = False
) -> str:
    """Returns a problem with a name: what may be meant, or all names unless the words list them."""
    names = list(map(str, valid_names)) if isinstance(received, str) else []
    hint = did_you_mean(str(received), names, is_listed=is_listed) if names else ""
    if not hint or nearest(str(received), names):
        return Problem(f"{words}. {hint}" if hint else f"{words}.")
    return Problem(f"{words}.", hint)


def no_such(words: str, name: str, valid_names: Iterable[str] = ()) -> str:
    """Returns a problem with a name, and what to do in its place, or which one may be meant."""
    if name in REMOVED:
        return Problem(f"{words}; {REMOVED[name]}.")
    return with_hint(words, name.rpartition(".")[2], valid_names)


def missing_package(error: ModuleNotFoundError) -> str | None:
    """Returns a sentence that says what to install; None where a module of sat-tf is missing."""
    module = (error.name or "").partition(".")[0]
    if module in ("", "sat_tf"):
        return None
    return (
        f"{module} is not installed in this Python ({sys.executable}), and sat-tf needs it; pip "
        "install sat-tf again, with all that it needs, or the package that has this module."
    )


def name_of(thing: object) -> str:
    """Returns a name that a file or a caller has given, as messages show it."""
    return shortened(in_one_line(str(thing)), _MOST_OF_A_NAME)


def first_ones(names: Iterable[object], limit: int = 5, *, between: str = ", ") -> str:
    """Returns the first names of many, and how many more there are."""
    listed = [name_of(name) for name in names]
    omitted = len(listed) - limit
    end = between.rstrip(", ")  # a comma alone is left out before "and"
    return between.join(listed[:limit]) + (f"{end} and {omitted} more" if omitted > 0 else "")


def kind_of(thing: object) -> str:
    """Returns the name of a thing's class, with its article."""
    name = type(thing).__name__
    return f"{'an' if name[0].lower() in 'aeiou' else 'a'} {name}"


def is_standard_error(stream: Any) -> bool:
    """Returns whether a stream is the standard error of the process, and not a notebook's."""
    try:
        return bool(stream.fileno() == 2)
    except (AttributeError, OSError, ValueError):  # no stream, a closed one, or one without a file
        return False


def reason_of(error: BaseException) -> str:
    """Returns an error's reason in a line, without the text of Keras and TensorFlow around it."""
    lines = [line.strip() for line in _BOLD.sub("", str(error)).splitlines() if line.strip()]
    if not lines:
        return type(error).__name__
    around = [place for place, line in enumerate(lines[:-1]) if _AROUND_A_REASON.search(line)]
    reason = lines[around[-1] + 1] if around else lines[0]
    if reason == "in user code:":
        reason = ([text for line in lines for text in _OF_A_CLASS.findall(line)] or [reason])[-1]
    return shortened(printable(reason.split(" for '{{node ")[0]))


_BETWEEN = {
    *("sat_tf", "dataclasses", "pydantic", "tensorflow_model_optimization", "tf_keras", "keras")
}


def warn(text: str, category: type[Warning] = UserWarning) -> None:
    """Warns, naming the user's line that called into sat-tf, TFMOT or Keras."""
    level, frame = 2, sys._getframe().f_back
    while frame is not None and frame.f_globals.get("__name__", "").split(".")[0] in _BETWEEN:
        level, frame = level + 1, frame.f_back
    warnings.warn(shown(text), category, stacklevel=level)


class ProblemsError(ValueError):
    """The problems of something, all listed at once, and last the fix of them all."""

    def __init__(self, subject: str, problems: Iterable[str], fix: str = "") -> None:
        self.subject, self.problems, self.fix = subject, list(problems), fix
        super().__init__(subject, self.problems, fix)

    def __str__(self) -> str:
        lines, listed = [], set[str]()
        for problem in self.problems:
            line = problem
            if isinstance(problem, Problem) and problem.hint:
                line = problem.sentence if problem.hint in listed else problem
                listed.add(problem.hint)
            lines.append(f"  - {line}")
        count = f"{len(lines)} problem{'s' if len(lines) != 1 else ''}"
        text = shown("\n".join([f"{self.subject}: {count}", *lines]))
        return f"{text}\n{printable(self.fix)}" if self.fix else text


class LayerMessage(str):
    """A problem or a warning of a layer, whose name stands in front of it."""

    layer: str
    text: str

    def __new__(cls, layer: str, text: str, whole: str = "") -> "LayerMessage":
        message = super().__new__(cls, whole or f"{layer}: {text}")
        message.layer, message.text = layer, text
        return message

    def __reduce__(self) -> tuple[Any, ...]:
        return LayerMessage, (self.layer, self.text, str(self))


class ModelError(ProblemsError):
    """The problems of a named model: many lines, or the end of one sentence."""

    def __init__(self, model: str, problems: str | Iterable[str], fix: str = "") -> None:
        self.model, self._is_sentence = model, isinstance(problems, str)
        subject = f"model {model!r}"
        listed = [f"{subject}: {problems}"] if isinstance(problems, str) else list(problems)
        super().__init__(subject, listed, fix)
        self.args = (model, problems if isinstance(problems, str) else listed, fix)

    def __str__(self) -> str:
        return self.problems[0] if self._is_sentence else super().__str__()


def problems_of(error: Exception) -> list[str]:
    """Returns the problems that an error lists, or the whole of one that lists nothing."""
    return list(getattr(error, "problems", [str(error)]))
