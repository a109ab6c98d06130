"""Scripts that let a shell complete the words of `sat-tf`, made of the parsers of its commands."""

import argparse
import dataclasses
import re
import shlex
from collections.abc import Iterator, Mapping

from sat_tf.commands.parser import Parser

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
