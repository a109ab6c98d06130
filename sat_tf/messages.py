"""Messages: what was received, what was expected, and the fix; every problem at once."""

import contextlib
import difflib
import importlib.metadata
import itertools
import os
import re
import sys
import warnings
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rich.console import Console

# A message is read by people: what a file or a caller has put into it is shown in part.
_MOST_OF_A_NAME, _MOST_OF_A_LINE, _MOST_IN_ALL, _MOST_KNOWN = 200, 800, 20_000, 100
_LONG, _MOST_OF_MANY = 1600, 400
# Many problems of one file have one reason.
MOST_OF_A_FILE = 1200
# These move the cursor of a terminal, ring its bell, or turn the direction of its text.
_CONTROL = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff]"
)

# What Keras writes above the reason of an error, and how Python writes the class of an error.
_AROUND_A_REASON = re.compile("(Exception|Error) encountered")
_OF_A_CLASS = re.compile(r"^\w+(?:Error|Exception): (.+)")
_BOLD = re.compile("\x1b\\[[0-9;]*m")


def printable(text: str) -> str:
    r"""Returns text with its control characters as Python writes them; lines and tabs stay.

    >>> printable("layer\x1b[2J")
    'layer\\x1b[2J'
    """
    return _CONTROL.sub(lambda found: ascii(found[0])[1:-1], text)


def in_one_line(text: str) -> str:
    r"""Returns printable text that forges no line: its line breaks are shown, too.

    >>> in_one_line("layer\nerror: none")
    'layer\\nerror: none'
    """
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
    """Returns the ends of a text that is longer than `most`, and how long it is.

    >>> shortened("abcdefghij", 4)
    'ab ... ij (10 characters)'
    """
    if len(text) <= most:
        return text
    half = most // 2
    return f"{text[:half]} ... {text[-half:]} ({len(text):,} characters)"


def shown(message: object) -> str:
    r"""Returns a message as it is shown: printable, and of bounded length.

    >>> shown("\n".join(["layers:", *["x" * 300] * 74, "Fix them."])).splitlines()[-2:]
    ['  ... and 8 more lines', 'Fix them.']
    """
    lines = [shortened(line) for line in printable(str(message)).split("\n")]
    if sum(map(len, lines)) > _LONG:  # many lines of usual length stay as they are
        lines = [shortened(line, _MOST_OF_MANY) for line in lines]
    ends = itertools.accumulate(len(line) + 1 for line in lines)
    kept = sum(end <= _MOST_IN_ALL for end in ends)
    if kept < len(lines) - 1:  # the last line is often the fix
        more = len(lines) - 1 - kept
        lines = [*lines[:kept], f"  ... and {more:,} more lines", lines[-1]]
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
        self.problems = list(getattr(message, "problems", [str(self)]))  # of a `ProblemsError`
        self.model = getattr(message, "model", None)  # of a `ModelError`


@contextlib.contextmanager
def value_errors_as_run_errors(read_from: str | os.PathLike[str] | None = None) -> Iterator[None]:
    """Raises ValueError as RunError, which the command line prints without a traceback.

    What is said of a model has the path in front that it was read from.
    """
    try:
        yield
    except ValueError as error:
        if read_from is not None and getattr(error, "model", None) is not None:
            raise RunError(f"{read_from}: {error}") from error
        if isinstance(error, RunError):
            raise
        raise RunError(error) from error


_BETWEEN = (
    "sat_tf",
    "dataclasses",
    "pydantic",
    "tensorflow_model_optimization",
    "tf_keras",
    "keras",
)


def did_you_mean(received: str, known: Iterable[str]) -> str:
    """Returns a sentence that proposes the known name nearest to `received`.

    >>> did_you_mean("learnig_rate", ["learning_rate", "epochs"])
    'Did you mean learning_rate?'
    >>> did_you_mean("LITERT", ["litert", "micro"])
    'Did you mean litert?'
    >>> did_you_mean("xyz", ["epochs", "batch_size"])
    'Known: batch_size, epochs.'
    """
    names = sorted(known)
    if meant := nearest(str(received), names):
        return f"Did you mean {meant}?"
    return f"Known: {first_ones(names, _MOST_KNOWN)}."


def nearest(received: str, known: Iterable[str]) -> str | None:
    """Returns the known name that is spelled most like `received`; None where none is near.

    >>> nearest("quantise", ["quantize", "train"]), nearest("fly", ["quantize", "train"])
    ('quantize', None)
    """
    by_letters = {name.lower(): name for name in known}
    found = difflib.get_close_matches(received.lower(), by_letters, n=1, cutoff=0.6)
    return by_letters[found[0]] if found else None


