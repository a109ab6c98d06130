"""The parser of a command, whose errors name the option that was meant."""

import argparse
import functools
import itertools
import re
import sys
import types
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NoReturn

from sat_tf.messages import REMOVED, nearest, shown

RANGE = "--input_range"
_OPTION = re.compile(r"--?[A-Za-z]")
_NEGATIVE = re.compile(r"-[\d.]")
_NO_VALUE = re.compile(r"argument (\S+): ignored explicit argument (.*)$")
_CHOICE = re.compile(
    r"(?P<option>\w+): invalid choice: '(?P<received>.*)' \(choose from (?P<known>.*)\)$"
)

# Options with the meaning of words that sat-tf had before, or that other tools have; of several,
# the first that the command takes is suggested.
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
    # The reasons why the command lacks options that users look for.
    refused: Mapping[str, str] = types.MappingProxyType({})

    def __init__(self, **settings: Any) -> None:
        # An abbreviation of today may be another option tomorrow.
        super().__init__(
            allow_abbrev=False, formatter_class=argparse.RawDescriptionHelpFormatter, **settings
        )
        # A range may begin with a minus, as a number may; argparse has no public name for it.
        self._negative_number_matcher = _NEGATIVE

    @functools.cached_property
    def advanced(self) -> "argparse._ArgumentGroup":
        """The group of the options that few users need."""
        return self.add_argument_group("advanced")

    @property
    def options(self) -> list[str]:
        """The names of its options, except those that every parser has."""
        # argparse has no public list of them.
        names = [name for action in self._actions for name in action.option_strings]
        return [name for name in names if name.startswith("--") and name != "--help"]

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> Any:
        """Parses words, after refusing all unknown options; argparse takes none as a value."""
        words = sys.argv[1:] if args is None else args
        ends = [word.partition("=")[0] for word in itertools.takewhile("--".__ne__, words)]
        options = dict.fromkeys(w for w in ends if _OPTION.match(w) and " " not in w)
        if unknown := [name for name in options if name not in self._option_string_actions]:
            self.error(" ".join(map(self._refusal, unknown)))
        return super().parse_known_args(words, namespace)

    def error(self, message: str) -> NoReturn:
        """Prints the usage and a message, which names the choice that was meant, and exits."""
        if match := _NO_VALUE.match(message):
            message = f"{match[1]}: received {match[2]}, expected no value; write the option alone"
        elif words := message.partition("unrecognized arguments: ")[2]:
            message = f"received {words}, expected no such word; write its option in front of it"
        elif match := _CHOICE.search(message):
            if (removed := f"{match['option']}={match['received']}") in REMOVED:
                message += f"; {REMOVED[removed]}."
            elif meant := nearest(match["received"], re.findall(r"[^\s',]+", match["known"])):
                message += f". Did you mean {meant}?"
        super().error(shown(message))

    def _refusal(self, option: str) -> str:
        """Returns a sentence on an unknown option: what to write in its place, or why it went."""
        if option in self.refused:
            fix = f": {self.refused[option]}."
        else:
            fix = f". Did you mean {meant}?" if (meant := self._meant(option)) else "."
        return f"{option}: no option of {self.prog}{fix}"

    def _meant(self, option: str) -> str | None:
        word = option.lstrip("-").replace("-", "_").lower()
        by_name = {name.lstrip("-"): name for name in self.options}
        for name in by_name:
            if name.startswith(word) or word == "".join(piece[:1] for piece in name.split("_")):
                return by_name[name]
        for suggestion in _SAID_BY.get(word, ()):
            name, _, value = suggestion.lstrip("-").partition(" ")
            ending = value.removeprefix("FILE")
            is_written = ending == value or ending in (self.get_default("endings") or ())
            if not suggestion.startswith("--") or (name in by_name and is_written):
                return suggestion
        if word in self.fields:
            return f"--policy {word}=VALUE"
        meant = nearest(word, by_name)
        return meant and by_name[meant]
