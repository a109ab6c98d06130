"""The parser of a command, whose errors name the option that was meant, and its completion."""

import argparse
import dataclasses
import functools
import re
import shlex
import sys
import types
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, NoReturn

from sat_tf.messages import first_ones, nearest, shown

RANGE = "--input_range"
_OPTION = re.compile(r"--?[A-Za-z]")
_NEGATIVE = re.compile(r"-[\d.]")
_NO_VALUE = re.compile(r"argument (\S+): ignored explicit argument (.*)$")
_CHOICE = re.compile(r"invalid choice: '(?P<received>.*)' \(choose from (?P<known>.*)\)$")

# These say the same here as words that options had before, or have in other tools; of several, the
# first one counts that the command takes.
_SAID_BY: Mapping[str, Sequence[str]] = {
    "activation_bits": ("--bits", "--policy activation_bits=N", "--set policy.activation_bits=N"),
    "bits": ("--set policy.weight_bits=N --set policy.activation_bits=N",),
    "calibration_data": ("--images",),
    "csv": ("--out FILE.csv",),
    "data": ("--images",),
    "data_dir": ("--images",),
    "dataset": (
        "--images PIXELS.npy --labels LABELS.npy, written with np.save of what "
        "sat_tf.training.data.source(NAME).held_out_sample(N) gives",
    ),
    "description": ("sat_tf.export_tflite(model, path, description=...) in Python",),
    "diagram": ("--out FILE.json",),
    "epochs": ("--set stages.quantized.epochs=N",),
    "image_size": ("--set data.options.image_size=N",),
    "images": ("--data",),
    "input_range": ("--set policy.input_range=[LOW,HIGH]",),
    "iterations": ("--epochs", "--set stages.quantized.epochs=N"),
    "learning_rate": ("--set stages.quantized.base_learning_rate=X",),
    "lr": ("--set stages.quantized.base_learning_rate=X",),
    "model": ("the model as a word without --model, before a file",),
    "output": ("--out",),
    "output_dir": ("--out",),
    "page": ("--out FILE.html",),
    "picture": ("--out FILE.svg",),
    "preprocessing": (RANGE,),
    "processes": ("sat_tf.export.evaluate_tflite(..., processes=N) in Python",),
    "run_dir": ("--out",),
    "seed": ("--set seed=N",),
    "simulator": ("sat-tf verify, whose table has the simulation's top-1 too",),
    "unsupported": ("--set policy.unsupported=float",),
    "weight_bits": ("--bits", "--policy weight_bits=N", "--set policy.weight_bits=N"),
}


class Parser(argparse.ArgumentParser):
    """The parser of a command, whose help ends with the options that few users need."""

    fields: Iterable[str] = ()  # Names that --policy takes as KEY=VALUE.
    # Why the command does not have an option that one would look for.
    refused: Mapping[str, str] = types.MappingProxyType({})
    # Names the commands that have an option.
    elsewhere: Callable[[str], Sequence[str]] = staticmethod(lambda option: ())

    def __init__(self, **settings: Any) -> None:
        # A word that is cut short today may be another option tomorrow.
        super().__init__(
            allow_abbrev=False, formatter_class=argparse.RawDescriptionHelpFormatter, **settings
        )

    @functools.cached_property
    def advanced(self) -> "argparse._ArgumentGroup":
        """The group of these options."""
        return self.add_argument_group("advanced")

    @property
    def options(self) -> list[str]:
        """The names of its options, but for those that every parser has."""
        # argparse has no public list of them.
        names = [name for action in self._actions for name in action.option_strings]
        return [name for name in names if name.startswith("--") and name != "--help"]

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> Any:
        """Parses words, after those that are no options have been refused."""
        words = with_negative_ranges(sys.argv[1:] if args is None else args)
        # A parser of actions leaves options to those of its actions.
        if self._subparsers is None:
            unknown = dict.fromkeys(_unknown(words, self._option_string_actions))
            if unknown:  # all at once, before what is missing is spoken of
                problems = (
                    f"{name}: no option of {self.prog}{self._fix(name)}" for name in unknown
                )
                self.error(" ".join(problems))
        return super().parse_known_args(words, namespace)

    def error(self, message: str) -> NoReturn:
        """Prints the usage and a message, which names the choice that was meant, and exits."""
        if found := _NO_VALUE.match(message):
            message = f"{found[1]}: received {found[2]}, expected no value; write the option alone"
        elif words := message.partition("unrecognized arguments: ")[2]:
            message = f"received {words}, expected no such word; write its option in front of it"
        elif found := _CHOICE.search(message):
            known = re.findall(r"[^\s',]+", found["known"])
            meant = nearest(found["received"], known)
            message = f"{message}{f'. Did you mean {meant}?' if meant else ''}"
        super().error(shown(message))

    def _fix(self, option: str) -> str:
        """Ends the sentence on an option that is not there by what to write in its place."""
        if option in self.refused:
            return f": {self.refused[option]}."
        if meant := self._meant(option):
            return f". Did you mean {meant}?"
        having = self.elsewhere(option)
        return f", but of {first_ones(having)}." if having else "."

    def _meant(self, option: str) -> str | None:
        word = option.lstrip("-").replace("-", "_").lower()
        known = {name.lstrip("-"): name for name in self.options}
        for name in known:
            if name.startswith(word) or word == "".join(part[:1] for part in name.split("_")):
                return known[name]
        for said in _SAID_BY.get(word, ()):
            name, _, value = said.lstrip("-").partition(" ")
            files = self.get_default("endings") or ()
            if value.startswith("FILE") and value.removeprefix("FILE") not in files:
                continue
            if not said.startswith("--") or name in known:
                return said
        if word in self.fields:
            return f"--policy {word}=VALUE"
        meant = nearest(word, known)
        return meant and known[meant]