# What shows the graph of a file.
IN_A_VIEWER = (
    "open the .tflite file in Netron, or in Model Explorer with the overlay that --out FILE.json, "
    "in Python write_overlay(path), writes"
)
_FOR_EACH_BUDGET = "use sat_tf.allocate once for each value of the budget"
# Names of earlier versions, with what to do in their place.
REMOVED = {
    "allocate.ideal_bytes": "use average_weight_bits, which are 8 · ideal bytes / weights",
    "allocate.bit_operations": "use average_bits, or milliseconds of an npu",
    "allocate.compiled_bytes": "use milliseconds of the npu, or bytes of the .tflite file",
    "allocate.latency": "use npu='ethos-u55-128' or another Ethos-U, whose compiler estimates "
    "milliseconds",
    "allocate.seconds": "use fewer weight_bits and activation_bits, which are proven sooner",
    "allocate.cost": "use sat_tf.allocate(model, cost=table) in Python for costs of your own",
    "allocate.curve": _FOR_EACH_BUDGET,
    "allocate.write_picture": _FOR_EACH_BUDGET,
    "Plan.write_diagram": IN_A_VIEWER,
    "Plan.elsewhere": "use cpu_fallback",
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
    "Certificate.few_images": "use has_few_images, or verdict, which has the sentence",
    **dict.fromkeys(
        (
            f"Certificate.{name}"
            for name in ("of_float", "measured_on", "beyond_proof", "left_to_the_cpu")
        ),
        "use statements, which has the sentence",
    ),
    "Certificate.target_title": "use target, the name of the processor",
    "Certificate.float_verdict": "use largest_float_difference of runtimes['xnnpack']",
    "sat_tf.export.deployed_model": "use sat_tf.export.snap_biases, which gives a model the biases "
    "of its file, so that it computes its codes, or sat_tf.export.simulate, which computes every "
    "code of a file",
    "max_corrupt": "leave it out: a picture that cannot be read is an error that names it, and has "
    "to be mended or deleted",
    "labelled": "leave it out: without labels, sat-tf quantize --epochs trains on the answers of "
    "the float model",
    "stages.deploy_tail": "leave it out, and give its epochs to stages.quantized, which ends with "
    "the biases of its file",
    **dict.fromkeys(
        ("training.checkpoint_minutes", "training.checkpoint_steps", "training.keep_checkpoints"),
        "leave it out: every epoch is saved as it ends, and replaces the one before",
    ),
    **dict.fromkeys(
        ("target=edgetpu", "target=android-npu"),
        "use 'int8', TFLite's int8 specification, or the Ethos-U that the file is for: no compiler "
        "that can be run confirms what this one takes",
    ),
}


def instead_of(name: str, known: Iterable[str] = ()) -> str:
    """Returns the end of a sentence: what to do in place of a name, or which one may be meant.

    >>> instead_of("allocate.byte", ["bytes"]), instead_of("allocate.curve")
    ('. Did you mean bytes?', '; use sat_tf.allocate once for each value of the budget.')
    """
    if name in REMOVED:
        return f"; {REMOVED[name]}."
    names = list(known)
    return f". {did_you_mean(name.rpartition('.')[2], names)}" if names else "."


# Packages whose modules have another name.
_PACKAGES = {
    "PIL": "pillow",
    "absl": "absl-py",
    "ai_edge_litert": "ai-edge-litert",
    "sklearn": "scikit-learn",
    "tensorflow_datasets": "tensorflow-datasets",
    "tensorflow_model_optimization": "tensorflow-model-optimization",
    "yaml": "pyyaml",
}


def missing_package(error: ModuleNotFoundError) -> str | None:
    """Returns a sentence that says what to install; None where a module of sat-tf is missing."""
    module = (error.name or "").partition(".")[0]
    if module in ("", "sat_tf"):
        return None
    package = _PACKAGES.get(module, module)
    try:
        needed = importlib.metadata.requires("sat-tf") or []
    except importlib.metadata.PackageNotFoundError:  # it runs from a folder of sources
        needed = []
    own = [one.replace(" ", "") for one in needed if re.split(r"[^\w-]", one)[0] == package]
    wanted = next((one for one in own if ";" not in one), package)
    return (
        f"{package} is not installed in this Python ({sys.executable}), and sat-tf needs it; pip "
        f"install '{wanted}', or sat-tf again, with all that it needs."
    )


def name_of(thing: object) -> str:
    """Returns a name, as a file or a caller has given it, as messages show it.

    >>> len(name_of("x" * 5000))
    224
    """
    return shortened(in_one_line(str(thing)), _MOST_OF_A_NAME)


