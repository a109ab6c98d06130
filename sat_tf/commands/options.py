"""Options that several commands have."""

import argparse

from sat_tf.arguments import SEED_LIMIT


def seed(text: str) -> int:
    """A seed on the command line; raises `argparse.ArgumentTypeError` for what is none."""
    if text.isdecimal() and int(text) < SEED_LIMIT:
        return int(text)
    raise argparse.ArgumentTypeError(f"{text!r}: expected an integer in [0, {SEED_LIMIT})")


def seeds(text: str) -> tuple[int, ...]:
    """Seeds with commas between them, each once; raises as `seed` does."""
    return tuple(dict.fromkeys(seed(word.strip()) for word in text.split(",")))


def add_trust(parser: argparse.ArgumentParser) -> None:
    """Adds --trust_model, for every command that loads a model."""
    parser.add_argument(
        "--trust_model",
        action="store_true",
        help="load a model that runs code: one with Lambda layers or classes of other modules, or "
        "a SavedModel that is a program; only for models of people you trust",
    )


def add_overrides(parser: argparse.ArgumentParser, about: str) -> None:
    """Adds `--set`, whose words are `overrides` of the parsed arguments."""
    parser.add_argument(
        "--set", metavar="KEY=VALUE", action="append", default=[], dest="overrides", help=about
    )