def name_values(option: argparse.Action, values: Iterable[str]) -> None:
    """Tells shells the values of an option that has a type of its own in place of choices."""
    option.values = tuple(values)  # type: ignore[attr-defined]


def _unknown(words: Sequence[str], known: Iterable[str]) -> Iterator[str]:
    """The options among words that are not known; argparse takes none of these as a value."""
    for word in words:
        if word == "--":
            return
        name = word.partition("=")[0]
        if _OPTION.match(word) and " " not in name and name not in known:
            yield name


def with_negative_ranges(words: Sequence[str]) -> list[str]:
    """The words of a command line, with a negative range joined to its --input_range.

    >>> with_negative_ranges(["--input_range", "-1,1", "model.keras"])
    ['--input_range=-1,1', 'model.keras']
    """
    joined: list[str] = []
    for word in words:
        if joined and joined[-1] == RANGE and _NEGATIVE.match(word):
            joined[-1] += f"={word}"
        else:
            joined.append(word)
    return joined


# -- scripts that let a shell complete the words of `sat-tf` ------------------------------------

SHELLS = ("bash", "zsh", "fish")
# What options with such metavars take are files; metavars in small letters are values themselves.
_FILES = re.compile(r"FILE|DIR|MODEL|TFLITE|SOURCE")
_VALUES = re.compile(r"[a-z0-9_]+(\|[a-z0-9_]+)+")


@dataclasses.dataclass(frozen=True)
class _Word:
    """An option, or a word without one."""

    names: tuple[str, ...]  # Of the option; () of a word without one.
    about: str  # What it does.
    values: tuple[str, ...]  # That it takes, as far as they are few.
    takes_files: bool  # Whether names of files are among them.
    takes_value: bool  # Whether a value follows.

    @classmethod
    def of(cls, action: argparse.Action) -> "_Word":
        metavar = action.metavar if isinstance(action.metavar, str) else ""
        values = tuple(map(str, action.choices or getattr(action, "values", None) or ()))
        if not values and _VALUES.fullmatch(metavar):
            values = tuple(metavar.split("|"))
        return cls(
            names=tuple(action.option_strings),
            about=(action.help or "").replace("%%", "%"),
            values=values,
            takes_files=bool(_FILES.search(metavar)) and not values,
            takes_value=action.nargs != 0,
        )


def _words(parser: argparse.ArgumentParser) -> Iterator[_Word]:
    """The words of a command, and of its actions where it has some."""
    for action in parser._actions:  # argparse has no public list of them
        yield _Word.of(action)
        if isinstance(action, argparse._SubParsersAction):
            for inner in action.choices.values():
                yield from _words(inner)