def first_ones(names: Iterable[object], most: int = 5, *, between: str = ", ") -> str:
    """Returns the first names of many, and how many more there are.

    >>> first_ones(["a", "b", "c"], 2), first_ones([1, 2])
    ('a, b and 1 more', '1, 2')
    """
    listed = [name_of(name) for name in names]
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
    r"""Returns the first line of an error, or the name of its class where it says nothing.

    What Keras and TensorFlow put around the reason, in bold, and the node behind it are left out.

    >>> reason_of(OSError("disk full")), reason_of(OSError())
    ('disk full', 'OSError')
    >>> reason_of(ValueError("Exception encountered when calling X.call().\n\nbad\n\nArguments: 1"))
    'bad'
    """
    lines = [line.strip() for line in _BOLD.sub("", str(error)).splitlines() if line.strip()]
    if not lines:
        return type(error).__name__
    around = [place for place, line in enumerate(lines[:-1]) if _AROUND_A_REASON.search(line)]
    reason = lines[around[-1] + 1] if around else lines[0]
    if reason == "in user code:":
        reason = ([text for line in lines for text in _OF_A_CLASS.findall(line)] or [reason])[-1]
    return shortened(printable(reason.split(" for '{{node ")[0]))


def warn(text: str, category: type[Warning] = UserWarning) -> None:
    """Warns, naming the user's line that called into sat-tf, TFMOT or Keras."""
    level, frame = 2, sys._getframe().f_back
    while frame is not None and frame.f_globals.get("__name__", "").split(".")[0] in _BETWEEN:
        level, frame = level + 1, frame.f_back
    warnings.warn(shown(text), category, stacklevel=level)


class ProblemsError(ValueError):
    """Something has problems, all of which are said at once, each on a line of its own.

    The last line is the fix of them all. With `most`, the first problems of so many characters are
    listed, and all are counted.

    >>> print(ProblemsError("BitPolicy", ["weight_bits=9: give 1 to 8."]))
    BitPolicy: 1 problem
      - weight_bits=9: give 1 to 8.
    >>> print(ProblemsError("file", ["it is old.", "it is torn."], "Write it again.", most=10))
    file: 2 problems
      - it is old.
      ... and 1 more
    Write it again.
    """

    def __init__(
        self, subject: str, problems: Iterable[str], fix: str = "", *, most: int | None = None
    ) -> None:
        self.subject, self.problems, self.fix = subject, list(problems), fix
        super().__init__(subject, self.problems, fix)
        self._most = most

    def __str__(self) -> str:
        subject, fix = self.subject, self.fix
        lines, seen = [], set[str]()
        for line in self.problems:  # of which only the first lists the same known names
            sentence, _, known = line.partition(" Known: ")
            lines.append(sentence if known in seen else line)
            seen.add(known or line)
        lengths = itertools.accumulate(map(len, lines))
        fitting = sum(self._most is None or length <= self._most for length in lengths)
        listed = max(1, fitting)
        more = [f"  ... and {len(lines) - listed:,} more"] if listed < len(lines) else []
        count = f"{len(lines)} problem{'s' if len(lines) != 1 else ''}"
        kept = (f"  - {line}" for line in lines[:listed])
        text = shown("\n".join([f"{subject}: {count}", *kept, *more]))
        return f"{text}\n{printable(fix)}" if fix else text


class ModelError(ProblemsError):
    """Something is wrong with a model of a name: many problems, or the end of one sentence.

    A command that has read the model names its file as well.

    >>> print(ModelError("net", "received no layers, expected some."))
    model 'net': received no layers, expected some.
    >>> print(ModelError("net", ["a: bad.", "b: bad."]))
    model 'net': 2 problems
      - a: bad.
      - b: bad.
    """

    def __init__(self, model: str, problems: str | Iterable[str], fix: str = "") -> None:
        self.model, self._is_sentence = model, isinstance(problems, str)
        subject = f"model {model!r}"
        listed = [f"{subject}: {problems}"] if isinstance(problems, str) else list(problems)
        super().__init__(subject, listed, fix)
        self.args = (model, problems if isinstance(problems, str) else listed, fix)

    def __str__(self) -> str:
        return self.problems[0] if self._is_sentence else super().__str__()


def problems_of(error: Exception) -> list[str]:
    """Returns what an error lists, or the whole of one that lists nothing.

    >>> problems_of(ProblemsError("BitPolicy", ["weight_bits=9: give 1 to 8."]))
    ['weight_bits=9: give 1 to 8.']
    >>> problems_of(ValueError("too long"))
    ['too long']
    """
    return list(getattr(error, "problems", [str(error)]))
