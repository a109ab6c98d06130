"""The policies that commands are given: files, fields, or those of a run."""

import argparse
import pathlib
from typing import Any

from sat_tf.messages import RunError, list_problems, listed_problems
from sat_tf.qat.policy import BitPolicy
from sat_tf.qat.policy_fields import OLD_INPUT_RANGE
from sat_tf.training.config.config import load_yaml, read_yaml_text


def add_policy(parser: argparse.ArgumentParser) -> None:
    """Adds --policy, for `read_policy`."""
    parser.add_argument(
        "--policy",
        nargs="+",
        default=[],
        metavar="FILE|KEY=VALUE",
        help="how to quantize: a YAML file, fields of BitPolicy, or a file and then fields",
    )


def read_policy(words: list[str], config: pathlib.Path, flags: dict[str, Any]) -> BitPolicy | None:
    """The policy that --policy describes, or the run's, with flags; None if nothing is given.

    Args:
        words: a file and fields, in any order.
        config: of the run whose folder is explained, if it is one.
        flags: fields that have options of their own, which override the others.

    Raises:
        RunError: the policy is invalid; lists every problem.
    """
    files = [word for word in words if "=" not in word]
    if len(files) > 1:
        raise RunError(
            f"--policy: received the files {' and '.join(files)}, expected one at most; write "
            "fields as KEY=VALUE."
        )
    if not words and not flags and not config.is_file():
        return None
    fields: dict[str, Any] = {}
    if files:
        fields = _fields_in(pathlib.Path(files[0]))
    elif config.is_file():
        fields = _fields_in(config)
    problems = []
    for word in words:
        if word in files:
            continue
        key, _, text = word.partition("=")
        try:
            fields[key.strip()] = load_yaml(text)
        except ValueError as error:
            problems.append(f"{word!r}: the value is not valid YAML; {error}")
    if flags:
        fields = {key: value for key, value in fields.items() if key != OLD_INPUT_RANGE} | flags
    policy = None
    try:
        policy = BitPolicy(**fields)
    except ValueError as error:
        problems += listed_problems(error)
    if problems:
        raise RunError(list_problems("--policy", problems))
    return policy


def _fields_in(path: pathlib.Path) -> dict[str, Any]:
    """The fields of a policy in a file, or in the configuration of a run."""
    try:
        values = load_yaml(read_yaml_text(path))
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise RunError(
            f"--policy {path}: {reason}; expected a YAML file with fields of BitPolicy, or "
            "KEY=VALUE."
        ) from error
    if isinstance(values, dict) and isinstance(values.get("policy"), dict):
        values = values["policy"]
    if not isinstance(values, dict):
        raise RunError(
            f"--policy {path}: received {type(values).__name__}, expected a mapping with fields of "
            "BitPolicy, such as `weight_bits: 4`."
        )
    return {str(key): value for key, value in values.items()}