def completion(shell: str, top: Parser, commands: Mapping[str, tuple[str, Parser]]) -> str:
    """The script for a shell."""
    words = {name: list(_words(parser)) for name, (_, parser) in commands.items()}
    if shell == "fish":
        return _fish(
            list(_words(top)), {name: about for name, (about, _) in commands.items()}, words
        )
    first = [*commands, *(name for word in _words(top) for name in word.names)]
    script = _BASH.format(
        first=shlex.quote(" ".join(first)),
        shells=" ".join(SHELLS),
        cases="\n".join(map(_case, words, words.values())),
    )
    return _ZSH + script if shell == "zsh" else script


_ZSH = "autoload -U +X compinit && compinit\nautoload -U +X bashcompinit && bashcompinit\n"

_BASH = """\
# Completes the words of sat-tf:  source <(sat-tf --completion bash)
_sat_tf() {{
    local cur=${{COMP_WORDS[COMP_CWORD]}} prev=${{COMP_WORDS[COMP_CWORD-1]}} words= files= options=
    local command=${{COMP_WORDS[1]}}
    # Bash takes --option=value for three words.
    if [[ $cur == "=" ]]; then
        cur=
    elif [[ $prev == "=" && $COMP_CWORD -gt 2 ]]; then
        prev=${{COMP_WORDS[COMP_CWORD-2]}}
    fi
    if [[ $COMP_CWORD -eq 1 ]]; then
        words={first}
    elif [[ $command == --completion ]]; then
        words='{shells}'
    else
        case $command in
{cases}
        esac
    fi
    local IFS=$'\\n'
    COMPREPLY=()
    if [[ $words ]]; then
        COMPREPLY=($(IFS=' '; compgen -W "$words" -- "$cur"))
    fi
    if [[ $files ]]; then
        COMPREPLY+=($(compgen -f -- "$cur"))
        compopt -o filenames 2>/dev/null
    fi
    return 0
}}
complete -F _sat_tf sat-tf
"""


def _case(command: str, words: list[_Word]) -> str:
    """The lines that choose what can follow a word of a command."""
    options = [name for word in words for name in word.names]
    free = [word for word in words if not word.names]
    values = [value for word in free for value in word.values]
    lines = [f"            {command})", "                case $prev in"]
    for word in words:
        if word.names and word.takes_value:
            chosen = f"words={shlex.quote(' '.join(word.values))} files={'1' * word.takes_files}"
            lines.append(f"                    {'|'.join(word.names)}) {chosen};;")
    others = (
        f"words={shlex.quote(' '.join(values))} files={'1' * any(one.takes_files for one in free)}"
    )
    lines += [
        "                    *)",
        "                        if [[ $cur == -* ]]; then",
        f"                            words={shlex.quote(' '.join(options))}",
        "                        else",
        f"                            {others}",
        "                        fi;;",
        "                esac;;",
    ]
    return "\n".join(lines)


def _fish(top: list[_Word], commands: Mapping[str, str], words: Mapping[str, list[_Word]]) -> str:
    """The script for fish, which shows what each word does."""
    lines = ["# Completes the words of sat-tf:  sat-tf --completion fish | source"]
    first = "complete -c sat-tf -n __fish_use_subcommand"
    for name, about in commands.items():
        lines.append(f"{first} -f -a {name} -d {shlex.quote(about)}")
    lines += [f"{first} {_of_fish(word)}" for word in top if word.names]
    for name, own in words.items():
        seen = f"complete -c sat-tf -n '__fish_seen_subcommand_from {name}'"
        lines += [f"{seen} {_of_fish(word)}" for word in own]
    return "\n".join(lines) + "\n"


def _of_fish(word: _Word) -> str:
    """The options of fish's `complete` for one word."""
    parts = [f"-l {name[2:]}" if name.startswith("--") else f"-s {name[1:]}" for name in word.names]
    if word.takes_value:
        if word.names:
            parts.append("-r" if word.takes_files else "-x")
        if word.values:
            parts.append(f"-a {shlex.quote(' '.join(word.values))}")
        elif word.takes_files:
            parts.append("-F")
    if word.names:
        parts.append(f"-d {shlex.quote(word.about.partition(';')[0])}")
    return " ".join(parts)
